"""`lpjepa bench step`: the training step of a preset against the bare encoder, on random images.

The step is driven as the training loop drives it between two log lines: next batch, rate, seeds, step. The
bare encoder is the forward and backward pass of the same encoder by itself, on the same number of prepared
views, in the same precision, and eager, captured or compiled as the step is. No data set is needed.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpjepa.bench.table import Column, number, spread, text
from lpjepa.bench.timing import captured, interleaved, peak_megabytes, synchronize
from lpjepa.training.assembly import Assembly, StepInput, assemble
from lpjepa.training.config import Config
from lpjepa.training.layers import replace
from lpjepa.training.precision import autocast
from lpjepa.training.reading import through_compiler

# (captured, compiled) by name; a CPU has only the first.
KINDS = {"eager": (False, False), "captured": (True, False), "captured, compiled": (True, True)}
CHECKED_STEPS = 8  # the first four warm up, the fifth is captured, three more are replays
# Batches in the set of random images, and its largest size: as in a real training, an epoch should last many
# steps, since at its end a new order is drawn and the host waits.
BATCHES = {"cuda": 64, "cpu": 4}
SET_BYTES = 2**29
CLASSES = 10
# Of the preset's rate: a step without warm-up at the full rate would enlarge every rounding error.
WARMUP = 0.01
# Largest relative difference of a loss between kinds of steps: kernels may sum in another order, and what
# that changes grows from step to step with the precision's rounding.
TOLERANCES = {"fp32": 1e-3, "bf16": 3e-2, "fp16": 2e-2}

COLUMNS: tuple[Column, ...] = (
    text("step", "kind"),
    text("what", "what"),
    number("ms", "ms", ".4g"),
    spread("quartiles", "low", "high", ".4g"),
    number("images/s", "images_per_second", ",.0f"),
    number("over the bare encoder", "ratio", ".3f"),
    number("peak MB", "peak_MB", ",.0f"),
    number("assembled s", "assemble_s", ".2f"),
    number("first step s", "first_step_s", ".2f"),
)


@dataclass
class Candidate:
    """One kind of step, ready to be timed, and what it took to get there."""

    assembly: Assembly
    advance: Callable[[], None]
    losses: list[float]
    assemble_s: float
    first_step_s: float
    first_steps_s: float  # of all the checked steps: compilation and capture are among them
    peak_MB: float | None


def measure_step(
    config: Config, device: torch.device, rounds: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The table's rows, and the check: losses of every kind's first steps and their largest difference.

    Peak memory on a GPU is that of the training from its assembly on (weights, images, optimizer, graph),
    as the allocator counts it; on the CPU it is the rise during a step.
    """
    kinds = list(KINDS) if device.type == "cuda" else ["eager"]
    with tempfile.TemporaryDirectory() as folder:
        config = on_random_images(config, Path(folder), BATCHES[device.type])
        candidates = {kind: build(config, device, kind) for kind in kinds}
        others = candidates if len(kinds) > 1 else candidates | {"again": build(config, device, "eager")}
        check = compare(
            {kind: candidate.losses for kind, candidate in others.items()}, config.train.precision
        )
        calls: dict[str, Callable[[], object]] = {}
        for kind, candidate in candidates.items():
            calls[f"{kind}: step"] = candidate.advance
            calls[f"{kind}: bare encoder"] = bare_encoder(candidate.assembly, kind)
        times = interleaved(calls, device, rounds)
        on_cpu = device.type != "cuda"
        peaks = {
            kind: peak_megabytes(calls[f"{kind}: step"], device) if on_cpu else candidates[kind].peak_MB
            for kind in kinds
        }
    images = config.train.batch_size * config.optim.accumulate
    rows: list[dict[str, Any]] = []
    for kind, candidate in candidates.items():
        step, bare = times[f"{kind}: step"], times[f"{kind}: bare encoder"]
        rows.append(
            {
                "kind": kind,
                "what": "step",
                **step.as_dict(),
                "peak_MB": peaks[kind],
                "images_per_second": images / step.ms * 1e3,
                "ratio": step.ms / bare.ms,
                "assemble_s": candidate.assemble_s,
                "first_step_s": candidate.first_step_s,
            }
        )
        speed = images / bare.ms * 1e3
        rows.append({"kind": kind, "what": "bare encoder", **bare.as_dict(), "images_per_second": speed})
    return rows, check


def on_random_images(config: Config, folder: Path, batches: int) -> Config:
    """`config` with its data replaced by random labelled images of the size of its views, in `folder`."""
    size, step_images = config.views.size, config.train.batch_size * config.optim.accumulate
    count = step_images * max(2, min(batches, SET_BYTES // (3 * size * size * step_images)))
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, size, size, 3), np.uint8)
    np.savez(folder / "random.npz", x_train=images, y_train=np.arange(count) % CLASSES)
    data: dict[str, Any] = {
        "source": "npz",
        "root": str(folder / "random.npz"),
        "options": {},
        "val_fraction": None,
    }
    return replace(config, {"data": data})


def build(config: Config, device: torch.device, kind: str) -> Candidate:
    """A kind of step from the config's seed, driven through its first steps."""
    capture, compiled = KINDS[kind]
    config = replace(config, {"train": {"capture": capture, "compile": compiled}})
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    assembly = assemble(config, device, 0, 1)
    synchronize(device)
    assembled = time.perf_counter()
    advance = driver(assembly)
    losses, ends = [], []
    for _ in range(CHECKED_STEPS):
        assembly.step.metric_sums.zero_()
        advance()
        position = assembly.step.metric_names.index("loss")
        losses.append(float(assembly.step.metric_sums[position]))  # waits for the device
        ends.append(time.perf_counter())
    peak = None
    if device.type == "cuda":
        peak = (torch.cuda.max_memory_allocated(device) - before) / 1e6
    return Candidate(
        assembly, advance, losses, assembled - start, ends[0] - assembled, ends[-1] - assembled, peak
    )


def driver(assembly: Assembly) -> Callable[[], None]:
    """What the loop does for one step, without schedule, log and checkpoints."""
    inputs = _endless(assembly)
    count = itertools.count()

    def advance() -> None:
        step = next(count)
        assembly.run_step.control(step, [WARMUP * rate for rate in assembly.rates])
        assembly.run_step(*next(inputs), assembly.seeds(step))

    return advance


def _endless(assembly: Assembly) -> Iterator[StepInput]:
    for epoch in itertools.count():
        yield from assembly.batches(epoch, 0)


def compare(losses: dict[str, list[float]], precision: str) -> dict[str, Any]:
    """Refuses kinds of steps whose losses differ at the same seed; the largest relative difference."""
    first, *others = losses
    worst = 0.0
    for kind in others:
        for step, (a, b) in enumerate(zip(losses[first], losses[kind])):
            difference = abs(a - b) / abs(a)
            # Not "greater than": a loss that is not a number is a difference too.
            if not difference <= TOLERANCES[precision]:
                raise ValueError(
                    f"the {kind} step is not the {first} one: at step {step} its loss is {b:.6g} instead of "
                    f"{a:.6g}, more than {TOLERANCES[precision]:g} apart; nothing was timed."
                )
            worst = max(worst, difference)
    return {"losses": losses, "largest_difference": worst, "tolerance": TOLERANCES[precision]}


def bare_encoder(assembly: Assembly, kind: str) -> Callable[[], object]:
    """Forward and backward of the step's own encoder on as many random views as a step has."""
    config, device = assembly.config, assembly.device
    capture, compiled = KINDS[kind]
    encoder = assembly.step.trainee.model.encoder
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    # The step's own module is compiled with all that stands around it; by itself it is another graph.
    encode = through_compiler(encoder) if compiled else encoder
    views, size = config.views.num_views * config.train.batch_size, config.views.size
    x_BCHW = torch.randn(views, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)

    def once() -> None:
        for _ in range(config.optim.accumulate):
            with autocast(device, config.train.precision):
                h_BE = encode(x_BCHW)
            # Gradients are returned, not kept: the step's own stay as they are.
            torch.autograd.grad(h_BE, parameters, torch.ones_like(h_BE), allow_unused=True)

    return captured(once, device) if capture else once
