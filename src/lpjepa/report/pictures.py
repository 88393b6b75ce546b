"""The sections of the page that are figures: training, features against target, comparison, samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lpjepa.report.comparable import data_names
from lpjepa.report.figures import (
    Curve,
    active_fraction_histogram,
    covariance_spectrum,
    feature_marginals,
    pareto_frontier,
    qq_plot,
    training_curve,
)
from lpjepa.report.gallery import hang
from lpjepa.report.markup import note, section, text
from lpjepa.report.observation import Observation
from lpjepa.report.portrait import Portrait
from lpjepa.report.results import Summary
from lpjepa.report.run import Run, Target
from lpjepa.report.sections import run_label

OPEN_RUNS = 3  # the feature figures of further runs are folded

# (file name, metrics in order of preference, what it is, axis label, predicted key, logarithmic, factor)
_CURVES = (
    ("l0", ("epoch/l0", "train/l0"), "Active fraction ℓ₀", r"active fraction $\ell_0$", "active", False, 1),
    ("l1", ("epoch/l1", "train/l1"), "ℓ₁ sparsity metric", r"$\ell_1$ sparsity metric", "l1", False, 1),
    ("encoder", ("epoch/encoder_accuracy",), "Encoder, online probe", "accuracy (%)", None, False, 100),
    ("projector", ("epoch/projector_accuracy",), "Projector, online probe", "accuracy (%)", None, False, 100),
    ("loss", ("train/loss",), "Loss", "training loss", None, True, 1),
    ("discrepancy", ("epoch/held_out_discrepancy",), "Distance to the target on held-out directions",
     "sliced discrepancy", None, True, 1),
    ("effective-rank", ("epoch/effective_rank",), "Effective rank", "effective rank", None, False, 1),
    ("dead", ("epoch/dead_fraction",), "Dead features", "dead features (%)", None, False, 100),
)  # fmt: skip


def training(runs: Sequence[Run], folder: Path) -> str:
    """One figure a quantity, one line a run, with the target's prediction as a level."""
    figures = []
    for name, metrics, title, ylabel, predicted, log, factor in _CURVES:
        curves = []
        for index, run in enumerate(runs):
            metric = next((m for m in metrics if len(run.history.get(m, ((), ()))[1]) > 1), None)
            if metric is None:
                continue
            epochs, values = run.history[metric]
            level = run.target.predicted.get(predicted) if predicted and run.target else None
            curves.append(Curve(run.name, epochs, [factor * value for value in values], level, index))
        if not curves:
            continue
        logarithmic = log and all(min(curve.values) > 0 for curve in curves)
        ends = "; ".join(f"{curve.label} ends at {curve.values[-1]:.4g}" for curve in curves[:8])
        build = partial(training_curve, curves, ylabel, log=logarithmic)
        caption = f"<b>{title}</b> over training" + (", dashed where the target puts it" if predicted else "")
        figures.append(hang(folder, f"training-{name}", build, f"{title} over training: {ends}.", caption))
    if not figures:
        message = "metrics.jsonl has no curves yet; lpjepa pretrain writes it."
        return section("training", "Training", note(message))
    return section("training", "Training", f'<div class="figures">{"".join(figures)}</div>')


def features(runs: Sequence[Run], seen: Sequence[Observation]) -> str:
    """Do the features follow the target? Four figures a run, or the line that says why there are none."""
    about = (
        '<p class="about">Projector features of held-out images against the target: how often each feature '
        "is active, the pooled marginal with its mass at zero, quantiles along random directions, and the "
        "spectrum of the covariance beside that of as many independent samples of the target.</p>"
    )
    parts = [about]
    for index, (run, observation) in enumerate(zip(runs, seen)):
        parts += [note(f"{run.name}: {message}") for message in observation.notes]
        if observation.portrait is None:
            continue
        figures = _feature_figures(run, observation.portrait, index)
        hung = f'<div class="figures">{"".join(figures)}</div>'
        if len(runs) == 1:
            parts.append(hung)
        else:
            opened = " open" if index < OPEN_RUNS else ""
            parts.append(f"<details{opened}><summary>{run_label(run, index)}</summary>{hung}</details>")
    return section("features", "Features against the target", *parts)


def _feature_figures(run: Run, portrait: Portrait, index: int) -> list[str]:
    folder, target = run.folder / "figures", run.target
    predicted = target.predicted if target else {}
    count = f"{portrait.samples:,} images"
    hung = []
    if portrait.rectified:
        hung.append(
            hang(
                folder,
                "active-fraction",
                partial(active_fraction_histogram, portrait.active_D, predicted.get("active"), index),
                f"Active fractions of {portrait.active_D.size} features; their mean is {portrait.l0:.3f}.",
                f"<b>How often each feature is active</b>, over {count}",
            )
        )
    density = _density(target, portrait) if target else None
    atom = 1 - predicted["active"] if "active" in predicted else None
    hung.append(
        hang(
            folder,
            "marginals",
            partial(feature_marginals, portrait.values, density, atom, portrait.rectified, index),
            f"Density of the feature values; {np.mean(portrait.values == 0):.3f} of them are exactly zero"
            + (f", {atom:.3f} by the target." if atom is not None else "."),
            "<b>Marginal of the features</b>" + (" and the target's density" if density else ""),
        )
    )
    if portrait.quantiles_KQ is not None and portrait.target_quantiles_KQ is not None:
        gap = float(np.sqrt(np.mean((portrait.quantiles_KQ - portrait.target_quantiles_KQ) ** 2)))
        hung.append(
            hang(
                folder,
                "qq",
                partial(qq_plot, portrait.quantiles_KQ, portrait.target_quantiles_KQ, index),
                f"Quantiles of projected features against the target's; root mean square gap {gap:.3f}.",
                "<b>Projected marginals</b>, quantile against quantile",
            )
        )
    hung.append(
        hang(
            folder,
            "covariance-spectrum",
            partial(
                covariance_spectrum,
                portrait.eigenvalues_D,
                portrait.target_eigenvalues_D,
                predicted.get("variance"),
                index,
            ),
            f"Eigenvalues of the covariance, from {portrait.eigenvalues_D[0]:.3g} down to "
            f"{portrait.eigenvalues_D[-1]:.3g}.",
            "<b>Covariance spectrum</b>",
        )
    )
    return hung


def _density(target: Target, portrait: Portrait) -> tuple[np.ndarray, np.ndarray]:
    """The target's density over the range of the features (over x > 0 for a rectified one)."""
    low, high = np.quantile(portrait.values, [0.0005, 0.9995])
    if target.rectified:
        low = 1e-6
    points = torch.linspace(float(low), float(max(high, low + 1.0)) * 1.1, 600, dtype=torch.float64)
    return points.numpy(), target.distribution.log_prob(points).exp().numpy()


def trade_off(runs: Sequence[Run], results: Sequence[Summary], folder: Path) -> str:
    """The Pareto frontier of accuracy against sparsity, for each data set that two runs with both share."""
    data = data_names(runs)
    several = len(set(data)) > 1
    hung = ""
    for number, on in enumerate(dict.fromkeys(data), start=1):
        own = [r if name == on else Summary() for r, name in zip(results, data)]  # places decide colours
        if sum(r.l0 is not None and (r.encoder is not None or r.projector is not None) for r in own) > 1:
            hung += _frontiers(runs, own, folder, f"-{number}" if several else "", f" on {on}" * several)
    return section("trade-off", "Sparsity and accuracy", f'<div class="figures">{hung}</div>') if hung else ""


def _frontiers(runs: Sequence[Run], results: Sequence[Summary], folder: Path, suffix: str, where: str) -> str:
    hung = ""
    for name, shown in (("l0", "ℓ₀"), ("l1", "ℓ₁")):
        values = [getattr(r, name) for r in results]
        xlabel = {"l0": r"active fraction $\ell_0$", "l1": r"$\ell_1$ sparsity metric"}[name]
        build = partial(
            pareto_frontier,
            [run.name for run in runs],
            values,
            [r.encoder for r in results],
            [r.projector for r in results],
            f"{xlabel}, sparser to the right",
        )
        listed = "; ".join(
            f"{run.name}: {name} {value:.3f}, projector {100 * r.projector:.2f} %"
            for run, r, value in zip(runs, results, values)
            if value is not None and r.projector is not None
        )
        caption = (
            f"<b>Accuracy against {shown}</b>{text(where)}: filled projector, outlined encoder; lines join "
            "runs none beats"
        )
        told = f"Accuracy against {name}{where}. {listed}."
        hung += hang(folder, f"pareto-{name}{suffix}", build, told, caption)
    return hung
