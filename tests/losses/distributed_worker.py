"""One of several processes that compute every objective on one global batch; run by test_distributed.py.

python distributed_worker.py RANK FOLDER writes FOLDER/RANK.pt: for every case (objective, number of
processes, split of the batch, collective left out) the parts of the loss on this rank and the parameters'
gradients after DDP has averaged them.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lpjepa import _collectives
from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.losses import (
    LeJEPA,
    LpJEPA,
    NonNegativeContrastive,
    NonNegativeVICReg,
    RDMReg,
    RectifiedLpJEPA,
    SIGReg,
    SimCLR,
    VICReg,
)

DIMENSIONS, SAMPLES = 6, 12
# Samples on every rank. The unequal splits include a rank with a single sample.
SPLITS = {
    1: {"equal": (12,)},
    2: {"equal": (6, 6), "unequal": (7, 5)},
    3: {"equal": (4, 4, 4), "unequal": (6, 5, 1)},
}


def objectives():
    rectified = RectifiedGeneralizedGaussian(torch.tensor(0.2), torch.tensor(0.7), torch.tensor(1.0))
    plain = GeneralizedGaussian(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2.0))
    return {
        "RDMReg": RDMReg(rectified, num_slices=37, axes_weight=0.5),
        # Fewer slices than three ranks: one rank has none to compute.
        "RDMReg two slices": RDMReg(rectified, num_slices=2),
        "RDMReg eigen": RDMReg(rectified, num_slices=8, directions="eigen", target_ratio=2.0),
        "RDMReg axes": RDMReg(rectified, directions={"axes": 5, "random": 21}),
        "RDMReg exact": RDMReg(plain, num_slices=20, target_quantiles="exact"),
        "SIGReg": SIGReg(num_slices=19),
        "RectifiedLpJEPA": RectifiedLpJEPA(rectified, num_slices=300, axes_weight=0.1),
        "LpJEPA": LpJEPA(plain, num_slices=16, discrepancy="energy"),
        "LeJEPA": LeJEPA(num_slices=16),
        "VICReg": VICReg(),
        "NonNegativeVICReg": NonNegativeVICReg(activation="rep_relu"),
        "SimCLR": SimCLR(),
        "NonNegativeContrastive": NonNegativeContrastive(activation="rep_relu"),
    }


# What a rank would hold if a collective were left out.
WITHOUT = {
    "_all_gather": lambda x: torch.stack([x] * _collectives.world()[1]),
    "_reduce_scatter": lambda x_W: x_W[_collectives.world()[0]],
    "_all_reduce": lambda x: x,
    "_exchange_sizes": lambda n: [n] * _collectives.world()[1],
}
GATHERED = ("_all_gather", "_reduce_scatter", "_all_reduce")


def collectives_of(name):
    return ("_exchange_sizes", "_all_reduce") if "VICReg" in name else GATHERED


def compute(criterion, sizes, rank):
    """Parts of the loss and gradients of a small network's parameters, on this rank's samples."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, DIMENSIONS)).double()
    images_VNI = torch.randn(3, SAMPLES, 5, dtype=torch.float64)
    lo = sum(sizes[:rank])
    local_VNI = images_VNI[:, lo : lo + sizes[rank]]
    model = DistributedDataParallel(network) if len(sizes) > 1 else network
    features_VND = model(local_VNI.flatten(0, 1)).unflatten(0, local_VNI.shape[:2])
    parts = criterion.components(features_VND)
    parts.loss.backward()
    return [part.item() for part in parts], [p.grad.clone() for p in network.parameters()]


def main(rank, folder):
    results = {}
    for world, splits in SPLITS.items():
        if rank >= world:
            continue
        if world > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/group{world}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=60),
            )
        for split, sizes in splits.items():
            for name, criterion in objectives().items():
                results[name, world, split, None] = compute(criterion, sizes, rank)
            if (world, split) != (3, "unequal"):
                continue
            for name in objectives():
                for collective in collectives_of(name):
                    kept = getattr(_collectives, collective)
                    setattr(_collectives, collective, WITHOUT[collective])
                    results[name, world, split, collective] = compute(objectives()[name], sizes, rank)
                    setattr(_collectives, collective, kept)
        if world > 1:
            dist.destroy_process_group()
    torch.save(results, Path(folder) / f"{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
