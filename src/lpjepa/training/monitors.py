"""What is measured on validation images while a model trains: probes, sparsity, covariance, fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from lpjepa._collectives import gather_batch, share
from lpjepa._random import randn, sample_target
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
HELD_OUT_SLICES = 512
HELD_OUT_SEED = 0x5EED  # directions the loss never draws from: its own seeds are mixed from train.seed


class Features(NamedTuple):
    """Encoder features h_NE, projector features z_ND and labels of a set (on the host, float32)."""

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
    few: bool = False,
) -> Features:
    """Features of every image, each process computing its share; the same on every process.

    With `few`, of at most 4096 images, chosen at random but always the same.
    """
    was_training = model.training
    model.eval()
    if few and len(images) > LARGEST_SAMPLE:
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:LARGEST_SAMPLE]
        lo, hi = share(LARGEST_SAMPLE)
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
    gathered = [gather_batch(torch.cat(part).unsqueeze(0)).squeeze(0).cpu() for part in (h, z)]
    # Labels travel as float64, which holds every class number exactly.
    all_labels = None
    if labels:
        all_labels = gather_batch(torch.cat(labels).double().view(1, -1, 1)).flatten().long().cpu()
    return Features(gathered[0], gathered[1], all_labels)


@torch.no_grad()
def measure(features: Features, probes: OnlineProbes | None, target: Distribution | None) -> dict[str, float]:
    """The monitors of one epoch, by name."""
    z_ND = features.z_ND
    few_ND = z_ND[:LARGEST_SAMPLE]
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
        for name, logits_NC in logits.items():
            hits = logits_NC.argmax(1).cpu() == features.labels_N
            found[f"{name}_accuracy"] = hits.float().mean()
    return {name: float(value) for name, value in found.items()}


def fit_to_target(z_ND: Tensor, target: Distribution) -> dict[str, Any]:
    """Distance of the variances from the target's, of projections on held-out directions, and predictions."""
    found: dict[str, Any] = {}
    if isinstance(target, RectifiedGeneralizedGaussian):
        predicted = predicted_sparsity(target)
        found |= {"l0_predicted": predicted.l0, "l1_predicted": predicted.l1}
    if len(z_ND) > 1:
        found["variance_loss"] = variance_loss(z_ND, target)
    seed = torch.tensor(HELD_OUT_SEED)
    c_KD = torch.nn.functional.normalize(randn(seed, (HELD_OUT_SLICES, z_ND.shape[1]), stream=0), dim=1)
    y_ND = sample_target(seed, target, z_ND.shape)
    found["held_out_discrepancy"] = sliced_discrepancy(z_ND.unsqueeze(0), c_KD, y_ND.unsqueeze(0))
    return found
