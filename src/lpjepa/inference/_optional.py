"""Packages that only some users need, imported when they are, with one sentence where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

# What each is for, and the extra of ours that brings it.
_PURPOSE = {
    "scipy.sparse": ("sparse matrices and the search index need", "embed"),
    "pyarrow": ("Parquet files need", "embed"),
    "pyarrow.parquet": ("Parquet files need", "embed"),
    "onnx": ("the ONNX export needs", "export"),
    "onnxscript": ("the ONNX export needs", "export"),
    "onnxruntime": ("checking the ONNX export needs", "export"),
    "huggingface_hub": ("the Hugging Face hub needs", "export"),
    "safetensors.torch": ("exporting weights needs", "export"),
}


def need(module: str) -> Any:
    """The module, or an ImportError that says what it is for and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        purpose, extra = _PURPOSE[module]
        package = module.split(".")[0]
        raise ImportError(
            f"{purpose} {package}, which is not installed; pip install 'lpjepa[{extra}]'"
        ) from None
