"""One, two and three processes under DDP compute the same loss and the same gradients."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("distributed_worker.py")
RANKS = 3


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What every rank computed, by rank and case."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", WORKER, str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = []
    try:
        outputs = [worker.communicate(timeout=180)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(worker.returncode == 0 for worker in workers), "\n".join(outputs)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def difference(a, b):
    """Largest difference of the loss (first part) and of the gradients, relative to the largest of each."""
    (parts_a, grads_a), (parts_b, grads_b) = a, b
    loss = abs(parts_a[0] - parts_b[0]) / abs(parts_b[0])
    grad_a, grad_b = (torch.cat([g.flatten() for g in grads]) for grads in (grads_a, grads_b))
    return max(loss, ((grad_a - grad_b).abs().max() / grad_b.abs().max()).item())


def test_any_number_of_processes_computes_the_loss_of_one(results):
    checked = set()
    for rank, cases in enumerate(results):
        for (name, world, split, dropped), found in cases.items():
            if dropped is not None:
                continue
            alone = results[0][name, 1, "equal", None]
            assert found[0] == pytest.approx(alone[0], rel=1e-6), (name, world, split, rank)
            assert difference(found, alone) < 1e-6, (name, world, split, rank)
            checked.add((name, world, split))
    objectives = {name for name, *_ in results[0]}
    assert len(objectives) >= 9
    assert checked == {
        (name, world, split)
        for name in objectives
        for world, split in [(1, "equal"), (2, "equal"), (2, "unequal"), (3, "equal"), (3, "unequal")]
    }


def test_no_collective_can_be_left_out(results):
    unnoticed = []
    tried = 0
    for (name, world, split, dropped), _ in results[0].items():
        if dropped is None:
            continue
        tried += 1
        alone = results[0][name, 1, "equal", None]
        if all(difference(rank[name, world, split, dropped], alone) < 1e-4 for rank in results):
            unnoticed.append((name, dropped))
    assert tried >= 20
    assert unnoticed == []
