"""One training step: views, forward, loss, probes, backward, optimizer.

The step is a function of tensors. It reads uint8 images, labels and a seed, changes weights, optimizer
state and a few counters in place, and never waits for the device: rates, loss scale, running means of the
metrics and the search for NaN all live in tensors. So the whole of it can be captured as CUDA graphs.

What the model does not learn from (probes, metrics, the search for NaN) is many small kernels. On one GPU
they run on a `Branch` beside the objective and the encoder's backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from lpjepa.models import SparseModel
from lpjepa.training.branch import Branch
from lpjepa.training.health import Health
from lpjepa.training.lars import LARS, _local, _norms
from lpjepa.training.optimizers import set_rate
from lpjepa.training.precision import LossScale, autocast
from lpjepa.training.probes import OnlineProbes
from lpjepa.training.reading import (
    INPUTS,
    Reading,
    in_order,
    metrics_of,
    parts_of,
    read_objective,
    read_probes,
    sums_by_sample,
    through_compiler,
)


class Trainee(nn.Module):
    """What is trained, by the names of checkpoints: the model, and the probes that read its features."""

    def __init__(self, model: SparseModel, probes: OnlineProbes | None):
        super().__init__()
        self.model = model
        self.probes = probes


class Learner(nn.Module):
    """The model as a step calls it: (h_NE, z_ND) of which only z is learned through."""

    def __init__(self, model: SparseModel):
        super().__init__()
        self.model = model

    def forward(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        h_NE, z_ND = self.model(x_NCHW)
        # Nothing outside learns through h: a compiled backward pass need not add zeros to its gradient.
        return h_NE.detach(), z_ND


class Step:
    """The step with everything it reads and changes.

    Args:
        trainee: model and probes.
        network: the model's `Learner` as it is called: itself, or wrapped to average over processes.
        probes: the probes as they are called, likewise; None where there are none.
        criterion: an objective of `lpjepa.losses`.
        views: (images_NCHW uint8, seed, true sizes or None) -> (V, N, 3, S, S) float32.
        optimizers: of the model, then of the probes; their rates are tensors or set by the loop.
        precision: fp32, bf16 or fp16.
        grad_clip: largest norm of the model's gradients, or None.
        ema: a copy of the model that follows it, and its decay.
        compiled: take what surrounds the network (loss, probes, metrics, norms, counters) through the
            compiler, as three graphs: a GPU then runs a few kernels instead of some hundred and fifty.
        alone: no other processes take part; a GPU then runs the probes beside the model.
    """

    def __init__(
        self,
        trainee: Trainee,
        network: nn.Module,
        probes: nn.Module | None,
        criterion: nn.Module,
        views: Callable[[Tensor, Tensor, Tensor | None], Tensor],
        optimizers: list[torch.optim.Optimizer],
        device: torch.device,
        precision: str = "fp32",
        grad_clip: float | None = None,
        ema: tuple[nn.Module, float] | None = None,
        compiled: bool = False,
        alone: bool = True,
    ):
        self.trainee, self.network, self.probes = trainee, network, probes
        self.criterion, self.views = criterion, views
        self.optimizers, self.device, self.precision = optimizers, device, precision
        self.grad_clip, self.ema = grad_clip, ema
        self.loss_scale = LossScale(device) if precision == "fp16" else None
        self.health = Health(device)
        self.metric_names: list[str] = []
        self.metric_sums = torch.zeros(0, device=device)
        self.branch = Branch(device, alone)
        self._one = torch.ones((), device=device)
        take = through_compiler if compiled else lambda function: function
        self._read_objective = take(read_objective)
        self._observe = take(self._observed)
        self._judge = take(self._judged)

    def control(self, number: int, rates: list[float]) -> None:
        """Set the number of the next step and the optimizers' rates at it."""
        for optimizer, rate in zip(self.optimizers, rates):
            set_rate(optimizer, rate)
        self.health.step.fill_(number)

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
        # Where backward passes start: the share of a batch in the gradients, times the loss scale.
        share = self._one if batches == 1 else self._one / batches
        share = share if self.loss_scale is None else self.loss_scale(share)
        objectives: list[Reading] = []
        seen: list[Reading] = []
        for k, x_VNCHW in enumerate(views):
            labels, last = None if labels_KN is None else labels_KN[k], k == batches - 1
            with self._exchange(last):
                h_BE, z_BD = self._forward(x_VNCHW)
                # Probes learn by a backward pass of their own, which must not go on into the network's.
                with self.branch.fork():
                    seen.append(self._observe(x_VNCHW, h_BE, z_BD.detach(), labels))
                    _learn(seen[-1], share)
                objectives.append(self._objective(x_VNCHW, h_BE, z_BD))
                _learn(objectives[-1], share)
            if not last:
                self.branch.join()  # before views and features go
        self._update(objectives, seen)  # which joins; views and features of the last batch are still here

    def _exchange(self, last: bool) -> ExitStack:
        """Within it backward passes average over the processes, which only the last batch's need to do."""
        silent = ExitStack()
        for network in (self.network, self.probes):
            if not last and hasattr(network, "no_sync"):
                silent.enter_context(network.no_sync())  # type: ignore[union-attr, operator]
        return silent

    def _forward(self, x_VNCHW: Tensor) -> tuple[Tensor, Tensor]:
        # All views in one batch: larger products, one set of normalisation statistics.
        with autocast(self.device, self.precision):
            h_BE, z_BD = self.network(x_VNCHW.flatten(0, 1))
        return h_BE, z_BD

    def _observed(self, x_VNCHW: Tensor, h_BE: Tensor, z_BD: Tensor, labels_N: Tensor | None) -> Reading:
        logits: dict[str, Tensor] = {}
        if self.probes is not None and labels_N is not None:
            with autocast(self.device, self.precision):
                logits = self.probes(h_BE, z_BD)
        return read_probes(x_VNCHW, h_BE, z_BD, logits, labels_N)

    def _objective(self, x_VNCHW: Tensor, h_BE: Tensor, z_BD: Tensor) -> Reading:
        try:
            return self._read_objective(self.criterion, z_BD, x_VNCHW.shape[0])
        except ValueError:
            sums = sums_by_sample(x_VNCHW.flatten(0, 1), h_BE, z_BD)
            self.health.stop_midway(dict(zip(INPUTS, sums)))
            raise

    @torch.no_grad()
    def _update(self, objectives: list[Reading], seen: list[Reading]) -> None:
        """Judge the gradients and write everything down, then move; the readings are those of the batches."""
        # A timm model may hold parameters that no output depends on; they have no gradient and stay.
        named = [(n, p) for n, p in self.trainee.named_parameters() if p.grad is not None]
        of_model = [p for name, p in named if name.startswith("model.")]
        of_probes = [p for name, p in named if not name.startswith("model.")]
        if not self.health.parts:
            # Gradients of a scaled loss may overflow; what must stay finite is the scale that follows.
            last = [f"gradient of {name}" for name, _ in named] if self.loss_scale is None else ["loss scale"]
            self.health.expect(parts_of(objectives[-1], seen[-1]) + last)
        if not self.metric_names:
            self.metric_names = [*metrics_of(objectives[-1], seen[-1]), "grad_norm"]
            self.metric_sums = torch.zeros(len(self.metric_names), device=self.device)
        # With a loss scale all wait for the verdict on all gradients, with `grad_clip` the model does.
        waits = self.loss_scale is not None or self.grad_clip is not None
        with self.branch.go_on():
            norms = [self._gradient_norms(1, of_probes)] if of_probes else []
            if not waits:
                self._move(1, of_probes)
        norms = [self._gradient_norms(0, of_model), *norms]
        values = [[reading.values for reading in readings] for readings in (objectives, seen)]
        if waits:
            self.branch.join()
            found_inf, scales = self._judge(*values, norms)
            with self.branch.fork():
                self._move(1, of_probes, found_inf, scales[1])
            self._move(0, of_model, found_inf, scales[0])
        else:
            with self.branch.fork():
                self._judge(*values, norms)
            self._move(0, of_model)
        if self.ema is not None:
            self._follow()
        self.branch.join()

    def _gradient_norms(self, which: int, params: list[nn.Parameter]) -> Tensor:
        """The norms of the gradients of one optimizer's `params`; LARS measures them on its way."""
        optimizer = self.optimizers[which]
        measured = optimizer.gradient_norms(params) if isinstance(optimizer, LARS) else None
        return _norms([p.grad for p in params]) if measured is None else measured  # type: ignore[misc]

    def _move(
        self,
        which: int,
        params: list[nn.Parameter],
        found_inf: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        """A step of one optimizer, gradients divided by `scale`."""
        for optimizer in self.optimizers[which : which + 1]:  # there may be none for probes
            if found_inf is not None:
                optimizer.found_inf = found_inf  # type: ignore[attr-defined]
            if scale is not None and isinstance(optimizer, LARS):
                optimizer.grad_scale = scale  # type: ignore[attr-defined]
            elif scale is not None and params:
                torch._foreach_mul_([_local(p.grad) for p in params], scale.reciprocal())
            optimizer.step()

    def _judged(
        self, objectives: list[Tensor], seen: list[Tensor], norms: list[Tensor]
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Note what is not finite, add up the metrics (of the last batch), adapt the loss scale.

        Returns whether gradients overflowed, and by what the gradients of each optimizer are to be divided
        (None: by nothing): the loss scale, and for the model what exceeds `grad_clip`.
        """
        values = in_order(objectives[-1], seen[-1])
        found = in_order(reduce(torch.add, objectives), reduce(torch.add, seen))
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


def _learn(reading: Reading, share: Tensor) -> None:
    if reading.loss is not None:
        reading.loss.backward(share)
