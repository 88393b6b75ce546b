"""What sparsity buys: bytes, speed and recall of sparse search, and accuracy of its stored form.

For each run, the projector features of its training images are the documents and those of held-out images
the queries; the truth is the dense float32 search by cosine.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpjepa.evaluation import ProbeJob, probe_protocol, run_features, train_probes
from lpjepa.evaluation.features import Features
from lpjepa.evaluation.progress import Progress
from lpjepa.evaluation.results import versions
from lpjepa.inference.index import SparseIndex, top
from lpjepa.inference.postings import Block
from lpjepa.training.processes import pick_device

BATCH = 64  # queries of a batch for dense search
SECONDS = 0.5  # for a timing of queries one at a time
PATIENCE = 5.0  # seconds after which a timing of all queries at once is not repeated


@dataclass(frozen=True)
class Form:
    """One way to store and search the features of one run."""

    run: str
    queries: int
    active: float  # measured fraction of active features of the documents
    form: str
    documents: int
    bytes_per_image: float
    single_per_second: float  # queries given one after the other
    batch_per_second: float  # queries given all at once
    recall: float  # share of the exact dense float32 neighbours that are found
    accuracy: float | None  # of a linear probe on the stored values


def measure_runs(
    folders: Sequence[str | Path],
    source: str | None = None,
    k: int = 10,
    queries: int = 1000,
    threads: int = 2,
    epochs: int = 30,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Every form of every run, with what the numbers depend on; `source` replaces the runs' own images."""
    if not folders:
        raise ValueError("name the runs to measure: lpjepa bench embeddings RUN [RUN ...].")
    progress = progress or Progress()
    rows: list[Form] = []
    for folder in folders:
        name = Path(folder).resolve().name
        with progress.task(f"{name}: features"):
            train = run_features(folder, source, "train", device)
            held_out = run_features(folder, source, "test", device)
        with progress.task(f"{name}: search and probes"):
            rows += measure_features(name, train, held_out, k, queries, threads, epochs, pick_device(device))
    return {
        "settings": {"k": k, "queries": queries, "threads": threads, "epochs": epochs, "batch": BATCH},
        "versions": versions() | _library_versions(),
        "machine": _machine(),
        "forms": [asdict(row) for row in rows],
    }


def measure_features(
    name: str,
    train: Features,
    held_out: Features,
    k: int,
    queries: int,
    threads: int,
    epochs: int,
    device: torch.device | str = "cpu",
) -> list[Form]:
    """Dense float32 with NumPy (and faiss where it is installed), then the index with fp16 and with int8.

    Search runs on `threads` threads of the CPU; the probes, whose speed is not measured, on `device`.
    """
    documents_ND, queries_QD = (
        x.float().cpu().numpy() for x in (train.projector, held_out.projector[:queries])
    )
    unit_ND, unit_QD = _unit(documents_ND), _unit(queries_QD)
    count, width = documents_ND.shape
    k = min(k, count)
    least_Q = _least_of_best(unit_ND, unit_QD, k)
    active = float((documents_ND > 0).mean())
    accuracies = _accuracies(train, held_out, epochs, device)
    rows = []

    def add(form: str, size: float, search: Callable[[np.ndarray], np.ndarray], stored_as: str) -> None:
        found, batch = _all_at_once(search, queries_QD)
        recall = _recall(found, unit_ND, unit_QD, least_Q)
        single = _one_at_a_time(search, queries_QD)
        accuracy = accuracies.get(stored_as)
        rows.append(Form(name, len(queries_QD), active, form, count, size, single, batch, recall, accuracy))

    with _blas_threads(threads):
        add("dense float32, NumPy", 4.0 * width, lambda q: _dense(unit_ND, _unit(q), k), "float32")
    if importlib.util.find_spec("faiss") is not None:
        add("dense float32, faiss flat", 4.0 * width, _faiss(unit_ND, k, threads), "float32")
    for values in ("fp16", "int8"):
        index = SparseIndex(width, values)
        index.add(documents_ND)
        add(
            f"sparse {values}",
            index.nbytes / count,
            lambda q, index=index: index.search(q, k, threads=threads).ids,  # type: ignore[misc]
            values,
        )
    return rows


def _unit(x_ND: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(x_ND, axis=1, keepdims=True)
    return x_ND / np.where(norms > 0, norms, 1)


def _least_of_best(unit_ND: np.ndarray, unit_QD: np.ndarray, k: int) -> np.ndarray:
    """The k-th largest cosine of each query, in float64 so that the truth is not one of the contestants."""
    wide, least = unit_ND.astype(np.float64), []
    for part in np.array_split(unit_QD.astype(np.float64), max(1, len(unit_QD) // BATCH)):
        scores = part @ wide.T
        least.append(np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k])
    return np.concatenate(least)


def _recall(found_QK: np.ndarray, unit_ND: np.ndarray, unit_QD: np.ndarray, least_Q: np.ndarray) -> float:
    """The share of what was found that belongs to the k best; equals of the k-th best do, up to rounding."""
    hits = [
        unit_ND[found].astype(np.float64) @ query.astype(np.float64) >= least - 1e-6
        for found, query, least in zip(found_QK, unit_QD, least_Q)
    ]
    return float(np.mean(hits))


def _dense(unit_ND: np.ndarray, unit_QD: np.ndarray, k: int) -> np.ndarray:
    """A product a batch, then the k largest of each row, chosen as the index chooses them."""
    batches = (unit_QD[start : start + BATCH] @ unit_ND.T for start in range(0, len(unit_QD), BATCH))
    return np.stack([top(row, k) for scores in batches for row in scores])


def _faiss(unit_ND: np.ndarray, k: int, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its generated types warn of Python's future
        import faiss

    faiss.omp_set_num_threads(threads)
    flat = faiss.IndexFlatIP(unit_ND.shape[1])
    flat.add(unit_ND)
    return lambda q: flat.search(_unit(q), k)[1]


def _all_at_once(
    search: Callable[[np.ndarray], np.ndarray], queries_QD: np.ndarray
) -> tuple[np.ndarray, float]:
    """What all queries find, and queries per second: the best of three passes, of fewer if they are long."""
    search(queries_QD[:8])  # warm
    spent: list[float] = []
    while len(spent) < 3 and sum(spent) < PATIENCE:
        started = time.perf_counter()
        found = search(queries_QD)
        spent.append(time.perf_counter() - started)
    return found, len(queries_QD) / min(spent)


def _one_at_a_time(search: Callable[[np.ndarray], np.ndarray], queries_QD: np.ndarray) -> float:
    """Queries per second, one after the other: the best of three times as many as `SECONDS` allow."""
    best = 0.0
    for _ in range(3):
        started, count = time.perf_counter(), 0
        while count < len(queries_QD) and time.perf_counter() - started < SECONDS:
            search(queries_QD[count : count + 1])
            count += 1
        best = max(best, count / (time.perf_counter() - started))
    return best


def _stored(z_ND: Tensor, form: str) -> Tensor:
    """What a form keeps of the features: float32 as they are, the index's values brought back."""
    if form == "float32":
        return z_ND.float().cpu()
    dense = z_ND.float().cpu().numpy()
    rows, columns = np.nonzero(dense)
    counts = np.bincount(rows, minlength=len(dense))
    block = Block.quantised(counts, columns, dense[rows, columns], dense.shape[1], form)
    back = np.zeros_like(dense)
    back[block.rows, block.columns] = block.values.astype(np.float32) * block.scales[block.rows]
    return torch.from_numpy(back)


def _accuracies(
    train: Features, held_out: Features, epochs: int, device: torch.device | str
) -> dict[str, float]:
    """Accuracy of a linear probe on the values of each form; the probes are trained together."""
    if train.labels is None or held_out.labels is None:
        return {}
    jobs = {}
    for form in ("float32", "fp16", "int8"):
        stored = (_stored(features.projector, form) for features in (train, held_out))
        jobs[form] = ProbeJob(next(stored), train.labels.cpu(), next(stored), held_out.labels.cpu())
    results = train_probes(list(jobs.values()), probe_protocol("adam", epochs=epochs), device)
    return {form: result.top1 for form, result in zip(jobs, results)}


def _blas_threads(threads: int) -> Any:
    """NumPy's own threads; scikit-learn brings the package that limits them."""
    if importlib.util.find_spec("threadpoolctl") is not None:
        return importlib.import_module("threadpoolctl").threadpool_limits(threads)
    if threads != _usable_cores():
        raise ValueError(
            f"--threads {threads} on {_usable_cores()} cores needs threadpoolctl; pip install threadpoolctl."
        )
    return contextlib.nullcontext()


def _library_versions() -> dict[str, str]:
    """Of what is measured here besides our own code."""
    found = {name: importlib.util.find_spec(name) for name in ("numpy", "scipy", "faiss")}
    return {name: importlib.import_module(name).__version__ for name, spec in found.items() if spec}


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": model, "cores": _usable_cores(), "system": platform.system()}
