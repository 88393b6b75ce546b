"""A trained pair ready for use: images in any form go in, encoder or projector features come out."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import asdict, replace
from os import PathLike
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lpjepa.data.decoding import quiet_pillow
from lpjepa.data.errors import BrokenImage
from lpjepa.inference.description import Description
from lpjepa.inference.facts import of_another_projector
from lpjepa.inference.images import is_frames, single_images, to_frame
from lpjepa.models.projector import keep_largest

FeatureKind = Literal["projector", "encoder"]
KINDS = ("projector", "encoder")


class Model:
    """What `lpjepa.load` gives.

        model = lpjepa.load("runs/digits")
        z = model.embed(["a.png", Image.open("b.jpg"), array])       # (3, D), sparse and non-negative
        h = model.embed("a.png", features="encoder")                 # (1, E)

    Attributes:
        encoder: images (N, 3, S, S), normalised, to features (N, E).
        projector: these to (N, D), or None for an encoder alone.
        transform: frames, uint8 (N, 3, R, R), to the encoder's input.
        description: how it is built and where it came from.
    """

    def __init__(self, description: Description, encoder: nn.Module, projector: nn.Module | None):
        self.description = description
        self.encoder = encoder.eval().requires_grad_(False)
        self.projector = None if projector is None else projector.eval().requires_grad_(False)
        self.transform = description.preprocessing.transform()
        self._prints: dict[str, str] = {}

    @property
    def device(self) -> torch.device:
        return next(itertools.chain(self.encoder.parameters(), self.encoder.buffers())).device

    @property
    def frame_side(self) -> int:
        """Side of the square frames that `embed_frames` takes, before the central crop."""
        return self.description.preprocessing.resize

    def to(self, device: torch.device | str) -> Model:
        self.encoder.to(device)
        self.transform.to(device)
        if self.projector is not None:
            self.projector.to(device)
        return self

    def width(self, features: str = "projector") -> int:
        """The number of entries of a feature vector."""
        if self._checked(features) == "encoder":
            return int(self.encoder.num_features)  # type: ignore[arg-type]
        assert self.description.projector is not None
        return int(self.description.projector["dim"])

    def with_active(self, active: float) -> Model:
        """This model with a projector that keeps this share of every image's features, the largest.

        They keep their values, but where fewer are positive: there all are raised until as many are. Of a
        model that was trained with soft_top, they keep what they have above the next largest. All images
        have the same number of active features, whatever data they are from. The encoder, and what comes
        before the last activation of the projector, are shared with this model.
        """
        given = self.description.projector
        if given is None:
            raise ValueError(
                f"active {active}: this is an encoder alone; the share is of projector features."
            )
        assert isinstance(self.projector, nn.Sequential)
        if not 0 < active < 1:
            raise ValueError(f"active {active}: expected a share above 0 and below 1.")
        if given["activation"] == "calibrated":
            raise ValueError(
                f"active {active}: features of this model are compared with thresholds of their own, and so "
                "not with each other; train with model.activation relu, top or soft_top."
            )
        projector, activation = keep_largest(self.projector, given["activation"], active)
        description = replace(
            self.description,
            projector={**given, "activation": activation},
            run=of_another_projector(self.description.run),
            fingerprint=None,
        )
        other = Model(description, self.encoder, projector.to(self.device))
        other.description = replace(description, fingerprint=other.fingerprint())
        return other

    def embed(self, images: Any, features: FeatureKind = "projector", batch_size: int = 256) -> Tensor:
        """Features (N, D), float32 on the CPU, of one image, a batch, or any mixture of images.

        Images may be paths, bytes of files, Pillow images, arrays or tensors (uint8, or floats in [0, 1]) of
        any size and mode; they are brought to RGB, and to the model's size by its own preprocessing.
        """
        self._checked(features)
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}.")
        if is_frames(images, self.frame_side):
            batches = iter(images.split(batch_size))
        else:
            batches = self._frames(images, batch_size)
        parts = [self.embed_frames(frames, features).cpu() for frames in batches]
        return torch.cat(parts) if parts else torch.empty(0, self.width(features))

    @torch.no_grad()
    def embed_frames(self, frames_NCHW: Tensor, features: str = "projector") -> Tensor:
        """Features of uint8 frames (N, 3, R, R) with R = `frame_side`, on the model's device."""
        h_NE = self.encoder(self.transform(frames_NCHW.to(self.device)))
        if self._checked(features) == "encoder":
            return h_NE.float()
        assert self.projector is not None
        return self.projector(h_NE).float()

    def state_dict(self) -> dict[str, Tensor]:
        """Weights of both parts, as `encoder.…` and `projector.…`, on the CPU."""
        parts = {"encoder": self.encoder, "projector": self.projector}
        return {
            f"{part}.{name}": value.detach().cpu().contiguous()
            for part, module in parts.items()
            if module is not None
            for name, value in module.state_dict().items()
        }

    def fingerprint(self, features: str = "projector") -> str:
        """Sixteen hexadecimal digits that two models share when these features of theirs are the same.

        A run and its exports have the same; the encoder's does not depend on the projector.
        """
        if self._checked(features) not in self._prints:
            digest = hashlib.sha256(json.dumps(asdict(self.description.preprocessing)).encode())
            for name, value in sorted(self.state_dict().items()):
                # The counter of BatchNorm's updates changes no feature.
                if name.endswith("num_batches_tracked") or (
                    features == "encoder" and name.startswith("projector.")
                ):
                    continue
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
            self._prints[features] = digest.hexdigest()[:16]
        return self._prints[features]

    def _checked(self, features: str) -> str:
        if features not in KINDS:
            raise ValueError(f"there are no {features!r} features; choose projector or encoder.")
        if features == "projector" and self.projector is None:
            raise ValueError(
                "this model is an encoder without projector; ask for features='encoder' (--features encoder)."
            )
        return features

    def _frames(self, images: Any, batch_size: int) -> Any:
        source = single_images(images)
        side, interpolation = self.frame_side, self.description.preprocessing.interpolation
        done = 0
        while chunk := list(itertools.islice(source, batch_size)):
            frames: list[np.ndarray] = []
            try:
                with quiet_pillow():
                    for item in chunk:
                        frames.append(to_frame(item, side, interpolation))
            except BrokenImage as error:
                bare = not isinstance(chunk[len(frames)], (str, PathLike))  # no path by which to know it
                what = f"image {done + len(frames)}, {error.path}," if bare else error.path
                raise ValueError(f"{what} cannot be used as an image: {error.reason}.") from None
            done += len(chunk)
            yield torch.from_numpy(np.stack(frames))
