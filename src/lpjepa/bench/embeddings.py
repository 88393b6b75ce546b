"""`lpjepa bench embeddings`: bytes, speed and recall of sparse search, and accuracy of its stored form.

For each run, the projector features of its training images are the documents and those of held-out images
the queries; the truth is the dense search by cosine in float64. Search runs on the CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lpjepa.bench.stamp import installed, usable_cores
from lpjepa.bench.table import Column, number, text
from lpjepa.bench.timing import Timing, interleaved
from lpjepa.evaluation import ProbeJob, probe_protocol, run_features, train_probes
from lpjepa.evaluation.features import Features
from lpjepa.evaluation.progress import Progress
from lpjepa.inference.index import SparseIndex, top
from lpjepa.inference.postings import Block

BATCH = 64  # queries of a batch for dense search, and of a timing one at a time

COLUMNS: tuple[Column, ...] = (
    text("run", "run"),
    number("active", "active", ".3f"),
    text("form", "form"),
    number("bytes/image", "bytes_per_image", ".0f"),
    number("queries/s, one at a time", "single_per_second", ",.0f"),
    number("queries/s, all at once", "batch_per_second", ",.0f"),
    number("recall", "recall", ".4f"),
    number("probe accuracy", "accuracy", ".2%"),
)

Search = Callable[[np.ndarray], np.ndarray]  # queries_QD -> ids_QK


class Settings(NamedTuple):
    """What is searched for, and how; the flags of the command."""

    k: int = 10
    queries: int = 1000
    threads: int = 2
    epochs: int = 30
    rounds: int = 5


class Form(NamedTuple):
    """One way to store and search the features of one run."""

    name: str
    bytes_per_image: float
    search: Search
    stored_as: str  # what a linear probe sees of it


def measure_runs(
    folders: Sequence[Path], source: str | None, settings: Settings, device: torch.device
) -> list[dict[str, Any]]:
    """The table's rows: every form of every run; `source` replaces the runs' own images."""
    if not folders:
        raise ValueError("name the runs to measure: lpjepa bench embeddings RUN [RUN ...].")
    progress, rows = Progress(), []
    for folder in folders:
        name = folder.resolve().name
        with progress.task(f"{name}: features"):
            train = run_features(folder, source, "train", str(device))
            held_out = run_features(folder, source, "test", str(device))
        with progress.task(f"{name}: search and probes"):
            rows += [{"run": name, **row} for row in measure_features(train, held_out, settings, device)]
    return rows


def measure_features(
    train: Features, held_out: Features, settings: Settings, device: torch.device
) -> list[dict[str, Any]]:
    """A row a form, all timed in turn on the CPU; the probes, which are not timed, run on `device`."""
    documents_ND, queries_QD = (
        x.float().cpu().numpy() for x in (train.projector, held_out.projector[: settings.queries])
    )
    unit_ND, unit_QD = _unit(documents_ND), _unit(queries_QD)
    k = min(settings.k, len(documents_ND))
    least_Q = _least_of_best(unit_ND, unit_QD, k)
    forms = _forms(documents_ND, unit_ND, k, settings.threads)
    with _blas_threads(settings.threads):
        recalls = [_recall(form.search(queries_QD), unit_ND, unit_QD, least_Q) for form in forms]
        timed = partial(interleaved, device=torch.device("cpu"), rounds=settings.rounds)
        batch = timed({form.name: partial(form.search, queries_QD) for form in forms})
        few_QD = queries_QD[:BATCH]
        single = timed({form.name: partial(_one_at_a_time, form.search, few_QD) for form in forms})
    accuracies = _accuracies(train, held_out, settings.epochs, device)
    return [
        {
            "active": float((documents_ND > 0).mean()),
            "form": form.name,
            "documents": len(documents_ND),
            "queries": len(queries_QD),
            "bytes_per_image": form.bytes_per_image,
            **_per_second("single", single[form.name], len(few_QD)),
            **_per_second("batch", batch[form.name], len(queries_QD)),
            "recall": recall,
            "accuracy": accuracies.get(form.stored_as),
        }
        for form, recall in zip(forms, recalls)
    ]


def setting_sentence(rows: Sequence[Mapping[str, Any]], settings: Settings) -> str:
    """What the table's numbers depend on besides the machine."""
    documents, queries = (
        ", ".join(f"{count:,}" for count in sorted({row[key] for row in rows}))
        for key in ("documents", "queries")
    )
    versions = ", ".join(" ".join(pair) for pair in installed(("numpy", "scipy", "faiss-cpu")).items())
    return (
        f"{documents} documents, {queries} queries, k = {settings.k}; search on the CPU, threads: "
        f"{settings.threads}, rounds: {settings.rounds} (medians); epochs of the probes: {settings.epochs}; "
        f"{versions}"
    )


def _forms(documents_ND: np.ndarray, unit_ND: np.ndarray, k: int, threads: int) -> list[Form]:
    """Dense float32 with NumPy (and faiss where it is installed), then the index with fp16 and with int8."""
    count, width = documents_ND.shape
    forms = [Form("dense float32, NumPy", 4.0 * width, lambda q: _dense(unit_ND, _unit(q), k), "float32")]
    if importlib.util.find_spec("faiss") is not None:
        faiss = _faiss(unit_ND, k, threads)
        forms.append(Form("dense float32, faiss flat", 4.0 * width, faiss, "float32"))
    for values in ("fp16", "int8"):
        index = SparseIndex(width, values)
        index.add(documents_ND)
        search = lambda q, index=index: index.search(q, k, threads=threads).ids
        forms.append(Form(f"sparse {values}", index.nbytes / count, search, values))
    return forms


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


def _faiss(unit_ND: np.ndarray, k: int, threads: int) -> Search:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its generated types warn of Python's future
        import faiss

    faiss.omp_set_num_threads(threads)
    flat = faiss.IndexFlatIP(unit_ND.shape[1])
    flat.add(unit_ND)
    return lambda q: flat.search(_unit(q), k)[1]


def _one_at_a_time(search: Search, queries_QD: np.ndarray) -> None:
    for place in range(len(queries_QD)):
        search(queries_QD[place : place + 1])


def _per_second(name: str, timing: Timing, queries: int) -> dict[str, float]:
    """Queries a second: median and quartiles."""
    low, high = timing.quartiles
    speeds = {"per_second": timing.ms, "slow": high, "fast": low}
    return {f"{name}_{key}": queries / ms * 1e3 for key, ms in speeds.items()}


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


def _accuracies(train: Features, held_out: Features, epochs: int, device: torch.device) -> dict[str, float]:
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
    if threads != usable_cores():
        raise ValueError(
            f"--threads {threads} on {usable_cores()} cores needs threadpoolctl; pip install threadpoolctl."
        )
    return contextlib.nullcontext()
