"""Numbers of a recipe by name: measured on a case's results, predicted by its target, or published.

A name is one of `METRICS`, a field of the case (`mu`, `p`, `loss.num_slices`), or one of the downstream sets:
`transfer/SOURCE/KIND/FRACTION` is an accuracy (SOURCE `avg.`: their mean), `sparsity/SOURCE/l0` a sparsity.
In a table, `change/NAME` is the difference from the row that the recipe names in `against`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpjepa.evaluation import mean_std
from lpjepa.metrics import relative_mad
from lpjepa.recipes.cases import Case, averaged
from lpjepa.recipes.store import Result


@dataclass(frozen=True)
class Metric:
    """A number of a result: how it is headed and written, and which direction is better (+1, -1, 0)."""

    heading: str
    latex: str
    read: Callable[[Result], float | None]
    digits: int = 2
    better: int = 0


def _final(name: str, factor: float = 1.0) -> Callable[[Result], float | None]:
    return lambda result: _times(result["final"].get(name), factor)


def _accuracy(kind: str) -> Callable[[Result], float | None]:
    """The online probe's where it is reported apart, as the paper's tables are of online probes."""

    def read(result: Result) -> float | None:
        final = result["final"]
        return _times(final.get(f"{kind}_accuracy_online", final.get(f"{kind}_accuracy")), 100.0)

    return read


def _frozen(kind: str) -> Callable[[Result], float | None]:
    """That of a probe fitted to the end on frozen features with the weak decay, which all results have."""

    def read(result: Result) -> float | None:
        final = result["final"]
        if final.get("probe") != "frozen":
            return None
        return _times(final.get(f"{kind}_accuracy_weak", final.get(f"{kind}_accuracy")), 100.0)

    return read


def _chosen(kind: str) -> Callable[[Result], float | None]:
    """That of a frozen probe whose decay was chosen on held-out training images."""

    def read(result: Result) -> float | None:
        final = result["final"]
        return _times(final.get(f"{kind}_accuracy"), 100.0) if f"{kind}_l2" in final else None

    return read


def _gap(name: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        found, wanted = result["final"].get(name), result["final"].get(f"{name}_predicted")
        return None if found is None or wanted is None else abs(found - wanted)

    return read


def _less_than_one(name: str) -> Callable[[Result], float | None]:
    return lambda result: None if result["final"].get(name) is None else 1 - result["final"][name]


def _piece(*path: str, factor: float = 1.0) -> Callable[[Result], float | None]:
    return lambda result: _times(_dig(result["pieces"], path), factor)


def _posthoc_sparsity(result: Result) -> float | None:
    found = _dig(result["pieces"], ("posthoc", "projector", "after", "l0"))
    return None if found is None else 1 - found


def _posthoc_cost(result: Result) -> float | None:
    top1 = [_dig(result["pieces"], ("posthoc", "projector", when, "top1")) for when in ("before", "after")]
    return None if None in top1 else 100 * (top1[0] - top1[1])


def _deviation(name: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        measured = [
            _dig(of_source, ("measures", "projector", name))
            for of_source in result["pieces"].get("transfer", {}).values()
        ]
        known = [value for value in measured if value is not None]
        return float(relative_mad(known)) if len(known) > 1 else None

    return read


METRICS: dict[str, Metric] = {
    "encoder": Metric("Encoder Acc1 ↑", r"Encoder Acc1 $\uparrow$", _accuracy("encoder"), 2, +1),
    "projector": Metric("Projector Acc1 ↑", r"Projector Acc1 $\uparrow$", _accuracy("projector"), 2, +1),
    "l1": Metric("ℓ1 sparsity ↓", r"L1 Sparsity $\downarrow$", _final("l1"), 4, -1),
    "l0": Metric("ℓ0 sparsity ↓", r"L0 Sparsity $\downarrow$", _final("l0"), 4, -1),
    "l0_theory": Metric("ℓ0 of the target", "L0 of the target", _final("l0_predicted"), 4),
    "l0_gap": Metric("|ℓ0 − target|", r"$|\ell_0 - \text{target}|$", _gap("l0"), 4, -1),
    "encoder_frozen": Metric(
        "Encoder, frozen probe ↑", r"Encoder, frozen probe $\uparrow$", _frozen("encoder"), 2, +1
    ),
    "projector_frozen": Metric(
        "Projector, frozen probe ↑", r"Projector, frozen probe $\uparrow$", _frozen("projector"), 2, +1
    ),
    "encoder_chosen": Metric(
        "Encoder, chosen decay ↑", r"Encoder, chosen decay $\uparrow$", _chosen("encoder"), 2, +1
    ),
    "projector_chosen": Metric(
        "Projector, chosen decay ↑", r"Projector, chosen decay $\uparrow$", _chosen("projector"), 2, +1
    ),
    "l0_train": Metric("ℓ0 of training images", "L0 of training images", _final("l0_train"), 4),
    "dead": Metric("dead features ↓", r"Dead features $\downarrow$", _final("dead_fraction"), 3, -1),
    "sparsity_l0": Metric("1 − ℓ0", r"$1-\ell_0$", _less_than_one("l0"), 4),
    "sparsity_l1": Metric("1 − ℓ1", r"$1-\ell_1$", _less_than_one("l1"), 4),
    "variance_loss": Metric("variance loss", "Variance loss", _final("variance_loss"), 4, -1),
    "covariance_loss": Metric("covariance loss", "Covariance loss", _final("covariance_loss"), 4, -1),
    "entropy": Metric("entropy (nats a feature)", "Entropy", _piece("measures", "projector", "entropy"), 3),
    "entropy_theory": Metric(
        "entropy of the target", "Entropy", _piece("measures", "predicted", "entropy"), 3
    ),
    "nhsic": Metric("nHSIC ↓", r"nHSIC $\downarrow$", _piece("measures", "projector", "nhsic"), 4, -1),
    "nhsic_shuffled": Metric(
        "nHSIC, shuffled", "nHSIC, shuffled", _piece("measures", "projector", "nhsic_shuffled"), 4
    ),
    "mad_l0": Metric("relative MAD of ℓ0", r"MAD of $\ell_0$", _deviation("l0"), 3),
    "mad_l1": Metric("relative MAD of ℓ1", r"MAD of $\ell_1$", _deviation("l1"), 3),
    "posthoc_projector": Metric(
        "Projector Acc1 after ReLU",
        "Projector Acc1",
        _piece("posthoc", "projector", "after", "top1", factor=100),
        2,
        1,
    ),
    "posthoc_before": Metric(
        "Projector Acc1 before ReLU",
        "Projector Acc1",
        _piece("posthoc", "projector", "before", "top1", factor=100),
        2,
        1,
    ),
    "posthoc_encoder": Metric(
        "Encoder Acc1", "Encoder Acc1", _piece("posthoc", "encoder", "after", "top1", factor=100), 2, 1
    ),
    "posthoc_cost": Metric("points lost by ReLU", "points lost by ReLU", _posthoc_cost, 2, -1),
    "posthoc_sparsity_l0": Metric("1 − ℓ0 after ReLU", r"$1-\ell_0$", _posthoc_sparsity, 4),
    "minutes": Metric(
        "Training time (min) ↓",
        r"Training Time (min) $\downarrow$",
        lambda result: _times(result["seconds"], 1 / 60),
        2,
        -1,
    ),
    "images_per_second": Metric(
        "images/s ↑", r"Images/s $\uparrow$", lambda r: r.get("images_per_second"), 0, 1
    ),
    "gpu_utilisation": Metric(
        "Avg. GPU util. (%)", r"Avg. GPU Util. (\%) $\uparrow$", lambda r: r["hardware"].get("utilisation"), 2
    ),
    "gpu_memory": Metric(
        "GPU memory (GB)", "GPU Memory (GB)", lambda r: r["hardware"].get("memory_gb"), 2, -1
    ),
}

FIELDS = {
    "mu": "mean shift μ",
    "p": "p",
    "loss.num_slices": "directions N",
    "model.projector_dim": "dimension D",
}


# On the axes of figures, where an arrow would not say what is shown.
AXIS = {
    "l0": "ℓ0 (fraction of active features)",
    "l1": "ℓ1 (lower is sparser)",
    "encoder": "encoder accuracy (%)",
    "projector": "projector accuracy (%)",
    "posthoc_projector": "projector accuracy after ReLU (%)",
    "posthoc_before": "projector accuracy before ReLU (%)",
    "posthoc_encoder": "encoder accuracy (%)",
    "nhsic": "nHSIC (lower is more independent)",
    "nhsic_shuffled": "of the same features, each shuffled",
}


def metric(name: str) -> Metric:
    """A metric by name, those of downstream sets included."""
    if name in METRICS:
        return METRICS[name]
    parts = name.split("/")
    if parts[0] == "change":
        of = metric(parts[1])
        name = parts[1].replace("_frozen", ", frozen probe")
        return Metric(f"change, {name}", f"$\\Delta$ {name}", lambda result: None, of.digits)
    if parts[0] == "transfer" and len(parts) == 4:
        return Metric(parts[1], parts[1], lambda result: _transfer(result, *parts[1:]), 2, +1)
    if parts[0] == "sparsity" and len(parts) == 3:
        return Metric(parts[1], parts[1], lambda r: _sparsity(r, *parts[1:]), 4)
    raise ValueError(f"there is no metric {name!r}; there are {', '.join(METRICS)}")


def heading(name: str) -> str:
    """What stands at an axis."""
    return FIELDS.get(name) or AXIS.get(name) or metric(name).heading


def measured(name: str, case: Case, results: Sequence[Result]) -> tuple[float, float | None] | None:
    """Mean over seeds and standard deviation (None of a single one); None where nothing was measured."""
    if name in case.values or name in FIELDS:
        value = case[name]
        return None if value is None else (float(value), None)
    read = metric(name).read
    known = [value for value in map(read, results) if value is not None]
    return tuple(mean_std(known)) if known else None  # type: ignore[return-value]


def number(text: Any) -> float | None:
    """A published value as a number: the mean of "64.88 ± 0.17"."""
    if text is None or isinstance(text, (int, float)):
        return None if text is None else float(text)
    match = re.match(r"-?\d+(\.\d+)?", str(text))
    return float(match.group()) if match else None


def _transfer(result: Result, source: str, kind: str, fraction: str) -> float | None:
    found = result["pieces"].get("transfer", {})
    path = (f"probe {float(fraction):g}", kind, "top1", "mean")
    if source != "avg.":
        return _times(_dig(found, (source, *path)), 100.0)
    values = [_dig(found, (name, *path)) for name in averaged(result["scale"])]
    known = [value for value in values if value is not None]
    # A mean over other sets than the others' is no row of the table.
    return 100 * sum(known) / len(known) if known and len(known) == len(values) else None


def label_draws(column: str, results: Sequence[Result]) -> float:
    """The standard error of a transfer accuracy over draws of its labels; 0 of all labels, and of others."""
    if not column.startswith("transfer/") or not results:
        return 0.0
    _, source, kind, fraction = column.split("/")
    path = (f"probe {float(fraction):g}", kind, "top1", "values")
    errors = []
    for result in results:
        for name in averaged(result["scale"]) if source == "avg." else [source]:
            draws = _dig(result["pieces"].get("transfer", {}), (name, *path)) or ()
            deviation = mean_std(draws)[1] if draws else None
            errors.append(0.0 if deviation is None else deviation / len(draws) ** 0.5)
    return 100 * sum(error**2 for error in errors) ** 0.5 / len(errors)


def _sparsity(result: Result, source: str, name: str) -> float | None:
    return _dig(result["pieces"].get("transfer", {}), (source, "measures", "projector", name))


def _dig(content: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(content, Mapping) or key not in content:
            return None
        content = content[key]
    return content


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
