"""The sliced matching of features to target samples: mean over views and slices of a 1-D discrepancy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lpjepa._operators import unobserved
from lpjepa.slicing import _backend
from lpjepa.slicing._checks import check_name, checked_directions, checked_features, checked_target_samples
from lpjepa.slicing.discrepancies import get_discrepancy

# Bound on the transient memory of a chunk of slices, and how many tensors of the size of its projections
# live at once (projections, sorted copies, int64 sort indices, differences, gradient).
CHUNK_BYTES = 64 * 2**20
LIVE_COPIES = 6

PRECISIONS = ("fast", "exact")


def sliced_discrepancy(
    z_VND: Tensor,
    c: Tensor,
    y_VMD: Tensor,
    discrepancy: str = "wasserstein2",
    chunk: int | None = None,
    weight_VK: Tensor | float | None = None,
    precision: str = "fast",
) -> Tensor:
    """Σ_vk w_vk · d(z_v c_vk, y_v c_vk), by default the mean over views and slices; the paper's RDMReg.

    Args:
        z_VND: features, (N, D) or (V, N, D); the only argument that gets a gradient.
        c: directions with rows of unit norm, (K, D) shared by the views or (V, K, D).
        y_VMD: target samples, (M, D) or (V, M, D); M need not be N.
        discrepancy: `wasserstein2`, `wasserstein1`, `energy` or `characteristic`.
        chunk: slices processed at a time; None bounds the transient memory to about 64 MiB.
        weight_VK: weights of the sum, (V, K) or one number for all; None is 1/(V·K), the mean. A slice of
            weight 0 may have a direction of zeros.
        precision: `fast` allows 16-bit GPU kernels and TF32 where torch is set so; `exact` is float64.

    The gradient is computed together with the value, chunk by chunk, and is all that is kept for the
    backward pass: one tensor of the shape of the features. Computed in float32 (float64 for float64
    features) whatever autocast says. Nothing is read back from the device.
    """
    features = checked_features(z_VND)
    targets = checked_target_samples(y_VMD, features)
    directions = checked_directions(c, features, null_rows_allowed=isinstance(weight_VK, Tensor))
    get_discrepancy(discrepancy)
    check_name("precision", precision, PRECISIONS)
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1 slice; got {chunk}.")
    weight, uniform = split_weight(weight_VK, features.shape[0], directions.shape[-2])
    return matched(
        _sliced_matching,
        sliced_matching,
        features,
        directions,
        targets,
        weight,
        uniform,
        discrepancy,
        chunk or 0,
        precision,
    )


def _sliced_matching(
    z_VND: Tensor,
    c: Tensor,
    y_VMD: Tensor,
    weight: Tensor | None,
    uniform: float,
    discrepancy: str,
    chunk: int,
    precision: str,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Value and gradient (empty if not wanted)."""
    matcher = _backend.choose(z_VND, c, y_VMD, discrepancy, precision)
    weights = uniform if weight is None else weight
    if matcher is not None:
        value, gradient = matcher(z_VND, c, y_VMD, weights, want_gradient)
    else:
        n = z_VND.shape[1]
        # Rounding swaps neighbours in a slice, and each swap moves the gradient by a gap between targets: its
        # error goes with the square root of the precision, 1e-4 to 1e-3 in float32.
        dtype = torch.float64 if precision == "exact" else accumulation_dtype(z_VND)
        compare = get_discrepancy(discrepancy)
        rows = torch.cat([z_VND.to(dtype), y_VMD.to(dtype)], dim=1)
        value, gradient = sum_over_slices(
            rows,
            n,
            c,
            weights,
            lambda proj, lo, hi: compare(proj[..., :n], proj[..., n:], want_gradient),
            chunk or None,
            want_gradient,
        )
    value = value.to(accumulation_dtype(z_VND))
    return value, value.new_empty(0) if gradient is None else gradient.to(value.dtype)


sliced_matching = torch.library.custom_op(
    "lpjepa::sliced_matching",
    _sliced_matching,
    mutates_args=(),
    schema="(Tensor z_VND, Tensor c, Tensor y_VMD, Tensor? weight, float uniform, str discrepancy, "
    "SymInt chunk, str precision, bool want_gradient) -> (Tensor, Tensor)",
)


@sliced_matching.register_fake
def _(
    z_VND: Tensor,
    c: Tensor,
    y_VMD: Tensor,
    weight: Tensor | None,
    uniform: float,
    discrepancy: str,
    chunk: int,
    precision: str,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(z_VND)
    shape = z_VND.shape if want_gradient else (0,)
    return z_VND.new_empty((), dtype=dtype), z_VND.new_empty(shape, dtype=dtype)


def sum_over_slices(
    rows_VLD: Tensor,
    n: int,
    c: Tensor,
    weight: Tensor | float,
    compare: Callable[[Tensor, int, int], tuple[Tensor, Tensor | None]],
    chunk: int | None,
    want_gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """The weighted sum over slices, chunk by chunk, and its gradient by the first n of the L rows.

    Features and targets are projected in one product, laid out (..., K, L) so that sorting runs along
    contiguous memory. `compare(proj_VkL, lo, hi)` gives the value (V, k) of slices lo to hi and the
    gradient (V, k, n) by the projections of the first n rows.
    """
    views, length, dim = rows_VLD.shape
    slices = c.shape[-2]
    size = chunk or default_chunk(views, length, rows_VLD.element_size())
    value = rows_VLD.new_zeros(())
    gradient = rows_VLD.new_zeros((views, n, dim)) if want_gradient else None
    with torch.autocast(rows_VLD.device.type, enabled=False):
        for lo in range(0, slices, size):
            hi = min(lo + size, slices)
            part = c[..., lo:hi, :].to(rows_VLD.dtype)
            if part.dim() == 2:
                # All views in one matrix product: (k, D) · (D, V·L).
                proj = (part @ rows_VLD.reshape(-1, dim).T).unflatten(1, (views, length)).transpose(0, 1)
            else:
                proj = part @ rows_VLD.transpose(1, 2)
            value_Vk, slope_Vkn = compare(proj, lo, hi)
            del proj
            weight_Vk = weight[:, lo:hi].to(value_Vk.dtype) if isinstance(weight, Tensor) else weight
            value = value + (value_Vk * weight_Vk).sum()
            if gradient is not None and slope_Vkn is not None:
                scale = weight_Vk.unsqueeze(-1) if isinstance(weight_Vk, Tensor) else weight_Vk
                gradient.baddbmm_(slope_Vkn.mul_(scale).transpose(1, 2), part.expand(views, *part.shape[-2:]))
    return value, gradient


def default_chunk(views: int, length: int, element_size: int) -> int:
    """Slices per chunk that keep its transient memory near CHUNK_BYTES."""
    per_slice = views * length * element_size * LIVE_COPIES
    return max(1, CHUNK_BYTES // per_slice)


def accumulation_dtype(z: Tensor) -> torch.dtype:
    """float64 for float64 features, else float32."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def matched(
    function: Callable[..., tuple[Tensor, Tensor | None]],
    operator: Callable[..., tuple[Tensor, Tensor]],
    z: Tensor,
    *constants: Any,
) -> Tensor:
    """The value of a matching as a function of `z`, whose gradient is computed along with it.

    `function(z, *constants, want_gradient)` gives both. `operator` is the same, with an empty gradient where
    none is wanted, for those who trace what is computed.
    """
    want_gradient = wants_gradient(z)
    if not unobserved(z):
        return with_gradient(z, *operator(z.detach(), *constants, want_gradient))
    if want_gradient:
        return _Matched.apply(z, function, constants)
    with torch.no_grad():
        return function(z, *constants, False)[0]


def with_gradient(z: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """`value` as a function of `z` whose gradient is already known (empty if none is needed)."""
    return _known_gradient(z, value, gradient) if gradient.numel() else value


# An operator with a backward formula rather than an autograd.Function, which torch.compile traces with
# a deprecation warning of its own.
@torch.library.custom_op("lpjepa::known_gradient", mutates_args=())
def _known_gradient(z: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    return value.clone()


@_known_gradient.register_fake
def _(z: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    return torch.empty_like(value)


def _keep_gradient(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    z, _, gradient = inputs
    ctx.save_for_backward(gradient)
    ctx.dtype = z.dtype


def _scale_gradient(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
    # A product with one number on the device, which `*` would read as a broadcast tensor: half as fast.
    (scaled,) = torch._foreach_mul(ctx.saved_tensors, grad_output)
    return scaled.to(ctx.dtype), None, None


# The gradient is known and its own derivative is not, which must not pass for zero.
_scale_gradient_once = once_differentiable(_scale_gradient)
_known_gradient.register_autograd(_scale_gradient_once, setup_context=_keep_gradient)


class _Matched(torch.autograd.Function):
    """`matched` where only autograd looks on: a function costs a fraction of an operator."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, function: Callable[..., Any], constants: tuple[Any, ...]) -> Tensor:
        value, gradient = function(z, *constants, True)
        ctx.save_for_backward(gradient)
        ctx.dtype = z.dtype
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        # With gradients enabled, someone may differentiate again.
        scale = _scale_gradient_once if torch.is_grad_enabled() else _scale_gradient
        return scale(ctx, grad_output)


def wants_gradient(z: Tensor) -> bool:
    """Whether a gradient by `z` can be asked for later; ask before entering `torch.no_grad`."""
    return z.requires_grad and torch.is_grad_enabled()


def split_weight(weight_VK: Tensor | float | None, views: int, slices: int) -> tuple[Tensor | None, float]:
    """The weights as operators take them: a tensor (V, K), or None and the number that all slices share."""
    if isinstance(weight_VK, Tensor):
        if weight_VK.shape != (views, slices):
            raise ValueError(
                f"weight_VK must have shape ({views}, {slices}), one weight for each view and slice; "
                f"got {tuple(weight_VK.shape)}."
            )
        return weight_VK, 0.0
    return None, 1.0 / (views * max(slices, 1)) if weight_VK is None else float(weight_VK)
