"""One training step: views, forward, loss, probes, backward, optimizer.

The step is a function of tensors. It reads uint8 images, labels and a seed, changes weights, optimizer
state and a few counters in place, and never waits for the device: rates, loss scale, running means of the
metrics and the search for NaN all live in tensors. So the whole of it can be captured as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpjepa.metrics import l0_sparsity, l1_sparsity
from lpjepa.models import SparseModel
from lpjepa.training.health import Health
from lpjepa.training.lars import _local, _norms
from lpjepa.training.precision import LossScale, autocast
from lpjepa.training.probes import OnlineProbes


class Trainee(nn.Module):
    """What the processes share gradients of: encoder, projector and the probes that read their features."""

    def __init__(self, model: SparseModel, probes: OnlineProbes | None):
        super().__init__()
        self.model = model
        self.probes = probes

    def forward(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        h_NE, z_ND = self.model(x_NCHW)
        return h_NE, z_ND, {} if self.probes is None else self.probes(h_NE, z_ND)


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
    ):
        self.trainee, self.network, self.criterion, self.views = trainee, network, criterion, views
        self.optimizers, self.device, self.precision = optimizers, device, precision
        self.grad_clip, self.ema = grad_clip, ema
        self.loss_scale = LossScale(device) if precision == "fp16" else None
        self.health = Health(device)
        self._of_model: Tensor | None = None
        self.metric_names: list[str] = []
        self.metric_sums = torch.zeros(0, device=device)

    def __call__(
        self, images_KNCHW: Tensor, labels_KN: Tensor | None, sizes_KN2: Tensor | None, seeds_K: Tensor
    ) -> None:
        """K batches of N images, whose gradients are averaged before the optimizers move (usually K = 1).

        `sizes_KN2` are the true sizes of images that were squeezed into their frame, where they were.
        """
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        batches = images_KNCHW.shape[0]
        metrics: dict[str, Tensor] = {}
        for k in range(batches):
            labels = None if labels_KN is None else labels_KN[k]
            sizes = None if sizes_KN2 is None else sizes_KN2[k]
            # Only the last batch's backward pass needs to talk to the other processes.
            silent = k < batches - 1 and hasattr(self.network, "no_sync")
            with self.network.no_sync() if silent else nullcontext():  # type: ignore[operator]
                loss, metrics = self._forward(images_KNCHW[k], labels, sizes, seeds_K[k])
                loss = loss / batches
                (loss if self.loss_scale is None else self.loss_scale(loss)).backward()
        self._update(metrics)

    def _forward(
        self, images_NCHW: Tensor, labels_N: Tensor | None, sizes_N2: Tensor | None, seed: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            x_VNCHW = self.views(images_NCHW, seed, sizes_N2)
        views, count = x_VNCHW.shape[:2]
        # All views in one batch: larger products, one set of normalisation statistics.
        x_BCHW = x_VNCHW.flatten(0, 1)
        with autocast(self.device, self.precision):
            h_BE, z_BD, logits = self.network(x_BCHW)
        z_VND = z_BD.unflatten(0, (views, count))
        self.health.look("views", x_VNCHW)
        self.health.look("encoder features", h_BE)
        self.health.look("projector features", z_BD)
        parts = self.criterion.components(z_VND)  # type: ignore[operator]
        loss = parts.loss
        metrics = {name: value.detach() for name, value in parts._asdict().items()}
        for name, value in metrics.items():
            self.health.look(f"loss component {name!r}" if name != "loss" else "loss", value)
        if labels_N is not None:
            labels_B = labels_N.repeat(views)
            for name, logits_BC in logits.items():
                probe_loss = F.cross_entropy(logits_BC.float(), labels_B, ignore_index=-1)
                self.health.look(f"loss of the {name} probe", probe_loss.detach())
                loss = loss + probe_loss
                hits = (logits_BC.detach().argmax(1) == labels_B).float().mean()
                metrics |= {f"{name}_probe_loss": probe_loss.detach(), f"{name}_train_accuracy": hits}
        metrics |= {"l0": l0_sparsity(z_VND), "l1": l1_sparsity(z_VND)}
        return loss, metrics

    @torch.no_grad()
    def _update(self, metrics: dict[str, Tensor]) -> None:
        # A timm model may hold parameters that no output depends on; they have no gradient and stay.
        named = [(n, p.grad) for n, p in self.trainee.named_parameters() if p.grad is not None]
        grads = [_local(grad) for _, grad in named]
        norms = _norms([grad for _, grad in named])  # type: ignore[misc]
        found_inf: Tensor | None = None
        if self.loss_scale is not None:
            norms, found_inf = self.loss_scale.unscale(grads, norms)
        else:
            self.health.look_at_gradients(norms)
        if self._of_model is None:  # made once: copying it from the host at every step would wait
            self._of_model = torch.tensor(
                [float(n.startswith("model.")) for n, _ in named], device=norms.device
            )
        total = (norms * self._of_model).norm()
        if self.grad_clip is not None:
            factor = (self.grad_clip / (total + 1e-6)).clamp(max=1.0)
            model_grads = [grad for (name, _), grad in zip(named, grads) if name.startswith("model.")]
            torch._foreach_mul_(model_grads, factor)
        for optimizer in self.optimizers:
            if found_inf is not None:
                optimizer.found_inf = found_inf  # type: ignore[attr-defined]
            optimizer.step()
        if self.loss_scale is not None and found_inf is not None:
            self.loss_scale.update(found_inf)
            self.health.look("loss scale", self.loss_scale.scale.log2())
        if self.ema is not None:
            self._follow()
        self.health.close_step([f"gradient of {name}" for name, _ in named])
        self._record(metrics | {"grad_norm": total})

    def _follow(self) -> None:
        copy, decay = self.ema  # type: ignore[misc]
        torch._foreach_lerp_(list(copy.parameters()), list(self.trainee.model.parameters()), 1.0 - decay)
        for mine, theirs in zip(copy.buffers(), self.trainee.model.buffers()):
            mine.copy_(theirs)

    def _record(self, metrics: dict[str, Tensor]) -> None:
        """Add to the sums that the loop reads, divides and clears every so many steps."""
        values = torch.stack([value.float().reshape(()) for value in metrics.values()])
        if not self.metric_names:
            self.metric_names = list(metrics)
            self.metric_sums = torch.zeros_like(values)
        self.metric_sums += values

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
