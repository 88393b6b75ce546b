"""Rectified LpJEPA, the paper's objective, and LpJEPA, the same with plain features."""

from collections.abc import Mapping
from typing import ClassVar

from torch.distributions import Distribution

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.losses._joint_embedding import JointEmbedding
from lpjepa.losses.rdmreg import RDMReg


class RectifiedLpJEPA(JointEmbedding):
    """The objective of the paper ("Rectified LpJEPA with RDMReg"):

        invariance_weight · mean over N and D of (z1 − z2)² + matching_weight · RDMReg(z1, z2),

    for rectified features: the projector ends with a ReLU. The weights 25 and 125 and the 8192 slices are the
    paper's ("Distribution matching objective"). The paper writes the invariance as a sum over D and RDMReg as
    a sum over views; the authors' code, which this follows, takes means: factors D and V that the weights are
    tuned for. For V views the invariance is the mean over pairs of views.

    `target` is a `RectifiedGeneralizedGaussian`; the other arguments are those of `RDMReg`.

    Views: (N, D) each, or (V, N, D). `components`: loss, invariance, matching (RDMReg, with its axes if any).

    >>> target = RectifiedGeneralizedGaussian.from_active_fraction(0.05, p=1.0)
    >>> criterion = RectifiedLpJEPA(target)
    >>> loss = criterion(z1, z2)                                        # doctest: +SKIP
    """

    target_class: ClassVar[type[Distribution]] = RectifiedGeneralizedGaussian

    def __init__(
        self,
        target: Distribution,
        invariance_weight: float = 25.0,
        matching_weight: float = 125.0,
        num_slices: int = 8192,
        directions: str | Mapping[str, int] = "random",
        axes_weight: float = 0.0,
        discrepancy: str = "wasserstein2",
        target_ratio: float = 1.0,
        target_quantiles: str = "sampled",
        seed: int = 0,
        precision: str = "fast",
    ) -> None:
        if not isinstance(target, self.target_class):
            raise TypeError(
                f"target of {type(self).__name__} must be a {self.target_class.__name__}, "
                f"got {type(target).__name__}."
            )
        regularizer = RDMReg(
            target,
            num_slices,
            directions,
            axes_weight,
            discrepancy,
            target_ratio,
            target_quantiles,
            seed,
            precision,
        )
        super().__init__(regularizer, invariance_weight, matching_weight)


class LpJEPA(RectifiedLpJEPA):
    """Rectified LpJEPA without the rectification ("Baseline Designs" of the paper).

    Plain features are matched to a `GeneralizedGaussian`. For p = 2 that is LeJEPA's target, a Gaussian.
    """

    target_class = GeneralizedGaussian
