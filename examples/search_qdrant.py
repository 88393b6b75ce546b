"""Search over sparse embeddings with Qdrant, beside our own index.

    pip install qdrant-client
    python examples/search_qdrant.py runs/digits images/ query.png

`QdrantClient(":memory:")` runs the engine that the client carries; give a server's address instead and the
rest stays as it is. Qdrant scores by dot product, and vectors have unit length here: scores are cosines.
"""

import json
import sys
import tempfile
from pathlib import Path

try:
    from qdrant_client import QdrantClient, models
except ImportError:
    sys.exit("This example needs Qdrant's client: pip install qdrant-client")

import lpjepa
from lpjepa.inference.embedding import embed_images
from lpjepa.inference.index import SparseIndex
from lpjepa.inference.vectors import VECTOR, unit


def main(run: str, images: str, query: str, k: int = 5) -> None:
    model = lpjepa.load(run)
    with tempfile.TemporaryDirectory() as folder:
        points_file, index_folder = Path(folder) / "points.jsonl", Path(folder) / "photos.index"
        embed_images(model, images, points_file, engine="qdrant")
        embed_images(model, images, index_folder)
        points = [models.PointStruct(**json.loads(line)) for line in points_file.open(encoding="utf-8")]
        index = SparseIndex.load(index_folder, mmap=False)

    features = model.embed(query)[0].numpy()
    hits = index.search(features, k)
    print("Our index")
    for document, score in zip(hits.ids[0], hits.scores[0]):
        print(f"  {score:.4f}  {index.name(document)}")

    client = QdrantClient(":memory:")
    client.create_collection(
        "photos", vectors_config={}, sparse_vectors_config={VECTOR: models.SparseVectorParams()}
    )
    client.upload_points("photos", points)
    active = features.nonzero()[0]
    asked = models.SparseVector(indices=active.tolist(), values=unit(features[active]).tolist())
    print("Qdrant")
    for point in client.query_points("photos", query=asked, using=VECTOR, limit=k).points:
        print(f"  {point.score:.4f}  {point.payload['path']}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/search_qdrant.py RUN IMAGES QUERY")
    try:
        main(*sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(str(error))
