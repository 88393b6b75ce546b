"""`lpjepa bench loss`: the sliced losses, forward and backward, against the paper's formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpjepa.bench.peers import Method, Peer
from lpjepa.bench.reference import SIGMA, random_directions, reference, target_samples
from lpjepa.bench.table import Column, number, spread, text
from lpjepa.bench.timing import captured, interleaved, peak_megabytes
from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.losses import RDMReg, SIGReg
from lpjepa.slicing import parse_directions, planned_discrepancy, sliced_discrepancy

VIEWS = 2


class Row(NamedTuple):
    """A size of the problem: samples a view, dimensions of the features, slices."""

    samples: int
    dim: int
    slices: int

    def __str__(self) -> str:
        return f"{self.samples}x{self.dim}x{self.slices}"


GPU_ROWS = (
    Row(256, 512, 8192),
    Row(128, 2048, 8192),
    Row(256, 2048, 8192),
    Row(1024, 2048, 8192),
    Row(4096, 2048, 4096),
)
CPU_ROWS = (Row(256, 512, 8192),)

COLUMNS: tuple[Column, ...] = (
    text("samples x dim x slices", "row"),
    text("loss", "method"),
    number("ms", "ms", ".4g"),
    spread("quartiles", "low", "high", ".4g"),
    number("times the reference's speed", "ratio", ".2f"),
    number("peak MB", "peak_MB", ".1f"),
)


def parse_row(word: str) -> Row:
    """A row from a word such as 256x512x8192."""
    try:
        samples, dim, slices = map(int, word.split("x"))
    except ValueError:
        samples = dim = slices = 0
    if samples < 2 or dim < 1 or slices < 1:
        raise ValueError(
            f"--rows {word}: a row is samples x dimensions x slices, such as 256x512x8192, with two samples "
            "or more."
        )
    return Row(samples, dim, slices)


def target() -> RectifiedGeneralizedGaussian:
    return RectifiedGeneralizedGaussian(0.0, SIGMA, 1.0)


def measure_rows(
    rows: Sequence[Row], device: torch.device, rounds: int, peers: Sequence[Peer] = ()
) -> list[dict[str, Any]]:
    """Every loss at every size; peers and the reference with TF32 products, as their users run them."""
    with _tf32():
        return [line for row in rows for line in _measure_row(row, device, rounds, peers)]


def _measure_row(row: Row, device: torch.device, rounds: int, peers: Sequence[Peer]) -> list[dict[str, Any]]:
    z = target_samples(VIEWS, row.samples, row.dim, device=device).requires_grad_()
    steps = {name: step(method, z) for name, method in _methods(row, device, peers).items()}
    peaks = {name: peak_megabytes(call, device) for name, call in steps.items()}
    if device.type == "cuda":
        for name in ("RDMReg", "SIGReg"):
            steps[f"{name}, graph"] = captured(steps[name], device)
    times = interleaved(steps, device, rounds, peaks)
    base = times["reference"].ms
    return [
        {"row": str(row), "method": name, "ratio": base / timing.ms, **timing.as_dict()}
        for name, timing in times.items()
    ]


def step(method: Method, z: Tensor) -> Callable[[], None]:
    """Forward and backward of a loss on fixed features; no gradient stays, and memory ends as it began."""

    def call() -> None:
        method(z).backward()
        z.grad = None

    return call


def _methods(row: Row, device: torch.device, peers: Sequence[Peer]) -> dict[str, Method]:
    _, dim, slices = row
    others = {peer.name: peer.build(dim, slices) for peer in peers}
    if device.type == "cuda":
        return {
            "reference": lambda z: reference(
                z, random_directions(slices, dim, device), target_samples(*z.shape, device=device)
            ),
            "RDMReg": RDMReg(target(), num_slices=slices),
            "SIGReg": SIGReg(num_slices=slices),
            **others,
        }
    # On the CPU with the same directions and targets for all of ours: drawing them is not what is compared.
    c = random_directions(slices, dim, device)
    y = target_samples(VIEWS, row.samples, dim, device=device)
    plan, seed = parse_directions("hadamard", slices), torch.tensor(1)
    return {
        "reference": lambda z: reference(z, c, y),
        "ours": lambda z: sliced_discrepancy(z, c, y),
        "ours, hadamard": lambda z: planned_discrepancy(z, y, plan, seed),
        **others,
    }


@contextmanager
def _tf32():  # type: ignore[no-untyped-def]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
