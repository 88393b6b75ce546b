"""How long trainings take, by what has been trained."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from lpjepa.recipes.places import Places
from lpjepa.recipes.store import Store, hardware
from lpjepa.training import Config
from lpjepa.training.processes import pick_device

Kind = tuple[object, ...]


def paces(places: Places, device: str) -> dict[Kind, float]:
    """Seconds that an epoch of a kind took on a device like this one, as far as results say so."""
    here, taken = hardware(pick_device(device))["device"], defaultdict[Kind, list[float]](list)
    for config, result in Store(places.results, places.scale).items():
        seconds, machine = result.get("seconds"), result.get("hardware", {})
        if seconds and machine.get("device") == here and "goes_on" not in result:
            taken[kind_of(config)].append(seconds / config.train.epochs)
    return {kind: median(found) for kind, found in taken.items()}


def kind_of(config: Config) -> Kind:
    """What decides how long an epoch takes; a training of an unknown kind is begun, and tells."""
    model, loss = config.model, config.loss
    widths = (model.projector_dim, model.projector_hidden, model.projector_layers)
    return model.encoder, *widths, config.train.batch_size, str(loss.directions), loss.num_slices
