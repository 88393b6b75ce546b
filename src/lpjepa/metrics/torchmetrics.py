"""The measures as `torchmetrics` classes, for loops that log with that library (`pip install torchmetrics`).

    from lpjepa.metrics.torchmetrics import L0Sparsity
    metric = L0Sparsity(); metric.update(z); metric.compute()

Batches are (..., N, D). States are sums or concatenations, so torchmetrics reduces them over processes by
itself. This module is imported on demand only: `lpjepa.metrics` needs torch alone.
"""

from typing import Any

import torch
from torch import Tensor

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.metrics.covariance import offdiagonal_energy, rank_of_gram, variance_distance
from lpjepa.metrics.entropy import marginal_entropy
from lpjepa.metrics.independence import nhsic
from lpjepa.metrics.lidar import lidar
from lpjepa.metrics.sparsity import l0_sparsity, l1_sparsity

declare_missing_ops()  # torchmetrics imports torchvision where it is installed
try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise ImportError(
        "lpjepa.metrics.torchmetrics needs torchmetrics; install it with: pip install torchmetrics"
    ) from error


class _SampleMean(Metric):
    """Mean over samples of one number each."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def _values(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def update(self, z: Tensor) -> None:
        values = self._values(z)
        self.total += values.double().sum()
        self.count += values.numel()

    def compute(self) -> Tensor:
        return self.total / self.count


class L0Sparsity(_SampleMean):
    """`l0_sparsity` of all samples seen."""

    higher_is_better = False

    def _values(self, z: Tensor) -> Tensor:
        return l0_sparsity(z, reduce=False)


class L1Sparsity(_SampleMean):
    """`l1_sparsity` of all samples seen."""

    higher_is_better = False

    def _values(self, z: Tensor) -> Tensor:
        return l1_sparsity(z, reduce=False)


class _Moments(Metric):
    """First and second moments of `num_features` features, in float64."""

    full_state_update = False
    sums: Tensor
    products: Tensor
    count: Tensor

    def __init__(self, num_features: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        shape = (num_features, num_features)
        self.add_state("sums", torch.zeros(num_features, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("products", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, z: Tensor) -> None:
        rows = z.detach().flatten(0, -2).double()
        self.sums += rows.sum(0)
        self.products += rows.mT @ rows
        self.count += len(rows)

    def _covariance(self) -> Tensor:
        return (self.products - torch.outer(self.sums, self.sums) / self.count) / (self.count - 1)


class VarianceLoss(_Moments):
    """`variance_loss` to `target` of all samples seen."""

    higher_is_better = False

    def __init__(self, num_features: int, target: Any, **kwargs: Any) -> None:
        super().__init__(num_features, **kwargs)
        self.target = target

    def compute(self) -> Tensor:
        return variance_distance(self._covariance().diagonal(), self.target)


class CovarianceLoss(_Moments):
    """`covariance_loss` of all samples seen."""

    higher_is_better = False

    def compute(self) -> Tensor:
        return offdiagonal_energy(self._covariance())


class EffectiveRank(_Moments):
    """`effective_rank` of all samples seen."""

    higher_is_better = True

    def compute(self) -> Tensor:
        return rank_of_gram(self.products)


class _ActiveCounts(Metric):
    """How often each of `num_features` features was active."""

    full_state_update = False
    active: Tensor
    count: Tensor

    def __init__(self, num_features: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("active", torch.zeros(num_features, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, z: Tensor) -> None:
        rows = z.detach().flatten(0, -2)
        self.active += (rows != 0).sum(0)
        self.count += len(rows)


class DeadFraction(_ActiveCounts):
    """`dead_fraction` over all samples seen."""

    higher_is_better = False

    def compute(self) -> Tensor:
        return (self.active == 0).double().mean()


class AlwaysOnFraction(_ActiveCounts):
    """`always_on_fraction` over all samples seen."""

    higher_is_better = False

    def compute(self) -> Tensor:
        return (self.active == self.count).double().mean()


class _Kept(Metric):
    """Keeps every batch: these measures need the samples themselves."""

    full_state_update = False
    batches: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("batches", [], dist_reduce_fx="cat")

    def update(self, z: Tensor) -> None:
        self.batches.append(z.detach().flatten(0, -2))

    def _samples(self) -> Tensor:
        return dim_zero_cat(self.batches)


class MarginalEntropy(_Kept):
    """The sum of `marginal_entropy` over features, of all samples seen."""

    higher_is_better = True

    def compute(self) -> Tensor:
        return marginal_entropy(self._samples()).total


class NHSIC(_Kept):
    """`nhsic` of all samples seen."""

    higher_is_better = False

    def compute(self) -> Tensor:
        return nhsic(self._samples())


class LiDAR(_Kept):
    """`lidar` of all images seen; each batch is (V, N, D)."""

    higher_is_better = True

    def update(self, z: Tensor) -> None:
        self.batches.append(z.detach().transpose(0, 1))  # images first: they are what concatenates

    def compute(self) -> Tensor:
        return lidar(self._samples().transpose(0, 1))
