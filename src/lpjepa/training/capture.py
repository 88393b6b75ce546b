"""The whole step as one CUDA graph: the host starts it with one call instead of a thousand launches."""

from __future__ import annotations

import torch
from torch import Tensor

from lpjepa.training.lars import tables_sent_after_capture
from lpjepa.training.step import Step

WARMUP_STEPS = 4  # lazily made state (optimizer moments, counters) must exist before capture


class CapturedStep:
    """Runs the first steps as they are, then captures one and replays it.

    Nothing is computed twice: the warm-up steps are steps of the training, and recording a graph does not
    execute it. Inputs are copied into the tensors that the graph reads; learning rates are tensors already.
    """

    def __init__(self, step: Step):
        if step.device.type != "cuda":
            raise ValueError("train.capture: a CUDA graph needs a GPU; leave it out on the CPU")
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(step.device)
        self.calls = 0
        self.inputs: tuple[Tensor | None, ...] | None = None

    def __call__(self, *inputs: Tensor | None) -> None:
        if self.graph is None:
            if self.calls < WARMUP_STEPS:
                self.calls += 1
                # Off the default stream, as capture will be: allocations then come from the same pools.
                self.stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.stream):
                    self.step(*inputs)  # type: ignore[arg-type]
                torch.cuda.current_stream().wait_stream(self.stream)
                return
            self._capture(inputs)
        assert self.inputs is not None
        assert self.graph is not None
        for mine, given in zip(self.inputs, inputs):
            if mine is not None and given is not None:
                mine.copy_(given, non_blocking=True)
        self.graph.replay()

    def _capture(self, inputs: tuple[Tensor | None, ...]) -> None:
        self.inputs = tuple(None if given is None else given.clone() for given in inputs)
        for optimizer in self.step.optimizers:
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with tables_sent_after_capture(), torch.cuda.graph(graph, stream=self.stream):
            self.step(*self.inputs)  # type: ignore[arg-type]
        self.graph = graph
