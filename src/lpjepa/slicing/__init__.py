"""Matching distributions along one-dimensional slices: directions, discrepancies, exact quantiles."""

from lpjepa.slicing.directions import DirectionPlan, Directions, parse_directions
from lpjepa.slicing.discrepancies import DISCREPANCIES
from lpjepa.slicing.matching import sliced_discrepancy
from lpjepa.slicing.planned import planned_discrepancy
from lpjepa.slicing.quantiles import axes_discrepancy, gaussian_discrepancy, is_gaussian

__all__ = [
    "DISCREPANCIES",
    "DirectionPlan",
    "Directions",
    "axes_discrepancy",
    "gaussian_discrepancy",
    "is_gaussian",
    "parse_directions",
    "planned_discrepancy",
    "sliced_discrepancy",
]
