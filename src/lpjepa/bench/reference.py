"""The sliced loss as the paper's formula reads, in plain torch, and how far ours is from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lpjepa.slicing import parse_directions, planned_discrepancy, sliced_discrepancy

SIGMA = 2**-0.5  # a Laplace distribution of unit variance
# Largest relative errors against float64, by default and with precision="exact".
FAST, EXACT = 5e-3, 1e-5


def reference(z_VND: Tensor, c_KD: Tensor, y_VND: Tensor) -> Tensor:
    """Mean over views, slices and ranks of (sort(z Cᵀ) − sort(y Cᵀ))²: one product per view and side,
    `torch.sort` along the samples."""
    terms = []
    for z, y in zip(z_VND.unbind(), y_VND.unbind()):
        difference = (z @ c_KD.T).sort(dim=0).values - (y @ c_KD.T).sort(dim=0).values
        terms.append(difference.square().mean())
    return torch.stack(terms).mean()


def target_samples(*shape: int, device: torch.device) -> Tensor:
    """Samples of the rectified Laplace distribution of unit variance, μ = 0."""
    return torch.distributions.Laplace(torch.tensor(0.0, device=device), SIGMA).sample(shape).relu_()


def random_directions(slices: int, dim: int, device: torch.device) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(slices, dim, device=device), dim=1)


def check_equality(
    device: torch.device,
    samples: int = 256,
    dim: int = 512,
    slices: int = 1024,
    loss: Callable[..., Tensor] = sliced_discrepancy,
) -> list[dict[str, Any]]:
    """Relative errors of value and gradient against the reference in float64, along the same directions.

    Directions that are given (`loss`, in both precisions) and directions that the loss draws by itself, as it
    does where it is timed; features far from the target, and features drawn from it, where differences
    cancel. Raises where an error is above its tolerance: what is wrong is not timed.
    """
    found: list[dict[str, Any]] = []
    torch.manual_seed(0)
    # The kernels take target samples in 16 bits, as they draw them.
    y = target_samples(2, samples, dim, device=device).half().float()
    far = torch.randn(2, samples, dim, device=device).abs()
    near = target_samples(2, samples, dim, device=device)
    for where, z in (("far from", far), ("near", near)):
        for name, tolerance, method, c in _checked(loss, z, y, slices):
            value, slope = _gradient(method, z)
            exact_value, exact = _gradient(lambda x, c=c: reference(x, c, y.double()), z.double())  # type: ignore[misc]
            error = float((slope.double() - exact).norm() / exact.norm())
            off = abs(value / exact_value - 1)
            found.append({"features": where, "loss": name, "value": off, "gradient": error})
            # Not "greater than": what is not a number is wrong too.
            if not max(error, off) <= tolerance:
                raise ValueError(
                    f"the loss is not the paper's: with {name} directions and features {where} the target "
                    f"its gradient is off by {error:.1e} and its value by {off:.1e}, more than "
                    f"{tolerance:.0e}; nothing was timed."
                )
    return found


def _checked(
    loss: Callable[..., Tensor], z: Tensor, y: Tensor, slices: int
) -> Iterator[tuple[str, float, Callable[[Tensor], Tensor], Tensor]]:
    """Name, tolerance, loss of the features, and its directions in float64."""
    c = random_directions(slices, z.shape[2], z.device)
    yield "given", FAST, lambda x: loss(x, c, y), c.double()
    yield "given, exact", EXACT, lambda x: loss(x, c, y, precision="exact"), c.double()
    seed = torch.tensor(1, device=z.device)
    for kind in ("random", "hadamard"):
        plan = parse_directions(kind, slices)
        drawn = plan.draw(z, seed).c
        # A kernel that draws random directions as it uses them rounds them to 16 bits, which are as good.
        rounded = drawn.half() if z.is_cuda and kind == "random" else drawn
        yield kind, FAST, lambda x, plan=plan: planned_discrepancy(x, y, plan, seed), rounded.double()  # type: ignore[misc]


def _gradient(loss: Callable[[Tensor], Tensor], z: Tensor) -> tuple[float, Tensor]:
    leaf = z.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    assert leaf.grad is not None
    return value.item(), leaf.grad
