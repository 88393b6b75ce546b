"""All recipes trained once, tiny: one epoch of a few steps, few slices."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lpjepa.recipes import Places, Store, catalog, plan, sweep

CHANGES: dict[str, Any] = {
    "model": {"projector_hidden": 32, "projector_dim": 32},
    "train": {"epochs": 1, "batch_size": 128},
    "loss": {"num_slices": 32},
}


@dataclass
class Tiny:
    places: Places
    changes: dict[str, Any]
    done: int
    messages: list[str]
    trainings: int

    @property
    def store(self) -> Store:
        return Store(self.places.results, "smoke")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The results of every recipe; where several test processes run, the first makes them for all."""
    base = tmp_path_factory.getbasetemp()
    folder: Path = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "recipes"
    places = Places(folder / "work", folder / "results", folder / "data", "smoke")
    jobs = plan(catalog().values(), "smoke", changes=CHANGES)
    outcome = folder / "outcome.json"
    try:
        folder.mkdir()
    except FileExistsError:
        while not outcome.is_file():
            time.sleep(0.2)
    else:
        with pytest.MonkeyPatch.context() as patch:
            # The probes fitted to the end take longer than these trainings; the online ones do here.
            patch.setattr("lpjepa.training.assembly.LARGEST_FROZEN_PROBE", 0)
            summary = sweep(jobs, places, say=lambda line: None)
        partial = folder / "outcome.partial"
        partial.write_text(json.dumps({"done": summary.done, "messages": summary.messages}))
        partial.replace(outcome)
    return Tiny(places, CHANGES, **json.loads(outcome.read_text()), trainings=len(jobs))
