"""How long trainings take, by what has been trained."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from lpjepa.recipes.places import Places
from lpjepa.recipes.store import Store, hardware
from lpjepa.training import Config
from lpjepa.training.processes import pick_device

Kind = tuple[object, ...]


class Pace:
    """What an epoch takes: as the last training of its kind in this call, or as results tell.

    Results are of other times, when more or fewer were trained at once: what they tell is longer by as much
    as any kind of the same encoder has taken longer here. A kind that is not known is taken for the fastest
    of the same encoder.
    """

    def __init__(self, places: Places | None = None, device: str = "auto") -> None:
        self._told = _told(places, device) if places is not None else {}
        self._seen: dict[Kind, float] = {}
        self._besides: dict[Kind, float] = {}  # what a part of a training took besides its epochs

    def needed(self, config: Config, epochs: float) -> float:
        """Seconds for the last `epochs` of a training; 0 where nothing is known."""
        kind = _kind_of(config)
        besides = self._besides.get(kind, 0.0) if epochs < config.train.epochs else 0.0
        return epochs * self._of(kind) + besides

    def note(self, config: Config, epochs: float, seconds: float) -> None:
        """The last `epochs` of a training took so long."""
        kind = _kind_of(config)
        if epochs == config.train.epochs:
            self._seen[kind] = seconds / epochs
        else:
            self._besides[kind] = max(0.0, seconds - epochs * self._of(kind))

    def _of(self, kind: Kind) -> float:
        seen, told = (
            {other: seconds for other, seconds in paces.items() if other[0] == kind[0]}
            for paces in (self._seen, self._told)
        )
        slower = max(1.0, min((seen[other] / told[other] for other in seen if other in told), default=1.0))
        known = {other: seconds * slower for other, seconds in told.items()} | seen
        return known.get(kind, min(known.values(), default=0.0))


def _told(places: Places, device: str) -> dict[Kind, float]:
    """Seconds that an epoch of a kind took on a device like this one, as far as results say so."""
    here, taken = hardware(pick_device(device))["device"], defaultdict[Kind, list[float]](list)
    for config, result in Store(places.results, places.scale).items():
        seconds, machine = result.get("seconds"), result.get("hardware", {})
        if seconds and machine.get("device") == here and "goes_on" not in result:
            taken[_kind_of(config)].append(seconds / config.train.epochs)
    return {kind: median(found) for kind, found in taken.items()}


def _kind_of(config: Config) -> Kind:
    """What decides how long an epoch takes; its encoder comes first."""
    model, loss = config.model, config.loss
    widths = (model.projector_dim, model.projector_hidden, model.projector_layers)
    return model.encoder, *widths, config.train.batch_size, str(loss.directions), loss.num_slices
