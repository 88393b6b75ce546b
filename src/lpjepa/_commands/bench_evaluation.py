"""`lpjepa bench evaluation`: feature extraction and the linear probe."""

from __future__ import annotations

from dataclasses import dataclass

from lpjepa._commands.bench_output import Measurement, prepare, publish


@dataclass
class Arguments(Measurement):
    """Images a second of feature extraction against the bare encoder, and seconds of a linear probe.

    Any key of the config may follow as a dotted flag, such as --model.encoder resnet50. Checks first that
    extracted features are the encoder's.
    """

    preset: str = "cifar100"
    """A preset of `lpjepa pretrain`, or a YAML file: encoder, image size and batch."""
    images: int | None = None
    """Images to extract features of; by default 20,480 on a GPU and two batches on the CPU."""
    probe: str | None = None
    """Features of the probe, samples x dimensions; by default 50000x2048 on a GPU, 5000x512 on the CPU."""
    epochs: int = 100
    """Epochs of the probe."""


def run(arguments: list[str]) -> int:
    import tyro

    from lpjepa._commands.bench_step import load_preset, split_flags
    from lpjepa.bench.evaluation import COLUMNS, measure_features, measure_probe
    from lpjepa.training.layers import parse_flags

    own, dotted = split_flags(arguments)
    chosen = tyro.cli(Arguments, prog="lpjepa bench evaluation", args=own)
    device = prepare(chosen)
    config = load_preset(chosen.preset, parse_flags(dotted))
    word = chosen.probe or ("50000x2048" if device.type == "cuda" else "5000x512")
    try:
        samples, dim = map(int, word.split("x"))
    except ValueError:
        raise ValueError(f"--probe {word}: expected samples x dimensions, such as 50000x2048.") from None
    images = chosen.images or (20480 if device.type == "cuda" else 2 * config.train.batch_size)
    rows, check = measure_features(config, images, device, chosen.rounds)
    rows.append(measure_probe(samples, dim, chosen.epochs, device))
    publish(
        chosen,
        ["evaluation", *arguments],
        device,
        COLUMNS,
        rows,
        "evaluation",
        check=check,
    )
    return 0
