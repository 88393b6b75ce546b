"""The whole step as CUDA graphs: the host starts it with a few calls instead of a thousand launches."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from lpjepa._recording import recorded
from lpjepa.training.deferral import tables_sent_after_capture
from lpjepa.training.packing import packed
from lpjepa.training.step import Step

WARMUP_STEPS = 4  # lazily made state (optimizer moments, counters) must exist before capture


class CapturedStep:
    """Runs the first steps as they are, then captures one and replays it.

    Nothing is computed twice: the warm-up steps are steps of the training, and recording a graph does not
    execute it.

    Views are a graph of their own on a stream of their own, `beside`. They are many small kernels that leave
    most of the GPU idle; since the host is ahead of it, they run while the step before them still learns.
    Inputs are to be made on that stream, too, and are copied into the tensors that the graphs read. What the
    graph that learns reads besides views (labels, rates, the step's number) lies in one piece of memory, so
    that between two steps the main stream copies just this and the views.

    Location and scale of the target are read where they lie, on the main stream, which moves them.

    Args:
        step: to be captured. From capture on, rates are set by `control` and in no other way.
        compiling: a thread that compiles the step's kernels; capture waits for it.
    """

    def __init__(self, step: Step, compiling: threading.Thread | None = None):
        if step.device.type != "cuda":
            raise ValueError("train.capture: a CUDA graph needs a GPU; leave it out on the CPU")
        self.step, self.compiling = step, compiling
        # Kernels keep the priority of the stream they were captured on: nothing beside delays the model.
        self.stream = torch.cuda.Stream(step.device, priority=-1)
        self.beside = torch.cuda.Stream(step.device)
        self.graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None  # views, then the rest
        self.calls = 0
        self.controls: tuple[int, list[float]] | None = None  # of the next step, where a graph will take them

    def control(self, number: int, rates: list[float]) -> None:
        """Set the number of the next step and the optimizers' rates at it."""
        if self.graphs is None and self.calls < WARMUP_STEPS:
            self.step.control(number, rates)
        else:
            self.controls = number, rates

    def __call__(
        self, images_KNCHW: Tensor, labels_KN: Tensor | None, sizes_KN2: Tensor | None, seeds_K: Tensor
    ) -> None:
        inputs = (images_KNCHW, labels_KN, sizes_KN2, seeds_K)
        if self.graphs is None:
            if self.calls < WARMUP_STEPS:
                self.calls += 1
                self._warm_up(inputs)
                return
            self._capture(inputs)
        assert self.graphs is not None
        assert self.controls is not None, "control comes before the step"
        main = torch.cuda.current_stream(self.step.device)
        with torch.cuda.stream(self.beside):
            self.beside.wait_event(self.taken)
            for mine, given in zip(self.inputs, inputs):
                if mine is not None and given is not None:
                    mine.copy_(given, non_blocking=True)
            # Pinned memory of its own for every step: torch keeps it until the copy is done.
            self.sent.copy_(encoded(*self.controls).pin_memory(), non_blocking=True)
            self.graphs[0].replay()
        main.wait_stream(self.beside)
        for mine, made in zip(self.learned, self.made):
            mine.copy_(made)
        self.taken.record(main)
        self.graphs[1].replay()

    def _warm_up(self, inputs: tuple[Tensor | None, ...]) -> None:
        main = torch.cuda.current_stream(self.step.device)
        # Off the default stream, as capture will be: allocations then come from the same pools.
        for other in (main, self.beside):
            self.stream.wait_stream(other)
        with torch.cuda.stream(self.stream):
            self.step(*inputs)  # type: ignore[arg-type]
        for other in (main, self.beside):
            other.wait_stream(self.stream)

    def _capture(self, inputs: tuple[Tensor | None, ...]) -> None:
        if self.compiling is not None:
            self.compiling.join()  # nothing of ours is at work on the driver while a graph is recorded
        torch.cuda.synchronize(self.step.device)
        images, labels, sizes, seeds = (None if given is None else given.clone() for given in inputs)
        assert images is not None
        assert seeds is not None
        device, optimizers = self.step.device, self.step.optimizers
        # What the second graph reads is its own, so that the next inputs can be made meanwhile.
        like = [encoded(0, [0.0] * len(optimizers)), *([] if labels is None else [labels])]
        small, (self.sent, *given_labels) = packed(like, device)
        own, (controls, *own_labels) = packed(like, device)
        self.inputs = (images, given_labels[0] if given_labels else None, sizes, seeds)
        hand_over(self.step, controls)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(device)
        making, learning = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with recorded(making, self.beside):
            views = list(self.step.make_views(images, sizes, seeds))
        self.made, self.learned = [*views, small], [*(torch.empty_like(x) for x in views), own]
        with tables_sent_after_capture(), recorded(learning, self.stream):
            self.step.learn(self.learned[:-1], own_labels[0] if own_labels else None, len(views))
        self.graphs = making, learning
        self.taken = torch.cuda.Event()


def encoded(number: int, rates: list[float]) -> Tensor:
    """A step's number and rates in the host's memory: rows of 16 bytes, an int64, then each a float32."""
    rows_R2 = torch.zeros((1 + len(rates), 2), dtype=torch.int64)
    rows_R2[0, 0] = number
    rows_R2[1:].view(torch.float32)[:, 0] = torch.tensor(rates, dtype=torch.float32)
    return rows_R2


def hand_over(step: Step, controls_R2: Tensor) -> None:
    """Let the step read its number and its rates from rows that `encoded` fills."""
    step.health.step = controls_R2[0, 0]
    for optimizer, row in zip(step.optimizers, controls_R2[1:].view(torch.float32)):
        for group in optimizer.param_groups:
            group["lr"] = row[0]
