"""Recording a CUDA graph in a process where other things go on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
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
