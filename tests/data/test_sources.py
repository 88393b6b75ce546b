"""Sources by name, on tiny files in their official forms."""

import gzip
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import types

import numpy as np
import pytest
import torch
from PIL import Image

from lpjepa.data import DataError, MissingData, MissingSplit, load_source, source_names
from lpjepa.data.sources import torchvision_sets
from lpjepa.data.sources.idx import read_idx

RNG = np.random.default_rng(0)


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_unknown_names_and_options_suggest():
    with pytest.raises(DataError, match="did you mean cifar10"):
        load_source("cifra10")
    with pytest.raises(DataError, match="did you mean max_memory"):
        load_source("digits", max_memroy=1)
    with pytest.raises(DataError, match="split"):
        load_source("digits", split="training")
    assert "wds:NAME" in source_names()


def test_a_path_in_the_place_of_a_name(tmp_path):
    (tmp_path / "digit").mkdir()
    (tmp_path / "x.npz").write_bytes(b"")
    for path, kind in ((tmp_path / "digit", "folder"), (tmp_path / "x.npz", "npz")):
        with pytest.raises(DataError) as error:
            load_source(str(path))
        assert f"{kind}={path} " in one_sentence(error)
        assert f"--data.source {kind} --data.root {path}" in str(error.value)


def test_digits():
    train, val = load_source("digits"), load_source("digits", split="val")
    assert len(train) + len(val) == 1797
    assert train.images.shape[1:] == (3, 8, 8)
    assert train.images.max() == 255
    assert train.images.min() == 0
    assert (train.images[:, 0] == train.images[:, 2]).all()
    shares = torch.bincount(val.labels) / (torch.bincount(val.labels) + torch.bincount(train.labels))
    assert ((shares - 0.2).abs() < 0.01).all()
    assert torch.equal(val.images, load_source("digits", split="val").images)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "grey", "grey1", "float"])
def test_npz_layouts(tmp_path, layout):
    pixels = RNG.integers(0, 256, (6, 9, 7, 3), np.uint8)
    if layout.startswith("grey"):
        pixels = np.repeat(pixels[..., :1], 3, -1)
    stored = {
        "NHWC": pixels,
        "NCHW": pixels.transpose(0, 3, 1, 2),
        "grey": pixels[..., 0],
        "grey1": pixels[..., :1],
        "float": (pixels / 255).astype(np.float32),
    }[layout]
    np.savez(tmp_path / "a.npz", x_train=stored, y_train=np.arange(6), x_test=stored[:2], y_test=[[4], [5]])
    train, val = (load_source("npz", tmp_path / "a.npz", split) for split in ("train", "val"))
    assert np.array_equal(train.images.permute(0, 2, 3, 1).numpy(), pixels)
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert val.labels.tolist() == [4, 5]


def test_npz_images_and_labels_are_split(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(
        path, images=RNG.integers(0, 256, (20, 4, 4), np.uint8), labels=np.arange(20) % 2, classes=["x", "y"]
    )
    train, val = (load_source("npz", path, split, val_fraction=0.3) for split in ("train", "val"))
    assert (len(train), len(val)) == (14, 6)
    assert val.classes == ["x", "y"]
    np.savez(path, images=np.zeros((4, 5, 5), np.uint8))
    assert load_source("npz", path, val_fraction=0).labels is None
    with pytest.raises(MissingSplit):
        load_source("npz", path, "val", val_fraction=0)


def test_npz_bad_files(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(MissingData, match="no array file"):
        load_source("npz", path)
    path.write_bytes(b"PK nothing")
    with pytest.raises(DataError, match="cannot be read"):
        load_source("npz", path)
    two = {"x_train": np.zeros((2, 4, 4), np.uint8)}
    np.savez_compressed(path, x_train=np.random.default_rng(0).integers(0, 255, (9, 8, 8, 3), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:-80])
    with pytest.raises(DataError, match="cannot be read"):
        load_source("npz", path)
    for arrays, message in (
        ({"other": np.zeros(3)}, "must hold x_train"),
        ({"x_train": np.zeros((2, 4, 4), np.int32)}, "uint8 or floats"),
        ({"x_train": np.full((2, 4, 4), 200.0)}, r"\[0, 1\]"),
        ({"x_train": np.zeros((2, 5, 6, 7), np.uint8)}, "channels"),
        ({"x_train": np.zeros((0, 4, 4), np.uint8)}, "array x_train is empty; fill it"),
        ({"images": np.array([{}], object)}, "cannot be read"),  # pickled objects are not loaded
        ({"x_train": np.zeros((2, 4, 4), np.uint8), "y_train": np.zeros(3)}, "2 images but labels"),
        ({**two, "y_train": ["cat", "dog"]}, "y_train must hold whole numbers, not <U3 such as cat"),
        ({**two, "y_train": [0.5, 1.0]}, "y_train must hold whole numbers, not float64 such as 0.5"),
        ({**two, "y_train": [-1, 3]}, "y_train has labels from -1 to 3; number the classes from 0"),
        ({**two, "y_train": [0, 10**9]}, "labels from 0 to 1000000000"),
        ({"images": two["x_train"], "labels": [0, -1]}, "labels has labels from -1 to 0"),
        ({"images": np.zeros((0, 4, 4), np.uint8)}, "array images is empty"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(DataError, match=message):
            load_source("npz", path)
    np.savez(path, x_train=np.zeros((2, 40, 40), np.uint8))
    with pytest.raises(DataError, match="max_memory"):
        load_source("npz", path, max_memory="1kB")


@pytest.fixture
def cifar(tmp_path):
    """Official-looking files of both sets."""
    pixels = RNG.integers(0, 256, (60, 3072), np.uint8)
    ten, hundred = tmp_path / "cifar-10-batches-py", tmp_path / "cifar-100-python"
    ten.mkdir()
    hundred.mkdir()

    def dump(path, content):
        path.write_bytes(pickle.dumps({key.encode(): value for key, value in content.items()}, protocol=2))

    for i in range(5):
        dump(ten / f"data_batch_{i + 1}", {"data": pixels[10 * i : 10 * i + 10], "labels": list(range(10))})
    dump(ten / "test_batch", {"data": pixels[50:], "labels": list(range(10))})
    dump(ten / "batches.meta", {"label_names": [f"c{i}".encode() for i in range(10)]})
    for name, part in (("train", pixels[:50]), ("test", pixels[50:])):
        fine, coarse = list(range(len(part))), [i // 5 for i in range(len(part))]
        dump(hundred / name, {"data": part, "fine_labels": fine, "coarse_labels": coarse})
    names = {
        f"{kind}_label_names": [f"{kind}{i}".encode() for i in range(n)]
        for kind, n in (("fine", 100), ("coarse", 20))
    }
    dump(hundred / "meta", names)
    return tmp_path, pixels


def test_cifar(cifar):
    root, pixels = cifar
    train, val = load_source("cifar10", root), load_source("cifar10", root / "cifar-10-batches-py", "val")
    assert np.array_equal(train.images.numpy().reshape(50, -1), pixels[:50])
    assert np.array_equal(val.images.numpy().reshape(10, -1), pixels[50:])
    assert train.classes[3] == "c3"
    fine, coarse = load_source("cifar100", root), load_source("cifar100", root, "val", coarse=True)
    assert fine.labels.tolist() == list(range(50))
    assert coarse.labels.tolist() == [i // 5 for i in range(10)]
    assert coarse.num_classes == 20
    with pytest.raises(DataError, match="cifar100 only"):
        load_source("cifar10", root, coarse=True)


def test_cifar_from_its_archive(cifar, tmp_path):
    root, pixels = cifar
    elsewhere = tmp_path / "archive"
    elsewhere.mkdir()
    with tarfile.open(elsewhere / "cifar-100-python.tar.gz", "w:gz") as tar:
        tar.add(root / "cifar-100-python", "cifar-100-python")
    assert np.array_equal(load_source("cifar100", elsewhere).images.numpy().reshape(50, -1), pixels[:50])


class _Harmful:
    def __reduce__(self):
        return os.mkdir, (os.environ["HARM"],)


def test_cifar_files_execute_nothing(cifar, tmp_path, monkeypatch):
    root, _ = cifar
    harm = tmp_path / "harm"
    monkeypatch.setenv("HARM", str(harm))
    (root / "cifar-100-python" / "train").write_bytes(pickle.dumps({"data": _Harmful()}))
    with pytest.raises(DataError, match="not an official CIFAR file"):
        load_source("cifar100", root)
    assert not harm.exists()
    (root / "cifar-100-python" / "train").write_bytes(b"\x80\x02}")
    with pytest.raises(DataError, match="not an official CIFAR file"):
        load_source("cifar100", root)


def test_missing_cifar_is_one_sentence(tmp_path, monkeypatch):
    def offline(root, download):
        os.makedirs(root, exist_ok=True)  # as torchvision does before it asks the network
        raise OSError("no network")

    fake = types.SimpleNamespace(CIFAR10=offline)
    for module in (None, fake):  # torchvision not installed; installed but offline
        monkeypatch.setattr(torchvision_sets, "torchvision_datasets", lambda module=module: module)
        with pytest.raises(MissingData) as error:
            load_source("cifar10", tmp_path)
        text = one_sentence(error)
        assert "cifar.html" in text
        assert str(tmp_path) in text
        with pytest.raises(MissingData):
            load_source("cifar10", tmp_path / "new" / "data")
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "own").mkdir()
    with pytest.raises(MissingData):
        load_source("cifar10", tmp_path / "own")
    assert (tmp_path / "own").is_dir()


def idx(array):
    return (
        struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(tmp_path, packed):
    pixels = RNG.integers(0, 256, (5, 28, 28), np.uint8)
    for prefix, part in (("train", pixels), ("t10k", pixels[:2])):
        for kind, array in (("images-idx3", part), ("labels-idx1", np.arange(len(part), dtype=np.uint8))):
            data = idx(array)
            name = f"{prefix}-{kind}-ubyte" + (".gz" if packed else "")
            (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    train, val = load_source("fashion-mnist", tmp_path), load_source("fashion-mnist", tmp_path, "val")
    assert np.array_equal(train.images[:, 1].numpy(), pixels)
    assert val.labels.tolist() == [0, 1]
    assert train.num_classes == 10
    (tmp_path / "cut").write_bytes(idx(pixels)[:-3])
    with pytest.raises(DataError, match="not a complete idx file"):
        read_idx(tmp_path / "cut")


def test_missing_fashion_mnist(tmp_path):
    with pytest.raises(MissingData) as error:
        load_source("fashion-mnist", tmp_path)
    assert "zalandoresearch" in one_sentence(error)


def test_imagenet_and_its_subset(tmp_path, write_image):
    for split, label in ((s, c) for s in ("train", "val") for c in ("n01", "n02", "n03")):
        write_image(tmp_path / split / label / "a.png")
    assert load_source("imagenet", tmp_path).classes == ["n01", "n02", "n03"]
    listed = tmp_path / "classes.txt"
    listed.write_text("n03 cat\n\n# a comment\nn01\n")
    for classes in (listed, str(listed), ["n03", "n01"]):
        images = load_source("imagenet100", tmp_path, "val", classes=classes)
        assert images.classes == ["n03", "n01"]
        assert images.labels.tolist() == [0, 1]
    with pytest.raises(DataError, match="name the 100 of ImageNet-100"):
        load_source("imagenet100", tmp_path)
    with pytest.raises(DataError, match="lacks 1 of the 1 classes, such as n09"):
        load_source("imagenet", tmp_path, classes=["n09"])
    with pytest.raises(MissingData) as error:
        load_source("imagenet", tmp_path / "train")
    assert "image-net.org" in one_sentence(error)


class _Listed:
    """In the manner of DTD, Flowers102, OxfordIIITPet: a word for the split, private labels, lazy images."""

    words = ("trainval", "test")

    def __init__(self, root, split="trainval", download=False):
        if split not in self.words:
            raise ValueError(f"Unknown value '{split}' for argument split.")
        if download:
            raise AssertionError("downloads although everything is there")
        self._labels = [0, 1, 1, 0] if split == "trainval" else [1, 0]
        self.classes = ["cat", "dog"]

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, i):
        return Image.new("RGB", (10 + i, 12), (50 * self._labels[i], i, 0)), self._labels[i]


class _Arrays:
    """In the manner of CIFAR10 and MNIST: train=True, arrays in memory."""

    def __init__(self, root, train=True, download=False):
        self.data = torch.arange(4 if train else 2, dtype=torch.uint8)[:, None, None].expand(-1, 5, 5)
        self.targets = list(range(len(self.data)))

    def __len__(self):
        return len(self.data)


class _Unsplit(_Listed):
    """In the manner of Caltech101 and SUN397: no splits."""

    def __init__(self, root, download=False):
        self._labels, self.classes = [0, 1] * 10, ["a", "b"]


class _Offline:
    def __init__(self, root, split="train", download=False):
        os.makedirs(os.path.join(root, "gone", "raw"), exist_ok=True)
        raise RuntimeError("Dataset not found. You can use download=True to download it")


@pytest.fixture
def fake_torchvision(monkeypatch):
    fake = types.SimpleNamespace(Pets=_Listed, MNIST=_Arrays, Caltech=_Unsplit, Gone=_Offline)
    monkeypatch.setattr(torchvision_sets, "torchvision_datasets", lambda: fake)


def test_torchvision_sets(fake_torchvision, tmp_path):
    train, val = (load_source("torchvision:Pets", tmp_path, s) for s in ("train", "val"))
    assert train.labels.tolist() == [0, 1, 1, 0]
    assert val.labels.tolist() == [1, 0]
    assert train.classes == ["cat", "dog"]
    assert train.images.shape == (4, 3, 12, 12)
    assert train.images[:, 0, 5, 5].tolist() == [0, 50, 50, 0]
    assert load_source("torchvision:Pets", tmp_path, part="test").labels.tolist() == [1, 0]
    arrays = load_source("torchvision:MNIST", tmp_path, "val")
    assert arrays.images[:, 2, 3, 3].tolist() == [0, 1]
    train, val = (load_source("torchvision:Caltech", tmp_path, s, val_fraction=0.2) for s in ("train", "val"))
    assert (len(train), len(val)) == (16, 4)
    assert torch.bincount(val.labels).tolist() == [2, 2]
    assert len(load_source("torchvision:Caltech", tmp_path, val_fraction=0)) == 20
    with pytest.raises(MissingSplit, match="val_fraction"):
        load_source("torchvision:Caltech", tmp_path, "val", val_fraction=0)


class _Boxes(_Listed):
    """In the manner of detection sets: a target is not a class."""

    def __init__(self, root, split="train", download=False):
        self._length = 3

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return Image.new("L", (12, 12), index), [{"bbox": [0, 0, 1, 1]}]


class _Generated:
    def __init__(self, size=10):
        raise AssertionError("must not be made")


def test_torchvision_sets_without_classes_or_folder(monkeypatch, tmp_path):
    fake = types.SimpleNamespace(Boxes=_Boxes, Generated=_Generated)
    monkeypatch.setattr(torchvision_sets, "torchvision_datasets", lambda: fake)
    boxes = load_source("torchvision:Boxes", tmp_path)
    assert boxes.labels is None
    assert boxes.images[:, 0, 0, 0].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="not a set of images in a folder"):
        load_source("torchvision:Generated", tmp_path)


def test_torchvision_errors(fake_torchvision, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="has no split for 'odd'"):
        load_source("torchvision:Pets", tmp_path, part="odd")
    with pytest.raises(DataError, match="no set Nothing"):
        load_source("torchvision:Nothing", tmp_path)
    with pytest.raises(MissingData, match="could not be downloaded"):
        load_source("torchvision:Gone", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(torchvision_sets, "torchvision_datasets", lambda: None)
    with pytest.raises(DataError, match="pip install torchvision"):
        load_source("torchvision:Pets", tmp_path)


def test_real_torchvision_names_exist():
    datasets = torchvision_sets.torchvision_datasets()
    for name in ("STL10", "DTD", "Flowers102", "Food101", "OxfordIIITPet"):
        with pytest.raises(MissingData, match=name):
            load_source(f"torchvision:{name}", "nowhere", download=False)
    assert datasets is not None


class ClassLabel:
    names = ("cat", "dog")


class Rows(list):
    features = types.MappingProxyType({"img": type("Image", (), {})(), "label": ClassLabel()})

    def __getitem__(self, key):
        return [row["label"] for row in self] if isinstance(key, str) else list.__getitem__(self, key)


def test_hugging_face(monkeypatch):
    rows = Rows({"img": Image.new("L", (8, 8), 10 * i), "label": i % 2} for i in range(10))
    parts = {"train": rows}

    def load_dataset(name, config, cache_dir):
        if name != "owner/set":
            raise ConnectionError("no network\nsecond line")
        return parts

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    train, val = (load_source("hf:owner/set", split=s, val_fraction=0.2) for s in ("train", "val"))
    assert (len(train), len(val)) == (8, 2)
    assert train.classes == ["cat", "dog"]
    assert torch.equal(train.images[:, 1, 0, 0].long() // 10 % 2, train.labels)
    assert len(load_source("hf:owner/set", val_fraction=0)) == 10
    with pytest.raises(MissingSplit, match="val_fraction"):
        load_source("hf:owner/set", split="val", val_fraction=0)
    with pytest.raises(DataError, match="has the columns img, label, but no kind"):
        load_source("hf:owner/set", label_column="kind")
    parts["test"] = Rows(rows[i] for i in (3, 5))
    assert len(load_source("hf:owner/set")) == 10
    assert load_source("hf:owner/set", split="val").images[:, 0, 0, 0].tolist() == [30, 50]
    with pytest.raises(MissingData) as error:
        load_source("hf:other/set")
    assert "huggingface.co/datasets/other/set" in one_sentence(error)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        load_source("hf:owner/set")


def test_hugging_face_labels_in_words(monkeypatch):
    words = ["wolf", "ant", "wolf", "bee"]
    rows = Rows({"img": Image.new("L", (8, 8)), "label": word} for word in words)
    rows.features = {"img": type("Image", (), {})(), "label": object()}
    load_dataset = lambda name, config, cache_dir: {"train": rows, "test": rows}
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    images = load_source("hf:owner/set")
    assert [images.classes[label] for label in images.labels] == words
    rows[0]["label"] = None
    assert load_source("hf:owner/set").labels is None


def test_importing_data_stays_light():
    heavy = {"sklearn", "torchvision", "timm", "datasets"}
    code = f"import sys, lpjepa.data; print({heavy} & set(sys.modules) or 'none')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "none\n"
