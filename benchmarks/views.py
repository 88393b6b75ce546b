"""Views per second: ours, batched, against torchvision v2 image by image and kornia batched.

    python benchmarks/views.py [--size 32] [--images 256] [--rounds 15] [--threads 2] [--device cpu]

Crop, flip, colour jitter and grey with the paper's CIFAR settings. Equality comes first: on the same
parameters our views must be torchvision's. Then all run in turn, round after round, in one process; the
table gives medians with the spread between the quartiles, and the ratio of ours to each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from lpjepa.data import ViewConfig, Views, apply_views, draw_parameters
from lpjepa.models._torchvision_shim import declare_missing_ops

declare_missing_ops()
from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402


def check_equality(images: torch.Tensor, config: ViewConfig) -> float:
    """Largest difference between our views and torchvision's operators on the same parameters."""
    images = images[:32]
    p = draw_parameters(len(images), config, tuple(images.shape[2:]), torch.Generator().manual_seed(0))
    ours = apply_views(images, p, config)
    operations = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    worst = 0.0
    for view in range(config.num_views):
        for i, image in enumerate(images / 255):
            box = [int(getattr(p, name)[view, i]) for name in ("top", "left", "height", "width")]
            x = F.resized_crop(image, *box, [config.size] * 2, F.InterpolationMode.BICUBIC, antialias=True)
            x = x.clamp(0, 1)
            if p.jitter[view, i]:
                for operation in p.order[view, i].tolist():
                    x = operations[operation](x, float(p.factors[view, i, operation]))
            x = F.rgb_to_grayscale(x, 3) if p.grey[view, i] else x
            x = x.flip(-1) if p.flip[view, i] else x
            worst = max(worst, float((x - ours[view, i]).abs().max()))
    return worst


def torchvision_views(images: torch.Tensor, config: ViewConfig) -> Callable[[], None]:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(config.size, config.crop_scale, interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(config.flip),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], config.jitter_prob),
            v2.RandomGrayscale(config.grey),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(config.mean, config.std),
        ]
    )

    def run() -> None:
        for _ in range(config.num_views):
            torch.stack([transform(image) for image in images])

    return run


def kornia_views(images: torch.Tensor, config: ViewConfig) -> Callable[[], None] | None:
    try:
        from kornia import augmentation as K
    except ImportError:
        return None
    transform = K.AugmentationSequential(
        K.RandomResizedCrop((config.size, config.size), config.crop_scale, resample="BICUBIC"),
        K.RandomHorizontalFlip(config.flip),
        K.ColorJitter(0.4, 0.4, 0.2, 0.1, p=config.jitter_prob),
        K.RandomGrayscale(p=config.grey),
        K.Normalize(torch.tensor(config.mean), torch.tensor(config.std)),
    ).to(images.device)

    def run() -> None:
        for _ in range(config.num_views):
            transform(images / 255)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", help="write the numbers to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = ViewConfig(size=args.size, solarize=0.0)
    images = torch.randint(0, 256, (args.images, 3, args.size, args.size), dtype=torch.uint8)
    worst = check_equality(images, config)
    print(f"largest difference to torchvision on the same parameters: {worst:.1e}")
    if worst > 1e-5:
        raise SystemExit("the views differ: no timing")
    images = images.to(args.device)
    views, seed = Views(config), torch.tensor(0, device=args.device)
    contenders = {
        "ours, batched": lambda: views(images, seed),
        "kornia, batched": kornia_views(images, config),
        "torchvision v2, one by one": torchvision_views(images, config),
    }
    runs = {name: run for name, run in contenders.items() if run is not None}
    times: dict[str, list[float]] = {name: [] for name in runs}
    wait = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    for round_ in range(args.rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            wait()
            if round_:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    made = args.images * config.num_views
    medians = {name: statistics.median(values) for name, values in times.items()}
    setting = f"{args.size} px, {args.threads} threads, {args.device}"
    print(f"\n| {setting} | views/s | quartiles | ours is |\n|---|---|---|---|")
    for name, values in times.items():
        low, _, high = (made / t for t in reversed(statistics.quantiles(values, n=4)))
        ratio = medians[name] / medians["ours, batched"]
        print(f"| {name} | {made / medians[name]:,.0f} | {low:,.0f} to {high:,.0f} | {ratio:.1f} x |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, **vars(args), "seconds": times}, file)


if __name__ == "__main__":
    main()
