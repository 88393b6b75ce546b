"""LiDAR: the rank of what tells images apart, beyond what augmentation changes (Thilak et al., 2023)."""

import torch
from torch import Tensor

from lpjepa.metrics._features import features


def lidar(z: Tensor, within_shrinkage: float = 1e-4) -> Tensor:
    """Effective rank of the linear discriminant matrix in which every image is a class of its own views.

    z: (V, N, D), V ≥ 2 views of N ≥ 2 images. With the mean μ_i of an image's views and μ of all,

        Σ_b = 1/(N - 1) · sum_i (μ_i - μ)(μ_i - μ)ᵀ
        Σ_w = 1/(N (V - 1)) · sum_i sum_v (z_vi - μ_i)(z_vi - μ_i)ᵀ + within_shrinkage · I

    and λ the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, p = λ / sum λ: the result is exp(-sum p log p),
    between 1 and min(N - 1, D). 0 where all images have the same mean; NaN where a feature is not finite.
    """
    z = features(z, "lidar", minimum=2)
    if z.ndim != 3 or z.shape[0] < 2:
        raise ValueError(
            f"lidar takes features of shape (V, N, D) with V of 2 or more, not {tuple(z.shape)}."
        )
    if not bool(z.isfinite().all()):
        return z.new_full((), torch.nan)
    views, images, size = z.shape
    x_VND = z.double()
    image_means = x_VND.mean(0)
    between = image_means - image_means.mean(0)
    within = (x_VND - image_means).reshape(-1, size)
    sigma_w = within.mT @ within / (images * (views - 1))
    sigma_w.diagonal().add_(within_shrinkage)
    # With Σ_w = L Lᵀ and Σ_b = B Bᵀ up to a factor, the eigenvalues wanted are those of A Aᵀ, A = L⁻¹ B;
    # the smaller of A Aᵀ and Aᵀ A has all that are not zero.
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(sigma_w), between.mT, upper=False)
    gram = whitened @ whitened.mT if size <= images else whitened.mT @ whitened
    eigenvalues = torch.linalg.eigvalsh(gram).clamp(min=0.0)
    total = eigenvalues.sum()
    share = eigenvalues / torch.where(total > 0, total, torch.ones_like(total))
    rank = torch.special.entr(share).sum().exp()
    return torch.where(total > 0, rank, torch.zeros_like(rank)).to(z.dtype)
