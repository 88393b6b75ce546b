"""Features of frozen models: computed once, kept in memory, or streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lpjepa.data import ImageSet, in_order
from lpjepa.evaluation._graphs import Replayed, recorder_for
from lpjepa.models import SparseModel
from lpjepa.training.monitors import suited_batch

KINDS = ("encoder", "projector")
Batch = tuple[Tensor, Tensor, "Tensor | None"]

FEWEST = 256  # images a batch, unless told otherwise
UNKNOWN_SIDE = 224  # pixels
HELD = 2**28  # values: features up to a gigabyte wait on the device for one copy to where they are kept


@dataclass(frozen=True)
class Features:
    """Encoder features (N, E), projector features (N, D) and labels (N,) of one split, in order."""

    encoder: Tensor
    projector: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.projector)

    def kind(self, name: str) -> Tensor:
        """`encoder` or `projector` features by name."""
        if name not in KINDS:
            raise ValueError(f"There are no {name!r} features; choose one of {', '.join(KINDS)}.")
        return self.encoder if name == "encoder" else self.projector

    def require_labels(self) -> Tensor:
        if self.labels is None:
            raise ValueError("These features have no labels; a probe or kNN needs a labelled data set.")
        return self.labels

    def to(self, device: torch.device | str) -> Features:
        labels = None if self.labels is None else self.labels.to(device)
        return Features(self.encoder.to(device), self.projector.to(device), labels)


def stream(
    model: nn.Module,
    images: Any,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    transform: Callable[..., Tensor] | None = None,
    labels: Tensor | None = None,
) -> Iterator[Batch]:
    """Batches of (encoder features, projector features, labels) on `device`, for sets that do not fit.

    `model(x)` gives (h, z). `images` is a tensor (N, C, H, W), beside its `labels`; an `ImageSet`, which has
    its own, and of which unreadable images are left out; or an iterable of batches, each images or (images,
    labels). `transform` makes the model's input of a batch on `device` (by default that of the model); for
    an image set it gets the images and their true sizes, as `EvalTransform` takes them. `batch_size` is by
    default 256, and on a GPU up to 1024 where images are small. The model is in evaluation mode while it runs
    and is put back afterwards. Nothing waits for the device.
    """
    device = torch.device(device) if device is not None else _device_of(model)
    training = model.training
    model.to(device).eval()
    if batch_size is None:
        batch_size = max(FEWEST, suited_batch(_side(images, transform), device))
    passes = _passes(model, device)
    try:
        for inputs, y in _batches(images, batch_size, device, labels):
            with torch.inference_mode():
                x = transform(*inputs) if transform is not None else inputs[0]
                h, z = passes(_suited_layout(x))
            # Copies made outside inference mode are ordinary tensors, which a probe may use in its graph.
            yield h.float().clone(), z.float().clone(), y
    finally:
        model.train(training)


def extract(
    model: nn.Module,
    images: Any,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    transform: Callable[..., Tensor] | None = None,
    labels: Tensor | None = None,
    store: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Features:
    """The features of a whole split, on `store`; arguments as of `stream`, `progress(n)` hears of n more.

    An empty split, and features that are not finite, are errors.
    """
    parts: list[Features] = []
    waiting: list[Batch] = []
    for h, z, y in stream(model, images, batch_size, device, transform, labels):
        waiting.append((h, z, y))
        if sum(h.numel() + z.numel() for h, z, _ in waiting) > HELD:
            parts.append(_joined(waiting).to(store))
            waiting = []
        if progress is not None:
            progress(len(h))
    if waiting:
        parts.append(_joined(waiting).to(store))
    if not parts:
        raise ValueError("There are no images to compute features of: the split is empty.")
    joined = [(part.encoder, part.projector, part.labels) for part in parts]
    features = parts[0] if len(parts) == 1 else _joined(joined)
    for name in KINDS:
        require_finite(features.kind(name), f"The {name} features")
    return features


def _passes(model: nn.Module, device: torch.device) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """`model` itself, or its replays on a GPU, which do not wait for the host; what they give is overwritten.

    Only networks of this library are replayed: another's may do something on the host at each batch, and so
    may hooks, which a replay would not call.
    """
    looked_on = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    recorder = recorder_for(device) if isinstance(model, SparseModel) and not looked_on else None
    if recorder is None:
        return model
    found: dict[tuple[torch.Size, torch.dtype], tuple[Tensor, Tensor]] = {}

    def keep(x: Tensor) -> None:
        found[x.shape, x.dtype] = model(x)

    replayed = Replayed(keep, recorder)

    def passes(x: Tensor) -> tuple[Tensor, Tensor]:
        replayed(x)
        return found[x.shape, x.dtype]

    return passes


def _side(images: Any, transform: Callable[..., Tensor] | None) -> int:
    """The side of the model's input, as far as it can be told before there is one."""
    size = getattr(transform, "size", None)
    if isinstance(size, int):
        return size
    if isinstance(images, ImageSet):
        return max(images.shape)
    return max(images.shape[-2:]) if isinstance(images, Tensor) and images.ndim == 4 else UNKNOWN_SIDE


def _suited_layout(x: Tensor) -> Tensor:
    """Images channels last, the layout in which a GPU's convolutions are fastest."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x


def _joined(parts: list[Batch]) -> Features:
    given = [y for _, _, y in parts if y is not None]
    return Features(
        torch.cat([h for h, _, _ in parts]),
        torch.cat([z for _, z, _ in parts]),
        torch.cat(given) if given else None,
    )


def require_finite(x: Tensor, name: str) -> None:
    """An error that names the first bad row, where there is one."""
    bad = ~x.isfinite().all(-1)
    if bool(bad.any()):
        raise ValueError(
            f"{name} of {int(bad.sum())} of {len(x)} samples are not finite (the first is sample "
            f"{int(bad.nonzero()[0])}); the model has diverged, use an earlier checkpoint."
        )


def _device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _batches(
    images: Any, batch_size: int, device: torch.device, labels: Tensor | None
) -> Iterator[tuple[tuple[Any, ...], Tensor | None]]:
    """What a transform gets, on `device`, and the labels."""
    if isinstance(images, Tensor):
        for start in range(0, len(images), batch_size):
            part = slice(start, start + batch_size)
            yield (images[part].to(device, non_blocking=True),), None if labels is None else labels[part]
    elif isinstance(images, ImageSet):
        for batch in in_order(images, batch_size, device=device):
            yield (batch.images, batch.sizes), batch.labels
    elif isinstance(images, Iterable):
        for item in images:
            x, y = item if isinstance(item, (tuple, list)) else (item, None)
            yield (x.to(device, non_blocking=True),), y
    else:
        raise TypeError(
            f"Features are computed of a tensor, an image set or batches, not of {type(images).__name__}."
        )
