"""Sparse, non-negative self-supervised representations: Rectified LpJEPA.

    from lpjepa.distributions import RectifiedGeneralizedGaussian
    from lpjepa.losses import RectifiedLpJEPA

    target = RectifiedGeneralizedGaussian.from_active_fraction(0.05, p=1.0)
    criterion = RectifiedLpJEPA(target)

Importing this package loads torch and nothing else heavy.
"""

from lpjepa._version import __version__

__all__ = ["__version__"]
