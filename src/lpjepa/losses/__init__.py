"""Objectives on features: RDMReg, what is built on it, and the baselines of the paper."""

from lpjepa.losses.activations import RepReLU
from lpjepa.losses.lejepa import LeJEPA
from lpjepa.losses.lpjepa import LpJEPA, RectifiedLpJEPA
from lpjepa.losses.rdmreg import RDMReg
from lpjepa.losses.sigreg import SIGReg
from lpjepa.losses.simclr import NonNegativeContrastive, SimCLR
from lpjepa.losses.vicreg import NonNegativeVICReg, VICReg

__all__ = [
    "LeJEPA",
    "LpJEPA",
    "NonNegativeContrastive",
    "NonNegativeVICReg",
    "RDMReg",
    "RectifiedLpJEPA",
    "RepReLU",
    "SIGReg",
    "SimCLR",
    "VICReg",
]
