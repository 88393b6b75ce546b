"""What each process of the two-process test runs: the command of its first argument's YAML files, in turn."""

import sys

import torch

from lpjepa.cli import main

if __name__ == "__main__":
    torch.set_num_threads(1)
    for file in sys.argv[1:]:
        assert main(["pretrain", file]) == 0
