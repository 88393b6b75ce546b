"""Reading a run folder: `config.yaml`, `metrics.jsonl`, `evaluation.json`; what is missing is absent."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import yaml

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.training.config import MATCHING, Config, TargetConfig
from lpjepa.training.layers import replace
from lpjepa.training.objectives import build_target

_TARGET_KEYS = tuple(key.name for key in fields(TargetConfig))

History = dict[str, tuple[list[float], list[float]]]  # "kind/metric" -> (epochs, values)


@dataclass(frozen=True)
class Target:
    """The target of a run and what features that follow it would measure."""

    mu: float
    sigma: float
    p: float
    rule: str  # "gn", "rgn" or "number"
    rectified: bool
    distribution: Any
    predicted: dict[str, float] = field(default_factory=dict)  # active, l1, variance, entropy

    @property
    def symbol(self) -> str:
        """The paper's notation, such as RGN₁(−1.63, σ_GN)."""
        scale = {"gn": "σ_GN", "rgn": "σ_RGN"}.get(self.rule, f"{self.sigma:.3g}")
        family = "RGN" if self.rectified else "GN"
        exponent = f"{self.p:.3g}".translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
        return f"{family}{exponent}({self.mu:.3g}, {scale})".replace("-", "−")


@dataclass(frozen=True)
class Run:
    """One run as the report sees it."""

    name: str
    folder: Path
    config: dict[str, Any]  # flat, by dotted key
    history: History
    evaluations: list[dict[str, Any]]  # the entries of evaluation.json
    target: Target | None
    probe: str = ""  # how the training's own final accuracies were measured
    problems: tuple[str, ...] = ()  # one sentence each: what could not be read

    @property
    def method(self) -> str:
        return str(self.config.get("loss.method", "unknown method"))

    def last(self, *names: str) -> float | None:
        """The last recorded value of the first of these metrics that was recorded at all."""
        for name in names:
            if self.history.get(name, ((), ()))[1]:
                return self.history[name][1][-1]
        return None


def read_runs(folders: list[Path]) -> list[Run]:
    """Read each folder; runs that share a folder name are told apart by their parents' names."""
    short = [folder.resolve().name for folder in folders]
    long = [f"{folder.resolve().parent.name}/{name}" for folder, name in zip(folders, short)]
    names = [b if short.count(a) > 1 else a for a, b in zip(short, long)]
    return [read_run(folder, name) for folder, name in zip(folders, names)]


def read_run(folder: Path, name: str | None = None) -> Run:
    """Read one run folder. Raises ValueError when it is not one at all; smaller defects become `problems`."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; give the folder of a run, as lpjepa pretrain printed it")
    if not any((folder / part).exists() for part in ("config.yaml", "metrics.jsonl", "evaluation.json")):
        raise ValueError(
            f"{folder}: not a run, it has neither config.yaml, metrics.jsonl nor evaluation.json"
        )
    problems: list[str] = []
    config = _flat(_read_config(folder / "config.yaml", problems))
    history, probe = _read_history(folder / "metrics.jsonl", problems)
    evaluations = _read_evaluations(folder / "evaluation.json", problems)
    target = None
    try:
        target = target_of(config)
    except (ValueError, TypeError, KeyError) as error:
        problems.append(f"{folder / 'config.yaml'}: the target could not be understood ({error})")
    name = name or folder.resolve().name
    return Run(name, folder, config, history, evaluations, target, probe, tuple(problems))


def target_of(config: dict[str, Any]) -> Target | None:
    """The target that a flat config asks for; None for methods that match none.

    Only the keys that decide it are looked at: configs of other versions may hold groups this one lacks.
    """
    if config.get("loss.method") not in MATCHING or "target.p" not in config:
        return None
    given = {name: config[f"target.{name}"] for name in _TARGET_KEYS if f"target.{name}" in config}
    wanted = {"active": None, "mu": None} | given  # what the run does not say is not made up
    settled = replace(Config(), {"target": wanted, "loss": {"method": config["loss.method"]}})
    distribution: Any = build_target(settled, dtype=torch.float64)
    predicted = {"variance": float(distribution.variance), "entropy": float(distribution.entropy())}
    rectified = isinstance(distribution, RectifiedGeneralizedGaussian)
    if rectified:
        predicted["active"] = float(distribution.active_probability)
        predicted["l1"] = float(distribution.expected_l1_metric)
    rule = settled.target.scale if isinstance(settled.target.scale, str) else "number"
    mu, sigma, p = (float(value) for value in (distribution.loc, distribution.scale, distribution.p))
    return Target(mu, sigma, p, rule, rectified, distribution, predicted)


def _read_config(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path}: missing; lpjepa pretrain writes it")
        return {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not readable as YAML ({str(error).splitlines()[0]})")
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _read_history(path: Path, problems: list[str]) -> tuple[History, str]:
    """Every number of every line against its epoch, under its kind: "train/loss", "epoch/l0", "final/l0".

    A line that a kill cut short is passed over; a run that goes on drops it.
    """
    history: History = {}
    probe, broken = "", 0
    if not path.exists():
        return history, probe
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = _flat(json.loads(line)) if line.strip() else {}
        except (json.JSONDecodeError, AttributeError):
            broken += 1
            continue
        probe = str(record.get("probe", probe))
        at = record.get("epoch", record.get("step"))
        if not _is_number(at):
            continue
        for key, value in record.items():
            if _is_number(value) and key not in ("epoch", "step"):
                epochs, values = history.setdefault(f"{record.get('kind', 'train')}/{key}", ([], []))
                epochs.append(float(at))  # type: ignore[arg-type]
                values.append(float(value))
    if broken:
        problems.append(f"{path}: {broken} line(s) are not JSON and were left out")
    return history, probe


def _read_evaluations(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
        entries = loaded["evaluations"]
        return [entry for entry in entries if {"source", "finished", "pieces"} <= set(entry)]
    except (ValueError, KeyError, TypeError) as error:
        problems.append(f"{path}: not readable ({error}); move it away and run lpjepa evaluate again")
        return []


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result
