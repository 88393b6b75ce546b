"""What stands behind the numbers of a section: our setting beside the paper's, and what it ran on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lpjepa.recipes.cases import config_of
from lpjepa.recipes.collected import Collected
from lpjepa.training import to_dict
from lpjepa.training.schedule import scaled_by_batch

SOURCES = {
    "cifar100": "CIFAR-100",
    "imagenet100": "ImageNet-100",
    "imagenet": "ImageNet-1K",
}
ENCODERS = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "vit_small": "ViT-S",
    "convnext_small": "ConvNeXt-S",
    "convnext_pico": "ConvNeXt-Pico",
}
METHODS = {
    "rectified_lpjepa": "Rectified LpJEPA",
    "lpjepa": "LpJEPA",
    "lejepa": "LeJEPA",
    "vicreg": "VICReg",
    "nvicreg": "NVICReg",
    "simclr": "SimCLR",
    "ncl": "NCL",
}
Configs = Sequence[Mapping[str, Any]]


def setting(collected: Collected) -> str:
    """Data, encoder, epochs and rates of ours and, where the paper has such numbers, of its scale."""
    ours = [result["config"] for result in collected.results()]
    if not ours:
        return ""
    text = f"**Ours:** {_described(ours)}, {_rates(ours)}, {seeds(collected)}."
    recipe = collected.recipe
    if recipe.beside != "paper" or not (recipe.label or any(entry.case.paper for entry in collected.entries)):
        return text
    theirs = _published(collected)
    if _described(theirs) == _described(ours):
        text += " **The paper's scale:** the same"
        text += "." if _rates(theirs) == _rates(ours) else f", {_rates(theirs)}."
    else:
        text += f" **The paper's scale:** {_described(theirs)}, {_rates(theirs)}; accuracies are not "
        text += "comparable, and orders only of methods that learn at one speed."
    if any(name.startswith(("encoder", "projector")) for name in recipe.columns):
        probes = [_rates_of(configs, "probe_lr") for configs in (ours, theirs)]
        if probes[0] != probes[1]:
            text += f" Online probes learn at {probes[0]}, at the paper's scale at {probes[1]}."
    return text


def stands_in(collected: Collected) -> str:
    """The images that ours were trained on, where they stand in for others of the paper's; else nothing."""
    if collected.recipe.beside != "paper" or not collected.results():
        return ""
    ours = _sources([result["config"] for result in collected.results()])
    return "" if ours == _sources(_published(collected)) else ours


def _published(collected: Collected) -> Configs:
    """The trainings of the recipe at the paper's scale."""
    recipe = collected.recipe
    length = recipe.epochs_at("paper")
    return [to_dict(config_of(case, "paper", 5, length)) for case in recipe.cases("paper")]


def _rates(configs: Configs) -> str:
    """`rate 0.03`, or what has each: `rates 0.03 (Rectified LpJEPA), 0.3 (LeJEPA and VICReg)`."""
    several = len({_rate(config, "lr") for config in configs}) > 1
    return f"rate{'s' * several} {_rates_of(configs, 'lr')}"


def _rates_of(configs: Configs, key: str) -> str:
    """A rate, or several with what has each: methods, or encoders where one method has several rates."""
    rates = sorted({_rate(config, key) for config in configs})
    if len(rates) == 1:
        return f"{rates[0]:g}"
    for names in ([METHODS[c["loss"]["method"]] for c in configs], [_encoder(c) for c in configs]):
        pairs = {(name, _rate(config, key)) for name, config in zip(names, configs)}
        if len(pairs) == len(set(names)):
            of = {rate: _every(name for name, own in pairs if own == rate) for rate in rates}
            return ", ".join(f"{rate:g} ({of[rate]})" for rate in rates)
    return _every(f"{rate:g}" for rate in rates)


def _rate(config: Mapping[str, Any], key: str) -> float:
    """As it is used: where it is scaled by the batch, configs have it for one of 256."""
    optim, batch = config["optim"], config["train"]["batch_size"] * config["optim"]["accumulate"]
    return float(scaled_by_batch(optim[key], batch) if optim["scale_lr_by_batch"] else optim[key])


def described(collected: Collected) -> str:
    """Data, encoder and epochs of what has been trained, such as `CIFAR-100, ResNet-18, 100 epochs`."""
    return _described([result["config"] for result in collected.results()]).rsplit(", ", 1)[0]


def length(collected: Collected) -> str:
    """`30 and 100 epochs`, of what has been trained, or nothing."""
    found = collected.trained_epochs()
    return f"{' and '.join(map(str, found))} epochs" if found else ""


def seeds(collected: Collected) -> str:
    """`seed 5`, or `seeds 5, 6 (mean ± standard deviation; 3 rows have one so far)`."""
    found = sorted({result["seed"] for result in collected.results()})
    wanted = collected.recipe.seeds_at(collected.scale)
    text = f"seed{'s' * (len(found) != 1)} {_listed(found)}"
    notes = []
    single = sum(len(entry.results) == 1 for entry in collected.entries)
    if any(len(entry.results) > 1 for entry in collected.entries):
        notes.append("mean ± standard deviation")
        if single:
            notes.append(f"{single} row{'s' * (single != 1)} with one seed so far")
    elif len(found) > 1:
        notes.append("one a row")
    elif missing := [seed for seed in wanted if seed not in found]:
        notes.append(f"seed{'s' * (len(missing) != 1)} {_listed(missing)} not trained yet")
    return text + (f" ({'; '.join(notes)})" if notes else "")


def provenance(collected: Collected) -> str:
    """One sentence: how many trainings, by which command, how long each took, on what and with what."""
    results, recipe = collected.results(), collected.recipe
    other = collected.epochs is not None and collected.epochs != recipe.epochs_at(collected.scale)
    length = f" --epochs {collected.epochs}" if other else ""
    command = f"`lpjepa reproduce {recipe.name} --scale {collected.scale}{length}`"
    text = f"{collected.found} of {collected.wanted} trainings ({command})"
    if not results:
        return f"*{text}; nothing measured yet.*"
    timed = [result for result in results if result["seconds"] is not None]
    whole = [result["seconds"] / 60 for result in timed if "goes_on" not in result]
    rests = [result["seconds"] / 60 for result in timed if "goes_on" in result]
    if others := len(results) - collected.found:
        text += f", and {others} of another seed in the place of those that wait"
    times = [f"{_span(whole)} minutes" + " each" * (len(whole) > 1)] * bool(whole)
    if rests:
        count = f"{len(rests)} of them went" if whole else "all went"
        times.append(f"{count} on from a checkpoint of what they are at first, {_span(rests)} minutes")
    parts = [
        text,
        *times,
        _devices([r["hardware"] for r in results]),
        "torch " + _every(r["versions"]["torch"] for r in results),
        "lpjepa " + _every(r["versions"]["lpjepa"] for r in results),
    ]
    if dates := sorted({result["date"] for result in results if "date" in result}):
        parts.append(dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}")
    return f"*{'; '.join(parts)}.*"


def _span(minutes: Sequence[float]) -> str:
    low, high = f"{min(minutes):.1f}", f"{max(minutes):.1f}"
    return low if low == high else f"{low} to {high}"


def untrained(collected: Collected) -> str:
    """Which lines of a figure, or groups that a table leaves out, have no results, and which lines some."""
    if not collected.rows:
        return ""
    figure, none, part = bool(collected.recipe.panels), [], []
    for label, rows in collected.lines().items():
        trained = sum(bool(entry.results) for entry in rows)
        if not trained and (figure or not any(entry.case.paper for entry in rows)):
            none.append(label)
        elif figure and trained < len(rows):  # in a table they are dashes
            part.append(f"{label} ({trained} of {len(rows)})")
    parts = [f"**Not trained yet:** {'; '.join(none)}."] * bool(none)
    return " ".join(parts + [f"**In part:** {'; '.join(part)}."] * bool(part))


def _devices(hardware: Sequence[Mapping[str, Any]]) -> str:
    """Each device, with how many trainings ran on it at once: `NVIDIA H200 (1 to 3 trainings at once)`."""
    at_once: dict[str, set[int]] = {}
    for one in hardware:
        at_once.setdefault(one["device"], set()).add(one.get("trainings_at_once", 1))
    ends = lambda counts: " to ".join(map(str, sorted({min(counts), max(counts)})))
    return _every(
        name + (f" ({ends(counts)} trainings at once)" if counts != {1} else "")
        for name, counts in at_once.items()
    )


def _sources(configs: Configs) -> str:
    return _every(SOURCES.get(c["data"]["source"], c["data"]["source"]) for c in configs)


def _described(configs: Configs) -> str:
    """Such as `CIFAR-100, ResNet-18, 100 epochs, batch 256`; several values of one kind are joined."""
    encoders = _every(map(_encoder, configs))
    lengths = sorted({c["train"]["epochs"] for c in configs})
    batches = sorted({c["train"]["batch_size"] for c in configs})
    batch = str(batches[0]) if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
    return f"{_sources(configs)}, {encoders}, {' and '.join(map(str, lengths))} epochs, batch {batch}"


def _encoder(config: Mapping[str, Any]) -> str:
    return ENCODERS.get(config["model"]["encoder"], config["model"]["encoder"])


def _every(words: Iterable[str]) -> str:
    *others, last = sorted(set(words))
    return f"{', '.join(others)} and {last}" if others else last


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
