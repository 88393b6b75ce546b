"""`lpjepa bench loss`: what is wrong is not timed, exponents, quality, the work of a rank."""

import math

import pytest
import torch

from lpjepa.bench import cost, growth, processes, quality, reference
from lpjepa.bench.growth import exponents, fitted_exponent
from lpjepa.bench.loss import Row, measure_rows, parse_row
from lpjepa.bench.peers import load_peer
from lpjepa.slicing import sliced_discrepancy

CPU = torch.device("cpu")
SMALL = {"samples": 32, "dim": 40, "slices": 64}


def test_the_library_passes_the_check():
    found = reference.check_equality(CPU, **SMALL)
    assert {(line["features"], line["loss"]) for line in found} == {
        (where, name)
        for where in ("far from", "near")
        for name in ("given", "given, exact", "random", "hadamard")
    }
    exact = [line["gradient"] for line in found if line["loss"] == "given, exact"]
    assert max(exact) < 1e-6


@pytest.mark.parametrize(
    "wrong",
    [
        lambda z, c, y, precision="fast": 1.01 * sliced_discrepancy(z, c, y, precision=precision),
        lambda z, c, y, precision="fast": sliced_discrepancy(z.half(), c, y),  # exact is asked for too
        lambda z, c, y, precision="fast": sliced_discrepancy(z.detach(), c, y) + 0 * z.sum(),
        lambda z, c, y, precision="fast": (
            sliced_discrepancy(z, c, y, precision=precision) + 0 * z.log().sum()
        ),
        lambda z, c, y, precision="fast": sliced_discrepancy(
            z, c, y, precision=precision, discrepancy="energy"
        ),
    ],
)
def test_a_wrong_loss_is_refused(wrong):
    with pytest.raises(ValueError, match="nothing was timed"):
        reference.check_equality(CPU, **SMALL, loss=wrong)


def test_the_reference_is_optimal_transport():
    ot = pytest.importorskip("ot")
    z, y, c = torch.randn(2, 9, 4).double(), torch.randn(2, 9, 4).double(), torch.randn(5, 4).double()
    costs = [ot.wasserstein_1d((z[v] @ c.T).numpy(), (y[v] @ c.T).numpy(), p=2).mean() for v in range(2)]
    assert float(reference.reference(z, c, y)) == pytest.approx(sum(costs) / 2)


def test_rows_have_ratios_to_the_reference():
    found = measure_rows([Row(16, 32, 48), Row(8, 40, 48)], CPU, rounds=3)
    assert [line["method"] for line in found] == ["reference", "ours", "ours, hadamard"] * 2
    for first in (0, 3):
        for line in found[first : first + 3]:
            assert line["ratio"] == pytest.approx(found[first]["ms"] / line["ms"])
            assert line["low"] <= line["ms"] <= line["high"]


@pytest.mark.parametrize("word", ["256x512", "axbxc", "1x2x3", "4x0x8"])
def test_rows_are_three_numbers(word):
    with pytest.raises(ValueError, match=f"--rows {word}"):
        parse_row(word)
    assert str(parse_row("256x512x8192")) == "256x512x8192"


def test_a_checkout_of_the_authors_is_called_with_the_same_directions(tmp_path):
    folder = tmp_path / "solo" / "losses"
    folder.mkdir(parents=True)
    (folder / "rectified_lpjepa.py").write_text(
        "from solo.utils.misc import gather\n"
        "from solo.utils.metrics import variance_loss\n"
        "def rdmreg_loss(z1, z2, c, name, mu, p, sigma):\n"
        "    return gather(z1).sum() + 2 * z2.sum() + (c.norm(dim=1) - 1).abs().max() + len(c)\n"
    )
    peer = load_peer(tmp_path, CPU)
    assert peer.name == "authors' RDMReg"
    assert float(peer.build(3, 7)(torch.ones(2, 4, 3))) == pytest.approx(36 + 7, abs=1e-5)
    with pytest.raises(ValueError, match="--peer"):
        load_peer(tmp_path / "nowhere", CPU)


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 1.0, 2.3])
def test_fitted_exponents_on_synthetic_timings(exponent):
    sizes = [16, 32, 64, 200]
    assert fitted_exponent(sizes, [3 * size**exponent for size in sizes]) == pytest.approx(exponent)
    lines = [
        {"size": size, "ms": 5.0 + size**2, "peak_MB": 7 * size**exponent}
        for size in (1, 100, 10_000, 20_000)
    ]
    found = exponents(lines)
    assert found["memory_exponent"] == pytest.approx(exponent)
    assert found["last_exponent"] == pytest.approx(2, abs=1e-6)  # the constant no longer counts there
    assert 1.7 < found["time_exponent"] < 2
    assert exponents([line | {"peak_MB": None} for line in lines])["memory_exponent"] is None
    with pytest.raises(ValueError, match="two different sizes"):
        fitted_exponent([4, 4], [1, 2])


def test_growth_varies_one_size_at_a_time():
    base = Row(16, 32, 32)
    found = growth.measure_growth(base, CPU, rounds=1)
    for axis in growth.AXES:
        rows = [parse_row(line["row"]) for line in found if line["axis"] == axis]
        assert [getattr(row, axis) for row in rows] == [getattr(base, axis) * f for f in growth.FACTORS]
        assert {row._replace(**{axis: 0}) for row in rows} == {base._replace(**{axis: 0})}
    assert [("time_exponent" in line) for line in found] == ([False] * 4 + [True]) * 3


def test_structured_directions_vary_less_at_equal_count():
    found = quality.measure_quality(CPU, samples=32, dim=32, draws=120)
    for line in found:
        if line["directions"] == "random":
            assert line["variance_ratio"] == 1
            mean, error = line["mean"], line["standard_error"]
        else:
            assert line["variance_ratio"] < 0.9
            assert abs(line["mean"] - mean) < 5 * math.hypot(error, line["standard_error"])
    assert len(found) == 12


@pytest.fixture(scope="module")
def job():
    """Two processes over gloo, their collectives counted."""
    return Row(12, 10, 30), processes.run_job(Row(12, 10, 30), 2, 1)


def test_the_cost_models_bytes_are_those_that_are_sent(job):
    row, ranks = job
    setting = cost.Setting(row.samples, "global", 2, row.dim, row.slices, feature_bytes=4)
    expected = cost.messages(setting, 2)
    for rank in ranks:
        counted = rank["payloads"]
        assert counted["all_gather"] == expected.gathered == 2 * 12 * 10 * 4
        # Gradients by an all-reduce, as gloo does, and the three parts of the loss by another.
        assert counted["all_reduce"] == expected.scattered + expected.reduced
        assert counted["sizes"] == expected.sizes == 16
    assert [rank["slices"] for rank in ranks] == [15, 15]
    line = processes._line(row, 2, ranks)
    assert line["as_modelled"] == "yes"
    assert processes._line(row._replace(dim=11), 2, ranks)["as_modelled"] == "NO"


def test_jobs_that_disagree_are_not_reported(job, monkeypatch):
    row, ranks = job
    other = [{**ranks[0], "loss": ranks[0]["loss"] * 1.01, "payloads": {}, "slices": 30}]
    monkeypatch.setattr(processes, "run_job", lambda row, world, rounds: ranks if world == 2 else other)
    with pytest.raises(ValueError, match="the loss differs"):
        processes.measure_processes(row, [1, 2], 1)
    other[0]["loss"] = ranks[0]["loss"]
    alone, both = processes.measure_processes(row, [1, 2], 1)
    assert alone["fraction"] == 1
    assert both["fraction"] == pytest.approx(both["cpu_ms"] / alone["cpu_ms"])
    with pytest.raises(ValueError, match="--processes 5"):
        processes.measure_processes(row, [1, 5], 1)
