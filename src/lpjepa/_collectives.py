"""How the processes of a job compute one loss together.

Every loss of this package is that of the *global* batch. One convention makes that exact: each rank adds
its share `L_r` to

    L = sum_over_ranks(L_r(gather_batch(z)))

which has the value of the global loss on every rank, and whose gradient with respect to local features is
`W` times what one process on the global batch would compute. Data-parallel wrappers (DDP, FSDP) average
parameter gradients over the `W` ranks, which gives exactly the gradient of one process. Without a process
group of more than one rank all of this is the identity.

Ranks may hold different numbers of samples (the last batch of an epoch). The sizes are agreed on between
hosts, over the CPU backend of the default group or a gloo group made for it once: a message of eight bytes
a rank and step (a fraction of a millisecond), which never makes a GPU wait for its host. Inside the capture
of a CUDA graph the exchange happens once, at capture, and the sizes are those of every replay.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# `torch.compiler.disable`, without importing the compiler (seconds) before anything is compiled.
from torch._compile import _disable_dynamo as outside_the_compiler

# The default group and the group its small host messages go through; made anew when the default group is.
_host_groups: tuple[Any, Any] | None = None


def world() -> tuple[int, int]:
    """This process's rank and the number of processes: `(0, 1)` without a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def share(total: int) -> tuple[int, int]:
    """This rank's part `[lo, hi)` of `total` items; the parts of all ranks cover them once."""
    rank, size = world()
    return rank * total // size, (rank + 1) * total // size


def batch_sizes(n: int) -> list[int]:
    """Number of samples on every rank, given that this one holds `n`."""
    if world()[1] == 1:
        return [n]
    return _exchange_sizes(n)


def gather_batch(z_VND: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    """The global batch (V, ΣN, D) in float32 or better, its samples in the order of the ranks.

    Forward is one all-gather in the dtype of `z_VND`; backward one reduce-scatter of the ranks' gradients in
    the dtype of the result. `sizes` are those of `batch_sizes`, exchanged here when not given.
    """
    if world()[1] == 1:
        return z_VND.to(torch.promote_types(z_VND.dtype, torch.float32))
    if sizes is None:
        sizes = batch_sizes(z_VND.shape[1])
    return _gather(z_VND, tuple(sizes))


def sum_over_ranks(x: Tensor) -> Tensor:
    """Sum of `x` over the ranks.

    Backward multiplies by `W` and sends nothing, which is right where all ranks compute the same from the
    sum, as they do from the shares of a loss or of its moments: the gradients that arrive are then equal.
    """
    if world()[1] == 1:
        return x
    return _sum(x)


# A compiled loss is one graph on one process; on several, the compiler leaves the exchanges to PyTorch.


@outside_the_compiler
def _sum(x: Tensor) -> Tensor:
    return _SumOverRanks.apply(x)


@outside_the_compiler
def _gather(z_VND: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return _GatherBatch.apply(z_VND, sizes)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _all_reduce(x.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * world()[1]


class _GatherBatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z_VND: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes, ctx.dtype = sizes, z_VND.dtype
        padded_NVD = _pad(z_VND.transpose(0, 1), max(sizes))
        all_WNVD = _all_gather(padded_NVD)
        if min(sizes) == max(sizes):
            global_NVD = all_WNVD.flatten(0, 1)
        else:
            global_NVD = torch.cat([part[:n] for part, n in zip(all_WNVD, sizes)])
        return global_NVD.transpose(0, 1).to(torch.promote_types(z_VND.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, grad_VND: Tensor) -> tuple[Tensor, None]:
        sizes, largest = ctx.sizes, max(ctx.sizes)
        parts = grad_VND.transpose(0, 1).split(sizes)
        grad_WNVD = torch.stack([_pad(part, largest) for part in parts])
        own_NVD = _reduce_scatter(grad_WNVD)[: sizes[world()[0]]]
        return own_NVD.transpose(0, 1).to(ctx.dtype), None


def _pad(x_NVD: Tensor, n: int) -> Tensor:
    """`x_NVD` with zeros after its samples up to `n` of them, contiguous."""
    missing = n - x_NVD.shape[0]
    if missing == 0:
        return x_NVD.contiguous()
    return torch.cat([x_NVD, x_NVD.new_zeros(missing, *x_NVD.shape[1:])])


# The four functions below are all that crosses between processes.


@outside_the_compiler
def _exchange_sizes(n: int) -> list[int]:
    sizes = torch.empty(world()[1], dtype=torch.int64)
    _named("all_gather_single", "all_gather_into_tensor")(sizes, torch.tensor([n]), group=_host_group())
    return sizes.tolist()


def _all_gather(x: Tensor) -> Tensor:
    size = world()[1]
    gathered = x.new_empty(size * x.shape[0], *x.shape[1:])
    _named("all_gather_single", "all_gather_into_tensor")(gathered, x)
    return gathered.unflatten(0, (size, x.shape[0]))


def _all_reduce(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def _reduce_scatter(x_W: Tensor) -> Tensor:
    if x_W.device.type == "cpu" or dist.get_backend() == "gloo":
        # gloo has no reduce-scatter in every supported version of torch.
        dist.all_reduce(x_W)
        return x_W[world()[0]]
    own = torch.empty_like(x_W[0])
    _named("reduce_scatter_single", "reduce_scatter_tensor")(own, x_W.flatten(0, 1))
    return own


def _named(name: str, older_name: str) -> Any:
    """A collective by its name, or by the one it had before torch 2.13."""
    return getattr(dist, name, None) or getattr(dist, older_name)


def _host_group() -> Any:
    """A group that carries CPU tensors: the default one where it can, else a gloo group, made once."""
    global _host_groups
    default = dist.group.WORLD
    if _host_groups is None or _host_groups[0] is not default:
        carries_cpu = "cpu:" in dist.get_backend_config()
        _host_groups = (default, default if carries_cpu else dist.new_group(backend="gloo"))
    return _host_groups[1]
