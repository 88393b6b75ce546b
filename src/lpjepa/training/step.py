"""One training step: views, forward, loss, probes, backward, optimizer.

The step is a function of tensors. It reads uint8 images, labels and a seed, changes weights, optimizer
state and a few counters in place, and never waits for the device: rates, loss scale, running means of the
metrics and the search for NaN all live in tensors. So the whole of it can be captured as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lpjepa.models import SparseModel
from lpjepa.training.health import Health
from lpjepa.training.lars import LARS, _local, _norms
from lpjepa.training.precision import LossScale, autocast
from lpjepa.training.probes import OnlineProbes
from lpjepa.training.reading import INPUTS, Reading, read, sums_by_sample, through_compiler


class Trainee(nn.Module):
    """What the processes share gradients of: encoder, projector and the probes that read their features."""

    def __init__(self, model: SparseModel, probes: OnlineProbes | None):
        super().__init__()
        self.model = model
        self.probes = probes

    def forward(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        h_NE, z_ND = self.model(x_NCHW)
        # Nothing outside learns through h: a compiled backward pass need not add zeros to its gradient.
        return h_NE.detach(), z_ND, {} if self.probes is None else self.probes(h_NE, z_ND)


class Step:
    """The step with everything it reads and changes.

    Args:
        trainee: encoder, projector, probes.
        network: `trainee` as it is called (itself, or wrapped to average gradients over processes).
        criterion: an objective of `lpjepa.losses`.
        views: (images_NCHW uint8, seed, true sizes or None) -> (V, N, 3, S, S) float32.
        optimizers: of the model, then of the probes; their rates are tensors or set by the loop.
        precision: fp32, bf16 or fp16.
        grad_clip: largest norm of the model's gradients, or None.
        ema: a copy of the model that follows it, and its decay.
        compiled: take what surrounds the network (loss, metrics, norms, counters) through the compiler, as
            two graphs: a GPU then runs a few kernels instead of some hundred and fifty.
    """

    def __init__(
        self,
        trainee: Trainee,
        network: nn.Module,
        criterion: nn.Module,
        views: Callable[[Tensor, Tensor, Tensor | None], Tensor],
        optimizers: list[torch.optim.Optimizer],
        device: torch.device,
        precision: str = "fp32",
        grad_clip: float | None = None,
        ema: tuple[nn.Module, float] | None = None,
        compiled: bool = False,
    ):
        self.trainee, self.network, self.criterion, self.views = trainee, network, criterion, views
        self.optimizers, self.device, self.precision = optimizers, device, precision
        self.grad_clip, self.ema = grad_clip, ema
        self.loss_scale = LossScale(device) if precision == "fp16" else None
        self.health = Health(device)
        self.metric_names: list[str] = []
        self.metric_sums = torch.zeros(0, device=device)
        self._read = through_compiler(read) if compiled else read
        self._judge = through_compiler(self._judged) if compiled else self._judged

    def __call__(
        self, images_KNCHW: Tensor, labels_KN: Tensor | None, sizes_KN2: Tensor | None, seeds_K: Tensor
    ) -> None:
        """K batches of N images, whose gradients are averaged before the optimizers move (usually K = 1).

        `sizes_KN2` are the true sizes of images that were squeezed into their frame, where they were.
        """
        views = self.make_views(images_KNCHW, sizes_KN2, seeds_K)
        self.learn(views, labels_KN, images_KNCHW.shape[0])

    def make_views(self, images_KNCHW: Tensor, sizes_KN2: Tensor | None, seeds_K: Tensor) -> Iterator[Tensor]:
        """The views (V, N, 3, S, S) of one batch after the other, each made when it is asked for."""
        for k in range(images_KNCHW.shape[0]):
            with torch.no_grad():
                x_VNCHW = self.views(images_KNCHW[k], seeds_K[k], None if sizes_KN2 is None else sizes_KN2[k])
            yield x_VNCHW

    def learn(self, views: Iterable[Tensor], labels_KN: Tensor | None, batches: int) -> None:
        """All of the step but the views of its `batches` batches."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        found: Tensor | None = None
        for k, x_VNCHW in enumerate(views):
            labels = None if labels_KN is None else labels_KN[k]
            # Only the last batch's backward pass needs to talk to the other processes.
            silent = k < batches - 1 and hasattr(self.network, "no_sync")
            with self.network.no_sync() if silent else nullcontext():  # type: ignore[operator]
                reading = self._forward(x_VNCHW, labels)
                loss = reading.loss if batches == 1 else reading.loss / batches
                (loss if self.loss_scale is None else self.loss_scale(loss)).backward()
            found = reading.values if found is None else found + reading.values
        assert found is not None
        self._update(reading, found)

    def _forward(self, x_VNCHW: Tensor, labels_N: Tensor | None) -> Reading:
        # All views in one batch: larger products, one set of normalisation statistics.
        x_BCHW = x_VNCHW.flatten(0, 1)
        with autocast(self.device, self.precision):
            h_BE, z_BD, logits = self.network(x_BCHW)
        try:
            return self._read(self.criterion, x_VNCHW, h_BE, z_BD, logits, labels_N)
        except ValueError:
            self.health.stop_midway(dict(zip(INPUTS, sums_by_sample(x_BCHW, h_BE, z_BD))))
            raise

    @torch.no_grad()
    def _update(self, reading: Reading, found: Tensor) -> None:
        """Judge the gradients and write everything down, then move; `found` is summed over the batches."""
        # A timm model may hold parameters that no output depends on; they have no gradient and stay.
        named = [(n, p) for n, p in self.trainee.named_parameters() if p.grad is not None]
        of_model = [p for name, p in named if name.startswith("model.")]
        of_probes = [p for name, p in named if not name.startswith("model.")]
        if not self.health.parts:
            # Gradients of a scaled loss may overflow; what must stay finite is the scale that follows.
            last = [f"gradient of {name}" for name, _ in named] if self.loss_scale is None else ["loss scale"]
            self.health.expect(reading.parts() + last)
        if not self.metric_names:
            self.metric_names = [*reading.metrics, "grad_norm"]
            self.metric_sums = torch.zeros(len(self.metric_names), device=self.device)
        norms = self._gradient_norms([of_model, of_probes] if of_probes else [of_model])
        found_inf, scales = self._judge(reading.values, found, norms)
        for optimizer, params, scale in zip(self.optimizers, (of_model, of_probes), scales):
            if found_inf is not None:
                optimizer.found_inf = found_inf  # type: ignore[attr-defined]
            if scale is not None and isinstance(optimizer, LARS):
                optimizer.grad_scale = scale  # type: ignore[attr-defined]
            elif scale is not None and params:
                torch._foreach_mul_([_local(p.grad) for p in params], scale.reciprocal())
            optimizer.step()
        if self.ema is not None:
            self._follow()

    def _gradient_norms(self, params: list[list[nn.Parameter]]) -> tuple[Tensor, ...]:
        """The norms of the gradients of model and probes; LARS measures them on its way where it can."""
        measured = [
            optimizer.gradient_norms(mine) if isinstance(optimizer, LARS) else None
            for optimizer, mine in zip(self.optimizers, params)
        ]
        norms = tuple(found for found in measured if found is not None)
        if len(norms) == len(params):
            return norms
        return _norms([p.grad for mine in params for p in mine]).split([len(mine) for mine in params])  # type: ignore[misc]

    def _judged(
        self, values: Tensor, found: Tensor, norms: tuple[Tensor, ...]
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Note what is not finite, add up the metrics, adapt the loss scale.

        Returns whether gradients overflowed, and by what the gradients of each optimizer are to be divided
        (None: by nothing): the loss scale, and for the model what exceeds `grad_clip`.
        """
        found_inf, scale = None, None
        if self.loss_scale is not None:
            scale = self.loss_scale.scale.clone()
            true, found_inf = self.loss_scale.unscale(torch.cat(norms))
            self.loss_scale.update(found_inf)
            total = true[: len(norms[0])].norm()
            found = torch.cat([found, self.loss_scale.scale.log2().reshape(1)])
        else:
            total = norms[0].norm()
            found = torch.cat([found, *norms])
        model_scale = scale
        if self.grad_clip is not None:
            excess = ((total + 1e-6) / self.grad_clip).clamp(min=1.0)
            model_scale = excess if scale is None else scale * excess
        self.health.close_step(found)
        self.metric_sums.add_(torch.cat([values[len(INPUTS) :], total.reshape(1)]))
        return found_inf, [model_scale, scale]

    def _follow(self) -> None:
        copy, decay = self.ema  # type: ignore[misc]
        torch._foreach_lerp_(list(copy.parameters()), list(self.trainee.model.parameters()), 1.0 - decay)
        for mine, theirs in zip(copy.buffers(), self.trainee.model.buffers()):
            mine.copy_(theirs)

    def state_tensors(self) -> dict[str, Any]:
        """What a checkpoint must hold beyond weights and optimizers, all tensors."""
        state: dict[str, Any] = {"metric_sums": self.metric_sums, "metric_names": list(self.metric_names)}
        if self.loss_scale is not None:
            state["loss_scale"] = self.loss_scale.state_dict()
        return state

    def load_state_tensors(self, state: dict[str, Any]) -> None:
        self.metric_names = list(state["metric_names"])
        self.metric_sums = state["metric_sums"].to(self.device)
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])
