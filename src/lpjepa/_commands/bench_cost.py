"""`lpjepa bench cost`: a model of the loss on many GPUs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from lpjepa._commands.bench_output import Output, prepare, publish
from lpjepa.bench.cost import COLUMNS, Machine, Setting, model


@dataclass
class Arguments(Output):
    """Bytes, work, predicted time and share of the step for 1, 2, 4, ... 1,024 GPUs. Nothing is measured.

    Defaults of the hardware: products, sorting and drawing as measured on one NVIDIA H200; link and latency
    are assumptions.
    """

    batch: int = Setting.batch
    """Images a GPU, or of all GPUs together with --fixed global."""
    fixed: Literal["gpu", "global"] = "gpu"
    """Which batch stays the same as GPUs are added."""
    views: int = Setting.views
    """Views of an image."""
    dim: int = Setting.dim
    """Dimensions of the features."""
    slices: int = Setting.slices
    """Directions a step."""
    feature_bytes: int = Setting.feature_bytes
    """Bytes of a feature that is gathered: 2 under autocast, else 4."""
    image_us: float = Setting.image_us
    """Microseconds of all but the loss for one image: 5.48 ms for 256 (CIFAR, ResNet-18, one H200)."""
    tflops: float = Machine.tflops
    """Sustained rate of the products, in 10^12 operations a second."""
    sort_ps: float = Machine.sort_ps
    """Picoseconds an element sorted, up to 1,024 samples a slice."""
    merge_ps: float = Machine.merge_ps
    """Picoseconds an element sorted beyond that."""
    draw_ps: float = Machine.draw_ps
    """Picoseconds an entry of directions or target samples drawn."""
    link_gbps: float = Machine.link_GBps
    """Bandwidth of a GPU's link in gigabytes a second; assumed, one 400 Gb/s port."""
    latency_us: float = Machine.latency_us
    """Latency of a collective for each doubling of the GPUs; assumed."""


def run(arguments: list[str]) -> int:
    import tyro

    chosen = tyro.cli(Arguments, prog="lpjepa bench cost", args=arguments)
    for name, value in asdict(chosen).items():
        if isinstance(value, (int, float)) and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, not {value}.")
    device = prepare(chosen)
    setting = Setting(
        chosen.batch,
        chosen.fixed,
        chosen.views,
        chosen.dim,
        chosen.slices,
        chosen.feature_bytes,
        chosen.image_us,
    )
    machine = Machine(
        chosen.tflops, chosen.sort_ps, chosen.merge_ps, chosen.draw_ps, chosen.link_gbps, chosen.latency_us
    )
    rows = model(setting, machine)
    publish(
        chosen,
        ["cost", *arguments],
        device,
        COLUMNS,
        rows,
        "cost",
        setting=asdict(setting),
        machine=asdict(machine),
    )
    return 0
