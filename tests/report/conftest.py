"""Run folders as training and evaluation write them, made up in milliseconds."""

import html
import json
import math
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
import yaml

from lpjepa.report.figures import NeighbourRow
from lpjepa.report.html import build_page
from lpjepa.report.observation import Observation
from lpjepa.report.portrait import portrait
from lpjepa.report.run import read_run, read_runs


def write_run(folder, method="rectified_lpjepa", epochs=6, evaluated=True, sources=("digits",), **target):
    """A run with a falling loss, features near their target, and an evaluation on each of `sources`."""
    folder.mkdir(parents=True)
    config = {
        "data": {"source": "digits", "root": None},
        "model": {"encoder": "narrow", "projector_dim": 64},
        "target": {"active": 0.2, "mu": None, "p": 1.0, "scale": "gn", "rectified": None} | target,
        "loss": {"method": method, "num_slices": 512},
        "train": {"epochs": epochs, "seed": 0, "device": "auto", "precision": "fp32"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    target = read_run(folder).target
    predicted = target.predicted if target else {"active": 1.0, "l1": 0.6}
    lines = []
    for epoch in range(1, epochs + 1):
        left = math.exp(-epoch / 2)
        place = {"step": 7 * epoch, "epoch": epoch}
        lines.append({"kind": "train", **place, "loss": 1 + 8 * left, "l0": 0.9, "l1": 0.9})
        measured = {"l0": predicted["active"] + 0.3 * left, "l1": predicted["l1"] + 0.3 * left}
        probes = {"encoder_accuracy": 0.99 - left / 2, "projector_accuracy": 0.97 - left / 2}
        other = {"dead_fraction": 0.1 * left, "effective_rank": 60 - 20 * left, "held_out_discrepancy": left}
        lines.append({"kind": "epoch", **place, **measured, **probes, **other})
    lines.append(lines[-1] | {"kind": "final", "probe": "frozen"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if evaluated:
        entries = [evaluation(source, predicted) for source in sources]
        (folder / "evaluation.json").write_text(json.dumps({"format": 1, "evaluations": entries}))
    return folder


def evaluation(source, predicted, finished="2026-01-02T03:04:05+00:00"):
    """One entry of evaluation.json with every piece."""
    spread = np.linspace(0.8, 1.3, 101)
    by_correctness = {
        name: (level * spread * predicted[key]).tolist()
        for name, key, level in (
            ("l0_correct", "active", 1.0), ("l0_incorrect", "active", 1.1),
            ("l1_correct", "l1", 1.0), ("l1_incorrect", "l1", 1.1),
        )
    }  # fmt: skip
    pieces = {
        "measures": {
            kind: {"l0": predicted["active"] + 0.01, "l1": predicted["l1"] + 0.01, "dead": 0.0,
                   "always_on": 0.0, "effective_rank": 50.0, "entropy": 0.7, "nhsic": 0.01}
            for kind in ("encoder", "projector")
        },
        "knn": {"k": 20, **{k: {"cosine": 0.95, "euclidean": 0.94} for k in ("encoder", "projector")}},
        "posthoc": {kind: {"unchanged": True} for kind in ("encoder", "projector")},
    }  # fmt: skip
    for fraction, accuracy in ((0.01, 0.6), (0.1, 0.9), (1.0, 0.9812)):
        draws = 1 if fraction == 1 else 3
        pieces[f"probe {fraction:g}"] = {"fraction": fraction, "draws": draws} | {
            kind: {"top1": {"mean": accuracy - lower, "std": 0.01, "values": [accuracy] * draws}}
            | ({"by_correctness": by_correctness} if fraction == 1 else {})
            for kind, lower in (("encoder", 0.0), ("projector", 0.0123))
        }
    return {
        "source": source, "settings": {"protocol": "adam"}, "checkpoint": {"step": 42}, "started": finished,
        "versions": {"lpjepa": "0.0", "torch": "2.4"}, "finished": finished, "pieces": pieces,
    }  # fmt: skip


def look(run, samples=200, features=64):
    """An observation of features drawn from the run's own target, with noise for images."""
    generator = torch.Generator().manual_seed(1)
    target = run.target.distribution if run.target else None
    if target is None:
        z = torch.randn(samples, features, generator=generator)
    else:
        z = target.sample((samples, features), generator=generator)
    pixels = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 3)).astype(np.uint8)
    row = NeighbourRow(
        run.name, pixels[0], list(pixels[1:5]), [True, False, True, True], [0.9, 0.8, 0.7, 0.6]
    )
    maps = {f"digits, image {i}": (pixels[i], pixels[i, ::4, ::4, 0].astype(float)) for i in range(3)}
    return Observation(portrait(z, target, num_directions=4), {"digits, image 0 (zero)": row}, maps)


@pytest.fixture(scope="session")
def make_run():
    return write_run


@pytest.fixture(scope="session")
def chromium():
    """The browser's path; tests that open pages are skipped where there is none."""
    found = next(
        (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
    )
    if found is None:
        pytest.skip("needs Debian's chromium or google-chrome on the path")
    return found


@pytest.fixture(scope="session")
def open_page(chromium, tmp_path_factory):
    """Opens HTML from disk in headless Chromium and gives the text of one element when all is quiet."""

    def open_it(page, element, width=1200):
        folder = tmp_path_factory.mktemp("browser")
        (folder / "page.html").write_text(page, encoding="utf-8")
        command = [
            chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
            f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900",
            "--virtual-time-budget=5000", "--dump-dom", (folder / "page.html").as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, timeout=120, check=True)
        found = re.search(rf'<pre id="?{element}"?[^>]*>(.*?)</pre>', done.stdout.decode(), re.DOTALL)
        assert found, f"the page has no element {element}: {done.stderr.decode()[-2000:]}"
        return html.unescape(found.group(1))

    return open_it


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """(page, runs, folder) of a comparison; one run's name would be markup if it were not escaped."""
    root = tmp_path_factory.mktemp("comparison")
    folders = [
        write_run(root / "half", active=0.5),
        write_run(root / "twentieth", active=0.05, sources=("digits", "pets")),
        write_run(root / "<img src=x onerror=alert(1)> $x & 'y'", method="vicreg", evaluated=False),
    ]
    runs = read_runs(folders)
    page = build_page(
        runs, [*map(look, runs[:2]), Observation(notes=("no pictures: <b>why</b>",))], root / "figures"
    )
    return page, runs, root
