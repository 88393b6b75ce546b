"""Rows of a recipe as trainings: a case is a method on a base with its target, a config its form at a scale.

    case = expand({"method": "rgn", "p": 1.0, "grid": {"mu": [-2, 0]}}, "cifar100", "small")[0]
    config = config_of(case, "small", seed=5)

A row's `grid` multiplies it; a list may differ by scale: {smoke: [...], default: [...]}. Keys with a dot, in
the row or its grid, are those of `lpjepa pretrain`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from lpjepa._names import suggestion
from lpjepa.training import Config, load_config
from lpjepa.training.layers import replace

SCALES = ("smoke", "small", "paper")
TARGETED = ("rgn", "lpjepa", "rgn-on-plain", "gn-on-rectified")
PREDICTED = ("rgn", "rgn-on-plain")  # whose target, being rectified, predicts an l0
_PLAIN = ("method", "base", "p", "mu", "sigma")
_OTHER = ("label", "latex", "group", "paper", "grid")
_SIGMA = {"gn": ("σ_GN", r"\sigma_{\operatorname{GN}}"), "rgn": ("σ_RGN", r"\sigma_{\operatorname{RGN}}")}


@dataclass(frozen=True)
class Case:
    """One training of a recipe, before a scale and a seed are chosen."""

    label: str
    latex: str
    group: str
    values: dict[str, Any]  # method, base, p, mu, sigma and dotted config keys
    paper: tuple[Any, ...] = field(default=())  # the published numbers, one a column

    def __getitem__(self, key: str) -> Any:
        return self.values.get(key)


@lru_cache
def read_yaml(name: str) -> dict[str, Any]:
    """A data file of this package."""
    import yaml

    text = (resources.files("lpjepa.recipes") / name).read_text(encoding="utf-8")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = "" if where is None else f", line {where.line + 1}"
        raise ValueError(f"{name}{line}: not YAML ({getattr(error, 'problem', error)})") from None


def scale_of(name: str) -> dict[str, Any]:
    """The settings of a scale, by name."""
    if name not in SCALES:
        raise ValueError(f"--scale {name}: there is no such scale; choose one of {', '.join(SCALES)}")
    return read_yaml("scales.yaml")[name]


def averaged(scale: str) -> list[str]:
    """The downstream sets that averages of a scale are taken over: not what the encoders are trained on."""
    settings = scale_of(scale)
    return list(settings.get("averaged", settings["transfer"]))


def for_scale(value: Any, scale: str) -> Any:
    """`value`, or its entry for `scale` where it says {smoke: ..., default: ...}."""
    if isinstance(value, Mapping) and "default" in value:
        return value.get(scale, value["default"])
    return value


def expand(row: Mapping[str, Any], base: str, scale: str) -> list[Case]:
    """The cases of a row: one, or one for each point of its grid."""
    grid = {key: for_scale(values, scale) for key, values in row.get("grid", {}).items()}
    fixed = {key: for_scale(value, scale) for key, value in row.items() if key not in _OTHER}
    cases = []
    for point in itertools.product(*grid.values()):
        values: dict[str, Any] = {"base": base, "method": "rgn", **fixed, **dict(zip(grid, point))}
        if values["method"] in TARGETED:
            values = {"p": 1.0, "mu": 0.0, "sigma": "gn", **values}
        label, latex = _names(values, row)
        cases.append(
            Case(
                label,
                latex,
                row.get("group", ""),
                values,
                tuple(row.get("paper", ())),
            )
        )
    return cases


def config_of(
    case: Case, scale: str, seed: int, epochs: int | None = None, changes: Mapping[str, Any] | None = None
) -> Config:
    """The training of a case: the base's preset, then its method, its target, its own keys, the seed.

    `epochs` replaces those of the base, not those that the row itself sets; `changes` come last.
    """
    config = _method_config(scale, case["base"], case["method"], epochs)
    own: dict[str, Any] = {"train": {"seed": seed}}
    if case["method"] in TARGETED:
        own["target"] = {"mu": float(case["mu"]), "p": float(case["p"]), "scale": case["sigma"]}
    for key, value in case.values.items():
        if key not in _PLAIN:
            group, _, name = key.partition(".")
            own.setdefault(group, {})[name] = value
    config = replace(config, own)
    return replace(config, dict(changes)) if changes else config


@lru_cache(maxsize=512)
def _method_config(scale: str, base: str, method: str, epochs: int | None) -> Config:
    bases, by_name = scale_of(scale)["bases"], _method(method)
    if base not in bases:
        raise ValueError(f"there is no base {base!r}; {suggestion(base, bases)}")
    preset = bases[base]["preset"]
    layers = [bases[base].get("set", {})]
    if epochs is not None:
        layers.append({"train": {"epochs": epochs}})
    wanted = dict(by_name["set"])
    slices = bases[base].get("set", {}).get("loss", {}).get("num_slices")
    if slices is not None and "num_slices" in wanted["loss"]:  # a scale's own number of slices is for all
        wanted["loss"] = {**wanted["loss"], "num_slices": slices}
    layers.append(wanted)
    if rates := by_name.get("rates", {}).get(preset):
        layers.append({"optim": rates})
    return load_config(f"presets:{preset}", *layers)


def _method(name: str) -> dict[str, Any]:
    methods = read_yaml("methods.yaml")
    if name not in methods:
        raise ValueError(f"there is no method {name!r}; {suggestion(name, methods)}")
    return methods[name]


def _names(values: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, str]:
    """The row's own names where it has them, or its method's: in plain text and in LaTeX."""
    method = dict(_method(values["method"]))
    if "label" in row:
        method = {"label": row["label"], "latex": row.get("latex", row["label"])}
    shown = _shown(values)
    sigma = _SIGMA.get(values.get("sigma", ""), ("", ""))[1]
    latex = str(method.get("latex", method["label"])).format(**{**shown, "sigma": sigma})
    return str(method["label"]).format(**shown), latex


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """How numbers stand in labels: p as the paper writes it, mu without a decimal where it has none."""
    shown = {key.replace(".", "_"): value for key, value in values.items()}
    if "p" in values:
        p, mu = float(values["p"]), float(values["mu"])
        shown |= {"p": f"{p:.1f}" if p * 10 == int(p * 10) else f"{p:g}", "mu": f"{mu:g}"}
        shown["sigma"] = _SIGMA[values["sigma"]][0] if values["sigma"] in _SIGMA else values["sigma"]
    return shown
