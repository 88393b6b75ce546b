"""`lpjepa target`: what a target looks like before anything is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass
class Arguments:
    """Design a target: its numbers as a table, its density and atom as a picture."""

    active: float | None = None
    """Fraction of active features wanted, between 0 and 1; sets mu."""
    mu: float | None = None
    """Location before rectification, instead of --active."""
    p: float = 1.0
    """Exponent: 1 is Laplace, 2 is Gaussian."""
    sigma: float | Literal["gn", "rgn"] = "gn"
    """Scale: gn has unit variance before rectification, rgn after it; or a number."""
    compare: tuple[float, ...] = ()
    """Several p side by side, instead of --p."""
    out: Path | None = None
    """PNG, SVG or PDF to draw to; target.png by default."""
    json: bool = False
    """Print JSON for machines instead of the table; draws only where --out is given."""


def run(arguments: list[str]) -> int:
    """Print the numbers of one target or several, and draw them."""
    import tyro

    from lpjepa.report.target import draw_targets, print_targets, target_summary

    chosen = tyro.cli(Arguments, prog="lpjepa target", args=arguments)
    targets = [_design(chosen, p) for p in chosen.compare or (chosen.p,)]
    if chosen.json:
        print(json.dumps([target_summary(target) for target in targets], indent=2))
    else:
        print_targets(targets)
    if chosen.out is not None or not chosen.json:
        out = chosen.out or Path("target.png")
        _check_writable(out)
        draw_targets(targets, out)
        if not chosen.json:
            print(f"drawn to {out}")
    return 0


def _design(chosen: Arguments, p: float):  # type: ignore[no-untyped-def]
    import torch

    from lpjepa.distributions import RectifiedGeneralizedGaussian

    if (chosen.active is None) == (chosen.mu is None):
        raise ValueError("give either --active (the fraction of active features) or --mu (the location)")
    try:
        if chosen.active is not None:
            return RectifiedGeneralizedGaussian.from_active_fraction(
                chosen.active, p, chosen.sigma, dtype=torch.float64
            )
        assert chosen.mu is not None
        return RectifiedGeneralizedGaussian.from_location(chosen.mu, p, chosen.sigma, dtype=torch.float64)
    except ValueError as error:
        from lpjepa.training.objectives import in_words_of

        given = {
            "fraction": ("--active", chosen.active),
            "loc": ("--mu", chosen.mu),
            "p": ("--compare" if chosen.compare else "--p", p),
            "scale": ("--sigma", chosen.sigma),
        }
        raise ValueError(in_words_of(given, error)) from None


def _check_writable(out: Path) -> None:
    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--out {out}: the picture's name must end in .png, .svg or .pdf")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: its folder cannot be made ({error.strerror})") from None
