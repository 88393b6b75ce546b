"""Makes `import torchvision` work beside a CPU build of torch, and so what imports it: timm, torchmetrics.

The torchvision wheel of the package index is compiled against a CUDA build of torch; beside a CPU build its
compiled library does not load, and the import then stops with `operator torchvision::nms does not exist`,
because torchvision describes the output shapes of two operators that were never registered. Nothing here
calls these operators (they belong to object detection), so it is enough that their schemas exist. They are
declared only after the plain import has failed: a torchvision that works registers them itself, and
registering them twice is an error.
"""

from __future__ import annotations

import sys

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a Library takes its definitions back when it is collected


def declare_missing_ops() -> None:
    """Import torchvision, declaring the schemas it needs where its compiled operators are missing."""
    if _declared or "torchvision" in sys.modules:
        return
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    except ImportError:
        return  # whoever needs it says so
    else:
        return
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # the half-imported package would hide the second attempt
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
    import torchvision  # noqa: F401
