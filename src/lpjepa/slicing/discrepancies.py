"""Discrepancies between one-dimensional samples, with their gradients, chosen by name.

Each function takes x (..., N), y (..., M) and returns its value (...) and, if wanted, the gradient with
respect to x (..., N), in the order of x. The counts N and M may differ; every formula below is exact for
the two empirical distributions. Ties are broken by position (stable sort).

Gradients are written out by hand: one pass gives value and gradient, and no sort indices or sorted
copies wait for a backward pass. The paper allows any discrepancy ("Rectified LpJEPA with RDMReg",
L(P‖Q)); its own choice is `wasserstein2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lpjepa._sort import sort_stable, sort_values
from lpjepa.slicing._checks import check_name

Discrepancy = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]


def wasserstein2(x: Tensor, y: Tensor, want_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """W₂² = ∫₀¹ (F⁻¹(q) − G⁻¹(q))² dq; for N = M the mean of (x↑ − y↑)² (the paper's eq. `iterdistloss`)."""
    return _monotone_cost(x, sort_values(y), want_gradient, squared=True)


def wasserstein1(x: Tensor, y: Tensor, want_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """W₁ = ∫₀¹ |F⁻¹(q) − G⁻¹(q)| dq; for N = M the mean of |x↑ − y↑|."""
    return _monotone_cost(x, sort_values(y), want_gradient, squared=False)


def wasserstein2_sorted(x: Tensor, y_sorted: Tensor, want_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """`wasserstein2` for a target in ascending order already, such as exact quantiles."""
    return _monotone_cost(x, y_sorted, want_gradient, squared=True)


def energy(x: Tensor, y: Tensor, want_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Energy distance (Cramér): 2 E|X − Y| − E|X − X'| − E|Y − Y'| = 2 ∫ (F(t) − G(t))² dt.

    With m the sorted union of x and y and H_l = F(m_l) − G(m_l) this is 2 Σ_l (m_{l+1} − m_l) H_l², and
    its derivative by m_l is 2 (H_{l−1}² − H_l²): one sort instead of all pairs.
    """
    n, m = x.shape[-1], y.shape[-1]
    merged, order = sort_stable(torch.cat([x, y], dim=-1))
    # Counted in integers (units of 1/NM), so that H returns to zero exactly.
    step = torch.where(order < n, m, -n)
    height_squared = (step.cumsum(dim=-1).to(x.dtype) / (n * m)).square_()
    value = 2 * (merged.diff(dim=-1) * height_squared[..., :-1]).sum(dim=-1)
    if not want_gradient:
        return value, None
    slope = -2 * height_squared.diff(dim=-1, prepend=torch.zeros_like(height_squared[..., :1]))
    return value, torch.empty_like(merged).scatter_(-1, order, slope)[..., :n]


# LeJEPA's defaults for the Epps–Pulley test: 17 points on [0, 3], half of a symmetric trapezoidal rule.
QUADRATURE_END = 3.0
QUADRATURE_POINTS = 17


def characteristic(x: Tensor, y: Tensor, want_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Two-sample Epps–Pulley statistic, NM/(N + M) ∫ |φ_x(t) − φ_y(t)|² exp(−t²/2) dt over [−3, 3].

    φ is the empirical characteristic function; the trapezoidal rule has 33 points (the integrand is even:
    17 are computed). With M → ∞ samples of N(0, 1) it tends to the one-sample statistic of SIGReg.
    """
    n, m = x.shape[-1], y.shape[-1]
    step = QUADRATURE_END / (QUADRATURE_POINTS - 1)
    frequencies = torch.arange(1, QUADRATURE_POINTS, device=x.device, dtype=x.dtype) * step
    weights = torch.exp(-frequencies.square() / 2) * (2 * step * n * m / (n + m))
    weights[-1] /= 2
    value = x.new_zeros(x.shape[:-1])
    gradient = torch.zeros_like(x) if want_gradient else None
    # One frequency at a time keeps the memory at a few copies of x; t = 0 contributes nothing.
    for t, weight in zip(frequencies.unbind(), weights.unbind()):
        cos_x, sin_x = torch.cos(t * x), torch.sin(t * x)
        real = cos_x.mean(dim=-1) - torch.cos(t * y).mean(dim=-1)
        imaginary = sin_x.mean(dim=-1) - torch.sin(t * y).mean(dim=-1)
        value += weight * (real.square() + imaginary.square())
        if gradient is not None:
            slope = 2 / n * weight * t
            gradient += (slope * imaginary).unsqueeze(-1) * cos_x - (slope * real).unsqueeze(-1) * sin_x
    return value, gradient


DISCREPANCIES: dict[str, Discrepancy] = {
    "wasserstein2": wasserstein2,
    "wasserstein1": wasserstein1,
    "energy": energy,
    "characteristic": characteristic,
}


def get_discrepancy(name: str) -> Discrepancy:
    """The discrepancy of that name; an unknown name is an error that lists the known ones."""
    check_name("discrepancy", name, DISCREPANCIES)
    return DISCREPANCIES[name]


def _monotone_cost(
    x: Tensor, y_sorted: Tensor, want_gradient: bool, squared: bool
) -> tuple[Tensor, Tensor | None]:
    """The optimal plan of every convex cost in one dimension pairs equal quantiles of x and y."""
    x_sorted, order = sort_stable(x)
    value = x.new_zeros(x.shape[:-1])
    slope: Tensor | None = None
    for y_paired, mass in _paired_quantiles(y_sorted, x.shape[-1]):
        difference = x_sorted - y_paired
        if squared:
            value = value + _weighted_sum(difference.square(), mass)
        else:
            value = value + _weighted_sum(difference.abs(), mass)
        if want_gradient:
            part = difference.mul_(2 * mass) if squared else difference.sign_().mul_(mass)
            slope = part if slope is None else slope.add_(part)
    if slope is None:
        return value, None
    # The sorted copy has served; its memory takes the gradient in the order of x.
    return value, x_sorted.scatter_(-1, order, slope)


def _weighted_sum(cost: Tensor, mass: Tensor | float) -> Tensor:
    return cost.sum(dim=-1) * mass if isinstance(mass, float) else cost @ mass


def _paired_quantiles(y_sorted: Tensor, n: int) -> Iterator[tuple[Tensor, Tensor | float]]:
    """Splits the plan between N sorted x and M sorted y into rounds in which each x meets at most one y.

    Yields (y_paired (..., N), mass): in that round x_i meets y_paired_i with that mass; the masses of x_i
    over all rounds add up to 1/N. In units of 1/(NM), x_i covers [iM, (i+1)M) and y_j covers [jN, (j+1)N).
    """
    m = y_sorted.shape[-1]
    if m % n == 0:
        ratio = m // n
        for offset in range(ratio):
            yield y_sorted[..., offset::ratio], 1.0 / m
    elif n % m == 0:
        yield y_sorted.repeat_interleave(n // m, dim=-1, output_size=n), 1.0 / n
    else:
        start = torch.arange(n, device=y_sorted.device) * m
        first = start // n
        for offset in range((m - 1) // n + 2):
            j = first + offset
            overlap = torch.minimum(start + m, (j + 1) * n) - torch.maximum(start, j * n)
            mass = overlap.clamp(min=0).to(y_sorted.dtype) / (n * m)
            yield y_sorted[..., j.clamp(max=m - 1)], mass
