"""`lpjepa.load`: a model from a run, an export, a file of weights or a Hugging Face repository."""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpjepa.inference.description import Description, Preprocessing
from lpjepa.inference.facts import run_facts
from lpjepa.inference.model import Model
from lpjepa.training import Run
from lpjepa.training.config import activation_of
from lpjepa.training.processes import pick_device

WEIGHTS, CONFIG = "model.safetensors", "config.json"
METADATA = "lpjepa"  # the key of a weights file's metadata that holds its description


def load(source: str | Path, device: str | torch.device = "auto", revision: str | None = None) -> Model:
    """The pair (encoder, projector) with its preprocessing, ready for inference.

    Args:
        source: the folder of a run (its newest intact checkpoint) or of an export, a checkpoint of a run
            (`.pt`), a file of exported weights (`.safetensors`), or a Hugging Face repository, `user/name`.
        device: auto (a GPU where there is one), cpu, cuda, ...
        revision: branch, tag or commit of a Hugging Face repository.
    """
    path = Path(source)
    if path.is_dir():
        model = _from_folder(path)
    elif path.suffix == ".safetensors" and path.is_file():
        model = _from_weights(path)
    elif path.suffix == ".pt" and path.is_file():
        model = _from_checkpoint(path)
    elif path.is_file():
        raise ValueError(f"{source} is not a model; give a run, an export, a .pt checkpoint or .safetensors.")
    elif near := _nearly(path):
        raise ValueError(f"{source}: there is no such run, export or file; did you mean {near}?")
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        model = _from_folder(_download(str(source), revision))
    else:
        raise ValueError(f"{source}: there is no such run, export or file.")
    return model.to(pick_device(str(device)))


def _nearly(path: Path) -> Path | None:
    """What lies where `path` should lie and is spelt nearly so."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    found = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return path.parent / found[0] if found else None


def from_run(run: Run, checkpoint: Path | None = None) -> Model:
    """The model of a run's newest intact checkpoint, or of the one given."""
    weights, _ = run.weights(checkpoint)
    config = run.config.model
    projector = {
        "hidden": config.projector_hidden,
        "dim": config.projector_dim,
        "layers": config.projector_layers,
        "activation": activation_of(run.config),
    }
    description = Description(
        config.encoder, projector, Preprocessing.of_views(run.config.views), run_facts(run)
    )
    return _assemble(description, weights, str(run.folder))


def _from_checkpoint(path: Path) -> Model:
    run = Path(os.path.abspath(path)).parent.parent  # links stay: checkpoints may lie on another disk
    if not (run / "config.yaml").is_file():
        raise ValueError(
            f"{path} is not a checkpoint of a run: these lie in it, as RUN/checkpoints/NAME.pt, and "
            f"{run} has no config.yaml."
        )
    return from_run(Run.open(run), path)


def _from_folder(folder: Path) -> Model:
    if (folder / "config.yaml").is_file():
        return from_run(Run.open(folder))
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"{folder} is neither a run (no config.yaml in it) nor an export of one (no {CONFIG})."
        )
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{folder / CONFIG} is not readable as JSON; export the run again.") from None
    described = content.get(METADATA) if isinstance(content, dict) else None
    if described is None and isinstance(content, dict) and "outputs" in content:
        raise ValueError(
            f"{folder} holds a graph ({content.get('file')}), which its own runtime loads; for lpjepa.load, "
            "export with --format safetensors."
        )
    description = Description.from_dict(described, str(folder / CONFIG))
    weights, _ = _read_weights(folder / WEIGHTS)
    return _assemble(description, weights, str(folder))


def _from_weights(path: Path) -> Model:
    weights, metadata = _read_weights(path)
    if METADATA not in metadata:
        raise ValueError(f"{path} was not exported by lpjepa: it does not say what model its weights are of.")
    return _assemble(Description.from_dict(json.loads(metadata[METADATA]), str(path)), weights, str(path))


def _read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; export the run again with --format safetensors.")
    try:
        with safe_open(str(path), "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); export or download it again.") from None


def _assemble(description: Description, weights: dict[str, Tensor], where: str) -> Model:
    encoder, projector = description.build()
    for part, module in (("encoder", encoder), ("projector", projector)):
        if module is None:
            continue
        own = {k.removeprefix(f"{part}."): v for k, v in weights.items() if k.startswith(f"{part}.")}
        # An encoder alone is stored with timm's own names, so that timm reads the file as well.
        own = weights if not own and projector is None else own
        try:
            module.load_state_dict(own)
        except RuntimeError:
            raise ValueError(f"{where}: the weights do not fit the {part} that is described there.") from None
    model = Model(description, encoder, projector)
    features = "encoder" if projector is None else "projector"
    found = model.fingerprint(features)
    if description.fingerprint not in (None, found):
        raise ValueError(
            f"{where} is damaged: its weights are not those that were exported; export it again."
        )
    model.description = replace(description, fingerprint=found)
    return model


def _download(repository: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"{repository}: there is no such run or export here; to load it from Hugging Face, "
            "pip install 'lpjepa[export]'."
        ) from None
    wanted: dict[str, Any] = {"allow_patterns": [CONFIG, WEIGHTS], "revision": revision}
    try:
        return Path(snapshot_download(repository, **wanted))
    except Exception as error:  # of many kinds: no such repository, no right to read it, no network
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{repository}: there is no such run or export here, and Hugging Face did not give it ({reason})."
        ) from None
