"""What is known of a run, as plain containers: recipe, data, accuracies with their protocol, sparsity."""

from __future__ import annotations

from typing import Any

from lpjepa.evaluation import results
from lpjepa.evaluation.run import Source
from lpjepa.training import Run, to_dict

MEASURED = ("encoder_accuracy", "projector_accuracy", "l0", "l1", "l0_predicted", "l1_predicted", "probe")


def run_facts(run: Run) -> dict[str, Any]:
    """Recipe and results of a run; what has not been measured is absent.

    `final` are the numbers at the end of the training, `evaluations` those of `lpjepa evaluate`.
    """
    config = to_dict(run.config)
    recipe = {key: config[key] for key in ("data", "views", "target", "loss", "optim", "train")}
    # Folders of the machine that trained are nobody else's business.
    for group, key in (("data", "root"), ("train", "out"), ("train", "device")):
        recipe[group] = {name: value for name, value in recipe[group].items() if name != key}
    final = run.final
    try:
        evaluations = [_summary(entry) for entry in results.read(run.folder) if entry["finished"]]
    except (ValueError, KeyError, TypeError):
        evaluations = []  # a damaged evaluation.json is no reason not to use the model
    facts: dict[str, Any] = {"recipe": recipe, "source": Source.of(run).label}
    if final:
        facts["final"] = {key: final[key] for key in MEASURED if final.get(key) is not None}
    if evaluations:
        facts["evaluations"] = evaluations
    return results.plain(facts)


def of_another_projector(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run without what was measured of its projector."""
    kept = ("source", "protocol", "epochs", "encoder_accuracy", "probe")
    only = lambda entry: {key: value for key, value in entry.items() if key in kept}
    known = dict(facts)
    if "final" in facts:
        known["final"] = only(facts["final"])
    if "evaluations" in facts:
        known["evaluations"] = [only(entry) for entry in facts["evaluations"]]
    return known


def _summary(entry: dict[str, Any]) -> dict[str, Any]:
    """The source, the protocol, and the accuracies with all labels of one evaluation."""
    probe = entry["pieces"].get("probe 1", {})
    measures = entry["pieces"].get("measures", {}).get("projector", {})
    summary: dict[str, Any] = {
        "source": entry["source"],
        "protocol": entry["settings"]["protocol"],
        "epochs": entry["settings"]["epochs"],
    }
    for kind in ("encoder", "projector"):
        if kind in probe:
            summary[f"{kind}_accuracy"] = probe[kind]["top1"]["mean"]
    return summary | {key: measures[key] for key in ("l0", "l1") if key in measures}
