"""Images: sources by name, batches in a reproducible order, batched views.

images = load_source("cifar100", root="data")
batches = Batches(images, batch_size=256, device="cuda")
views = Views(ViewConfig(size=32, mean=..., std=...))
for batch in batches.epoch(0):
    x_VNCHW = views(batch.images, seed)
"""

from lpjepa.data.batches import Batches, in_order
from lpjepa.data.errors import DataError, MissingData, MissingSplit
from lpjepa.data.eval_transform import EvalTransform
from lpjepa.data.image_set import Batch, ImageSet
from lpjepa.data.normalisation import STATISTICS, statistics_for
from lpjepa.data.sources import from_paths, load_source, source_names
from lpjepa.data.streamed import StreamedImageSet
from lpjepa.data.view_parameters import ViewConfig, ViewParameters, draw_parameters
from lpjepa.data.views import Views, apply_views

__all__ = [
    "STATISTICS",
    "Batch",
    "Batches",
    "DataError",
    "EvalTransform",
    "ImageSet",
    "MissingData",
    "MissingSplit",
    "StreamedImageSet",
    "ViewConfig",
    "ViewParameters",
    "Views",
    "apply_views",
    "draw_parameters",
    "from_paths",
    "in_order",
    "load_source",
    "source_names",
    "statistics_for",
]
