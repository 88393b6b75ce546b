"""The losses of others, from a checkout of their code; no more of it is imported than the loss needs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpjepa.bench.reference import SIGMA, random_directions

Method = Callable[[Tensor], Tensor]


class Peer(NamedTuple):
    name: str
    build: Callable[[int, int], Method]  # (dimensions, slices) -> loss of z_VND


def load_peer(path: Path, device: torch.device) -> Peer:
    """The authors' RDMReg or LeJEPA's SIGReg, whichever the checkout at `path` holds."""
    if (path / "solo/losses/rectified_lpjepa.py").is_file():
        return _authors(path / "solo/losses/rectified_lpjepa.py", device)
    if (path / "lejepa/multivariate/slicing.py").is_file():
        return _lejepa(path, device)
    raise ValueError(
        f"--peer {path}: neither the authors' code (solo/losses/rectified_lpjepa.py) nor LeJEPA's "
        "(lejepa/multivariate/slicing.py) is there; name the folder of a checkout."
    )


def _authors(file: Path, device: torch.device) -> Peer:
    for name in ("solo", "solo.utils", "solo.utils.misc", "solo.utils.metrics"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["solo.utils.misc"].gather = lambda x: x  # type: ignore[attr-defined]
    for name in ("l1_sparsity_metric", "l0_sparsity_metric", "variance_loss", "covariance_loss"):
        setattr(sys.modules["solo.utils.metrics"], name, None)
    if importlib.util.find_spec("mpmath") is None:  # used by what is not called here
        sys.modules["mpmath"] = types.ModuleType("mpmath")
    spec = importlib.util.spec_from_file_location("authors_loss", file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(dim: int, slices: int) -> Method:
        return lambda z: module.rdmreg_loss(
            z[0],
            z[1],
            random_directions(slices, dim, device),
            "rectified_lp_distribution",
            0.0,
            1.0,
            SIGMA,
        )

    return Peer("authors' RDMReg", build)


def _lejepa(path: Path, device: torch.device) -> Peer:
    for name in ("lejepa", "lejepa.univariate", "lejepa.multivariate"):
        package = types.ModuleType(name)
        package.__path__ = [str(path / name.replace(".", "/"))]
        sys.modules[name] = package
    slicing = importlib.import_module("lejepa.multivariate.slicing")
    univariate = importlib.import_module("lejepa.univariate.epps_pulley")
    return Peer(
        "LeJEPA's SIGReg",
        lambda dim, slices: slicing.SlicingUnivariateTest(univariate.EppsPulley(), slices).to(device),
    )
