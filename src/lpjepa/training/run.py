"""A run is a folder: config.yaml, metrics.jsonl, checkpoints/, and what evaluation and report add to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpjepa._whole import write_whole
from lpjepa.models import ShareReLU, SparseModel, build
from lpjepa.training._typed import ConfigError, to_dict
from lpjepa.training.checkpoint import CheckpointError, command, load, newest
from lpjepa.training.config import SET_SHARE, Config, activation_of, settled_from
from lpjepa.training.journal import read_journal
from lpjepa.training.layers import load_config
from lpjepa.training.objectives import build_target

# The columns of the paper's tables: name in the journal, heading, whether it is a percentage.
TABLE = (
    ("encoder_accuracy", "encoder acc", True),
    ("projector_accuracy", "projector acc", True),
    ("l1", "l1", False),
    ("l0", "l0", False),
)


@dataclass
class Run:
    """A training that was made, or is being made, in `folder`."""

    folder: Path
    config: Config

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        folder = Path(folder)
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"{folder}: not a run, there is no config.yaml in it")
        try:
            return cls(folder, load_config(folder / "config.yaml"))
        except ConfigError as error:
            raise ConfigError(f"{folder / 'config.yaml'}: {error}") from None

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def finished(self) -> bool:
        return bool(self.final)

    @property
    def final(self) -> dict[str, Any]:
        """The numbers at the end of the training; empty while it goes on."""
        entries = self.metrics("final")
        return entries[-1] if entries else {}

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, all or those of one kind ("train", "epoch", "final")."""
        entries = read_journal(self.folder / "metrics.jsonl")
        return [entry for entry in entries if kind is None or entry["kind"] == kind]

    def weights(self, checkpoint: Path | None = None) -> tuple[dict[str, Tensor], Path]:
        """The trained pair's weights (the moving average where the run kept one), and the file they are from.

        That is the newest intact checkpoint, or the one given.
        """
        found = newest(self.checkpoints) if checkpoint is None else (checkpoint, load(checkpoint))
        if found is None:
            if self.finished:
                anew = f"{command(self.folder)} --train.no-resume"
                raise CheckpointError(
                    f"{self.folder} is finished, but its checkpoints are gone; train it anew: {anew}"
                )
            raise CheckpointError(
                f"{self.folder}: the run has no checkpoint yet; train it: {command(self.folder)}"
            )
        path, state = found
        trainee = state["trainee"].items()
        trained = {k.removeprefix("model."): v for k, v in trainee if k.startswith("model.")}
        weights = state.get("ema", trained)
        # Until then there is no rectifier that could keep anything.
        late = self.config.train.rectify_from > 0
        return with_rectifier(weights, self.config) if late else weights, path

    def model(
        self, device: str | torch.device = "cpu", weights: dict[str, Tensor] | None = None
    ) -> SparseModel:
        """The trained pair in evaluation mode, with its newest weights or the ones given."""
        model = build_model(self.config)
        model.load_state_dict(self.weights()[0] if weights is None else weights)
        return model.to(device).eval()

    def save_config(self) -> None:
        import yaml

        text = yaml.safe_dump(to_dict(self.config), sort_keys=False)
        write_whole(self.folder / "config.yaml", text)


def build_model(config: Config) -> SparseModel:
    """The untrained pair of a config, with the activation its method asks for."""
    from dataclasses import replace

    settled: Any = activation_of(config)
    model = build(replace(config.model, activation=settled), config.views.size)
    for rectifier in ShareReLU.within(model.projector):
        rectifier.active.fill_(build_target(config).active_probability)  # type: ignore[attr-defined]
    return model


def with_rectifier(
    weights: dict[str, Tensor], config: Config, prefix: str = "", batches: int = 0
) -> dict[str, Tensor]:
    """`weights` with what the rectifier of `config` keeps, where there was none or another one until now.

    batches: of the training until now. Whatever else is missing stays so, and is an error where they are
    loaded.
    """
    if activation_of(config) not in SET_SHARE:
        return weights
    kept: dict[str, Tensor] = {}
    for name, part in build_model(config).named_modules():
        if isinstance(part, ShareReLU):
            part.batches.fill_(batches)
            kept |= part.state_dict(prefix=f"{prefix}{name}.")
    return {**kept, **weights}


def table(runs: list[Run], names: list[str] | None = None) -> str:
    """The paper's table: accuracies and sparsities of each run, and beneath it what its target predicts."""
    names = names or [run.folder.name for run in runs]
    rows = [["", *(heading for _, heading, _ in TABLE)]]
    for name, run in zip(names, runs):
        final = run.final
        rows.append([name, *(_cell(final.get(key), percent) for key, _, percent in TABLE)])
        if final.get("l0_predicted") is not None:
            predicted = [final.get(f"{key}_predicted") for key, _, _ in TABLE]
            rows.append(["  target predicts", *(_cell(value, False) for value in predicted)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths)))
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    if any(run.final.get("probe") == "frozen" for run in runs):
        lines.append("Accuracies: probes fitted on frozen features; the epochs show those of online probes.")
    if any(run.final.get("probe") == "online" and settled_from(run.config) == 1 for run in runs):
        lines.append(
            "Projector accuracies: online probes, which learned before the features were rectified or their "
            "share was set; lpjepa evaluate fits others."
        )
    return "\n".join(lines)


def _cell(value: Any, percent: bool) -> str:
    if value is None:
        return ""
    return f"{100 * value:.2f} %" if percent else f"{value:.3f}"
