"""Importing the parts a researcher drops into a training loop loads torch and nothing else heavy."""

import json
import subprocess
import sys

LIGHT = ("lpjepa", "lpjepa.distributions", "lpjepa.slicing", "lpjepa.losses", "lpjepa.metrics")
SCRIPT = """
import importlib, json, sys
import torch, torch.distributed, torch.distributions, torch.library
loaded = {}
for name in sys.argv[1:]:
    before = set(sys.modules)
    importlib.import_module(name)
    loaded[name] = sorted(set(sys.modules) - before)
print(json.dumps(loaded))
"""


def test_only_torch_is_imported():
    run = subprocess.run([sys.executable, "-c", SCRIPT, *LIGHT], capture_output=True, text=True, check=True)
    for name, modules in json.loads(run.stdout).items():
        assert name in modules
        packages = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
        assert packages <= {"lpjepa", "torch"}, name
        # The compiler is part of torch, and takes seconds to import.
        assert not [
            module for module in modules if module.startswith(("torch._dynamo", "torch._inductor"))
        ], name
