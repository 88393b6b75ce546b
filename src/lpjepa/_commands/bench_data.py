"""`lpjepa bench data`: views and decoding."""

from __future__ import annotations

from dataclasses import dataclass

from lpjepa._commands.bench_output import Measurement, prepare, publish


@dataclass
class Arguments(Measurement):
    """Views a second, batched by us, by kornia and one by one by torchvision; JPEG files decoded a second.

    Checks first that our views, made on the device, are torchvision's on the same parameters.
    """

    size: int = 32
    """Side of images and views in pixels."""
    images: int = 256
    """Images a batch."""
    files: int = 256
    """JPEG files to decode; 0 leaves decoding out."""
    workers: tuple[int, ...] = (0, 1, 2)
    """Numbers of worker processes that decode."""


def run(arguments: list[str]) -> int:
    import tyro

    from lpjepa.bench.data import COLUMNS, measure_data

    chosen = tyro.cli(Arguments, prog="lpjepa bench data", args=arguments)
    device = prepare(chosen)
    rows, check = measure_data(
        chosen.size, chosen.images, chosen.files, chosen.workers, device, chosen.rounds
    )
    if check["largest_difference"] is None:
        print("torchvision is not installed: views are timed without being compared\n")
    else:
        print(
            f"largest difference to torchvision on the same parameters: {check['largest_difference']:.1e}, "
            f"{check['tolerance']:.0e} is allowed\n"
        )
    publish(chosen, ["data", *arguments], device, COLUMNS, rows, "data", check=check)
    return 0
