"""When an operator may be called as the function that it is.

The losses are made of operators (`torch.library`), so that compilers and other tracers need not look inside.
Calling one costs torch tens of microseconds of Python each time, which adds up to more than all kernels of a
loss take. Where nobody but autograd looks on, the losses call the functions themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)


def unobserved(x: Tensor) -> bool:
    """Whether `x` is a plain tensor, and no compiler, tracer, dispatch mode or transform is at work."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in _PLAIN
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
    )
