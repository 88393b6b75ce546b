"""Train a sparse encoder on a folder of images of one's own, labelled by subfolder or not at all.

python examples/own_folder.py IMAGES
"""

import sys

from lpjepa.training import Interrupted, load_config, pretrain

if len(sys.argv) != 2:
    sys.exit("usage: python examples/own_folder.py IMAGES")
config = load_config(
    None,
    {
        "data": {"source": "folder", "root": sys.argv[1]},
        "views": {"size": 64},
        "target": {"active": 0.1},
        "train": {"epochs": 20, "batch_size": 64},
    },
)
try:
    run = pretrain(config)
except Interrupted as stopped:  # by Ctrl-C; the message says how to go on
    sys.exit(str(stopped))
print(f"{100 * run.final['l0']:.1f} % of the features are active; asked for {100 * config.target.active:g} %")
print(f"the model: lpjepa.training.Run.open({str(run.folder)!r}).model()")
