"""Second-order measures: distance of variances to the target's, correlation, effective rank.

The two losses are the paper's "Additional Results on Eigenvectors"; they are measured, never trained on.
"""

from typing import Any

import torch
from torch import Tensor

from lpjepa.metrics._features import features, nan_where_not_finite


def variance_loss(z: Tensor, target: Any) -> Tensor:
    """l2 distance of the features' variances to the target's: sqrt(sum_d (Var[z_d] - Var[target])²).

    z: (..., N, D); Var[z_d] is the unbiased variance over N (the diagonal of the empirical covariance).
    `target` is a distribution with a `.variance`, or that variance as a number or a tensor, for all
    features or one each (D,). Returns a scalar, the mean over leading axes. This is the paper's definition,
    a plain Euclidean norm over the D features, and therefore grows with sqrt(D); the authors' code logs
    VICReg's hinge on standard deviations under the same name.
    """
    z = features(z, "variance_loss", minimum=2)
    return variance_distance(z.var(-2), target)


def variance_distance(variance: Tensor, target: Any) -> Tensor:
    """The same from variances (..., D) that are already known."""
    wanted = torch.as_tensor(getattr(target, "variance", target)).to(variance)
    if wanted.ndim and wanted.shape[-1] not in (1, variance.shape[-1]):
        raise ValueError(
            f"variance_loss got {variance.shape[-1]} features but a target variance of shape "
            f"{tuple(wanted.shape)}; give one number, or one for each feature."
        )
    return torch.linalg.vector_norm(variance - wanted, dim=-1).mean()


def covariance_loss(z: Tensor) -> Tensor:
    """VICReg's covariance term: (1/D) · sum over i ≠ j of Cov[z_i, z_j]², with the unbiased covariance.

    z: (..., N, D), covariance over N. Returns a scalar, the mean over leading axes. (The paper's sentence
    says "the sum of the off-diagonal entries scaled by 1/D" of the loss "defined in VICReg"; VICReg and the
    authors' code square them, and so does this.)
    """
    z = features(z, "covariance_loss", minimum=2)
    centred = z - z.mean(-2, keepdim=True)
    with torch.autocast(z.device.type, enabled=False):  # a measure in a training step stays in full precision
        return offdiagonal_energy(centred.mT @ centred / (z.shape[-2] - 1))


def offdiagonal_energy(covariance: Tensor) -> Tensor:
    """The same from covariance matrices (..., D, D) that are already known."""
    size = covariance.shape[-1]
    off = covariance.masked_fill(torch.eye(size, dtype=torch.bool, device=covariance.device), 0.0)
    return off.square().sum((-2, -1)).mean() / size


def effective_rank(z: Tensor, center: bool = False) -> Tensor:
    """exp of the entropy of the normalised singular values (Roy and Vetterli, 2007), as RankMe reports it.

    z: (..., N, D), singular values s of each (N, D) matrix (of the centred one with `center=True`), p = s /
    sum s, result exp(-sum p log p): between 1 and min(N, D); 0 for all-zero features. A scalar, the mean
    over leading axes.
    """
    z = features(z, "effective_rank")
    dtype, finite = z.dtype, z.isfinite().all(-1).all(-1)
    z = torch.nan_to_num(z, nan=0.0, posinf=0.0, neginf=0.0).double()
    if center:
        z = z - z.mean(-2, keepdim=True)
    with torch.autocast(z.device.type, enabled=False):
        gram = z.mT @ z if z.shape[-1] <= z.shape[-2] else z @ z.mT
    return nan_where_not_finite(rank_of_gram(gram), finite).mean().to(dtype)


def rank_of_gram(gram: Tensor) -> Tensor:
    """Effective rank from ZᵀZ (or ZZᵀ) in float64, whose eigenvalues are the squared singular values."""
    squares = torch.linalg.eigvalsh(gram).clamp(min=0.0)
    largest = squares.amax(-1, keepdim=True)
    # Below this an eigenvalue is rounding, and its square root would count as a direction.
    floor = largest * gram.shape[-1] * torch.finfo(gram.dtype).eps
    singular = torch.where(squares > floor, squares, torch.zeros_like(squares)).sqrt()
    total = singular.sum(-1, keepdim=True)
    share = singular / torch.where(total > 0, total, torch.ones_like(total))
    rank = torch.special.entr(share).sum(-1).exp()
    return torch.where(total.squeeze(-1) > 0, rank, torch.zeros_like(rank))
