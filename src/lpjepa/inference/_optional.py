"""Packages that only some users need, imported when they are, with one sentence where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

_PURPOSE = {
    "scipy.sparse": ("scipy", "sparse matrices and the search index"),
    "pyarrow": ("pyarrow", "Parquet files"),
    "pyarrow.parquet": ("pyarrow", "Parquet files"),
    "onnx": ("onnx onnxscript onnxruntime", "the ONNX export"),
    "onnxscript": ("onnx onnxscript onnxruntime", "the ONNX export"),
    "onnxruntime": ("onnx onnxscript onnxruntime", "checking the ONNX export"),
    "huggingface_hub": ("huggingface_hub", "the Hugging Face hub"),
    "safetensors.torch": ("safetensors", "exporting weights"),
}


def need(module: str) -> Any:
    """The module, or an ImportError that says what it is for and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package, purpose = _PURPOSE[module]
        raise ImportError(
            f"{purpose} needs {package.split()[0]}, which is not installed; pip install {package}"
        ) from None
