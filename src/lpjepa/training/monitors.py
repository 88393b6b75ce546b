"""What is measured on validation images while a model trains: probes, sparsity, covariance, fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from lpjepa._collectives import gather_batch, share
from lpjepa._random import randn, sample_target
from lpjepa._spread import spread
from lpjepa.data import Batch, EvalTransform, ImageSet, in_order
from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.metrics import (
    covariance_loss,
    dead_fraction,
    effective_rank,
    l0_sparsity,
    l1_sparsity,
    predicted_sparsity,
    variance_loss,
)
from lpjepa.models import SparseModel
from lpjepa.slicing import sliced_discrepancy
from lpjepa.training.precision import autocast
from lpjepa.training.probes import OnlineProbes

# Second-order measures of a few thousand samples are as good as those of all, and bounded in time.
LARGEST_SAMPLE = 4096
# On a GPU, pixels and images a batch: small batches of small images would only wait for their launches.
PIXELS, MOST_IMAGES = 2**20, 1024
HELD = 2**26  # values: features of larger sets leave the device, whose memory the training needs
HELD_OUT_SLICES = 512
HELD_OUT_SEED = 0x5EED  # directions the loss never draws from: its own seeds are mixed from train.seed


class Features(NamedTuple):
    """Encoder features h_NE, projector features z_ND and labels of a set, float32, all on one device."""

    h_NE: Tensor
    z_ND: Tensor
    labels_N: Tensor | None


@torch.no_grad()
def extract(
    model: SparseModel,
    images: ImageSet,
    preprocess: EvalTransform,
    device: torch.device,
    precision: str,
    batch_size: int,
    workers: int = 0,
    most: int | None = None,
) -> Features:
    """Features of every image, each process computing its share; the same on every process.

    Of `most` images where there are more, chosen at random but always the same. Small images are taken more
    than `batch_size` at a time on a GPU. The features stay on `device` unless they are many.
    """
    batch_size = max(batch_size, suited_batch(preprocess.size, device))
    was_training = model.training
    model.eval()
    if most is not None and len(images) > most:
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:most]
        lo, hi = share(most)
        batches: Iterable[Batch] = (images.read(part).to(device) for part in chosen[lo:hi].split(batch_size))
    else:
        lo, hi = share(len(images))
        batches = in_order(images, batch_size, device=device, start=lo, stop=hi, workers=workers)
    h, z, labels = [], [], []
    for batch in batches:
        with autocast(device, precision):
            h_NE, z_ND = model(preprocess(batch.images, batch.sizes))
        h.append(h_NE.float())
        z.append(z_ND.float())
        if batch.labels is not None:
            labels.append(batch.labels)
    model.train(was_training)
    found_h, found_z = (gather_batch(torch.cat(part).unsqueeze(0)).squeeze(0) for part in (h, z))
    place = device if found_h.numel() + found_z.numel() <= HELD else torch.device("cpu")
    # Labels travel as float64, which holds every class number exactly.
    all_labels = None
    if labels:
        all_labels = gather_batch(torch.cat(labels).double().view(1, -1, 1)).flatten().long().to(place)
    return Features(found_h.to(place), found_z.to(place), all_labels)


def suited_batch(side: int, device: torch.device) -> int:
    """Images of `side` pixels that keep a GPU busy as one batch; 1 elsewhere, where any batch does."""
    return min(MOST_IMAGES, max(1, PIXELS // side**2)) if device.type == "cuda" else 1


@torch.no_grad()
def measure(features: Features, probes: OnlineProbes | None, target: Distribution | None) -> dict[str, float]:
    """The monitors of one epoch, by name, computed where the features are and read back all at once."""
    z_ND = features.z_ND
    few_ND = z_ND[spread(len(z_ND), LARGEST_SAMPLE).to(z_ND.device)]
    found: dict[str, Any] = {
        "l0": l0_sparsity(z_ND),
        "l1": l1_sparsity(z_ND),
        "dead_fraction": dead_fraction(z_ND),
        "effective_rank": effective_rank(few_ND),
    }
    if len(few_ND) > 1:
        found["covariance_loss"] = covariance_loss(few_ND)
    if target is not None:
        found |= fit_to_target(few_ND, target)
    if probes is not None and features.labels_N is not None:
        device = next(probes.parameters()).device
        logits = probes(features.h_NE.to(device), features.z_ND.to(device))
        labels_N = features.labels_N.to(device)
        for name, logits_NC in logits.items():
            found[f"{name}_accuracy"] = (logits_NC.argmax(1) == labels_N).float().mean()
    values = torch.stack([torch.as_tensor(value).to(z_ND.device, torch.float64) for value in found.values()])
    return dict(zip(found, values.tolist()))


def fit_to_target(z_ND: Tensor, target: Distribution) -> dict[str, Any]:
    """Distance of the variances from the target's, of projections on held-out directions, and predictions."""
    found: dict[str, Any] = {}
    if isinstance(target, RectifiedGeneralizedGaussian):
        predicted = predicted_sparsity(target)
        found |= {"l0_predicted": predicted.l0, "l1_predicted": predicted.l1}
    if len(z_ND) < 2:
        return found  # one image has neither variance nor distribution
    found["variance_loss"] = variance_loss(z_ND, target)
    seed = torch.tensor(HELD_OUT_SEED, device=z_ND.device)
    c_KD = torch.nn.functional.normalize(randn(seed, (HELD_OUT_SLICES, z_ND.shape[1]), stream=0), dim=1)
    y_ND = sample_target(seed, target, z_ND.shape)
    # A good fit is a small difference of large numbers, which 16-bit kernels would lose.
    precision = "exact" if z_ND.is_cuda else "fast"
    found["held_out_discrepancy"] = sliced_discrepancy(
        z_ND.unsqueeze(0), c_KD, y_ND.unsqueeze(0), precision=precision
    )
    return found
