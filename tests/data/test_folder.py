"""Folders of images: labels, splits, order, broken files, odd files."""

import logging
import os
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from lpjepa.data import DataError, MissingData, MissingSplit, from_paths, load_source


def test_labelled_by_subfolder_and_split(image_folder):
    root, pixels = image_folder
    train, val = (load_source("folder", root, split, val_fraction=0.2) for split in ("train", "val"))
    assert train.classes == val.classes == ["ant", "bee", "cow"]
    assert len(train) == 24
    assert torch.bincount(val.labels).tolist() == [2, 2, 2]
    assert set(train.paths).isdisjoint(val.paths)
    assert train.images.shape == (24, 3, 12, 12)
    for i, path in enumerate(train.paths):
        label, name = path.split(os.sep)[-2:]
        assert train.classes[train.labels[i]] == label
        assert np.array_equal(train.images[i].permute(1, 2, 0).numpy(), pixels[label, int(name[:2])])


def test_no_validation(image_folder):
    root, _ = image_folder
    assert len(load_source("folder", root, val_fraction=0)) == 30
    with pytest.raises(MissingSplit, match="no val images"):
        load_source("folder", root, "val", val_fraction=0)


@pytest.mark.parametrize("held_out", ["val", "test", "valid"])
def test_split_folders(tmp_path, write_image, held_out):
    for i, label in enumerate("abab"):
        write_image(tmp_path / "train" / label / f"{i}.png", i)
    write_image(tmp_path / held_out / "b" / "0.png", 9)
    train, val = load_source("folder", tmp_path), load_source("folder", tmp_path, "val")
    assert len(train) == 4
    assert val.labels.tolist() == [1]  # numbered by the training classes


def test_test_and_val_are_both_found(tmp_path, write_image):
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        for i in range(count):
            write_image(tmp_path / split / "a" / f"{i}.png", i)
            write_image(tmp_path / split / "b" / f"{i}.png", i)
    assert [len(load_source("folder", tmp_path, s)) for s in ("train", "val", "test")] == [6, 4, 2]


def test_flat_folder_is_unlabelled(tmp_path, write_image):
    for i in (3, 1, 2):
        write_image(tmp_path / f"{i}.PNG", i)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "._1.png").write_bytes(b"left by macOS")
    images = load_source("folder", tmp_path, val_fraction=0)
    assert images.labels is None
    assert images.num_classes == 0
    assert [os.path.basename(path) for path in images.paths] == ["1.PNG", "2.PNG", "3.PNG"]


def test_single_subfolder_and_mixed_are_unlabelled(tmp_path, write_image):
    write_image(tmp_path / "2024" / "a.png")
    write_image(tmp_path / "2024" / "deep" / "b.png")
    assert load_source("folder", tmp_path, val_fraction=0).labels is None
    assert load_source("folder", tmp_path, val_fraction=0, labelled=True).classes == ["2024"]
    write_image(tmp_path / "x" / "c.png")
    assert load_source("folder", tmp_path, val_fraction=0).num_classes == 2
    write_image(tmp_path / "loose.png", 1)
    with pytest.warns(UserWarning, match=r"2 folders of images, but loose\.png beside .*labelled true"):
        assert load_source("folder", tmp_path, val_fraction=0).labels is None
    assert load_source("folder", tmp_path, val_fraction=0, labelled=False).labels is None
    taken = load_source("folder", tmp_path, val_fraction=0, labelled=True)
    assert taken.labels.tolist() == [0, 0, 1]
    assert not any("loose" in path for path in taken.paths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once, though each split asks
        load_source("folder", tmp_path, "val", val_fraction=0.5)
    write_image(tmp_path / "other.png")
    with pytest.warns(UserWarning, match=r"loose\.png and 1 more beside"):
        load_source("folder", tmp_path, val_fraction=0)


def test_symbolic_link_cycle_ends(tmp_path, write_image):
    write_image(tmp_path / "a" / "0.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    assert len(load_source("folder", tmp_path, val_fraction=0)) == 1


def test_empty_and_missing(tmp_path):
    with pytest.raises(MissingData, match="nowhere") as caught:
        load_source("folder", tmp_path / "nowhere")
    assert str(caught.value).count(". ") == 0  # one sentence
    with pytest.raises(DataError, match="no images"):
        load_source("folder", tmp_path)


def test_broken_images_are_reported_skipped_counted(image_folder, caplog):
    root, _ = image_folder
    (root / "bee" / "05.png").write_bytes((root / "bee" / "05.png").read_bytes()[:200])
    (root / "cow" / "00.png").write_bytes(b"nothing like an image")
    with caplog.at_level(logging.WARNING, "lpjepa.data"):
        images = load_source("folder", root, val_fraction=0)
    assert len(images) == 28
    assert len(images.labels) == len(images.paths) == 28
    assert sorted(os.path.relpath(path, root) for path in images.broken.paths) == ["bee/05.png", "cow/00.png"]
    assert "bee/05.png" in caplog.text
    assert not any(path in images.paths for path in images.broken.paths)


@pytest.mark.parametrize("resident", [True, False])
def test_too_many_broken_images_stop(image_folder, resident):
    root, _ = image_folder
    for label in ("ant", "bee"):
        for i in range(1, 8):
            (root / label / f"{i:02d}.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"11 of 30 images cannot be read.*max_broken"):
        load_source("folder", root, val_fraction=0, resident=resident).read(torch.arange(30))
    assert len(load_source("folder", root, val_fraction=0, max_broken=0.5)) == 16


def test_all_broken(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 1 images"):
        load_source("folder", tmp_path, val_fraction=0)


def test_modes_and_sizes_become_rgb_of_one_size(tmp_path):
    base = Image.fromarray(np.full((20, 30), 100, np.uint8))
    base.save(tmp_path / "grey.png")
    base.convert("RGB").resize((50, 24)).save(tmp_path / "rgb.jpg", quality=95)
    base.convert("P").save(tmp_path / "palette.gif")
    base.convert("CMYK").save(tmp_path / "cmyk.tiff")
    Image.fromarray(np.full((20, 20), 100 << 8, np.uint16)).save(tmp_path / "sixteen.png")
    Image.new("RGBA", (40, 40), (0, 0, 0, 0)).save(tmp_path / "transparent.png")
    images = load_source("folder", tmp_path, val_fraction=0, store_size=16)
    assert images.images.shape == (6, 3, 16, 16)
    named = {os.path.basename(path): image for path, image in zip(images.paths, images.images)}
    assert (named.pop("transparent.png") == 255).all()  # laid on white
    for name, image in named.items():
        assert (image.int() - 100).abs().max() <= 3, name


def test_orientation_is_respected(tmp_path):
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8] = 255  # white above
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif, quality=95)
    image = load_source("folder", tmp_path, val_fraction=0).images[0]
    assert image[:, :6].float().mean() < 20
    assert image[:, 10:].float().mean() > 235


@pytest.mark.parametrize("keep", ["centre", "whole"])
def test_frames(tmp_path, keep):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 20:60] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    Image.fromarray(pixels[:, 20:60]).save(tmp_path / "zquare.png")
    images = load_source("folder", tmp_path, val_fraction=0, store_size=20, keep=keep)
    assert images.images.shape == (2, 3, 20, 20)
    left = images.images[0, :, :, :3].float().mean()
    assert left > 150 if keep == "centre" else left < 20
    if keep == "whole":
        assert images.sizes.tolist() == [[40, 80], [40, 40]]
    else:
        assert images.sizes is None


def test_large_jpegs_keep_their_true_size(tmp_path):
    Image.new("RGB", (640, 320), (10, 20, 30)).save(tmp_path / "a.jpg")
    images = load_source("folder", tmp_path, val_fraction=0, store_size=32, keep="whole")
    assert images.sizes.tolist() == [[320, 640]]


def test_memory_cap_is_known_before_decoding(image_folder):
    root, _ = image_folder
    with pytest.raises(DataError, match=r"needs 13.0 kB.*allows 1.0 kB"):
        load_source("folder", root, val_fraction=0, max_memory=1000, resident=True)
    assert load_source("folder", root, val_fraction=0, max_memory="1kB").images is None
    assert load_source("folder", root, val_fraction=0, max_memory="1MB").images is not None
    with pytest.raises(DataError, match="max_memory"):
        load_source("folder", root, max_memory="much")


def test_paths_in_their_order(image_folder):
    root, pixels = image_folder
    images = from_paths([root / "cow" / "03.png", root / "ant" / "01.png"], resident=False)
    assert images.labels is None
    seen = images.decode(torch.arange(2)).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(seen[0], pixels["cow", 3])
    assert np.array_equal(seen[1], pixels["ant", 1])


def test_only_training_images_are_kept_whole(tmp_path, write_image):
    """Held-out images are looked at through a centre crop, so they are stored as one."""
    for i in range(4):
        write_image(tmp_path / "train" / f"{i}.png", i, (20, 40 + i))
        wide = write_image(tmp_path / "val" / f"{i}.png", 9, (16, 48))
        write_image(tmp_path / "val" / "other.png", 1, (16, 16))
    train, val = (load_source("folder", tmp_path, s, keep="whole", store_size=16) for s in ("train", "val"))
    assert train.sizes.tolist() == [[20, 40 + i] for i in range(4)]
    assert val.sizes is None
    assert torch.equal(val.images[0].permute(1, 2, 0), torch.from_numpy(wide[:, 16:32]))


def test_a_wrong_root_says_what_to_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        MissingData, match=r"is a file, not a folder; name the folder .*--data\.root PATH, or fol"
    ):
        load_source("folder", tmp_path / "file")


def test_images_beyond_the_limit_are_said_to_be_large(image_folder, monkeypatch, caplog):
    root, _ = image_folder
    Image.new("RGB", (1500, 1400)).save(root / "ant" / "huge.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
    images = load_source("folder", root, val_fraction=0)
    assert len(images) == 30
    assert [r.getMessage() for r in caplog.records] == [
        f"skipped broken image {root / 'ant' / 'huge.png'} (larger than 2 megapixels)"
    ]


def test_memory_of_a_container_and_of_several_processes(tmp_path, monkeypatch):
    from lpjepa.data import memory
    from lpjepa.data.image_set import Storage

    for name, text in (
        ("memory.max", "1000\n"),
        ("memory.current", "700\n"),
        ("memory.stat", "anon 5\ninactive_file 50\n"),
    ):
        (tmp_path / name).write_text(text)
    found = memory._free_in_containers(str(tmp_path))
    assert found == [350]  # what is free, and what the kernel would give back
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._free_in_containers(str(tmp_path)) == []
    monkeypatch.setattr(memory, "_free_in_containers", lambda: found)
    assert memory.available_bytes() == 350
    monkeypatch.setattr(memory, "_free_in_containers", list)
    assert memory.available_bytes() > 10**6
    monkeypatch.setattr("lpjepa.data.image_set.available_bytes", lambda: 8000)
    assert Storage().cap == 4000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Storage().cap == 1000
    assert Storage(max_memory="2kB").cap == 2000
