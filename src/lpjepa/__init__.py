"""Sparse, non-negative self-supervised representations: Rectified LpJEPA.

    from lpjepa.distributions import RectifiedGeneralizedGaussian
    from lpjepa.losses import RectifiedLpJEPA

    target = RectifiedGeneralizedGaussian.from_active_fraction(0.05, p=1.0)
    criterion = RectifiedLpJEPA(target)

    model = lpjepa.load("runs/digits")          # a trained encoder and projector
    features = model.embed(["a.png", "b.jpg"])

Importing this package loads torch and nothing else heavy.
"""

from typing import TYPE_CHECKING, Any

from lpjepa._version import __version__

if TYPE_CHECKING:
    from lpjepa.inference import load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    # `load` needs timm, NumPy and Pillow: they are imported when it is first asked for.
    if name == "load":
        from lpjepa.inference import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
