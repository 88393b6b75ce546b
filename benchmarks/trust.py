"""At which rate LARS would move the layers of an untrained network, method by method.

    python benchmarks/trust.py --data-root DATA

LARS with clipped trust moves a layer at the smaller of the learning rate and eta · |w| / |g|, the norms of
its weights and of its gradient. The latter is computed on one batch of views, for every weight matrix of
encoder and projector, with the settings of presets:cifar100. A method whose quotients lie far above its
learning rate is held back by it. `DATA` holds CIFAR-100 as torchvision keeps it, or cifar100.npz.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from lpjepa.bench.stamp import sentence, stamp
from lpjepa.data import Views
from lpjepa.recipes import Places
from lpjepa.training import Config, load_config
from lpjepa.training.assembly import load_images
from lpjepa.training.objectives import build_objective
from lpjepa.training.run import build_model

METHODS: dict[str, dict[str, Any]] = {
    "Rectified LpJEPA": {},
    "LpJEPA, p = 2": {"loss": {"method": "lpjepa"}, "target": {"p": 2.0}},
    "VICReg": {"loss": {"method": "vicreg"}},
    "SimCLR": {"loss": {"method": "simclr"}},
    "LeJEPA": {"loss": {"method": "lejepa", "num_slices": 1024}},
}


def trust(config: Config, images_NCHW: torch.Tensor) -> torch.Tensor:
    """eta · |w| / |g| of each weight matrix or kernel."""
    torch.manual_seed(config.train.seed)
    model, objective = build_model(config), build_objective(config)
    views_VNCHW = Views(config.views)(images_NCHW, torch.tensor(config.train.seed))
    z_VND = model(views_VNCHW.flatten(0, 1))[1].unflatten(0, views_VNCHW.shape[:2])
    objective(*z_VND).backward()
    pairs = [(w.detach(), w.grad) for w in model.parameters() if w.ndim > 1 and w.grad is not None]
    return torch.stack([config.optim.eta * w.norm() / gradient.norm() for w, gradient in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", type=Path, required=True)
    places = Places(Path(), Path(), parser.parse_args().data_root, "small")
    train, _ = load_images(places.located(load_config("presets:cifar100")))
    images_NCHW = train.read(torch.arange(256)).images
    print("eta |w| / |g| over layers: lowest, quartiles, highest")
    for name, changes in METHODS.items():
        found = trust(load_config("presets:cifar100", changes), images_NCHW)
        ends = found.quantile(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])).tolist()
        print(f"{name:<18}" + "".join(f"{value:9.4f}" for value in ends))
    print(sentence(stamp(torch.device("cpu"), sys.argv)))


if __name__ == "__main__":
    main()
