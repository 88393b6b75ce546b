"""Channel means and standard deviations, the same for training views and evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from lpjepa.data.errors import DataError

Channels = tuple[float, float, float]

# Statistics of the training images in [0, 1]: CIFAR and ImageNet as the authors' recipes have them.
STATISTICS: dict[str, tuple[Channels, Channels]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "plain": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


def statistics_for(source: str) -> tuple[Channels, Channels]:
    """(mean, std) for a source by name: its own, plain ones for grey images, ImageNet's for all others."""
    if source in STATISTICS:
        return STATISTICS[source]
    return STATISTICS["plain" if source in ("digits", "fashion-mnist") else "imagenet"]


def checked(mean: Sequence[float], std: Sequence[float]) -> tuple[Channels, Channels]:
    """``mean`` and ``std`` as three numbers each."""
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise DataError(f"mean and std need three numbers each, std positive, not {mean} and {std}.")
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])
