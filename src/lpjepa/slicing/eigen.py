"""Eigenvectors of the feature covariance as directions, with those of the null space left out.

If projections match the target along the eigenvectors of the covariance, the covariance is γI (the
paper's Proposition "Implicit Regularization of Second-Order Statistics").
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpjepa.slicing._bisection import eigh_by_products

# Eigenvalues are computed from squares in float64: singular values are resolved to about 1e-8 of the
# largest, and what lies below this share of it is taken for zero.
_SMALLEST_RATIO = 1e-6


def max_rank(n: int, dim: int) -> int:
    """The most non-null directions that n centred samples in `dim` dimensions can have."""
    return min(n - 1, dim)


def eigen_directions(z_VND: Tensor, count: int, bottom: bool, lower_half: bool) -> tuple[Tensor, Tensor]:
    """`count` right singular vectors of each view's centred features, and which of them exist.

    Returns c (V, count, D) without gradient and a mask (V, count): largest singular values first, or with
    `bottom` the smallest non-null ones first (`lower_half`: only those in the lower half of the non-null
    ones). Rows beyond the numerical rank are zero and masked: an arbitrary basis of the null space would
    be matched as if it meant something. The rank stays on the device.
    """
    n, dim = z_VND.shape[1:]
    eps = torch.finfo(torch.promote_types(z_VND.dtype, torch.float32)).eps
    threshold = max(max(n, dim) * eps, _SMALLEST_RATIO)
    singular_VR, vectors_VRD = _right_singular_vectors(z_VND, threshold)
    # A batch whose samples all agree has no direction at all: its largest singular value is zero too.
    rank_V1 = (singular_VR > threshold * singular_VR[:, :1]).sum(dim=1, keepdim=True)
    position = torch.arange(count, device=z_VND.device)
    if bottom:
        index_VC = rank_V1 - 1 - position
        exists_VC = index_VC >= (rank_V1 // 2 if lower_half else 0)
    else:
        index_VC = position.expand(z_VND.shape[0], count)
        exists_VC = position < rank_V1
    chosen = index_VC.clamp(0, singular_VR.shape[1] - 1).unsqueeze(-1).expand(-1, -1, dim)
    c_VCD = vectors_VRD.gather(1, chosen) * exists_VC.unsqueeze(-1)
    return c_VCD.to(torch.promote_types(z_VND.dtype, torch.float32)), exists_VC


@torch.no_grad()
def _right_singular_vectors(z_VND: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Singular values (V, R), descending, and right singular vectors (V, R, D), R = min(N, D), float64.

    From the smaller of the two Gram matrices: `eigh` of a small symmetric matrix is several times faster
    than an SVD of the features, and float64 makes up for squaring.
    """
    with torch.autocast(z_VND.device.type, enabled=False):
        x = z_VND.double()
        x = x - x.mean(dim=1, keepdim=True)
        if x.shape[1] < x.shape[2]:
            eigenvalues, u = _eigh(x @ x.mT, threshold**2)
            vectors = u.mT @ x
            vectors = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp(min=1e-300)
        else:
            eigenvalues, v = _eigh(x.mT @ x, threshold**2)
            vectors = v.mT
        return eigenvalues.clamp(min=0).sqrt(), vectors


# An operator, so that the choice is made when it runs and not when a compiler traces it.
@torch.library.custom_op(
    "lpjepa::eigh", mutates_args=(), schema="(Tensor gram_VRR, float floor) -> (Tensor, Tensor)"
)
def _eigh(gram_VRR: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues (V, R), descending, and eigenvectors as columns (V, R, R).

    `torch.linalg.eigh` makes the host wait for a GPU, which a CUDA graph under capture refuses; there,
    eigenvectors come from matrix products, which do not tell eigenvalues below `floor` of the largest apart.
    """
    if gram_VRR.is_cuda and torch.cuda.is_current_stream_capturing():
        return eigh_by_products(gram_VRR, floor)
    eigenvalues, vectors = torch.linalg.eigh(gram_VRR)
    return eigenvalues.flip(-1), vectors.flip(-1).contiguous()  # LAPACK's have columns one after another


@_eigh.register_fake
def _(gram_VRR: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    return gram_VRR.new_empty(gram_VRR.shape[:-1]), gram_VRR.new_empty(gram_VRR.shape)
