"""The model card: what the model is, how it was trained, what was measured, how it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lpjepa._version import __version__
from lpjepa.inference.model import Model
from lpjepa.models import SoftTopReLU, TopReLU

_LOAD = """import lpjepa
model = lpjepa.load("FOLDER_OR_REPOSITORY")
features = model.embed(["a.png", "b.jpg"])                 # sparse projector features
features = model.embed(["a.png"], features="encoder")      # encoder features"""


def write_card(model: Model, folder: Path, licence: str | None, format: str, how: str = _LOAD) -> None:
    (folder / "README.md").write_text(card(model, licence, format, how), encoding="utf-8")


def card(model: Model, licence: str | None, format: str, how: str = _LOAD) -> str:
    """Markdown with the metadata that Hugging Face reads at its head; `how` is Python for it."""
    facts = model.description.run
    recipe = facts.get("recipe", {})
    source = recipe.get("data", {}).get("source")
    head = [
        "---",
        f"library_name: {'timm' if format == 'timm' else 'lpjepa'}",
        f"license: {licence or 'unknown'}",
    ]
    head += ["pipeline_tag: image-feature-extraction", "tags:", "- self-supervised", "- sparse", "- lpjepa"]
    if source and source.startswith("hf:"):  # the hub makes links of these names, and knows no others
        head += ["datasets:", f"- {source.removeprefix('hf:')}"]
    sections = [
        "\n".join([*head, "---"]),
        _title(model, recipe, facts.get("source") or source),
        f"## Use\n\n```python\n{how}\n```\n\n{_preprocessing(model, format)}",
        _measured(facts),
        _recipe(recipe),
        f"## Licence\n\n{licence or 'Not stated by those who trained it.'}",
        f"Exported by lpjepa {__version__}; fingerprint of the weights {model.description.fingerprint}.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _title(model: Model, recipe: dict[str, Any], source: str | None) -> str:
    described = model.description
    method = recipe.get("loss", {}).get("method", "lpjepa")
    lines = [f"# {described.encoder}, {method}" + (f", {source}" if source else ""), ""]
    parts = f"An encoder ({described.encoder}, {model.width('encoder')} features)"
    if (projector := described.projector) is not None:
        assert model.projector is not None
        tops = [part for part in model.projector.modules() if isinstance(part, TopReLU)]
        count = int(tops[0].kept(projector["dim"])) if tops else None
        how = projector["activation"] if count is None else f"of every image the {count} largest"
        how += ", less the next largest" * any(isinstance(part, SoftTopReLU) for part in tops)
        parts += f" with its projector ({projector['dim']} features, {how})"
    lines.append(f"{parts}, trained without labels{f' on {source}' if source else ''} by {method}.")
    return "\n".join(lines)


def _preprocessing(model: Model, format: str) -> str:
    """What the user of each format has to do to an image."""
    given = model.description.preprocessing
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (given.mean, given.std))
    frame = (
        f"RGB, shorter side resized to {given.resize} pixels ({given.interpolation}), central crop of "
        f"{given.size}"
    )
    if format in ("onnx", "torch-export"):
        shape = f"(N, 3, {given.size}, {given.size})"
        return f"Images: {frame}, as uint8 {shape}; normalisation is inside the graph."
    done = "; `embed` does all of it" if format == "safetensors" else ""
    return f"Images: {frame}, mean ({mean}), standard deviation ({std}) of pixels in [0, 1]{done}."


def _measured(facts: dict[str, Any]) -> str:
    rows = []
    if final := facts.get("final"):
        source = facts.get("source") or facts.get("recipe", {}).get("data", {}).get("source", "its own data")
        how = "at the end of training" + (f", {final['probe']} linear probes" if "probe" in final else "")
        rows.append((source, how, final))
    for entry in facts.get("evaluations", []):
        how = f"linear probes, protocol {entry['protocol']}, {entry['epochs']} epochs, all labels"
        rows.append((entry["source"], how, entry))
    if not rows:
        return "## Measured\n\nNothing was measured; `lpjepa evaluate` does."
    lines = ["| data | protocol | encoder | projector | l1 | l0 |", "|---|---|---|---|---|---|"]
    for source, how, entry in rows:
        accuracies = [_percent(entry.get(f"{kind}_accuracy")) for kind in ("encoder", "projector")]
        sparsity = [_number(entry.get(key)) for key in ("l1", "l0")]
        lines.append(f"| {source} | {how} | {' | '.join([*accuracies, *sparsity])} |")
    predicted = facts.get("final", {})
    note = ""
    if "l0_predicted" in predicted:
        note = (
            f"\n\nThe target predicts l1 {_number(predicted.get('l1_predicted'))} (of many features) and "
            f"l0 {_number(predicted['l0_predicted'])}; both are of projector features on held-out images, "
            "lower is sparser."
        )
    return "## Measured\n\n" + "\n".join(lines) + note


def _recipe(recipe: dict[str, Any]) -> str:
    if not recipe:
        return ""
    lines = ["## Recipe", "", "| key | value |", "|---|---|"]
    for group, keys in recipe.items():
        lines += [f"| {group}.{key} | {value} |" for key, value in keys.items() if value is not None]
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
