"""The parts of a training, put together from its config: data, model, objective, optimizers, step."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from lpjepa._random import mix
from lpjepa.data import Batches, EvalTransform, ImageSet, MissingSplit, Views, load_source
from lpjepa.models import CalibratedReLU, ShareReLU, SparseModel, synchronise_batch_norm
from lpjepa.training._typed import ConfigError
from lpjepa.training.capture import CapturedStep
from lpjepa.training.combination import check_combination
from lpjepa.training.config import MATCHING, Config, settled_from
from lpjepa.training.fork import dense
from lpjepa.training.monitors import HELD, LARGEST_SAMPLE, Features, extract, measure
from lpjepa.training.objectives import Course, build_objective, target_of
from lpjepa.training.optimizers import build_optimizer
from lpjepa.training.probes import LARGEST_FROZEN_PROBE, OnlineProbes, frozen_probe
from lpjepa.training.processes import replicate, shard
from lpjepa.training.run import build_model
from lpjepa.training.schedule import scaled_by_batch, step_at
from lpjepa.training.startup import precompile, wake_compiler
from lpjepa.training.step import Learner, Step, Trainee

_VIEW_SEEDS = 0x56494557  # keeps the seeds of views apart from those of directions


class StepInput(NamedTuple):
    """K batches of N images: what the step reads besides its seeds."""

    images_KNCHW: Tensor
    labels_KN: Tensor | None
    sizes_KN2: Tensor | None


@dataclass
class Assembly:
    """Everything the loop drives; its config is that of LpJEPA where features are rectified later."""

    config: Config
    device: torch.device
    train: ImageSet
    val: ImageSet | None
    loader: Batches
    step: Step
    run_step: Step | CapturedStep
    rates: list[float]
    preprocess: EvalTransform
    course: Course | None = None
    compiling: threading.Thread | None = None  # the step's kernels, ahead of their launch

    @property
    def steps_per_epoch(self) -> int:
        return self.loader.steps_per_epoch // self.config.optim.accumulate

    def batches(self, epoch: int, first_step: int) -> Generator[StepInput, None, None]:
        """The inputs of an epoch's steps from `first_step`; left-over batches at its end are dropped."""
        together = self.config.optim.accumulate
        batches = self.loader.epoch(epoch, first_step * together)
        while True:
            with self._input_stream():
                held = list(itertools.islice(batches, together))
                if len(held) < together:
                    return
                images, labels, sizes = (_stack([b[i] for b in held]) for i in (0, 1, 3))
            assert images is not None
            yield StepInput(images, labels, sizes)

    def seeds(self, step: int) -> Tensor:
        """The seeds of a step's views, a function of train.seed and the step alone."""
        together = self.config.optim.accumulate
        start = torch.tensor(self.config.train.seed ^ _VIEW_SEEDS)
        seeds = mix(start, torch.arange(step * together, (step + 1) * together))
        if self.device.type != "cuda":
            return seeds
        with self._input_stream():
            return seeds.pin_memory().to(self.device, non_blocking=True)

    def _input_stream(self) -> AbstractContextManager[Any]:
        """Where inputs are made: beside the step that is still running, if the step takes them there."""
        beside = getattr(self.run_step, "beside", None)
        return nullcontext() if beside is None else torch.cuda.stream(beside)

    @property
    def evaluated(self) -> SparseModel:
        """The model that is measured and kept: the moving average where there is one."""
        return self.step.ema[0] if self.step.ema is not None else self.step.trainee.model  # type: ignore[return-value]

    def aim(self, progress: float) -> None:
        """Put the target where the step at this share of the training is to find it."""
        if self.course is not None:
            self.course.move(self.step.criterion, progress)

    @property
    def on_its_way(self) -> bool:
        """Whether the target has moved for the last step and not arrived."""
        return self.course is not None and self.course.now not in (None, self.course.end)

    @property
    def target(self) -> Distribution | None:
        """Where the target ends; the objective's own may still be on its way there."""
        return target_of(self.config)

    def features(self, images: ImageSet, most: int | None = None) -> Features:
        train, workers = self.config.train, self.config.data.workers
        return extract(
            self.evaluated,
            images,
            self.preprocess,
            self.device,
            train.precision,
            train.batch_size,
            workers,
            most,
        )

    def calibrate(self) -> None:
        """Set the thresholds by the training images as evaluation sees them, instead of views."""
        projector = self.evaluated.projector
        assert isinstance(projector, nn.Sequential)
        rectifier = projector[-1]
        assert isinstance(rectifier, CalibratedReLU)
        projector[-1] = nn.Identity()
        try:
            values = self.features(self.train, most=HELD // self.evaluated.projector_dim).z_ND
        finally:
            projector[-1] = rectifier
        rectifier.fit(values.to(rectifier.threshold.device))

    def monitor(self) -> dict[str, Any]:
        """The measurements of an epoch, on the validation images or, without any, some training images."""
        if self.val is None:
            return measure(self.features(self.train, LARGEST_SAMPLE), None, self.target)
        return measure(self.features(self.val), self.step.trainee.probes, self.target)

    def final(self) -> dict[str, Any]:
        """The measurements at the end, with probes fitted on frozen features where that is quick."""
        if self.val is None or self.step.trainee.probes is None:
            return self.monitor()
        val = self.features(self.val)
        found: dict[str, Any] = dict(measure(val, self.step.trainee.probes, self.target))
        width = max(self.evaluated.encoder_dim, self.evaluated.projector_dim)
        if len(self.train) * width > LARGEST_FROZEN_PROBE:
            return found | {"probe": "online"}
        train = self.features(self.train)
        assert train.labels_N is not None
        assert val.labels_N is not None
        labels = [t.to(self.device) for t in (train.labels_N, val.labels_N)]
        for name, a, b in (("encoder", train.h_NE, val.h_NE), ("projector", train.z_ND, val.z_ND)):
            probe = frozen_probe(a.to(self.device), labels[0], b.to(self.device), labels[1])
            found |= {
                f"{name}_accuracy_online": found[f"{name}_accuracy"],
                f"{name}_accuracy": probe.accuracy,
                f"{name}_l2": probe.l2,
                f"{name}_accuracy_weak": probe.accuracy_weak,
            }
        # On the images it was trained on; the others above are of validation images.
        found["l0_train"] = float((train.z_ND != 0).float().mean())
        return found | {"probe": "frozen"}

    def describe(self) -> str:
        config, target, epochs = self.config, self.config.target, self.config.train.epochs
        wanted = f"active {target.active:g}" if target.active is not None else f"mu {target.mu:g}"
        if target.from_mu is not None and target.leaves_at == 1:
            wanted += f" when it is over (mu {target.from_mu:g} until then)"
        elif target.from_mu is not None:
            wanted += f" (from mu {target.from_mu:g})"
        aim = f", target {wanted}, p {target.p:g}" if self.target is not None else ""
        return (
            f"{config.loss.method} with {config.model.encoder} on {self.train!r}{aim}, "
            f"{epochs} epoch{'s' * (epochs != 1)} of {self.steps_per_epoch} steps on {self.device}"
        )

    def advice(self, world: int) -> str | None:
        """What would make this training faster, if anything is known to."""
        train = self.config.train
        if self.device.type != "cuda" or world > 1 or train.fsdp or (train.capture and train.compile):
            return None
        return (
            "on a GPU, --train.capture true --train.compile true make most steps faster, small images' by far"
        )


def assemble(
    config: Config,
    device: torch.device,
    rank: int,
    world: int,
    at_step: int = 0,
    images: tuple[ImageSet, ImageSet | None] | None = None,
    turned: bool = False,
) -> Assembly:
    """Load the data, unless it is here already, and build everything for one process of `world`.

    at_step: where the training stands, before or beyond `train.rectify_from`.
    turned: whether features were rectified before, when that place lay elsewhere.
    """
    check_combination(config, world)
    if config.train.compile and device.type == "cuda":
        wake_compiler()
    train, val = images or load_images(config)
    loader = Batches(
        train, config.train.batch_size * world,
        seed=config.train.seed, rank=rank, world=world, device=device, workers=config.data.workers,
    )  # fmt: skip
    together = config.optim.accumulate
    if loader.steps_per_epoch < together:
        raise ConfigError(
            f"optim.accumulate: {together} batches are asked for and an epoch has only "
            f"{loader.steps_per_epoch}"
        )
    steps = config.train.epochs * (loader.steps_per_epoch // together)
    if not turned and at_step < step_at(config.train.rectify_from, steps):
        config = dense(config)
    torch.manual_seed(config.train.seed)  # the same initial weights on every process
    model = build_model(config)
    classes = train.num_classes if train.labels is not None else 0
    probes = OnlineProbes(model.encoder_dim, model.projector_dim, classes) if classes > 1 else None
    if world > 1 and config.train.sync_bn:
        synchronise_batch_norm(model, device.type)
    trainee, learner = Trainee(model, probes).to(device), Learner(model)
    fsdp = config.train.fsdp and world > 1
    if not fsdp:  # FSDP divides parameters by rows and takes them in the standard layout only
        trainee.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ema = (copy.deepcopy(model).requires_grad_(False).eval(), config.optim.ema) if config.optim.ema else None
    if config.train.compile:
        # As one graph; under FSDP by unit. Features are extracted by the model as it is.
        for module in (model.encoder, model.projector) if fsdp else (learner,):
            module.compile()
    # Model and probes learn apart from each other, so each is a network of its own to the other processes.
    if fsdp:
        # Whatever is also called by itself (to extract features, to measure) is a unit of its own.
        network = shard(learner, [model.encoder, model.projector])
        probing = None if probes is None else shard(probes, [])
    else:
        network = replicate(learner, device)
        probing = None if probes is None else replicate(probes, device)

    optimizers = [build_optimizer(model.parameters(), config.optim, device, config.optim.weight_decay, fsdp)]
    if probes is not None:
        optimizers.append(build_optimizer(probes.parameters(), config.optim, device, 0.0, fsdp))
    make_views = _view_maker(config, device, (rank, world))
    step = Step(
        trainee,
        network,
        probing,
        build_objective(config, device).to(device),
        make_views,
        optimizers,
        device,
        config.train.precision,
        config.optim.grad_clip,
        ema,
        # In many processes the exchanges within the loss would cut the graph into pieces.
        compiled=config.train.compile and device.type == "cuda" and world == 1,
        alone=world == 1,
    )
    size = config.views.size
    compiling = precompile(step, (config.views.num_views, config.train.batch_size, 3, size, size), world == 1)
    for rectifier in ShareReLU.within(model.projector):
        rectifier.after.fill_(together * step_at(settled_from(config), steps))
    batch = config.train.batch_size * world * together
    rates = [config.optim.lr, config.optim.probe_lr]
    if config.optim.scale_lr_by_batch:
        rates = [scaled_by_batch(rate, batch) for rate in rates]
    preprocess = EvalTransform(
        config.views.size,
        mean=config.views.mean,
        std=config.views.std,
        interpolation=config.views.interpolation,
    )
    run_step = CapturedStep(step, compiling) if config.train.capture else step
    moves = config.target.from_mu is not None and config.loss.method in MATCHING
    return Assembly(
        config, device, train, val, loader, step, run_step, rates[: len(optimizers)], preprocess,
        Course(config) if moves else None, compiling,
    )  # fmt: skip


def _view_maker(
    config: Config, device: torch.device, part: tuple[int, int]
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """(images, seed, true sizes) -> (V, N, 3, S, S), of which V · N images are channels last.

    That is the layout in which convolutions are fastest, on GPUs and CPUs alike.
    """
    views = Views(config.views).to(device)

    def make(images_NCHW: Tensor, seed: Tensor, sizes_N2: Tensor | None) -> Tensor:
        x_VNCHW = views(images_NCHW, seed, sizes_N2, part)
        x_BCHW = x_VNCHW.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return x_BCHW.unflatten(0, x_VNCHW.shape[:2])

    # On a GPU pixels are the work of kernels that the compiler does not look into; it fuses the drawing
    # of parameters, many small operations. On the CPU views go their own way: in chunks that fit the cache,
    # and blurring only the images that are to be blurred, which a graph of fixed shapes cannot do.
    return torch.compile(make, dynamic=False) if config.train.compile and device.type == "cuda" else make


def load_images(config: Config) -> tuple[ImageSet, ImageSet | None]:
    """The training images and, where the source has them, the validation images."""
    data, options = config.data, config.data.source_options()
    train = load_source(data.source, data.root, "train", **options)
    try:
        val = load_source(data.source, data.root, "val", **options)
    except MissingSplit:
        val = None
    return train, val


def _stack(tensors: list[Any]) -> Tensor | None:
    if tensors[0] is None:
        return None
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)
