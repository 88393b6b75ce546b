"""The whole step as CUDA graphs: the host starts it with a few calls instead of a thousand launches."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from lpjepa.training.lars import tables_sent_after_capture
from lpjepa.training.step import Step

WARMUP_STEPS = 4  # lazily made state (optimizer moments, counters) must exist before capture


class CapturedStep:
    """Runs the first steps as they are, then captures one and replays it.

    Nothing is computed twice: the warm-up steps are steps of the training, and recording a graph does not
    execute it. Learning rates are tensors already.

    Views are a graph of their own on a stream of their own, `beside`. They are many small kernels that leave
    most of the GPU idle; since the host is ahead of it, they run while the step before them still learns.
    Inputs are to be made on that stream, too, and are copied into the tensors that the graphs read.

    Args:
        step: to be captured.
        compiling: a thread that compiles the step's kernels; capture waits for it.
    """

    def __init__(self, step: Step, compiling: threading.Thread | None = None):
        if step.device.type != "cuda":
            raise ValueError("train.capture: a CUDA graph needs a GPU; leave it out on the CPU")
        self.step, self.compiling = step, compiling
        self.stream, self.beside = torch.cuda.Stream(step.device), torch.cuda.Stream(step.device)
        self.graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None  # views, then the rest
        self.calls = 0

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
        main = torch.cuda.current_stream()
        with torch.cuda.stream(self.beside):
            self.beside.wait_event(self.taken)
            for mine, given in zip(self.inputs, inputs):
                if mine is not None and given is not None:
                    mine.copy_(given, non_blocking=True)
            self.graphs[0].replay()
        main.wait_stream(self.beside)
        for mine, made in zip(self.learned, self.made):
            mine.copy_(made)
        self.taken.record(main)
        self.graphs[1].replay()

    def _warm_up(self, inputs: tuple[Tensor | None, ...]) -> None:
        main = torch.cuda.current_stream()
        # Off the default stream, as capture will be: allocations then come from the same pools.
        for other in (main, self.beside):
            self.stream.wait_stream(other)
        with torch.cuda.stream(self.stream):
            self.step(*inputs)  # type: ignore[arg-type]
        for other in (main, self.beside):
            other.wait_stream(self.stream)

    def _capture(self, inputs: tuple[Tensor | None, ...]) -> None:
        if self.compiling is not None:
            self.compiling.join()  # other threads must leave the driver alone while a graph is recorded
        torch.cuda.synchronize()
        self.inputs = tuple(None if given is None else given.clone() for given in inputs)
        images, labels, sizes, seeds = self.inputs
        assert images is not None
        assert seeds is not None
        for optimizer in self.step.optimizers:
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        making, learning = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(making, stream=self.beside):
            views = list(self.step.make_views(images, sizes, seeds))
        # What the second graph reads is its own, so that the next views can be made meanwhile.
        self.made = views if labels is None else [*views, labels]
        self.learned = [torch.empty_like(made) for made in self.made]
        mine = self.learned[-1] if labels is not None else None
        with tables_sent_after_capture(), torch.cuda.graph(learning, stream=self.stream):
            self.step.learn(self.learned[: len(views)], mine, len(views))
        self.graphs = making, learning
        self.taken = torch.cuda.Event()
