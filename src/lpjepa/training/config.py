"""What a training is: typed dataclasses, and what makes two of them the same training.

Every field is used by the training and described here once; the command line shows the same text.
`layers.py` fills them from presets, YAML and flags.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lpjepa.data import ViewConfig
from lpjepa.models import ModelConfig
from lpjepa.training._typed import ConfigError, flat

MATCHING = ("rectified_lpjepa", "lpjepa")  # the methods whose features follow the config's target
SET_SHARE = ("calibrated", "top", "soft_top")  # the activations that set the share of active features
_RECTIFIED = ("rectified_lpjepa", "nvicreg", "ncl")


@dataclass
class DataConfig:
    """Where the images come from."""

    source: str = "digits"
    """digits, npz, cifar10, cifar100, fashion-mnist, folder, imagenet, imagenet100, torchvision:NAME, hf:NAME
    or wds:PATTERN."""
    root: str | None = None
    """The file or folder that holds the source."""
    val_fraction: float | None = None
    """Share held out for validation where the source has no split of its own; 0: none, none: its default."""
    options: dict[str, Any] = field(default_factory=dict)
    """What else the source takes, such as {coarse: true} of cifar100; --data.options.coarse true sets one."""
    store_size: int | None = None
    """Side in pixels at which larger images and images of different sizes are kept; none: 256."""
    max_memory: str | float | None = None
    """Memory the images may take in each process, such as 8GB; sets beyond it are streamed. None: half of
    what is free, shared by the processes of a machine."""
    max_broken: float = 0.01
    """Share of unreadable images beyond which a run stops."""
    workers: int = 4
    """Processes that decode images where they are streamed."""

    def source_options(self) -> dict[str, Any]:
        """What `lpjepa.data.load_source` takes besides the name, the root and the split."""
        limits = {"max_memory": self.max_memory, "max_broken": self.max_broken}
        share = {} if self.val_fraction is None else {"val_fraction": self.val_fraction}
        return {**self.options, "store_size": self.store_size, **limits, **share}


@dataclass
class TargetConfig:
    """The distribution the features are to follow; ask for the active fraction, or give the location."""

    active: float | None = 0.2
    """Fraction of active features wanted, between 0 and 1; sets mu."""
    mu: float | None = None
    """Location of the generalized Gaussian before rectification, instead of `active`."""
    p: float = 1.0
    """Shape: 1 is Laplace, 2 Gaussian."""
    scale: float | Literal["gn", "rgn"] = "gn"
    """gn: unit variance before rectification; rgn: after it; or the scale itself."""
    from_mu: float | None = None
    """Location at the first step, from which it moves evenly to the target's; none: it is there at once. From
    1 a sparse target begins nearly dense, and more features have a gradient."""
    leaves_at: float = 0.0
    """Share of the training until which the location stays where it begins (from_mu)."""
    there_at: float = 0.8
    """Share of the training at which the location has arrived (from_mu)."""
    rectified: bool | None = None
    """Rectify the target; none: as the method does (all but lpjepa). Features: model.activation."""


@dataclass
class LossConfig:
    """The objective."""

    method: Literal["rectified_lpjepa", "lpjepa", "lejepa", "vicreg", "nvicreg", "simclr", "ncl"] = (
        "rectified_lpjepa"
    )
    """The objective by name."""
    invariance_weight: float = 25.0
    """Weight of the distance between views (rectified_lpjepa, lpjepa, vicreg, nvicreg)."""
    matching_weight: float = 125.0
    """Weight of the sliced distribution matching (rectified_lpjepa, lpjepa)."""
    num_slices: int = 8192
    """Directions drawn each step (rectified_lpjepa, lpjepa, lejepa)."""
    directions: str | dict[str, int] = "random"
    """random, orthogonal, hadamard, eigen, bottom_eigen, axes, or counts by name such as {random: 7936,
    bottom_eigen: 256} (rectified_lpjepa, lpjepa)."""
    axes_weight: float = 0.0
    """Weight of matching each feature to the target's exact quantiles (rectified_lpjepa, lpjepa)."""
    variance_weight: float = 25.0
    """Weight of the variance hinge (vicreg, nvicreg)."""
    covariance_weight: float = 1.0
    """Weight of the covariance penalty (vicreg, nvicreg)."""
    temperature: float = 0.2
    """Temperature of the softmax (simclr, ncl)."""
    sigreg_weight: float = 0.05
    """Share λ of SIGReg, against 1 − λ of the prediction loss (lejepa)."""


@dataclass
class OptimConfig:
    """Optimizer and learning rate."""

    name: Literal["lars", "adamw", "sgd"] = "adamw"
    """The optimizer by name."""
    lr: float = 2e-3
    """Peak learning rate, before it is scaled by the batch."""
    probe_lr: float = 1e-2
    """Peak learning rate of the online probes, before it is scaled by the batch."""
    scale_lr_by_batch: bool = True
    """Multiply both rates by global batch / 256."""
    weight_decay: float = 1e-4
    """Weight decay; biases and normalisation parameters have none."""
    momentum: float = 0.9
    """Momentum (lars, sgd)."""
    eta: float = 0.02
    """Trust coefficient (lars)."""
    clip_trust: bool = True
    """Never let the trust ratio raise the learning rate (lars)."""
    warmup_epochs: float = 10.0
    """Epochs of linear warmup."""
    warmup_start: float = 3e-5
    """Learning rate at the first step, not scaled by the batch."""
    final_lr: float = 0.0
    """Learning rate at the end of the cosine, not scaled by the batch."""
    grad_clip: float | None = None
    """Largest l2 norm of all gradients together."""
    accumulate: int = 1
    """Batches whose gradients are averaged before a step; each is matched to the target by itself."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then what is evaluated and kept."""


@dataclass
class TrainConfig:
    """The run."""

    epochs: int = 30
    """Passes over the training images."""
    batch_size: int = 256
    """Images a batch and process."""
    seed: int = 0
    """Fixes initialisation, order, views and directions."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of encoder and projector; fp16 scales the loss. The loss itself is float32 or better."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    out: str | None = None
    """Folder of the run; by default runs/ and a name made from the config."""
    resume: bool = True
    """Continue the run in the folder if there is one; --train.no-resume replaces it."""
    checkpoint_every: float = 1.0
    """Epochs between checkpoints; 0.25 is four an epoch."""
    compile: bool = False
    """Compile the networks with torch.compile, and on a GPU what draws views and surrounds the networks; a
    minute once, cached. Views, and ResNets in 16 bits, have kernels of their own on a GPU."""
    capture: bool = False
    """Capture the whole step as two CUDA graphs, views and learning (one process, one GPU)."""
    fsdp: bool = False
    """Divide parameters among the processes with FSDP2 instead of copying them."""
    sync_bn: bool = True
    """BatchNorm over the batches of all processes."""
    keep_at: tuple[float, ...] = ()
    """Shares of the training at which a checkpoint is kept for good, besides the newest two."""
    calibrate_from: float = 0.0
    """Share of the training after which model.activation calibrated, top or soft_top begins to set the share
    of active features; a plain rectifier until then. 1: when the training is over."""
    rectify_from: float = 0.0
    """Share of the training after which features and target are rectified (rectified_lpjepa); until then it
    is that of lpjepa, whose gradient passes through all features. 1: when the training is over."""
    calibrate_on: Literal["views", "images"] = "views"
    """images: set the thresholds of calibrated once more when the training is over, by its images as
    evaluation sees them; features of views, which training sees, are not active as often."""


@dataclass
class LogConfig:
    """What is written and shown; metrics.jsonl always is."""

    every: int = 50
    """Steps between two lines of metrics and two looks for NaN."""
    monitor_every: int = 1
    """Epochs between two measurements on the validation images."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""
    plain: bool = False
    """Plain lines instead of the progress display, also in a terminal."""


@dataclass
class Config:
    """Every key of a training."""

    data: DataConfig = field(default_factory=DataConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    log: LogConfig = field(default_factory=LogConfig)


# Keys that change where or how fast a run goes, not what it computes: a run resumes when they differ.
FREE_KEYS = (
    "data.root", "data.max_memory", "data.workers",
    "train.device", "train.out", "train.resume", "train.checkpoint_every", "train.keep_at", "train.compile",
    "train.capture",
    "log.every", "log.monitor_every", "log.tensorboard", "log.wandb", "log.plain",
)  # fmt: skip


# Keys that came later, and values at which they change nothing: trainings from before keep their identity.
_LATER: dict[str, Any] = {
    "train.calibrate_from": 0.0, "train.calibrate_on": "views", "train.rectify_from": 0.0,
    "target.from_mu": None, "target.leaves_at": 0.0, "target.there_at": 0.8,
}  # fmt: skip

_POSITIVE = (
    "target.p", "target.scale", "train.epochs", "train.checkpoint_every", "optim.accumulate", "optim.lr",
    "optim.grad_clip", "loss.num_slices", "loss.temperature", "log.every", "log.monitor_every",
    "model.projector_dim", "model.projector_hidden",
)  # fmt: skip
_NOT_NEGATIVE = (
    "data.workers", "optim.probe_lr", "optim.weight_decay", "optim.momentum", "optim.eta",
    "optim.warmup_epochs", "optim.warmup_start", "optim.final_lr",
)  # fmt: skip


def check(config: Config) -> Config:
    """`config` as it is; what cannot be trained is refused with one sentence."""
    target, values = config.target, flat(config)
    if (target.active is None) == (target.mu is None):
        raise ConfigError("target: give either target.active or target.mu, and not both")
    if target.active is not None and not 0 < target.active < 1:
        raise ConfigError(f"target.active: expected a fraction between 0 and 1, got {target.active}")
    if not all(0 < share <= 1 for share in config.train.keep_at):
        raise ConfigError(
            f"train.keep_at: expected shares above 0 and up to 1, got {list(config.train.keep_at)}"
        )
    for keys, expected, allowed in (
        (_POSITIVE, "a positive number", lambda value: 0 < value < math.inf),
        (_NOT_NEGATIVE, "zero or a positive number", lambda value: 0 <= value < math.inf),
        (("target.there_at",), "a share of the training, above 0 and up to 1", lambda value: 0 < value <= 1),
        (("target.mu", "target.from_mu"), "a finite number", math.isfinite),
        (("train.batch_size",), "2 or more", lambda value: value >= 2),  # one sample has no distribution
        (("optim.ema",), "a decay between 0 and 1", lambda value: 0 < value < 1),
        (
            ("train.calibrate_from", "train.rectify_from", "target.leaves_at"),
            "a share from 0 to 1",
            lambda value: 0 <= value <= 1,
        ),
    ):
        for key in keys:
            value = values[key]
            if isinstance(value, (int, float)) and not allowed(value):
                raise ConfigError(f"{key}: expected {expected}, got {value}")
    return config


def activation_of(config: Config) -> str:
    """The projector's last activation, settled by the method where the config says auto."""
    if config.model.activation != "auto":
        return config.model.activation
    return "relu" if config.loss.method in _RECTIFIED else "none"


def target_is_rectified(config: Config) -> bool:
    if config.target.rectified is not None:
        return config.target.rectified
    return config.loss.method != "lpjepa"


def settled_from(config: Config) -> float:
    """Share of the training after which features are as they stay: rectified, and their share set."""
    return max(config.train.calibrate_from, config.train.rectify_from)


def differing_keys(ours: Config, theirs: Config) -> list[str]:
    """The keys in which two configs are different trainings, free ones left out."""
    a, b = flat(ours), flat(theirs)
    return [key for key in a if key not in FREE_KEYS and a[key] != b[key]]


def identity(config: Config) -> str:
    """Eight hexadecimal digits that two configs share when they are the same training."""
    kept = {key: value for key, value in flat(config).items() if key not in FREE_KEYS}
    for key, value in _LATER.items():
        if kept[key] == value:
            del kept[key]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def default_folder(config: Config) -> Path:
    """runs/SOURCE-METHOD-DIGITS; the images' root, where there is one, by name and in the digits."""
    source, own, root = config.data.source, identity(config), config.data.root
    if root is not None:
        source += f"-{Path(root).name}"
        own = hashlib.sha256(own.encode() + os.fsencode(os.path.realpath(root))).hexdigest()[:8]
    source = "".join(c if c.isalnum() or c in "-_" else "-" for c in source)
    return Path("runs") / f"{source}-{config.loss.method}-{own}"
