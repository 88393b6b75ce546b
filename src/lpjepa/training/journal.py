"""metrics.jsonl, and where else the numbers of a run go: TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from lpjepa._whole import write_whole
from lpjepa.training.checkpoint import CheckpointError
from lpjepa.training.config import LogConfig


class Sink(Protocol):
    """A place that takes numbers by name."""

    def write(self, kind: str, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Journal:
    """Every line is one JSON object with `kind` ("train", "epoch" or "final"), `step`, `epoch` and values.

    A resumed run first drops the lines that lie after its checkpoint, so that the file reads as if the
    run had never been interrupted.
    """

    def __init__(self, path: Path, sinks: list[Sink]):
        self.path, self.sinks = path, sinks

    def keep_until(self, step: int, without: Collection[str] = ()) -> None:
        """Drop lines of later steps, a line that a kill cut short, and values that are to be left out."""
        if not self.path.exists():
            return
        kept = [
            json.dumps({key: value for key, value in entry.items() if key not in without}) + "\n"
            for entry in read_journal(self.path)
            if entry["step"] <= step and entry["kind"] != "final"
        ]
        write_whole(self.path, "".join(kept))

    def write(self, kind: str, step: int, epoch: float, values: dict[str, Any]) -> None:
        clean = {key: _number(value) for key, value in values.items()}
        line = json.dumps({"kind": kind, "step": step, "epoch": round(epoch, 6), **clean}) + "\n"
        try:
            with self.path.open("a") as file:
                file.write(line)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} could not be written: {error.strerror}; the newest checkpoint is intact, "
                "make room and start the same command again"
            ) from error
        for sink in self.sinks:
            numbers = {k: v for k, v in clean.items() if isinstance(v, (int, float))}
            sink.write(kind, step, numbers)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The entries of a metrics.jsonl, in order; a line that a kill or a full disk cut short is left out."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            entries.append(json.loads(line))
    return entries


def _number(value: Any) -> Any:
    """JSON has no NaN: such a value is written as null. Seven digits are all that float32 has."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


class TensorBoard:
    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "log.tensorboard: TensorBoard is not installed; pip install tensorboard"
            ) from None
        self.writer = SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def write(self, kind: str, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{kind}/{name}", value, step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.writer.close()  # type: ignore[no-untyped-call]


class WeightsAndBiases:
    def __init__(self, project: str, folder: Path, config: dict[str, Any]):
        try:
            import wandb
        except ImportError:
            raise ValueError("log.wandb: Weights & Biases is not installed; pip install wandb") from None
        self.run = wandb.init(
            project=project, dir=str(folder), name=folder.name, id=folder.name, config=config, resume="allow"
        )

    def write(self, kind: str, step: int, values: dict[str, float]) -> None:
        self.run.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self.run.finish()


def build_sinks(config: LogConfig, folder: Path, whole_config: dict[str, Any]) -> list[Sink]:
    sinks: list[Sink] = []
    if config.tensorboard:
        sinks.append(TensorBoard(folder))
    if config.wandb is not None:
        sinks.append(WeightsAndBiases(config.wandb, folder, whole_config))
    return sinks
