"""Objectives of the form "invariance of the views + matching of their distribution"."""

from typing import Any, NamedTuple

from torch import Tensor

from lpjepa.losses._objective import Matching, Objective, check_weight, pair_invariance, sum_parts


class JointEmbeddingParts(NamedTuple):
    loss: Tensor
    invariance: Tensor
    matching: Tensor


class JointEmbedding(Objective):
    """`invariance_weight · invariance + matching_weight · matching`, for the objectives built on it.

    `regularizer` measures how far the features are from their target. Both parts are shares of this rank
    until one all-reduce of two numbers adds them up.
    """

    def __init__(self, regularizer: Matching, invariance_weight: float, matching_weight: float) -> None:
        super().__init__()
        check_weight("invariance_weight", invariance_weight)
        check_weight("matching_weight", matching_weight)
        self.regularizer = regularizer
        self.invariance_weight = invariance_weight
        self.matching_weight = matching_weight

    def _components(self, z_VND: Tensor, sizes: list[int], **randomness: Any) -> JointEmbeddingParts:
        invariance = self._invariance(z_VND, sum(sizes))
        matching = self.regularizer._share(z_VND, sizes, **randomness).loss
        invariance, matching = sum_parts(invariance, matching)
        loss = self.invariance_weight * invariance + self.matching_weight * matching
        return JointEmbeddingParts(loss, invariance, matching)

    def _invariance(self, z_VND: Tensor, count: int) -> Tensor:
        return pair_invariance(z_VND, count)

    def extra_repr(self) -> str:
        return f"invariance_weight={self.invariance_weight}, matching_weight={self.matching_weight}"
