"""The same measures for sets that do not fit in memory: `update(z)` batch by batch, `merge` across workers.

Sparsity and second moments are sums, so the result is that of the whole set at once. Entropy and nHSIC need
the samples themselves; `FeatureSample` keeps a uniform draw of them of bounded size.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpjepa.metrics._features import features
from lpjepa.metrics.covariance import offdiagonal_energy, rank_of_gram, variance_distance
from lpjepa.metrics.sparsity import l0_sparsity, l1_sparsity


def _rows(z: Tensor, name: str, size: int | None) -> Tensor:
    """Leading axes count as more samples; the number of features must stay the same from batch to batch."""
    z = features(z, name, minimum=0).flatten(0, -2)
    if size is not None and z.shape[1] != size:
        raise ValueError(f"{name} has seen {size} features a sample and now got {z.shape[1]}.")
    return z


class SparsitySummary(NamedTuple):
    """Sparsity of a set of features; scalars, and the active fraction of each feature (D,)."""

    l0: Tensor
    l1: Tensor
    dead: Tensor
    always_on: Tensor
    active: Tensor


class SparsityStream:
    """l0 and l1 sparsity, dead and always-on features of a set seen in batches (..., N, D)."""

    def __init__(self) -> None:
        self.count = 0
        self._l0: Tensor | None = None
        self._l1: Tensor | None = None
        self._active: Tensor | None = None

    def update(self, z: Tensor) -> "SparsityStream":
        z = _rows(z, "SparsityStream", None if self._active is None else len(self._active))
        if len(z) == 0:
            return self
        l0 = l0_sparsity(z, reduce=False).double().sum()
        l1 = l1_sparsity(z, reduce=False).double().sum()
        active = (z != 0).sum(0).double()
        return self._add(len(z), l0, l1, active)

    def merge(self, other: "SparsityStream") -> "SparsityStream":
        """Adds what `other` has seen to this one."""
        if other._l0 is None or other._l1 is None or other._active is None:
            return self
        return self._add(other.count, other._l0, other._l1, other._active)

    def _add(self, count: int, l0: Tensor, l1: Tensor, active: Tensor) -> "SparsityStream":
        self.count += count
        self._l0 = l0 if self._l0 is None else self._l0 + l0
        self._l1 = l1 if self._l1 is None else self._l1 + l1
        self._active = active if self._active is None else self._active + active
        return self

    def compute(self) -> SparsitySummary:
        if self._l0 is None or self._l1 is None or self._active is None:
            raise ValueError("SparsityStream has seen no samples; call update(z) first.")
        return SparsitySummary(
            l0=self._l0 / self.count,
            l1=self._l1 / self.count,
            dead=(self._active == 0).double().mean(),
            always_on=(self._active == self.count).double().mean(),
            active=self._active / self.count,
        )


class MomentStream:
    """Mean and covariance of a set seen in batches (..., N, D), in float64, and the measures made of them."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Tensor | None = None
        self._products: Tensor | None = None

    def update(self, z: Tensor) -> "MomentStream":
        z = _rows(z, "MomentStream", None if self._sum is None else len(self._sum)).double()
        return self._add(len(z), z.sum(0), z.mT @ z) if len(z) else self

    def merge(self, other: "MomentStream") -> "MomentStream":
        """Adds what `other` has seen to this one."""
        if other._sum is None or other._products is None:
            return self
        return self._add(other.count, other._sum, other._products)

    def _add(self, count: int, total: Tensor, products: Tensor) -> "MomentStream":
        self.count += count
        self._sum = total if self._sum is None else self._sum + total
        self._products = products if self._products is None else self._products + products
        return self

    def _moments(self, minimum: int) -> tuple[Tensor, Tensor]:
        if self._sum is None or self._products is None or self.count < minimum:
            raise ValueError(
                f"MomentStream needs {minimum} samples or more and saw {self.count}; call update(z) first."
            )
        return self._sum, self._products

    def mean(self) -> Tensor:
        return self._moments(1)[0] / self.count

    def covariance(self) -> Tensor:
        """The unbiased covariance (D, D)."""
        return self._scatter() / (self.count - 1)

    def _scatter(self) -> Tensor:
        total, products = self._moments(2)
        return products - torch.outer(total, total) / self.count

    def variance_loss(self, target: Any) -> Tensor:
        return variance_distance(self.covariance().diagonal(), target)

    def covariance_loss(self) -> Tensor:
        return offdiagonal_energy(self.covariance())

    def effective_rank(self, center: bool = False) -> Tensor:
        gram = self._scatter() if center else self._moments(1)[1]
        finite = gram.isfinite().all()
        return torch.where(finite, rank_of_gram(torch.nan_to_num(gram, 0.0, 0.0, 0.0)), torch.nan)


class FeatureSample:
    """A uniform sample, without replacement, of at most `capacity` rows of a set seen in batches (..., N, D).

    Every row gets a random key and the rows with the smallest keys stay, so two samples merge into a sample
    of the union. Workers need different seeds.
    """

    def __init__(self, capacity: int = 4096, seed: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"FeatureSample needs a capacity of 1 or more, not {capacity}.")
        self.capacity = capacity
        self.count = 0
        self._generator = torch.Generator().manual_seed(seed)
        self._keys: Tensor | None = None
        self._kept: Tensor | None = None

    def update(self, z: Tensor) -> "FeatureSample":
        z = _rows(z, "FeatureSample", None if self._kept is None else self._kept.shape[1])
        keys = torch.rand(len(z), generator=self._generator, dtype=torch.float64).to(z.device)
        self.count += len(z)
        return self._add(keys, z)

    def merge(self, other: "FeatureSample") -> "FeatureSample":
        """Adds what `other` has seen to this one."""
        self.count += other.count
        return self if other._keys is None or other._kept is None else self._add(other._keys, other._kept)

    def _add(self, keys: Tensor, rows: Tensor) -> "FeatureSample":
        if self._keys is not None and self._kept is not None:
            keys, rows = torch.cat([self._keys, keys]), torch.cat([self._kept, rows.to(self._kept)])
        if len(keys) > self.capacity:
            chosen = keys.topk(self.capacity, largest=False).indices.sort().values
            keys, rows = keys[chosen], rows[chosen]
        self._keys, self._kept = keys, rows.clone()
        return self

    def compute(self) -> Tensor:
        """The sampled rows, (min(capacity, seen), D), in the order in which they came."""
        if self._kept is None or self.count == 0:
            raise ValueError("FeatureSample has seen no samples; call update(z) first.")
        return self._kept
