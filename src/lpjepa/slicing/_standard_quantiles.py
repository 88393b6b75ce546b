"""The midpoint quantiles of W ~ GN_p(0, 1), searched for once: those of loc + scale · W need no other search.

To a compiler this is an operator, which keeps the search out of its graph and works for any n and p.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from lpjepa._operators import unobserved
from lpjepa.distributions import _standard

# Of each kind of device. On a GPU first come, first kept: a captured graph goes on reading what it found, so
# that nothing makes way for another. On the CPU the oldest does.
_MOST_KEPT = 256
_KEPT: dict[tuple[float, torch.dtype, int, torch.device], Tensor] = {}


def standard_quantiles(like: Tensor, p: float, n: int, device: torch.device) -> Tensor:
    """w with P(W < w_i) = (i − ½)/n for W ~ GN_p(0, 1): (n,) in float64 on `device`, to be read only.

    `like` is the tensor that holds p: its precision is that of p.
    """
    find = _kept if unobserved(like) else _operator
    return find(like, p, n, device)


def midpoints(n: int, device: torch.device) -> Tensor:
    """The levels (i − ½)/n in float64."""
    return (torch.arange(n, device=device, dtype=torch.float64) + 0.5) / n


def is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _kept(like: Tensor, p: float, n: int, device: torch.device) -> Tensor:
    key = (p, like.dtype, n, device)
    found = _KEPT.get(key)
    if found is None:
        alike = [other for other in list(_KEPT) if other[-1].type == device.type]
        full = len(alike) >= _MOST_KEPT
        if is_capturing(device) or (full and device.type != "cpu"):
            return _search(*key, home=device)
        if full:
            _KEPT.pop(alike[0], None)
        # Whatever the caller's thread is in (inference mode, the memory of a CUDA graph that a compiler is
        # about to record), what is kept has no part in it.
        with ThreadPoolExecutor(1) as elsewhere:
            found = _KEPT[key] = elsewhere.submit(_search, *key, home=torch.device("cpu")).result()
    return found


def _search(p: float, dtype: torch.dtype, n: int, device: torch.device, home: torch.device) -> Tensor:
    q_N = midpoints(n, home)
    exponent = torch.full((), p, dtype=dtype, device=home)
    return _standard.quantile(torch.log(q_N), torch.log1p(-q_N), exponent).to(device)


@torch.library.custom_op(
    "lpjepa::standard_quantiles",
    mutates_args=(),
    schema="(Tensor like, float p, SymInt n, Device device) -> Tensor",
)
def _operator(like: Tensor, p: float, n: int, device: torch.device) -> Tensor:
    return _kept(like, p, n, device).clone()  # a compiler may write into what an operator returns


@_operator.register_fake
def _(like: Tensor, p: float, n: int, device: torch.device) -> Tensor:
    return like.new_empty((n,), dtype=torch.float64, device=device)
