"""The Generalized Gaussian restricted to an interval."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from lpjepa.distributions import _standard
from lpjepa.distributions._base import LocationScale, Parameter
from lpjepa.distributions._quadrature import interval_nodes


class TruncatedGeneralizedGaussian(LocationScale):
    r"""Truncated Generalized Gaussian :math:`\mathcal{TGN}_p(\mu, \sigma, (low, high))`.

    .. math:: f(x) = \frac{1}{Z_S} \exp\Big(-\frac{|x-\mu|^p}{p\,\sigma^p}\Big) \quad\text{on } S

    with S = (low, high). With loc = 0 it has the largest entropy of all distributions on S with its E|x|^p
    (the paper's Proposition on maximum entropy). The default interval is (0, ∞), the positive part of the
    Rectified Generalized Gaussian. Exact for intervals deep in a tail, narrow ones, and infinite ends.

    Example::

        >>> d = TruncatedGeneralizedGaussian(0.0, 1.0, 1.0)   # the exponential distribution
        >>> d.mean
        tensor(1.)

    Args:
        loc (float or Tensor): mu, inside or outside the interval.
        scale (float or Tensor): sigma > 0.
        p (float or Tensor): the exponent p > 0.
        low (float or Tensor): lower end, may be -inf.
        high (float or Tensor): upper end, may be inf.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        **LocationScale.arg_constraints,
        "low": constraints.dependent(is_discrete=False, event_dim=0),
        "high": constraints.dependent(is_discrete=False, event_dim=0),
    }

    def __init__(
        self,
        loc: Parameter,
        scale: Parameter,
        p: Parameter,
        low: Parameter = 0.0,
        high: Parameter = math.inf,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(loc, scale, p, validate_args)
        if validate_args is not False and not torch.compiler.is_compiling():
            _check_order(low, high)
        like: dict[str, Any] = {"dtype": self.loc.dtype, "device": self.loc.device}
        self.low, self.high = torch.as_tensor(low, **like), torch.as_tensor(high, **like)
        names = tuple(self.arg_constraints)
        for name, value in zip(names, torch.broadcast_tensors(*(getattr(self, n) for n in names))):
            setattr(self, name, value)
        self._batch_shape = self.loc.shape

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        anchor, s, weight, _ = self._nodes()
        return (anchor + self.scale.double() * (weight * s).sum(-1)).to(self.loc.dtype)

    @property
    def mode(self) -> Tensor:
        return torch.minimum(torch.maximum(self.loc, self.low), self.high)

    @property
    def variance(self) -> Tensor:
        _, s, weight, _ = self._nodes()
        deviation = s - (weight * s).sum(-1, keepdim=True)
        return (self.scale.double() ** 2 * (weight * deviation**2).sum(-1)).to(self.loc.dtype)

    def rsample(
        self, sample_shape: Sequence[int] = torch.Size(), generator: torch.Generator | None = None
    ) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape
        # In float64: the quantile of a 24-bit uniform number is coarse in the tails.
        uniform = torch.rand(shape, dtype=torch.float64, device=self.loc.device, generator=generator)
        return self.icdf(uniform.clamp(min=2.0**-54))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        _, scale, p = self._wide()
        log_prob = _standard.log_density(self._standardized(value), p) - torch.log(scale) - self._log_mass()
        inside = (value >= self.low) & (value <= self.high)
        return torch.where(inside, log_prob, -torch.inf).to(self.loc.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        p, log_mass = self.p.double(), self._log_mass()
        alpha, _ = self._ends()
        w = self._standardized(torch.minimum(torch.maximum(value, self.low), self.high))
        # The difference of two upper tails right of the mode, of two lower tails left of it.
        side = torch.where(alpha < 0, -1.0, 1.0)
        at_low = torch.exp(_standard.log_sf(side * alpha, p) - log_mass)
        at_value = torch.exp(_standard.log_sf(side * w, p) - log_mass)
        return (side * (at_low - at_value)).clamp(0, 1).to(self.loc.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        loc, scale, p = self._wide()
        alpha, beta = self._ends()
        q, log_mass = value.double(), self._log_mass()
        log_cdf = torch.logaddexp(_standard.log_sf(-alpha, p), torch.log(q) + log_mass)
        log_sf = torch.logaddexp(_standard.log_sf(beta, p), torch.log1p(-q) + log_mass)
        x = (loc + scale * _standard.quantile(log_cdf, log_sf, p)).to(self.loc.dtype)
        return torch.minimum(torch.maximum(x, self.low), self.high)

    def entropy(self) -> Tensor:
        _, scale, p = self._wide()
        _, log_weight, fall = interval_nodes(*self._ends(), p)
        expected_fall = (torch.softmax(log_weight, -1) * fall).sum(-1)
        return (torch.log(scale) + torch.logsumexp(log_weight, -1) + expected_fall).to(self.loc.dtype)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """(low - loc)/scale and (high - loc)/scale; infinite ends carry no gradient (it would be NaN)."""
        finite_low, finite_high = torch.isfinite(self.low), torch.isfinite(self.high)
        alpha = self._standardized(torch.where(finite_low, self.low, 0.0))
        beta = self._standardized(torch.where(finite_high, self.high, 0.0))
        low, high = self.low.double(), self.high.double()
        return torch.where(finite_low, alpha, low), torch.where(finite_high, beta, high)

    def _nodes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Anchor in x, nodes (x - anchor)/scale, normalized weights, exponents."""
        loc, low, high = self.loc.double(), self.low.double(), self.high.double()
        s, log_weight, fall = interval_nodes(*self._ends(), self.p.double())
        anchor = torch.minimum(torch.maximum(loc, low), high)
        return anchor, s, torch.softmax(log_weight, -1), fall

    def _log_mass(self) -> Tensor:
        """log P(low < loc + scale W < high), exact for narrow intervals and far tails."""
        p = self.p.double()
        alpha, beta = self._ends()
        closest = torch.where(alpha > 0, alpha, torch.where(beta < 0, beta, 0.0))
        _, log_weight, _ = interval_nodes(alpha, beta, p)
        return torch.logsumexp(log_weight, -1) + _standard.log_density(closest, p)


def _check_order(low: Parameter, high: Parameter) -> None:
    ends = [torch.as_tensor(v, dtype=torch.float64) for v in (low, high)]
    if all(v.device.type == "cpu" for v in ends) and not bool((ends[0] < ends[1]).all()):
        raise ValueError(f"low = {low} is not below high = {high}: pass the ends of an interval in order.")
