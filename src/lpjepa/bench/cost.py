"""A cost model of the loss on 1 to 1,024 GPUs: bytes, work, time and share of the step.

W ranks hold n samples each, N = W·n in all, V views of D dimensions, K slices. Each rank gathers the features
of all (`lpjepa._collectives`), works on K/W slices of the global batch and sends back gradients. Per rank:

    gathered          W·V·n·D entries of the features' type, of which (W − 1)/W come from others
    scattered         W·V·n·D entries of float32 enter the reduce-scatter of the gradients
    reduced, sizes    the loss's parts (12 bytes for RDMReg), and 8 bytes a rank between hosts
    projections       2 · V·(N + M)·D·K/W operations, M = N target samples
    gradient          2 · V·N·D·K/W operations
    sorted            V·(N + M)·K/W elements
    drawn             D·K/W entries of directions and V·M·D of target samples (these on every rank)

With the global batch fixed all but what is gathered, scattered and drawn of the target falls as 1/W; with the
batch per GPU fixed the work on slices stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from lpjepa.bench.table import Column, number

WORLDS = tuple(2**i for i in range(11))
LOSS_PARTS = 3  # of RDMReg: loss, slices, axes


@dataclass(frozen=True)
class Setting:
    """What is trained. `batch` is a GPU's number of images, or that of all where `fixed` is "global"."""

    batch: int = 256
    fixed: str = "gpu"
    views: int = 2
    dim: int = 512
    slices: int = 8192
    feature_bytes: int = 2  # features under 16-bit autocast
    image_us: float = 21.4  # the rest of the step an image: 5.48 ms for 256 (views, ResNet-18 at 32 px, LARS)

    def samples(self, world: int) -> int:
        """Images a rank, n; with a fixed global batch some rank holds this many, and none more."""
        return self.batch if self.fixed == "gpu" else math.ceil(self.batch / world)


@dataclass(frozen=True)
class Machine:
    """Constants of the hardware; the first four measured on one H200, the last two assumed."""

    tflops: float = 500.0  # sustained by 16-bit products with float32 sums
    sort_ps: float = 8.0  # an element sorted, to 1,024 samples a slice
    merge_ps: float = 12.0  # an element sorted beyond
    draw_ps: float = 3.3  # an entry drawn: 0.055 ms for 8192 x 2048 directions
    link_GBps: float = 50.0  # one 400 Gb/s port a GPU
    latency_us: float = 10.0  # a collective and doubling of W


@dataclass(frozen=True)
class Messages:
    """Payloads of a rank's collectives in one call of the loss, forward and backward, in bytes."""

    gathered: int  # result of the all-gather of features
    scattered: int  # input of the reduce-scatter of gradients
    reduced: int  # the all-reduce of the loss's parts
    sizes: int  # result of the hosts' exchange of batch sizes

    def link_bytes(self, world: int) -> float:
        """What one rank sends through its link by ring algorithms, the hosts' message left out."""
        return (world - 1) / world * (self.gathered + self.scattered + 2 * self.reduced)


def messages(setting: Setting, world: int) -> Messages:
    """The payloads; nothing is sent by one process alone."""
    if world == 1:
        return Messages(0, 0, 0, 0)
    entries = world * setting.views * setting.samples(world) * setting.dim
    return Messages(entries * setting.feature_bytes, entries * 4, LOSS_PARTS * 4, 8 * world)


def cost(setting: Setting, machine: Machine, world: int) -> dict[str, Any]:
    """One row of the model: bytes, operations and predicted times of one rank."""
    n = setting.samples(world)
    total, views, dim = n * world, setting.views, setting.dim
    slices = setting.slices / world
    projection = 2 * views * 2 * total * dim * slices
    gradient = 2 * views * total * dim * slices
    elements = views * 2 * total * slices
    drawn = dim * slices + views * total * dim
    sent = messages(setting, world)
    sort_ps = machine.sort_ps if total <= 1024 else machine.merge_ps
    times = {
        "products_ms": (projection + gradient) / (machine.tflops * 1e12) * 1e3,
        "sort_ms": elements * sort_ps * 1e-9,
        "draw_ms": drawn * machine.draw_ps * 1e-9,
        "link_ms": sent.link_bytes(world) / (machine.link_GBps * 1e9) * 1e3
        + 3 * math.log2(world) * machine.latency_us * 1e-3,
    }
    loss = sum(times.values())
    work = loss - times["link_ms"]
    rest = n * setting.image_us * 1e-3
    return {
        "world": world,
        "samples": n,
        "global_batch": total,
        "slices": slices,
        **asdict(sent),
        "link_MB": sent.link_bytes(world) / 1e6,
        "projection_gflop": projection / 1e9,
        "gradient_gflop": gradient / 1e9,
        "sorted_M": elements / 1e6,
        "drawn_M": drawn / 1e6,
        **times,
        "work_ms": work,
        "loss_ms": loss,
        "share": loss / (loss + rest),
    }


def model(setting: Setting, machine: Machine) -> list[dict[str, Any]]:
    """A row for each number of GPUs in `WORLDS`."""
    return [cost(setting, machine, world) for world in WORLDS]


COLUMNS: tuple[Column, ...] = (
    number("GPUs", "world", ",d"),
    number("global batch", "global_batch", ",d"),
    number("slices a rank", "slices", ",g"),
    Column("gathered MB", lambda row: f"{row['gathered'] / 1e6:,.1f}"),
    number("through the link MB", "link_MB", ",.1f"),
    number("projections GFLOP", "projection_gflop"),
    number("gradient GFLOP", "gradient_gflop"),
    number("sorted M", "sorted_M"),
    number("drawn M", "drawn_M"),
    number("work ms", "work_ms"),
    number("link ms", "link_ms"),
    number("loss ms", "loss_ms"),
    number("share of the step", "share", ".1%"),
)
