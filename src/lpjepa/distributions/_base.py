"""What the three distributions share: parameters loc, scale and p, their checks, noise and `expand`."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

Parameter = float | Tensor

_REMEDY = {
    "loc": "pass a finite number",
    "scale": "pass a finite number above 0, for example sigma_gn(p)",
    "p": "pass a finite number above {lower:g} (1 is Laplace, 2 is Gaussian)",
    "fraction": "pass the share of active features, strictly between 0 and 1",
}


def check(name: str, value: Any, upper: float = math.inf, lower: float | None = None) -> None:
    """One clear error for a bad number or CPU tensor; tensors elsewhere are not read (no device sync)."""
    if lower is None:
        lower = -math.inf if name == "loc" else 0.0
    remedy = _REMEDY[name].format(lower=lower)
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(f"{name} is a tensor of {value.dtype}: convert it with .float().")
        if torch.compiler.is_compiling() or value.device.type != "cpu":
            return
        bad = value[~((value > lower) & (value < upper))]
        if bad.numel() == 0:
            return
        value = bad[0].item()
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} = {value!r} is not a number or a tensor: {remedy}.")
    elif lower < float(value) < upper:
        return
    raise ValueError(f"{name} = {value} is not possible: {remedy}.")


class LocationScale(Distribution):
    """A distribution of loc + scale · W with W ~ GN_p(0, 1), before truncation or rectification.

    Parameters are checked unless `validate_args=False`; values passed to `log_prob` and `cdf` follow
    torch's own default. Inside `torch.compile` neither is: reading values on the host would break the graph.

    `loc` and `scale` may be changed in place, p not: where it can be known on the host it is read once, here.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "p": constraints.positive,
    }
    has_rsample = True

    def __init__(
        self, loc: Parameter, scale: Parameter, p: Parameter, validate_args: bool | None = None
    ) -> None:
        if torch.compiler.is_compiling():
            validate_args = False
        if validate_args is not False:
            check("loc", loc)
            check("scale", scale)
            check("p", p)
        self._known_p = _host_value(p)
        # Numbers as plain floats: torch does not know those of numpy.
        self.loc, self.scale, self.p = broadcast_all(
            *(v if isinstance(v, Tensor) else float(v) for v in (loc, scale, p))
        )
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        new = self.__new__(type(self)) if _instance is None else _instance
        batch_shape = torch.Size(batch_shape)
        for name in self.arg_constraints:
            setattr(new, name, getattr(self, name).expand(batch_shape))
        new._known_p = self._known_p
        Distribution.__init__(new, batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    def rsample(
        self, sample_shape: Sequence[int] = torch.Size(), generator: torch.Generator | None = None
    ) -> Tensor:
        raise NotImplementedError

    def sample(
        self, sample_shape: Sequence[int] = torch.Size(), generator: torch.Generator | None = None
    ) -> Tensor:
        with torch.no_grad():
            return self.rsample(torch.Size(sample_shape), generator)

    def _validate_sample(self, value: Tensor) -> None:
        if not torch.compiler.is_compiling():
            super()._validate_sample(value)

    def _wide(self) -> tuple[Tensor, Tensor, Tensor]:
        """loc, scale and p in float64, in which everything of the size of the parameters is computed."""
        return self.loc.double(), self.scale.double(), self.p.double()

    def _standardized(self, value: Tensor) -> Tensor:
        loc, scale, _ = self._wide()
        return (value.double() - loc) / scale

    def _location_scale_sample(
        self, sample_shape: Sequence[int], generator: torch.Generator | None
    ) -> Tensor:
        """loc + scale · W in float32 (float64 stays float64): half precision would lose the tails.

        p = 2 is normal. Otherwise W = V (p G)^(1/p) with V uniform on (-1, 1) and G ~ Gamma(1 + 1/p): the law
        of the paper's ±(p G')^(1/p) with G' ~ Gamma(1/p), because G' = G U^p, but G' underflows in float32
        for large p and G cannot. Where 1/p is a small integer (p = 1, 1/2, ...), G is minus the logarithm of
        a product of uniform numbers; it reaches further into the tails than one number through the quantile
        function, whose last value in float32 is 16.6.
        """
        shape = torch.Size(sample_shape) + self.batch_shape
        dtype = torch.float64 if self.loc.dtype == torch.float64 else torch.float32
        p = self._known_p

        def uniform() -> Tensor:
            return torch.rand(shape, dtype=dtype, device=self.loc.device, generator=generator)

        if p == 2:
            noise = torch.randn(shape, dtype=dtype, device=self.loc.device, generator=generator)
        elif p is not None and 1 / p in (1, 2, 3):
            product = 1 - uniform()  # in (0, 1], so that its logarithm is finite
            for _ in range(round(1 / p)):
                product = product * (1 - uniform())
            noise = (2 * uniform() - 1) * (-p * torch.log(product)) ** (1 / p)
        else:
            exponent = self.p.to(dtype).expand(shape)
            gamma = torch._standard_gamma(1 + 1 / exponent, generator)
            noise = (2 * uniform() - 1) * (exponent * gamma) ** (1 / exponent)
        return self.loc.to(dtype) + self.scale.to(dtype) * noise


def _host_value(p: Parameter) -> float | None:
    """p as a number where that is known without reading a device, for direct sampling and kept quantiles.

    Unknown when p wants a gradient: these do not pass through p.
    """
    if not isinstance(p, Tensor):
        return float(p)
    if torch.compiler.is_compiling() or p.device.type != "cpu" or p.requires_grad or p.numel() == 0:
        return None
    first = p.flatten()[0]
    return float(first) if bool((p == first).all()) else None
