"""The Generalized Gaussian distribution."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import constraints

from lpjepa.distributions import _standard
from lpjepa.distributions._base import LocationScale


class GeneralizedGaussian(LocationScale):
    r"""Generalized Gaussian :math:`\mathcal{GN}_p(\mu, \sigma)` (the paper's Definition of that name).

    .. math:: f(x) = \frac{p^{1-1/p}}{2\sigma\Gamma(1/p)} \exp\Big(-\frac{|x-\mu|^p}{p\,\sigma^p}\Big)

    p = 1 is Laplace(mu, sigma), p = 2 is Normal(mu, sigma); E|x - mu|^p = sigma^p for every p.

    Example::

        >>> d = GeneralizedGaussian(0.0, 1.0, 2.0)
        >>> d.cdf(torch.tensor(0.0))
        tensor(0.5000)

    Args:
        loc (float or Tensor): mu.
        scale (float or Tensor): sigma > 0.
        p (float or Tensor): the exponent p > 0.
    """

    support = constraints.real

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        _, scale, p = self._wide()
        unit = torch.exp(_standard.log_absolute_moment(torch.full_like(p, 2.0), p))
        return (scale**2 * unit).to(self.loc.dtype)

    def rsample(
        self, sample_shape: Sequence[int] = torch.Size(), generator: torch.Generator | None = None
    ) -> Tensor:
        return self._location_scale_sample(sample_shape, generator).to(self.loc.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        _, scale, p = self._wide()
        log_prob = _standard.log_density(self._standardized(value), p) - torch.log(scale)
        return log_prob.to(self.loc.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return torch.exp(_standard.log_sf(-self._standardized(value), self.p)).to(self.loc.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        loc, scale, p = self._wide()
        q = value.double()
        return (loc + scale * _standard.quantile(torch.log(q), torch.log1p(-q), p)).to(self.loc.dtype)

    def entropy(self) -> Tensor:
        _, scale, p = self._wide()
        return (1 / p + torch.log(scale) + _standard.log_partition(p)).to(self.loc.dtype)
