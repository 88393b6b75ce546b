"""The Generalized Gaussian, its truncation and its rectification, as members of `torch.distributions`."""

import lpjepa.distributions.kl  # noqa: F401 (registers the divergences)
from lpjepa.distributions.generalized_gaussian import GeneralizedGaussian
from lpjepa.distributions.rectified import RectifiedGeneralizedGaussian
from lpjepa.distributions.scales import sigma_gn, sigma_rgn
from lpjepa.distributions.truncated import TruncatedGeneralizedGaussian

__all__ = [
    "GeneralizedGaussian",
    "RectifiedGeneralizedGaussian",
    "TruncatedGeneralizedGaussian",
    "sigma_gn",
    "sigma_rgn",
]
