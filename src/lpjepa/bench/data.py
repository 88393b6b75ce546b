"""`lpjepa bench data`: views and decoding, in images a second.

Views: ours, batched, against kornia batched and torchvision v2 image by image, where they are installed;
crop, flip, colour jitter and grey with the paper's CIFAR settings. On the same parameters our views, made on
the device where they are timed, must be torchvision's. Decoding: a folder of JPEG files, streamed with 0, 1
and 2 worker processes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.bench.table import Column, number, spread, text
from lpjepa.bench.timing import interleaved
from lpjepa.data import Batches, ViewConfig, Views, draw_parameters, load_source

# Of a pixel in [0, 1], a twentieth of a level of 8 bits, for views by torch and by kernels: beyond 128 pixels
# float32 knows the centres of the resizing weights to 2⁻¹⁷ of a pixel, which noise and jitter multiply.
LARGEST_DIFFERENCE = 2e-4
CHECKED = 32  # images on which the views are compared
JPEG_SIZE = (500, 375)  # pixels, as most of ImageNet
DECODE_BATCH = 32

COLUMNS: tuple[Column, ...] = (
    text("stage", "stage"),
    text("how", "how"),
    number("images/s", "images_per_second", ",.0f"),
    spread("quartiles", "slow", "fast", ",.0f"),
    number("times the first one's time", "ratio", ".2f"),
)


def measure_data(
    size: int, images: int, files: int, workers: Sequence[int], device: torch.device, rounds: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The table's rows, and the largest difference to torchvision (None where it is not installed)."""
    for name, value in (("--size", size), ("--images", images)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}.")
    if files and files < DECODE_BATCH:
        raise ValueError(f"--files must be {DECODE_BATCH} or more, or 0 to leave decoding out, not {files}.")
    if files and (not workers or min(workers) < 0):
        raise ValueError(f"--workers must be one or more numbers from 0, not {' '.join(map(str, workers))}.")
    config = ViewConfig(size=size, solarize=0.0, blur=0.0)
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8).to(device)
    views = Views(config)
    check = {"largest_difference": check_views(pixels[:CHECKED], views), "tolerance": LARGEST_DIFFERENCE}
    rows = _views(pixels, views, device, rounds)
    if files:
        with tempfile.TemporaryDirectory() as folder:
            write_jpegs(Path(folder), files)
            rows += _decoding(Path(folder), files, workers, rounds)
    return rows, check


def _rows(
    stage: str,
    count: int,
    ours: str,
    calls: dict[str, Callable[[], object]],
    device: torch.device,
    rounds: int,
) -> list[dict[str, Any]]:
    """Images a second of every call, which makes `count`, and the ratio of its time to that of `ours`."""
    times = interleaved(calls, device, rounds)
    rows = []
    for how, timing in times.items():
        low, high = timing.quartiles
        rows.append(
            {
                "stage": stage,
                "how": how,
                **timing.as_dict(),
                "images_per_second": count / timing.ms * 1e3,
                "slow": count / high * 1e3,
                "fast": count / low * 1e3,
                "ratio": timing.ms / times[ours].ms,
            }
        )
    return rows


def _views(pixels: Tensor, views: Views, device: torch.device, rounds: int) -> list[dict[str, Any]]:
    config, seed = views.config, torch.tensor(0, device=device)
    ours = "ours, batched"
    candidates = {
        ours: lambda: views(pixels, seed),
        "kornia, batched": kornia_views(pixels, config),
        "torchvision v2, one by one": torchvision_views(pixels, config),
    }
    calls = {name: call for name, call in candidates.items() if call is not None}
    made = len(pixels) * config.num_views
    return _rows(f"views, {config.size} px", made, ours, calls, device, rounds)


def check_views(images: Tensor, views: Views) -> float | None:
    """Largest difference between our views and torchvision's operators on the same parameters.

    Ours are made on the device of `images`, torchvision's on the CPU.
    """
    declare_missing_ops()
    try:
        from torchvision.transforms.v2 import functional as F
    except ImportError:
        return None
    config, seed = views.config, torch.tensor(1, device=images.device)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (config.mean, config.std))
    x_VNCHW = views(images, seed).cpu() * std + mean
    p = draw_parameters(len(images), config, (images.shape[2], images.shape[3]), seed)  # those of the views
    operations = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    side, bicubic = [config.size] * 2, F.InterpolationMode.BICUBIC
    worst = 0.0
    for view in range(config.num_views):
        for i, image in enumerate(images.cpu() / 255):
            box = [int(getattr(p, name)[view, i]) for name in ("top", "left", "height", "width")]
            x = F.resized_crop(image, *box, side, bicubic, antialias=True).clamp(0, 1)
            if p.jitter[view, i]:
                for operation in p.order[view, i].tolist():
                    x = operations[operation](x, float(p.factors[view, i, operation]))
            x = F.rgb_to_grayscale(x, 3) if p.grey[view, i] else x
            x = x.flip(-1) if p.flip[view, i] else x
            worst = max(worst, float((x - x_VNCHW[view, i]).abs().max()))
    if not worst <= LARGEST_DIFFERENCE:
        raise ValueError(
            f"our views differ from torchvision's by {worst:.1e} of a pixel's range, more than "
            f"{LARGEST_DIFFERENCE:.0e}; nothing was timed."
        )
    return worst


def torchvision_views(pixels: Tensor, config: ViewConfig) -> Callable[[], None] | None:
    declare_missing_ops()
    try:
        from torchvision.transforms import v2
    except ImportError:
        return None
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(config.size, config.crop_scale, interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(config.flip),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], config.jitter_prob),
            v2.RandomGrayscale(config.grey),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(config.mean, config.std),
        ]
    )

    def call() -> None:
        for _ in range(config.num_views):
            torch.stack([transform(image) for image in pixels])

    return call


def kornia_views(pixels: Tensor, config: ViewConfig) -> Callable[[], None] | None:
    try:
        from kornia import augmentation as K
    except ImportError:
        return None
    transform = K.AugmentationSequential(
        K.RandomResizedCrop((config.size, config.size), config.crop_scale, resample="BICUBIC"),
        K.RandomHorizontalFlip(config.flip),
        K.ColorJitter(0.4, 0.4, 0.2, 0.1, p=config.jitter_prob),
        K.RandomGrayscale(p=config.grey),
        K.Normalize(torch.tensor(config.mean), torch.tensor(config.std)),
    ).to(pixels.device)

    def call() -> None:
        for _ in range(config.num_views):
            transform(pixels / 255)

    return call


def write_jpegs(folder: Path, count: int) -> None:
    """`count` JPEG files of smooth random colours with some noise, which compress about as photographs do."""
    from PIL import Image

    random = np.random.default_rng(0)
    width, height = JPEG_SIZE
    for index in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
        noisy = smooth + random.integers(-12, 13, smooth.shape, np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.jpg", quality=90)


def _decoding(folder: Path, files: int, workers: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    # Memory for no image: every file is decoded in every epoch.
    images = load_source("folder", folder, "train", val_fraction=0.0, resident=False, max_memory=0)
    calls: dict[str, Callable[[], object]] = {}
    count = files // DECODE_BATCH * DECODE_BATCH
    for helpers in workers:
        batches = Batches(images, DECODE_BATCH, workers=helpers)
        name = "in this process" if helpers == 0 else f"{helpers} worker{'s' * (helpers > 1)}"
        calls[name] = lambda batches=batches: sum(len(batch.images) for batch in batches.epoch(0))  # type: ignore[misc]
    first = next(iter(calls))
    stage = f"JPEG {JPEG_SIZE[0]} x {JPEG_SIZE[1]} to 256 px"
    return _rows(stage, count, first, calls, torch.device("cpu"), rounds)
