"""The Epps–Pulley statistic of sliced features against a standard normal, with its gradient."""

import torch
from torch import Tensor

from lpjepa.slicing import _backend
from lpjepa.slicing.matching import matched, sum_over_slices, with_gradient

# Elements of the largest temporary, about 16 MB in float32: slices are processed in chunks that respect it.
_LARGEST_TEMPORARY = 2**22


def epps_pulley(z_VND: Tensor, c: Tensor, weight: float, t_max: float, num_points: int) -> Tensor:
    """`weight` times the sum over views and slices of the Epps–Pulley statistic of x = ⟨c, z⟩,

        T = N ∫ from −t_max to t_max of |φ_N(t) − exp(−t²/2)|² exp(−t²/2) dt,   φ_N(t) = mean of exp(i t x),

    by the trapezoidal rule on `num_points` points of [0, t_max], the integrand being even. Directions `c` are
    (K, D), shared by the views, or (V, K, D). The gradient with respect to the features is computed with the
    value, chunk by chunk, so that memory does not grow with the number of slices.
    """
    V, N, _ = z_VND.shape
    t_T = torch.linspace(0.0, t_max, num_points, dtype=z_VND.dtype, device=z_VND.device)
    normal_T = torch.exp(-t_T.square() / 2)
    # Both signs of t count, and the two ends of the rule count half.
    ends = torch.ones_like(t_T)
    ends[0] = ends[-1] = 0.5
    weight_T = normal_T * ends * (2 * t_max / (num_points - 1))

    def compare(proj_VkN: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor]:
        angle_VkNT = proj_VkN.unsqueeze(-1) * t_T
        cos, sin = angle_VkNT.cos(), angle_VkNT.sin()
        real_Vk1T = cos.mean(2, keepdim=True) - normal_T
        imag_Vk1T = sin.mean(2, keepdim=True)
        statistic_Vk = N * ((real_Vk1T.square() + imag_Vk1T.square()) @ weight_T).squeeze(2)
        # dT/dx = 2 Σ over t of w(t) t (imag · cos(t x) − real · sin(t x))
        slope_VkN = 2 * ((imag_Vk1T * cos - real_Vk1T * sin) @ (weight_T * t_T))
        return statistic_Vk, slope_VkN

    want_gradient = z_VND.requires_grad and torch.is_grad_enabled()
    chunk = max(1, _LARGEST_TEMPORARY // (V * N * num_points))
    with torch.no_grad():
        value, gradient = sum_over_slices(z_VND.detach(), N, c, weight, compare, chunk, want_gradient)
    return value if gradient is None else with_gradient(z_VND, value, gradient)


def drawn_epps_pulley(
    z_VND: Tensor, seed: Tensor, lo: int, hi: int, weight: float, t_max: float, num_points: int
) -> Tensor | None:
    """`epps_pulley` along random directions lo to hi of the seed, by a kernel that draws as it goes.

    None where there is no such kernel. Its directions are rounded to 16 bits.
    """
    kernel = None if hi == lo else _backend.choose_epps_pulley(z_VND)
    if kernel is None:
        return None
    return matched(kernel, _drawn, z_VND, seed, lo, hi, weight, t_max, num_points)


@torch.library.custom_op(
    "lpjepa::drawn_epps_pulley",
    mutates_args=(),
    schema="(Tensor z_VND, Tensor seed, SymInt lo, SymInt hi, float weight, float t_max, int num_points, "
    "bool want_gradient) -> (Tensor, Tensor)",
)
def _drawn(
    z_VND: Tensor, seed: Tensor, lo: int, hi: int, weight: float, t_max: float, num_points: int,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kernel = _backend.choose_epps_pulley(z_VND)
    assert kernel is not None
    value, gradient = kernel(z_VND, seed, lo, hi, weight, t_max, num_points, want_gradient)
    return value, value.new_empty(0) if gradient is None else gradient


@_drawn.register_fake
def _(
    z_VND: Tensor, seed: Tensor, lo: int, hi: int, weight: float, t_max: float, num_points: int,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    shape = z_VND.shape if want_gradient else (0,)
    return z_VND.new_empty((), dtype=torch.float32), z_VND.new_empty(shape, dtype=torch.float32)
