"""Training: config, step, loop, optimizers, schedules, online probes, checkpoints, many processes.

from lpjepa.training import load_config, pretrain
run = pretrain(load_config(None, {"target": {"active": 0.05}}))
print(run.final["encoder_accuracy"], run.final["l0"])
"""

from lpjepa.training._typed import ConfigError, to_dict
from lpjepa.training.checkpoint import CheckpointError
from lpjepa.training.config import Config
from lpjepa.training.health import Diverged
from lpjepa.training.interruption import Interrupted
from lpjepa.training.lars import LARS
from lpjepa.training.layers import load_config, preset, preset_names
from lpjepa.training.loop import pretrain
from lpjepa.training.run import Run

__all__ = [
    "LARS",
    "CheckpointError",
    "Config",
    "ConfigError",
    "Diverged",
    "Interrupted",
    "Run",
    "load_config",
    "preset",
    "preset_names",
    "pretrain",
    "to_dict",
]
