"""What a model is apart from its weights: how to build it, what its images go through, where it came from.

Written as the entry `lpjepa` of an export's `config.json`, and read back from it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from lpjepa.data import EvalTransform, ViewConfig
from lpjepa.models import ModelConfig, build, build_encoder

FORMAT = 1


@dataclass(frozen=True)
class Preprocessing:
    """Shorter side resized to `resize`, the central `size` pixels kept, channels normalised."""

    size: int
    resize: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"

    @classmethod
    def of_views(cls, views: ViewConfig) -> Preprocessing:
        """The preprocessing with which evaluation sees the images of a training's views."""
        transform = EvalTransform(views.size, None, views.mean, views.std, views.interpolation)
        return cls(views.size, transform.resize, views.mean, views.std, views.interpolation)

    def transform(self) -> EvalTransform:
        return EvalTransform(self.size, self.resize, self.mean, self.std, self.interpolation)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Description:
    """Everything about a model but its weights.

    Attributes:
        encoder: its name, as `model.encoder` takes it.
        projector: hidden, dim, layers, activation; None for an encoder alone.
        preprocessing: what images go through.
        run: facts for the model card (recipe, data, accuracies, sparsity), plain containers only.
        fingerprint: of the weights, where they are known to be intact; see `Model.fingerprint`.
    """

    encoder: str
    projector: dict[str, Any] | None
    preprocessing: Preprocessing
    run: dict[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None

    def build(self) -> tuple[nn.Module, nn.Module | None]:
        """Untrained encoder and projector."""
        if self.projector is None:
            return build_encoder(self.encoder, self.preprocessing.size), None
        config = ModelConfig(
            self.encoder,
            projector_hidden=self.projector["hidden"],
            projector_dim=self.projector["dim"],
            projector_layers=self.projector["layers"],
            activation=self.projector["activation"],
        )
        pair = build(config, self.preprocessing.size)
        return pair.encoder, pair.projector

    def as_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Any, where: str) -> Description:
        """The description in `content`, read from `where` (named in errors)."""
        if not isinstance(content, dict) or "format" not in content:
            raise ValueError(f"{where} does not describe an lpjepa model; export the run again.")
        if content["format"] != FORMAT:
            raise ValueError(
                f"{where} has format {content['format']}, and this version reads format {FORMAT}; "
                "load it with the version that wrote it."
            )
        try:
            given = dict(content["preprocessing"])
            given |= {"mean": tuple(given["mean"]), "std": tuple(given["std"])}
            return cls(
                str(content["encoder"]),
                content["projector"],
                Preprocessing(**given),
                content.get("run") or {},
                content.get("fingerprint"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where} is damaged ({error!r}); export the run again.") from None
