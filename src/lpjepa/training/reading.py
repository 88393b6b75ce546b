"""What a step reads off its views, features and logits: the loss, the metrics, and whether all is finite.

Everything here is a function of tensors without a word to the host, so that the compiler can take it as two
graphs: the objective, through which the model learns, and all the rest, which the model need not wait for.
What is measured sample by sample is summed over the samples in one go: on a GPU a dozen small reductions cost
as much as the loss itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpjepa.metrics import l0_sparsity, l1_sparsity

# The parts that come before the loss, in the order in which they are computed.
INPUTS = ("views", "encoder features", "projector features")


class Reading(NamedTuple):
    """A loss with its graph (None: there is nothing to learn), and `values`, float32, with their names."""

    loss: Tensor | None
    values: Tensor
    names: tuple[str, ...]


def read_objective(criterion: nn.Module, z_BD: Tensor, views: int) -> Reading:
    """The loss of `criterion` on V views of N images (B = V N) and, as values, all of its parts."""
    parts = criterion.components(z_BD.unflatten(0, (views, -1)))  # type: ignore[operator]
    return Reading(parts.loss, torch.cat([part.detach().float().reshape(1) for part in parts]), parts._fields)


def read_probes(
    x_VNCHW: Tensor, h_BE: Tensor, z_BD: Tensor, logits: dict[str, Tensor], labels_N: Tensor | None
) -> Reading:
    """The loss of the probes, and whatever else is read off features without learning from it.

    The loss is the sum of the probes' cross-entropies over the images whose label is not -1. The values are
    a sum over each of `INPUTS`, which is finite where they are; loss and accuracy of each probe; l0 and l1
    of z.
    """
    names = list(INPUTS)
    rows = sums_by_sample(x_VNCHW.flatten(0, 1), h_BE, z_BD)  # (B,) each, as are all that follow
    if labels_N is not None and logits:
        views = x_VNCHW.shape[0]
        labels_B = labels_N.repeat(views)
        labelled = views * (labels_N != -1).sum()
        for name, logits_BC in logits.items():
            nll_B = F.cross_entropy(logits_BC.float(), labels_B, ignore_index=-1, reduction="none")
            hit_B = logits_BC.detach().argmax(1) == labels_B
            rows += [nll_B / labelled, hit_B / len(z_BD)]
            names += [f"{name}_probe_loss", f"{name}_train_accuracy"]
    rows += [measure(z_BD, reduce=False) / len(z_BD) for measure in (l0_sparsity, l1_sparsity)]
    totals = torch.stack([row.float() for row in rows]).sum(1)
    loss = None
    for i in range(len(INPUTS), len(rows) - 2, 2):
        loss = totals[i] if loss is None else loss + totals[i]
    return Reading(loss, totals.detach(), (*names, "l0", "l1"))


def in_order(objective: Tensor, probes: Tensor) -> Tensor:
    """The values of both readings in the order in which they are computed: the inputs come first."""
    inputs, rest = probes.tensor_split((len(INPUTS),))
    return torch.cat([inputs, objective, rest])


def metrics_of(objective: Reading, probes: Reading) -> list[str]:
    """The names of the values of `in_order` from the objective's on: the inputs are no metrics."""
    return [*objective.names, *probes.names[len(INPUTS) :]]


def parts_of(objective: Reading, probes: Reading) -> list[str]:
    """The same, of all of them, for a reader who looks for the first that is not finite."""
    return [*INPUTS, *(_part(name) for name in metrics_of(objective, probes))]


@torch.no_grad()
def sums_by_sample(*tensors: Tensor) -> list[Tensor]:
    """For each tensor (B, ...) its sums (B,) in float32, which holds the sum of anything float16 holds."""
    return [t.detach().sum(tuple(range(1, t.ndim)), dtype=torch.float32) for t in tensors]


def _part(metric: str) -> str:
    if metric.endswith("_probe_loss"):
        return f"loss of the {metric.removesuffix('_probe_loss')} probe"
    own = metric in ("loss", "l0", "l1") or metric.endswith("_train_accuracy")
    return metric if own else f"loss component {metric!r}"


def through_compiler(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`function` compiled for fixed shapes, without the compiler's warnings, which are about itself."""
    compiled = torch.compile(function, dynamic=False, **options)

    def call(*arguments: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compiled(*arguments)

    return call
