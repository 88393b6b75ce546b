"""LARS as the authors train with: layer-wise trust ratios, clipped, momentum after scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class LARS(torch.optim.Optimizer):
    r"""Layer-wise adaptive rate scaling (You et al., 2017) in the authors' clipped form.

    For a parameter w with gradient g, learning rate γ, decay λ, momentum m:

        r = η ‖w‖ / (‖g‖ + λ ‖w‖ + ε)          trust ratio
        r = min(r / γ, 1)                        with `clip`
        v ← m v + r (g + λ w),    w ← w − γ v

    A parameter with ‖w‖ = 0 takes the plain gradient, one with ‖g‖ = 0 does not move by itself.
    With `exclude_1d`, one-dimensional parameters (biases, normalisation) are neither scaled nor decayed.

    `lr` may be a tensor on the parameters' device: nothing here waits for the device, so a step can be
    captured in a CUDA graph and the rate changed between replays. Like torch's fused optimizers, a step
    obeys two device tensors: where `optimizer.found_inf` is not zero, nothing moves, and gradients are
    divided by `optimizer.grad_scale` (by kernels on their way, else in place).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        eta: float = 0.02,
        clip: bool = True,
        exclude_1d: bool = True,
        eps: float = 1e-8,
    ):
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay), ("eta", eta)):
            if not isinstance(value, Tensor) and value < 0:
                raise ValueError(f"LARS: {name} must not be negative, got {value}")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "eta": eta,
            "clip": clip,
            "exclude_1d": exclude_1d,
            "eps": eps,
        }
        super().__init__(params, defaults)
        self._tables: dict[tuple[int, ...], Any] = {}
        self._measured: tuple[list[int], Any] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy starts without tables: they hold addresses."""
        super().__setstate__(state)
        self._tables, self._measured = {}, None

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._measured = None
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf, grad_scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        measured, self._measured = self._measured, None
        for group in self.param_groups:
            moving = self._moving(group)
            known = measured is not None and measured[0] == [id(p) for p in moving]
            table = measured[1] if known and measured is not None else self._table(group, moving)
            if table is not None:
                if not known:
                    table.measure(moving, self._velocities(moving))
                table.move(moving, self._velocities(moving), group, found_inf, grad_scale)
                continue
            if moving and grad_scale is not None:
                torch._foreach_mul_([_local(p.grad) for p in moving], grad_scale.reciprocal())
            plain = [p for p in moving if group["exclude_1d"] and p.ndim == 1]
            scaled = [p for p in moving if not (group["exclude_1d"] and p.ndim == 1)]
            if plain:
                self._move(group, plain, [_local(p.grad) for p in plain])
            if scaled:
                ratios = self._trust_ratios(group, scaled)
                updates = torch._foreach_add(
                    [_local(p.grad) for p in scaled], [_local(p) for p in scaled], alpha=group["weight_decay"]
                )
                torch._foreach_mul_(updates, list(ratios.unbind()))
                self._move(group, scaled, list(updates))
        return loss

    @torch.no_grad()
    def gradient_norms(self, params: list[Any]) -> Tensor | None:
        """‖g‖ of `params`, one reading of the gradients for this and for the step that follows.

        None unless kernels will move exactly these parameters, in one group. Until the step, gradients must
        not change, but by `grad_scale`; the tensor is overwritten when they are measured again.
        """
        moving = [self._moving(group) for group in self.param_groups]
        if len(moving) != 1 or [id(p) for p in moving[0]] != [id(p) for p in params]:
            return None
        table = self._table(self.param_groups[0], params)
        if table is None:
            return None
        self._measured = ([id(p) for p in params], table)
        return table.measure(params, self._velocities(params))

    def _moving(self, group: dict[str, Any]) -> list[Tensor]:
        """The parameters that have a gradient, each with its velocity made."""
        moving = [p for p in group["params"] if p.grad is not None]
        for p in moving:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return moving

    def _velocities(self, params: list[Tensor]) -> list[Tensor]:
        return [self.state[p]["momentum_buffer"] for p in params]

    def _table(self, group: dict[str, Any], params: list[Tensor]) -> Any:
        """The whole step in three launches where there is a GPU and triton: the table for that, or None."""
        if not params or not params[0].is_cuda or any(hasattr(p, "to_local") for p in params):
            return None
        try:
            from lpjepa.training import _lars_kernels as kernels
        except ImportError:
            return None
        if not kernels.applies(params, self._velocities(params)):
            return None
        key = tuple(id(p) for p in params)
        if key not in self._tables:
            self._tables[key] = kernels.build_table(params, group["exclude_1d"])
        return self._tables[key]

    def _trust_ratios(self, group: dict[str, Any], params: list[Tensor]) -> Tensor:
        w, g = _norms(params), _norms([p.grad for p in params])  # type: ignore[misc]
        ratio = group["eta"] * (w / (g + w * group["weight_decay"] + group["eps"]))
        if group["clip"]:
            ratio = (ratio / group["lr"]).clamp(max=1.0)
        # Where g = 0 the decay is left out as well; where w = 0 there is no decay to leave out.
        ratio = torch.where(g == 0, torch.zeros_like(ratio), ratio)
        return torch.where(w == 0, torch.ones_like(ratio), ratio)

    def _move(self, group: dict[str, Any], params: list[Tensor], updates: list[Tensor]) -> None:
        """v ← m v + update, w ← w − lr v, batched over all parameters; a no-op where found_inf is set."""
        velocities = [_local(self.state[p]["momentum_buffer"]) for p in params]
        weights = [_local(p) for p in params]
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None:
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, updates)
            steps = torch._foreach_mul(velocities, group["lr"])
        else:
            # Selecting, not multiplying: zero times infinity is not zero.
            keep = found_inf.reshape(()) != 0
            for v, update in zip(velocities, updates):
                v.copy_(torch.where(keep, v, v * group["momentum"] + update))
            rate = group["lr"]
            if not isinstance(rate, Tensor):
                rate = torch.tensor(rate, dtype=velocities[0].dtype, device=keep.device)
            lr = torch.where(keep, torch.zeros_like(rate), rate)
            steps = torch._foreach_mul(velocities, lr)
        torch._foreach_sub_(weights, steps)


def _local(tensor: Any) -> Tensor:
    """The shard of a tensor that this process holds (the tensor itself unless FSDP divides it)."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _norms(tensors: list[Tensor]) -> Tensor:
    """The l2 norms of whole tensors, also where FSDP divides them among processes."""
    if any(hasattr(t, "full_tensor") for t in tensors):
        return torch.stack([t.norm().full_tensor() for t in tensors])  # type: ignore[attr-defined]
    return torch.stack(list(torch._foreach_norm(tensors)))
