"""Answers about the gap between l0 and its target: is it the paper's, when does it open, what closes it.

Each answer is a table from the results that there are, and a sentence that counts its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lpjepa.recipes.cases import PREDICTED
from lpjepa.recipes.collected import Collected, Entry
from lpjepa.recipes.values import number

CLOSED = 0.01  # of l0, by which the gap counts as closed
LOSS = 0.5  # points of accuracy that closing it may cost
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)  # of the training, at which l0 is shown
NO_LOSS = "yes, at no loss"
SEARCHES = (
    "exact-sparsity",
    "exact-sparsity-preset",
    "dense-first",
    "exact-sparsity-long",
)
# Recipes with rows of the plain loss, of several lengths, and what else such a row may say of itself.
PLAIN = ("controllable-sparsity", "cifar100-mark", "cifar100", "exact-sparsity-preset", "exact-sparsity-long")
NO_MATTER = {"base", "method", "p", "mu", "sigma", "train.epochs", "optim.probe_lr"}
WAITS = "Waits for trainings of {}."


def l0_answers(found: Mapping[str, Collected]) -> str:
    """The three answers as Markdown, from the recipes by name."""
    of = lambda names: [found[name] for name in names if name in found]
    parts = [
        "**Is there the paper's gap?** " + _same_gap(of(("cifar100-mark", "cifar100", "cifar100-long"))),
        _by_length(of(PLAIN)),
        "**When in training does it open?** " + _opening(of(("cifar100", "l0-gap", "cifar100-long"))),
        "**What closes it?** " + _closing(of(SEARCHES)),
    ]
    return "\n\n".join(part for part in parts if part)


def _same_gap(collected: Sequence[Collected]) -> str:
    lines: list[list[str]] = []
    ours: dict[int, list[float]] = {}
    both: list[tuple[float, float]] = []
    seen: list[dict[str, Any]] = []  # probes change no features: rows that differ in their rate are one
    for of_recipe in collected:
        for entry in _targeted(of_recipe):
            features = {key: value for key, value in entry.case.values.items() if key != "optim.probe_lr"}
            if features in seen:
                continue
            seen.append(features)
            target, epochs = _mean(entry, "l0_theory"), _epochs(entry)
            gap = _mean(entry, "l0") - target
            ours.setdefault(epochs, []).append(gap)
            cells = [
                of_recipe.name(entry),
                str(epochs),
                f"{target:.3f}",
                f"{target + gap:.3f}",
                f"{gap:+.3f}",
            ]
            paper = number(of_recipe.recipe.published(entry.case, "l0"))
            if paper is None or of_recipe.recipe.beside != "paper":
                lines.append([*cells, "", ""])
            else:
                lines.append([*cells, f"{paper:.3f}", f"{paper - target:+.3f}"])
                both.append((gap, paper - target))
    if not lines:
        return WAITS.format("`cifar100`")
    text = ""
    for epochs, gaps in sorted(ours.items()):
        above, below = sum(gap > CLOSED for gap in gaps), sum(gap < -CLOSED for gap in gaps)
        if len(gaps) == 1:
            text += f"At {epochs} epochs the one row differs from the target by {gaps[0]:+.3f}. "
            continue
        if not above + below:
            text += (
                f"At {epochs} epochs {len(gaps)} of {len(gaps)} rows lie within {CLOSED:g} of the target. "
            )
            continue
        text += f"At {epochs} epochs {above} of {len(gaps)} rows lie more than {CLOSED:g} above the target "
        text += f"and {below} as far below it ({min(gaps):+.3f} to {max(gaps):+.3f}). "
    if both:
        low, high = min(paper for _, paper in both), max(paper for _, paper in both)
        same = sum(gap * paper > 0 for gap, paper in both)
        text += f"The paper's rows, after 1000 epochs, differ by {low:+.3f} to {high:+.3f}; "
        text += f"ours have the sign of theirs in {same} of {len(both)}."
    if trend := _by_exponent(collected):
        text = f"{text.strip()} {trend}"
    header = ["row", "epochs", "target", "ℓ0", "gap", "paper's ℓ0 (1000 epochs)", "paper's gap"]
    return f"{text.strip()}\n\n" + _table(header, lines)


def _by_exponent(collected: Sequence[Collected]) -> str:
    """How the gap at mu = 0 depends on p, where one length has three of them."""
    parts = []
    at: dict[int, dict[float, float]] = {}
    for of_recipe in collected:
        for entry in _targeted(of_recipe):
            if entry.case["mu"] == 0 and entry.case["method"] == "rgn":
                gap = _mean(entry, "l0") - _mean(entry, "l0_theory")
                at.setdefault(_epochs(entry), {}).setdefault(float(entry.case["p"]), gap)
    for epochs, gaps in sorted(at.items()):
        if len(gaps) >= 3:
            listed = ", ".join(f"{gaps[p]:+.3f} at p = {p:g}" for p in sorted(gaps))
            parts.append(f"At μ = 0 it depends on p ({listed}; {epochs} epochs), as the paper's rows do.")
    return " ".join(parts)


def _by_length(collected: Sequence[Collected]) -> str:
    """The gap of the plain loss with p = 1 after trainings of several lengths, a row a mu that has two."""
    gaps: dict[float, dict[int, float]] = {}
    for of_recipe in collected:
        for entry in _targeted(of_recipe):
            case, config = entry.case, entry.results[0]["config"]
            if case["p"] == 1 and set(case.values) <= NO_MATTER and config["model"]["encoder"] == "resnet18":
                gap = _mean(entry, "l0") - _mean(entry, "l0_theory")
                gaps.setdefault(float(case["mu"]), {}).setdefault(_epochs(entry), gap)
    gaps = {mu: gaps[mu] for mu in sorted(gaps) if len(gaps[mu]) > 1}
    if not gaps:
        return ""
    lengths = sorted({epochs for of_mu in gaps.values() for epochs in of_mu})
    lines = [
        [f"{mu:g}".replace("-", "−"), *(f"{of_mu[n]:+.3f}" if n in of_mu else "" for n in lengths)]
        for mu, of_mu in gaps.items()
    ]
    text = "**How does it depend on the length of the training?** The plain loss, p = 1: ℓ0 less its target."
    return f"{text}\n\n" + _table(["μ", *(f"{n} epochs" for n in lengths)], lines)


def _opening(collected: Sequence[Collected]) -> str:
    """l0 of the validation images at shares of the training, one training a line, whichever recipe has it."""
    curves: dict[str, tuple[Collected, Entry, dict[str, Any]]] = {}
    for of_recipe in collected:
        for entry in _targeted(of_recipe):
            for result in entry.results[:1]:
                if result.get("curves", {}).get("l0"):
                    curves.setdefault(result["identity"], (of_recipe, entry, result))
    if not curves:
        return WAITS.format("`l0-gap`")
    lines, late, never = [], [], 0
    first: list[bool] = []  # of those above from the beginning, whether they are nearer at the end
    for of_recipe, entry, result in curves.values():
        epochs, l0 = result["curves"]["epoch"], result["curves"]["l0"]
        target = _mean(entry, "l0_theory")
        crossed = opening_epoch(epochs, l0, target)
        if crossed is None:
            never, word = never + 1, "never"
        elif crossed == epochs[0]:
            first.append(l0[-1] < l0[0])
            word = f"{crossed:g}, the first"
        else:
            late.append(crossed)
            word = f"{crossed:g}"
        group = f", {entry.case.group}" if of_recipe.recipe.name == "l0-gap" else ""
        cells = [f"{entry.case.label}{group}", str(_epochs(entry)), str(result["seed"]), f"{target:.3f}"]
        cells += [f"{_at(epochs, l0, share):.3f}" for share in SHARES]
        lines.append([*cells, word])
    text = f"Of {len(lines)} trainings {len(first) + len(late)} end more than {CLOSED:g} above the target"
    since = [f"{len(first)} since the first measurement" + ", nearer at the end" * all(first)] * bool(first)
    if late:
        span = f"{min(late):g}" if min(late) == max(late) else f"{min(late):g} to {max(late):g}"
        since.append(f"{len(late)} since epoch {span}")
    text += f" ({', '.join(since)})" if since else ""
    text += f"; {never} do not." if never else "."
    header = ["training", "epochs", "seed", "target", *(f"ℓ0 at {share:.0%}" for share in SHARES)]
    return f"{text}\n\n" + _table([*header, f"above by {CLOSED:g} from epoch"], lines)


def opening_epoch(epochs: Sequence[float], l0: Sequence[float], target: float) -> float | None:
    """The first measured epoch from which on l0 stays more than CLOSED above the target."""
    opened = None
    for epoch, value in zip(epochs, l0):
        if value <= target + CLOSED:
            opened = None
        elif opened is None:
            opened = epoch
    return opened


def _at(epochs: Sequence[float], values: Sequence[float], share: float) -> float:
    """The value measured nearest to a share of the training."""
    nearest = min(range(len(epochs)), key=lambda i: abs(epochs[i] - share * epochs[-1]))
    return float(values[nearest])


def _closing(searches: Sequence[Collected]) -> str:
    """A line for each setting of the searches: its largest gap, its worst changes, and what that means.

    By frozen probes: an online one has not seen a share that is set when the training is over.
    """
    lines, good = [], []
    waiting: list[tuple[str, str]] = []  # group and recipe
    seen: set[frozenset[str]] = set()  # one search may begin with what another has shown
    searches = [collected for collected in searches if collected.results()]
    for collected in searches:
        for group in dict.fromkeys(entry.case.group for entry in collected.entries):
            entries = [e for e in collected.where({"group": group}) if e.case["method"] in PREDICTED]
            if not entries:
                continue
            trained = [entry for entry in entries if entry.results]
            if not trained:
                waiting.append((group, collected.recipe.name))
                continue
            identities = frozenset(result["identity"] for entry in trained for result in entry.results)
            if any(identities <= shown for shown in seen):
                continue
            seen.add(identities)
            gap = max(abs(_mean(entry, "l0") - _mean(entry, "l0_theory")) for entry in trained)
            changes = [_worst(collected, trained, f"{column}_frozen") for column in ("encoder", "projector")]
            word = _verdict(gap, changes, plain=group == collected.recipe.against["group"])
            share, epochs = f"{len(trained)} of {len(entries)}", str(_epochs(trained[0]))
            if word == NO_LOSS:
                good.append(f"{group} ({epochs} epochs, {share} μ)")
            if len(trained) < len(entries):
                word = word.replace("yes", "so far")
            cells = ["" if change is None else f"{change:+.2f}" for change in changes]
            lines.append([group, epochs, share, f"{gap:.4f}", *cells, word])
    if not lines:
        return WAITS.format("`exact-sparsity`")
    waits = any(collected.found < collected.wanted for collected in searches)
    text = (
        f"Within {CLOSED:g} of the target at every μ trained, at most {LOSS:g} points below the plain loss: "
        + (", ".join(good) if good else "no setting so far" if waits else "none")
        + ". Changes are the worst over μ, from the plain loss at the same μ and seed, by frozen probes."
    )
    header = ["setting", "epochs", "μ trained", "largest gap", "encoder", "projector"]
    text = f"{text}\n\n" + _table([*header, f"closes it ({CLOSED:g})"], lines)
    shown = {line[0] for line in lines}  # of these another recipe has a row, and which waits is said
    names = [f"{group} (`{recipe}`)" if group in shown else group for group, recipe in waiting]
    return text + (f"\n\nNot trained yet: {'; '.join(dict.fromkeys(names))}." if names else "")


def _verdict(gap: float, changes: Sequence[float | None], plain: bool) -> str:
    if plain:
        return "closed as it is" if gap <= CLOSED else "the gap"
    if gap > CLOSED:
        return "no"
    known = [change for change in changes if change is not None]
    if len(known) < len(changes):
        return "yes, its cost not known"
    return NO_LOSS if min(known) >= -LOSS else "yes, at a loss"


def _worst(collected: Collected, entries: Sequence[Entry], column: str) -> float | None:
    """The largest loss over the rows; None where that of one is not known."""
    changes = [collected.change(entry, column) for entry in entries]
    known = [change for change in changes if change is not None]
    return min(known) if known and len(known) == len(changes) else None


def _targeted(collected: Collected) -> list[Entry]:
    """The trained entries whose target predicts an l0."""
    return [entry for entry in collected.entries if entry.mean("l0_theory") is not None]


def _mean(entry: Entry, name: str) -> float:
    value = entry.mean(name)
    assert value is not None
    return value


def _epochs(entry: Entry) -> int:
    return int(entry.results[0]["config"]["train"]["epochs"])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
