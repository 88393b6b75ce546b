"""`lpjepa bench evaluation`: feature extraction against the bare encoder, and the linear probe in seconds."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lpjepa.bench.table import Column, number, spread, text
from lpjepa.bench.timing import Call, captured, interleaved, peak_megabytes, synchronize
from lpjepa.data import EvalTransform, ImageSet
from lpjepa.evaluation import ProbeJob, extract, probe_protocol, train_probes
from lpjepa.training.config import Config
from lpjepa.training.monitors import suited_batch
from lpjepa.training.run import build_model

TOLERANCE = 1e-3  # largest relative difference of features (TF32 and the batch's size change sums)
CLASSES = 100

COLUMNS: tuple[Column, ...] = (
    text("what", "what"),
    text("size", "size"),
    number("ms", "ms", ".4g"),
    spread("quartiles", "low", "high", ".4g"),
    number("images/s", "images_per_second", ",.0f"),
    number("over the bare encoder", "ratio", ".3f"),
    number("seconds", "seconds", ".2f"),
    number("test accuracy", "accuracy", ".3f"),
    number("peak MB", "peak_MB", ",.0f"),
)


def measure_features(
    config: Config, images: int, device: torch.device, rounds: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Images a second of `lpjepa.evaluation.extract` and of the encoder by itself on prepared batches.

    On a GPU the encoder is a CUDA graph, so that the host does not slow it down: its own speed.
    """
    size = config.views.size
    batch = max(config.train.batch_size, suited_batch(size, device))
    if images < batch:
        raise ValueError(f"--images must be a batch ({batch}) or more, not {images}.")
    images -= images % batch
    torch.manual_seed(0)
    model = build_model(config).to(device).eval()
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8)
    stored = ImageSet(pixels, torch.arange(images) % CLASSES, None, "random")
    transform = EvalTransform(
        size, mean=config.views.mean, std=config.views.std, interpolation=config.views.interpolation
    )
    resident = stored.to(device)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format  # as `extract` does
    prepared = [
        transform(part.to(device), None).contiguous(memory_format=layout)
        for part in pixels[: 4 * batch].split(batch)
    ]
    run = lambda: extract(model, resident, batch, device, transform, store=device)
    check = compare_features(run().encoder[: 4 * batch], model.encoder, prepared)

    def encode(x_NCHW: Tensor) -> None:
        with torch.inference_mode():
            model.encoder(x_NCHW)

    passes: list[Call] = [partial(encode, part) for part in prepared]
    if device.type == "cuda":
        passes = [captured(call, device) for call in passes]

    def bare() -> None:
        for turn in range(images // batch):
            passes[turn % len(passes)]()

    calls = {"extraction": run, "bare encoder": bare}
    peaks = {name: peak_megabytes(call, device) for name, call in calls.items()}
    times = interleaved(calls, device, rounds, peaks)
    rows = [
        {
            "what": name,
            "size": f"{config.model.encoder}, {size} px, batches of {batch}",
            **timing.as_dict(),
            "images_per_second": images / timing.ms * 1e3,
            "ratio": timing.ms / times["bare encoder"].ms,
        }
        for name, timing in times.items()
    ]
    return rows, check


def compare_features(found_NE: Tensor, encoder: nn.Module, prepared: list[Tensor]) -> dict[str, Any]:
    """Refuses extracted features that are not those of the encoder."""
    with torch.inference_mode():
        expected_NE = torch.cat([encoder(x) for x in prepared])
    error = float((found_NE - expected_NE).norm() / expected_NE.norm())
    if not error <= TOLERANCE:
        raise ValueError(
            f"the extracted features are not the encoder's: they are off by {error:.1e}, more than "
            f"{TOLERANCE:.0e}; nothing was timed."
        )
    return {"largest_difference": error, "tolerance": TOLERANCE}


def measure_probe(samples: int, dim: int, epochs: int, device: torch.device) -> dict[str, Any]:
    """Seconds of one linear probe of the paper's protocol (Adam, batches of 512), test included.

    Features are random and labels those of a random linear classifier, so a probe that learns shows it: the
    accuracy on held-out features must be far above chance.
    """
    if min(samples, dim, epochs) < 1:
        raise ValueError(
            f"--probe {samples}x{dim} and --epochs {epochs}: samples, dimensions and epochs must be positive."
        )
    generator = torch.Generator(device).manual_seed(0)
    held_out = max(1, samples // 10)
    x = torch.randn(samples + held_out, dim, generator=generator, device=device)
    labels = (x @ torch.randn(dim, CLASSES, generator=generator, device=device)).argmax(1)
    job = ProbeJob(x[:samples], labels[:samples], x[samples:], labels[samples:])
    train_probes([job], probe_protocol("adam", epochs=1), device)
    synchronize(device)
    start = time.perf_counter()
    (result,) = train_probes([job], probe_protocol("adam", epochs=epochs), device)
    synchronize(device)
    seconds = time.perf_counter() - start
    if result.top1 <= 2 / CLASSES:
        raise ValueError(
            f"the probe of {epochs} epochs on {samples} x {dim} features has learned nothing (accuracy "
            f"{result.top1:.3f} of {CLASSES} classes); its time would say nothing, use more --epochs."
        )
    return {
        "what": f"linear probe, {epochs} epochs",
        "size": f"{samples:,} x {dim:,}",
        "seconds": seconds,
        "accuracy": result.top1,
        "images_per_second": samples * epochs / seconds,
    }
