"""BatchNorm over the global batch of all processes.

torch's SyncBatchNorm refuses CPU tensors, so on the CPU a small one of our own takes its place; on GPUs
torch's own is used. Both make W processes with N samples each compute what one process computes with W·N.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _SumWithGradient(torch.autograd.Function):
    """Sum over ranks forward; sum of the gradients over ranks backward.

    A batch statistic s = Σ_r g(x_r) enters every rank's output, so ∂L/∂s is itself a sum over ranks.
    (`lpjepa._collectives.sum_over_ranks` is for the loss, whose gradient every rank already knows.)
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


class GlobalBatchNorm(nn.BatchNorm2d):
    """BatchNorm over (all ranks, N, positions) for inputs (N, C) or (N, C, ...); same state as torch's."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"BatchNorm expects (N, C) or (N, C, ...), not {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        if not (
            self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        ):
            return super().forward(input)
        self._check_input_dim(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        ones = x.new_ones(1)
        count = _SumWithGradient.apply(ones * (x.numel() // x.shape[1]))
        mean = _SumWithGradient.apply(x.sum(axes)) / count
        centred = x - mean.view(shape)
        # A second reduction: the mean of squares minus the squared mean would lose digits.
        var = _SumWithGradient.apply(centred.square().sum(axes)) / count
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
                # As torch: without a momentum, the mean of all batches so far.
                momentum = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum  # type: ignore[arg-type]
                self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), momentum)
                unbiased = var.detach() * count / (count - 1)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        y = centred * torch.rsqrt(var + self.eps).view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)


def synchronise_batch_norm(module: nn.Module, device_type: str) -> nn.Module:
    """`module` with every BatchNorm computing its statistics over the batches of all processes."""
    if device_type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
        # A subclass, such as timm's BatchNorm2d with activation, does more than GlobalBatchNorm would.
        if type(module) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            raise ValueError(
                f"{type(module).__name__} has no synchronised form on the CPU; train this encoder on GPUs"
            )
        norm = GlobalBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        like = next(t for t in module.state_dict().values() if t.is_floating_point())
        norm.to(like.device, like.dtype).load_state_dict(module.state_dict())
        return norm.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, synchronise_batch_norm(child, device_type))
    return module
