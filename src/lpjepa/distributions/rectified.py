"""The Rectified Generalized Gaussian distribution: the target of Rectified LpJEPA."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import constraints

from lpjepa.distributions import _standard
from lpjepa.distributions._base import LocationScale, Parameter, check
from lpjepa.distributions.generalized_gaussian import GeneralizedGaussian
from lpjepa.distributions.scales import named_scale
from lpjepa.distributions.truncated import TruncatedGeneralizedGaussian

_SMALLEST_P = 0.009  # of a target: sigma_gn(0.01) is 1e-28, and soon leaves the range of float32


class RectifiedGeneralizedGaussian(LocationScale):
    r"""Rectified Generalized Gaussian :math:`\mathcal{RGN}_p(\mu, \sigma)`: the law of max(0, x), x ~ GN_p.

    .. math::
        f(x) = \Phi_{\mathcal{GN}_p(0,1)}(-\mu/\sigma)\, 1_{\{0\}}(x)
             + \frac{p^{1-1/p}}{2\sigma\Gamma(1/p)}
               \exp\Big(-\frac{|x-\mu|^p}{p\,\sigma^p}\Big)\, 1_{(0,\infty)}(x)

    an atom at zero beside a density (the paper's Definition of that name). `log_prob` is with respect to
    Lebesgue measure plus a Dirac measure at 0, and `entropy` is Rényi's d(ξ)-dimensional entropy.
    Products of independent coordinates go through `torch.distributions.Independent`.

    Example::

        >>> d = RectifiedGeneralizedGaussian.from_active_fraction(0.05, p=1.0)
        >>> d.active_probability
        tensor(0.0500)

    Args:
        loc (float or Tensor): mu, of the distribution before rectification.
        scale (float or Tensor): sigma > 0, likewise.
        p (float or Tensor): the exponent p > 0.
    """

    support = constraints.nonnegative

    @classmethod
    def from_active_fraction(
        cls,
        fraction: Parameter,
        p: Parameter = 1.0,
        scale: str | Parameter = "gn",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> "RectifiedGeneralizedGaussian":
        """The target with P(x > 0) = fraction, which fixes mu/sigma; `scale` then fixes sigma.

        `scale` is "gn" (unit variance before rectification), "rgn" (unit variance after) or a number. Device
        and dtype are those of the first tensor among the arguments, else torch's defaults.
        """
        check("fraction", fraction, upper=1.0)
        check("p", p, lower=_SMALLEST_P)
        q, exponent, dtype = _wide_pair(fraction, p, scale, device, dtype)
        ratio = _standard.quantile(torch.log(q), torch.log1p(-q), exponent)
        sigma = named_scale(scale, exponent, ratio=ratio)
        return cls._cast(ratio * sigma, sigma, p, dtype)

    @classmethod
    def from_location(
        cls,
        mu: Parameter,
        p: Parameter = 1.0,
        scale: str | Parameter = "gn",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> "RectifiedGeneralizedGaussian":
        """The target at location mu, with `scale` as in `from_active_fraction`."""
        check("loc", mu)
        check("p", p, lower=_SMALLEST_P)
        loc, exponent, dtype = _wide_pair(mu, p, scale, device, dtype)
        return cls._cast(loc, named_scale(scale, exponent, loc=loc), p, dtype)

    @classmethod
    def _cast(
        cls, loc: Tensor, sigma: Tensor, p: Parameter, dtype: torch.dtype
    ) -> "RectifiedGeneralizedGaussian":
        return cls(loc.to(dtype), sigma.to(dtype), p.to(loc.device, dtype) if isinstance(p, Tensor) else p)

    @property
    def mean(self) -> Tensor:
        log_mean, _, _ = self._log_moments()
        return torch.exp(log_mean + torch.log(self.scale.double())).to(self.loc.dtype)

    @property
    def mode(self) -> Tensor:
        """The point of largest density with respect to Lebesgue + Dirac: 0 or loc."""
        atom = torch.log1p(-torch.exp(self._log_active()))
        peak = -_standard.log_partition(self.p.double()) - torch.log(self.scale.double())
        return torch.where((self.loc > 0) & (peak > atom), self.loc, 0.0)

    @property
    def variance(self) -> Tensor:
        _, _, log_variance = self._log_moments()
        # In logarithms: the square of a large scale may overflow where the variance does not.
        return torch.exp(log_variance + 2 * torch.log(self.scale.double())).to(self.loc.dtype)

    @property
    def active_probability(self) -> Tensor:
        """P(x > 0): the expected l0 fraction, and Rényi's information dimension of a coordinate."""
        return torch.exp(self._log_active()).to(self.loc.dtype)

    @property
    def log_active_probability(self) -> Tensor:
        """log P(x > 0), which goes on where the probability itself underflows."""
        return self._log_active().to(self.loc.dtype)

    @property
    def information_dimension(self) -> Tensor:
        """Rényi's information dimension d(ξ); equal to `active_probability`."""
        return self.active_probability

    @property
    def expected_l1_metric(self) -> Tensor:
        """E[x]² / E[x²]: what the l1 sparsity metric of many independent coordinates tends to."""
        log_mean, log_second, _ = self._log_moments()
        return torch.exp(2 * log_mean - log_second).to(self.loc.dtype)

    @property
    def positive_part(self) -> TruncatedGeneralizedGaussian:
        """The distribution of x given x > 0."""
        return TruncatedGeneralizedGaussian(self.loc, self.scale, self.p, validate_args=False)

    def rsample(
        self, sample_shape: Sequence[int] = torch.Size(), generator: torch.Generator | None = None
    ) -> Tensor:
        return torch.relu(self._location_scale_sample(sample_shape, generator)).to(self.loc.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        density = self._before_rectification().log_prob(value)
        log_atom = _standard.log_sf(self.loc.double() / self.scale.double(), self.p).to(self.loc.dtype)
        return torch.where(value > 0, density, torch.where(value == 0, log_atom, -torch.inf))

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return torch.where(value < 0, 0.0, self._before_rectification().cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        # Before rectification the quantile of 0 is -inf, whose gradient would be NaN.
        lowest = value == 0
        x = self._before_rectification().icdf(torch.where(lowest, 0.5, value))
        return torch.where(lowest, 0.0, torch.relu(x))

    def entropy(self) -> Tensor:
        """d(ξ)-dimensional entropy in nats (Theorem `renyiinfoentropyofrecgengauss`):

        P(x > 0) · H(positive part) + H(Bernoulli(P(x > 0))).
        """
        loc, scale, p = self._wide()
        log_active = self._log_active()
        log_atom = _standard.log_sf(loc / scale, p)
        active, atom = torch.exp(log_active), torch.exp(log_atom)
        continuous = TruncatedGeneralizedGaussian(loc, scale, p, validate_args=False).entropy()
        return (active * (continuous - log_active) - atom * log_atom).to(self.loc.dtype)

    def _before_rectification(self) -> GeneralizedGaussian:
        return GeneralizedGaussian(self.loc, self.scale, self.p, validate_args=False)

    def _log_active(self) -> Tensor:
        loc, scale, p = self._wide()
        return _standard.log_sf(-loc / scale, p)

    def _log_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        loc, scale, p = self._wide()
        return _standard.log_rectified_moments(loc / scale, p)


def _wide_pair(
    value: Parameter,
    p: Parameter,
    scale: str | Parameter,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, torch.dtype]:
    """`value` and p in float64 on `device`, and the dtype of the result."""
    like = next((v for v in (value, p, scale) if isinstance(v, Tensor)), torch.empty(0))
    device, dtype = device or like.device, dtype or like.dtype
    wide, exponent = (torch.as_tensor(v, dtype=torch.float64, device=device) for v in (value, p))
    return wide, exponent, dtype
