"""Speed and memory of the sliced losses, forward and backward, against a reference in the same run.

    python benchmarks/loss.py                       # the GPU if there is one, else the CPU
    python benchmarks/loss.py --peer CHECKOUT       # adds the authors' RDMReg or LeJEPA's SIGReg
    python benchmarks/loss.py --rows 256x512x8192 1024x2048x8192 --json loss.json
    python benchmarks/loss.py --quality             # variance of the estimate by kind of directions

The reference is the paper's formula in plain torch: directions drawn in float32, one product per view and
side, `torch.sort` along the samples. Equality is checked first, in float64. All methods are timed in turn,
round after round; the table gives the median time, its spread (quartiles) and the ratio to the reference.
Peers and the reference run with TF32 products, as their users do. "graph" is our loss replayed from a CUDA
graph.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.losses import RDMReg, SIGReg
from lpjepa.slicing import parse_directions, planned_discrepancy, sliced_discrepancy

GPU_ROWS = ["256x512x8192", "128x2048x8192", "256x2048x8192", "1024x2048x8192", "4096x2048x4096"]
CPU_ROWS = ["256x512x8192"]
SIGMA = 2**-0.5  # a Laplace distribution of unit variance
Method = Callable[[Tensor], Tensor]


def target_samples(*shape: int, device: str) -> Tensor:
    return torch.distributions.Laplace(torch.tensor(0.0, device=device), SIGMA).sample(shape).relu_()


def reference(z_VND: Tensor, c_KD: Tensor, y_VND: Tensor) -> Tensor:
    """Mean over views, slices and ranks of (sort(z Cᵀ) − sort(y Cᵀ))²."""
    terms = []
    for z, y in zip(z_VND.unbind(), y_VND.unbind()):
        difference = (z @ c_KD.T).sort(dim=0).values - (y @ c_KD.T).sort(dim=0).values
        terms.append(difference.square().mean())
    return torch.stack(terms).mean()


def random_directions(slices: int, dim: int, device: str) -> Tensor:
    c = torch.randn(slices, dim, device=device)
    return c / c.norm(dim=1, keepdim=True)


def gradient(loss: Method, z: Tensor) -> tuple[float, Tensor]:
    leaf = z.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    return value.item(), leaf.grad


def errors(device: str, n: int, dim: int, near: bool, precision: str) -> tuple[float, float]:
    """Relative errors of value and gradient against float64, along the same 1024 directions."""
    c, y = random_directions(1024, dim, device), target_samples(2, n, dim, device=device)
    z = target_samples(2, n, dim, device=device) if near else torch.randn(2, n, dim, device=device).abs()
    value, slope = gradient(lambda x: sliced_discrepancy(x, c, y, precision=precision), z)
    exact_value, exact = gradient(lambda x: reference(x, c.double(), y.double()), z.double())
    return abs(value / exact_value - 1), ((slope.double() - exact).norm() / exact.norm()).item()


def load_peer(path: Path, device: str) -> tuple[str, Callable[[int, int], Method]]:
    """The peer's loss from a checkout, importing no more of it than the loss needs."""
    if (path / "solo/losses/rectified_lpjepa.py").exists():
        for name in ("solo", "solo.utils", "solo.utils.misc", "solo.utils.metrics"):
            sys.modules[name] = types.ModuleType(name)
        sys.modules["solo.utils.misc"].gather = lambda x: x  # type: ignore[attr-defined]
        for name in ("l1_sparsity_metric", "l0_sparsity_metric", "variance_loss", "covariance_loss"):
            setattr(sys.modules["solo.utils.metrics"], name, None)
        if importlib.util.find_spec("mpmath") is None:
            sys.modules["mpmath"] = types.ModuleType("mpmath")
        file = path / "solo/losses/rectified_lpjepa.py"
        spec = importlib.util.spec_from_file_location("authors_loss", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

        def build(dim: int, slices: int) -> Method:
            return lambda z: module.rdmreg_loss(
                z[0],
                z[1],
                random_directions(slices, dim, device),
                "rectified_lp_distribution",
                0.0,
                1.0,
                SIGMA,
            )

        return "authors' RDMReg", build
    if (path / "lejepa/multivariate/slicing.py").exists():
        for name in ("lejepa", "lejepa.univariate", "lejepa.multivariate"):
            package = types.ModuleType(name)
            package.__path__ = [str(path / name.replace(".", "/"))]
            sys.modules[name] = package
        slicing = importlib.import_module("lejepa.multivariate.slicing")
        univariate = importlib.import_module("lejepa.univariate.epps_pulley")
        return (
            "LeJEPA's SIGReg",
            lambda dim, slices: slicing.SlicingUnivariateTest(univariate.EppsPulley(), slices).to(device),
        )
    raise SystemExit(f"--peer {path} holds neither the authors' code (solo/losses) nor LeJEPA's (lejepa/).")


def methods_for(device: str, n: int, dim: int, slices: int, peers: list) -> dict[str, Method]:
    target = RectifiedGeneralizedGaussian(0.0, SIGMA, 1.0)
    if device == "cuda":
        methods = {
            "reference": lambda z: reference(
                z, random_directions(slices, dim, device), target_samples(*z.shape, device=device)
            ),
            "RDMReg": RDMReg(target, num_slices=slices),
            "SIGReg": SIGReg(num_slices=slices),
        }
        return methods | {name: build(dim, slices) for name, build in peers}
    # On the CPU with the same directions and targets for all: drawing them is not what is compared.
    c, y = random_directions(slices, dim, device), target_samples(2, n, dim, device=device)
    plan, seed = parse_directions("hadamard", slices), torch.tensor(1)
    return {
        "reference": lambda z: reference(z, c, y),
        "ours": lambda z: sliced_discrepancy(z, c, y),
        "ours, hadamard": lambda z: planned_discrepancy(z, y, plan, seed),
    }


def stepper(method: Method, z: Tensor) -> Callable[[], None]:
    def step() -> None:
        z.grad = None
        method(z).backward()

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(step: Callable[[], None], device: str, calls: int) -> float:
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - start) / calls * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def peak_megabytes(step: Callable[[], None], z: Tensor) -> float:
    """Peak of one call above what lay there before, features included."""
    z.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return (torch.cuda.max_memory_allocated() - before + z.numel() * z.element_size()) / 1e6


def measure_row(device: str, row: str, peers: list, rounds: int) -> list[dict]:
    n, dim, slices = map(int, row.split("x"))
    z = target_samples(2, n, dim, device=device).requires_grad_()
    steps = {name: stepper(method, z) for name, method in methods_for(device, n, dim, slices, peers).items()}
    for step in steps.values():
        step()
    memory = {}
    if device == "cuda":
        memory = {name: peak_megabytes(step, z) for name, step in steps.items()}
        for name in ("RDMReg", "SIGReg"):
            steps[f"{name}, graph"] = captured(steps[name])
    calls = 20 if device == "cuda" else 1
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            times[name].append(milliseconds(step, device, calls))
    base = statistics.median(times["reference"])
    return [
        {
            "row": row,
            "method": name,
            "ms": statistics.median(values),
            "quartiles": statistics.quantiles(values, n=4)[::2],
            "ratio": base / statistics.median(values),
            "peak_MB": memory.get(name),
        }
        for name, values in times.items()
    ]


def direction_quality(device: str) -> list[dict]:
    """Variance of the estimated loss over draws of the directions, features and targets fixed."""
    results = []
    n, dim, draws = 128, 64, 400
    z = torch.randn(1, n, dim, device=device) @ torch.diag(torch.linspace(0.3, 1.7, dim, device=device))
    y = target_samples(1, n, dim, device=device)
    for slices in (64, 256):
        independent = None
        for kind in ("random", "orthogonal", "hadamard"):
            plan = parse_directions(kind, slices)
            values = torch.stack(
                [planned_discrepancy(z, y, plan, torch.tensor(s, device=device)) for s in range(draws)]
            ).double()
            independent = independent or values.var().item()
            results.append(
                {
                    "directions": kind,
                    "slices": slices,
                    "mean": values.mean().item(),
                    "standard_error": (values.var() / draws).sqrt().item(),
                    "variance_ratio": values.var().item() / independent,
                    "uncertainty": math.sqrt(4 / draws),
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", nargs="+", help="samples x dimensions x slices, such as 256x512x8192")
    parser.add_argument(
        "--peer", action="append", type=Path, default=[], help="checkout of a peer; may repeat"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quality", action="store_true", help="only the variance by kind of directions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = options.device
    report: dict = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    report["device"] = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    print(report)
    if options.quality:
        report["quality"] = direction_quality(device)
        for line in report["quality"]:
            print(
                f"{line['directions']:12s} {line['slices']:4d} slices: mean {line['mean']:.5f} ± "
                f"{line['standard_error']:.5f}, variance {line['variance_ratio']:.4f} of independent "
                f"(± {line['uncertainty']:.0%})"
            )
    else:
        report["errors"] = []
        for near in (False, True):
            for precision in ("fast", "exact"):
                value, slope = errors(device, 256, 512, near, precision)
                where = "features of the target" if near else "features far from it"
                print(f"error against float64, {where}, {precision}: value {value:.1e}, gradient {slope:.1e}")
                report["errors"].append(
                    {"near": near, "precision": precision, "value": value, "gradient": slope}
                )
                if slope > (5e-3 if precision == "fast" else 1e-5):
                    raise SystemExit("The gradient is not what it should be; nothing was timed.")
        torch.backends.cuda.matmul.allow_tf32 = True
        peers = [load_peer(path, device) for path in options.peer]
        report["rows"] = []
        print(f"{'row':>16s} {'method':>18s} {'ms':>9s} {'quartiles':>17s} {'ratio':>6s} {'peak MB':>8s}")
        for row in options.rows or (GPU_ROWS if device == "cuda" else CPU_ROWS):
            for line in measure_row(device, row, peers, options.rounds):
                report["rows"].append(line)
                low, high = line["quartiles"]
                peak = f"{line['peak_MB']:8.1f}" if line["peak_MB"] else ""
                print(
                    f"{row:>16s} {line['method']:>18s} {line['ms']:9.3f} {low:8.3f}–{high:8.3f} "
                    f"{line['ratio']:6.2f} {peak}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
