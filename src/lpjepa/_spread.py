"""Some of many."""

import torch
from torch import Tensor


def spread(count: int, most: int) -> Tensor:
    """At most `most` of `count` places, evenly: where classes are sorted, each has its share."""
    return torch.linspace(0, count - 1, min(count, most)).long()
