"""Recording a CUDA graph in a process where other things go on."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def recorded(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """What follows is recorded on `stream`, whatever happens beside it.

    A loader's thread goes on pinning memory for the next batches, which would break a "global" capture. And
    a training before this one may hang in cycles: its graphs must not be destroyed in the middle of ours.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            yield
    finally:
        if collecting:
            gc.enable()


class CudaRecorder:
    """Records CUDA graphs. Warm calls run on the stream of the recording, and so use its memory pools."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def warm(self, call: Callable[[], object]) -> None:
        with torch.cuda.device(self.device):
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                call()
            torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, call: Callable[[], object]) -> Callable[[], None]:
        """The replay of what `call` does; whoever replays keeps the tensors alive that it reads."""
        graph = torch.cuda.CUDAGraph()
        # A capture that fails may leave its stream current; the context around it puts ours back.
        back = torch.cuda.stream(torch.cuda.current_stream(self.device))
        with torch.cuda.device(self.device), back, recorded(graph, self.stream):
            call()
        return graph.replay
