"""Using a trained encoder: load it, embed images, export it, search, and see what its features mean."""

from lpjepa.inference.loading import load
from lpjepa.inference.model import Model

__all__ = ["Model", "load"]
