"""Sampling throughput of the target against the naive path, as ratios.

The naive path is the algorithm as usually written: Gamma(1/p) and signs drawn on the CPU, then moved to the
device. Equality of the two laws is checked first (mean, second moment, active fraction against the exact
values); then both run in turn and the medians are compared.

    python benchmarks/sampling.py --device cuda
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian, sigma_gn


def naive(mu: float, sigma: float, p: float, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    gamma = torch.distributions.Gamma(1 / p, 1.0).sample(shape)
    sign = torch.randint(0, 2, shape) * 2 - 1
    return torch.relu(mu + sigma * sign * (p * gamma) ** (1 / p)).to(device)


def check(sample: torch.Tensor, target: RectifiedGeneralizedGaussian, name: str) -> None:
    """Mean, second moment and active fraction within six standard errors of the exact values."""
    x = sample.double()
    exact = (target.mean, target.variance + target.mean**2, target.active_probability)
    for statistic, expected in zip((x, x.square(), (x > 0).double()), exact):
        error = float(statistic.std()) / statistic.numel() ** 0.5
        if abs(float(statistic.mean()) - float(expected)) > 6 * error:
            raise SystemExit(f"{name}: sampled {float(statistic.mean()):.6g}, exact {float(expected):.6g}")


def seconds(draw: Callable[[], torch.Tensor], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    draw()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Sampling throughput against the naive Gamma path.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--mu", type=float, default=-1.0)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    device, shape = torch.device(arguments.device), (arguments.batch, arguments.dim)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{shape[0]} x {shape[1]} samples, {where}, torch {torch.__version__}, {arguments.repeats} repeats")
    print(f"{'p':>4} {'ours':>12} {'naive':>12} {'ratio':>8}")
    for p in (0.5, 1.0, 2.0):
        sigma = sigma_gn(p)
        target = RectifiedGeneralizedGaussian(torch.tensor(arguments.mu, device=device), sigma, p)
        draws = {
            "ours": lambda target=target: target.sample(shape),
            "naive": lambda p=p, sigma=sigma: naive(arguments.mu, sigma, p, shape, device),
        }
        times: dict[str, list[float]] = {name: [] for name in draws}
        for name, draw in draws.items():
            check(draw(), target, f"p = {p}, {name}")
        for _ in range(arguments.repeats):
            for name, draw in draws.items():
                times[name].append(seconds(draw, device))
        rate = {name: shape[0] * shape[1] / statistics.median(t) for name, t in times.items()}
        ratio = rate["ours"] / rate["naive"]
        print(f"{p:4.1f} {rate['ours'] / 1e6:9.1f} M/s {rate['naive'] / 1e6:9.1f} M/s {ratio:7.1f}x")


if __name__ == "__main__":
    main()
