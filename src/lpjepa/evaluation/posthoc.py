"""Post-hoc rectification: is ReLU at evaluation time as good as training with it?

The paper's "Continuous mapping theorem evaluation": sparsity of the validation features before and after
ReLU, and linear probes trained on both, under the `sgd` protocol.
"""

from collections.abc import Callable
from typing import Any

import torch

from lpjepa.evaluation.features import KINDS, Features
from lpjepa.evaluation.probes import ProbeJob, ProbeProtocol, probe_protocol, train_probes
from lpjepa.metrics import l0_sparsity, l1_sparsity


def rectification(
    train: Features,
    val: Features,
    protocol: ProbeProtocol | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """For each kind of features, {"before": ..., "after": ...} with l0, l1 and the probe's top1 and top5.

    All probes are trained together. Features without a negative entry are what they are rectified to: their
    "after" is their "before", and "unchanged" says so.
    """
    protocol = protocol or probe_protocol("sgd")
    sets: dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor]] = {}
    unchanged = {}
    for kind in KINDS:
        before = (train.kind(kind), val.kind(kind))
        sets[kind, "before"] = before
        unchanged[kind] = not any(bool((x < 0).any()) for x in before)
        if not unchanged[kind]:
            sets[kind, "after"] = (before[0].relu(), before[1].relu())
    jobs = [ProbeJob(x, train.require_labels(), y, val.require_labels(), seed=seed) for x, y in sets.values()]
    probes = dict(zip(sets, train_probes(jobs, protocol, device, progress)))

    result: dict[str, Any] = {}
    for kind in KINDS:
        result[kind] = {"unchanged": unchanged[kind]}
        for when in ("before", "after"):
            key = (kind, "before" if unchanged[kind] else when)
            z = sets[key][1]
            result[kind][when] = {
                "l0": float(l0_sparsity(z)),
                "l1": float(l1_sparsity(z)),
                "top1": probes[key].top1,
                "top5": probes[key].top5,
            }
    return result
