"""What each process of the two-process test runs: the trainings of its arguments, YAML files, in turn.

The first is the whole command, which ends with a report; drawing that of each would take most of the time.
"""

import sys

import torch

from lpjepa.cli import main
from lpjepa.training import load_config, pretrain

if __name__ == "__main__":
    torch.set_num_threads(1)
    first, *others = sys.argv[1:]
    assert main(["pretrain", first]) == 0
    for file in others:
        pretrain(load_config(file))
