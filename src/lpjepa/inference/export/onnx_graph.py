"""`--format onnx`: a graph with a free batch size, checked with onnxruntime against torch."""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from pathlib import Path

import torch

from lpjepa.inference._optional import need
from lpjepa.inference.export.card import write_card
from lpjepa.inference.export.comparison import difference, random_frames
from lpjepa.inference.export.deployable import BATCH, INPUT, Deployable, output_names, write_description
from lpjepa.inference.model import Model

FILE = "model.onnx"
TOLERANCE = 1e-4


def write(model: Model, folder: Path, licence: str | None) -> float:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        need(module)
    if "external_data" not in inspect.signature(torch.onnx.export).parameters:
        raise ValueError(f"the ONNX export needs a newer torch than {torch.__version__}, 2.6 or later.")
    deployable = Deployable(model).eval()
    names = output_names(model)
    example = random_frames(model, 2, cropped=True)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # the exporter warns of its own future changes
        torch.onnx.export(
            deployable,
            (example,),
            str(folder / FILE),
            input_names=[INPUT],
            output_names=names,
            dynamic_shapes={INPUT: {0: torch.export.Dim(BATCH, max=2**16)}},
            dynamo=True,
            external_data=False,
        )
    need("onnx").checker.check_model(str(folder / FILE))
    write_description(model, folder, FILE)
    how = (
        f'import onnxruntime\nsession = onnxruntime.InferenceSession("{FILE}")\n'
        f'features = session.run({names!r}, {{"{INPUT}": images_uint8}})'
    )
    write_card(model, folder, licence, "onnx", how)
    session = need("onnxruntime").InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    worst = 0.0
    for count in (1, 2, 5):
        frames = random_frames(model, count, cropped=True)
        with torch.no_grad():
            expected = deployable(frames)
        found = session.run(names, {INPUT: frames.numpy()})
        for ours, theirs in zip(expected, found):
            worst = max(worst, difference("onnx", ours, torch.from_numpy(theirs), TOLERANCE))
    return worst
