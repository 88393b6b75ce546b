"""One-sample matching against exact quantiles, by scipy's quantile functions."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import normalize

from lpjepa.distributions import (
    GeneralizedGaussian,
    RectifiedGeneralizedGaussian,
    TruncatedGeneralizedGaussian,
)
from lpjepa.slicing import _standard_quantiles as standard
from lpjepa.slicing import (
    axes_discrepancy,
    gaussian_discrepancy,
    is_gaussian,
    parse_directions,
    sliced_discrepancy,
)
from lpjepa.slicing import quantiles as quantiles_of_targets
from lpjepa.slicing.quantiles import target_quantiles
from lpjepa.training import load_config
from lpjepa.training.objectives import build_target

CPU = torch.device("cpu")


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def quantiles(loc, scale, p, n, rectified):
    q = scipy.stats.gennorm(p, loc=loc, scale=scale * p ** (1 / p)).ppf((np.arange(n) + 0.5) / n)
    return np.maximum(q, 0) if rectified else q


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rectified", [False, True])
def test_axes_against_scipys_quantiles(p, rectified):
    kind = RectifiedGeneralizedGaussian if rectified else GeneralizedGaussian
    target = kind(double(-0.3), double(0.8), double(p))
    z = torch.randn(2, 31, 4, dtype=torch.float64)
    expected = np.mean((np.sort(z.numpy(), axis=1) - quantiles(-0.3, 0.8, p, 31, rectified)[:, None]) ** 2)
    assert axes_discrepancy(z, target).item() == pytest.approx(expected, rel=1e-9)
    assert axes_discrepancy(z[0], target).shape == ()


def test_axes_with_a_target_for_each_coordinate():
    loc, scale = [-1.0, 0.0, 2.0], [0.5, 1.0, 1.5]
    target = RectifiedGeneralizedGaussian(double(loc), double(scale), double(1.0))
    z = torch.randn(2, 20, 3, dtype=torch.float64)
    expected = np.mean(
        [
            (np.sort(z[:, :, d].numpy(), axis=1) - quantiles(loc[d], scale[d], 1.0, 20, True)) ** 2
            for d in range(3)
        ]
    )
    assert axes_discrepancy(z, target).item() == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match=r"target must have batch shape \(\) or \(4,\)"):
        axes_discrepancy(torch.randn(2, 20, 4), target)


def test_axes_gradient():
    target = RectifiedGeneralizedGaussian(double(-0.3), double(0.8), double(1.0))
    z = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: axes_discrepancy(z, target), (z,))


def test_axes_are_the_limit_of_many_target_samples():
    target = RectifiedGeneralizedGaussian(0.2, 0.7, 1.0)
    z = torch.randn(1, 16, 3)
    y = target.sample((1, 16 * 4000, 3), generator=torch.Generator().manual_seed(0))
    sampled = sliced_discrepancy(z, torch.eye(3), y)
    q = (torch.arange(64000) + 0.5) / 64000
    # Midpoints leave out the variance of the target within each of the 16 bins.
    within = target.icdf(q).view(16, 4000).var(dim=1, correction=0).mean()
    torch.testing.assert_close(axes_discrepancy(z, target), sampled - within, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("per_view", [False, True])
def test_gaussian_against_scipys_quantiles(per_view):
    loc, scale = np.array([-1.0, 0.0, 2.0, 0.5]), np.array([0.5, 1.0, 1.5, 1.0])
    target = GeneralizedGaussian(double(loc.tolist()), double(scale.tolist()), double(2.0))
    z = torch.randn(2, 17, 4, dtype=torch.float64)
    c = normalize(torch.randn((2, 6, 4) if per_view else (6, 4), dtype=torch.float64), dim=-1)
    levels = (np.arange(17) + 0.5) / 17
    values = []
    for v in range(2):
        for direction in (c[v] if per_view else c).numpy():
            law = scipy.stats.norm(direction @ loc, np.sqrt(direction**2 @ scale**2))
            values.append(np.mean((np.sort(z[v].numpy() @ direction) - law.ppf(levels)) ** 2))
    value = gaussian_discrepancy(z, c, target, chunk=4)
    assert value.item() == pytest.approx(np.mean(values), rel=1e-10)
    weighted = gaussian_discrepancy(z, c, target, weight_VK=torch.full((2, 6), 1 / 12, dtype=torch.float64))
    torch.testing.assert_close(weighted, value)


def test_gaussian_gradient():
    target = GeneralizedGaussian(double(0.1), double(1.2), double(2.0))
    z = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    c = normalize(torch.randn(5, 3, dtype=torch.float64), dim=-1)
    assert torch.autograd.gradcheck(lambda z: gaussian_discrepancy(z, c, target, chunk=2), (z,))


def test_both_forms_agree_along_the_axes():
    target = GeneralizedGaussian(double(0.1), double(1.2), double(2.0))
    z = torch.randn(2, 15, 4, dtype=torch.float64)
    along_axes = gaussian_discrepancy(z, torch.eye(4, dtype=torch.float64), target)
    torch.testing.assert_close(along_axes, axes_discrepancy(z, target), rtol=1e-8, atol=0)


def test_which_targets_are_gaussian():
    assert is_gaussian(GeneralizedGaussian(0.0, 1.0, 2.0))
    assert is_gaussian(torch.distributions.Normal(0.0, 1.0))
    assert not is_gaussian(GeneralizedGaussian(0.0, 1.0, 1.0))
    assert not is_gaussian(GeneralizedGaussian(0.0, 1.0, torch.tensor([2.0, 1.0])))
    assert not is_gaussian(RectifiedGeneralizedGaussian(0.0, 1.0, 2.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types_under_autocast(dtype):
    target = GeneralizedGaussian(0.0, 1.0, 2.0)
    z = torch.randn(2, 32, 8).to(dtype)
    c = normalize(torch.randn(16, 8), dim=-1)
    for loss in (lambda z: axes_discrepancy(z, target), lambda z: gaussian_discrepancy(z, c, target)):
        exact = loss(z.double())
        leaf = z.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(leaf)
        value.backward()
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(exact.item(), rel=1e-5)
        assert leaf.grad.dtype == dtype


def test_backward_keeps_one_tensor_of_the_size_of_the_features():
    target = GeneralizedGaussian(0.0, 1.0, 2.0)
    z = torch.randn(2, 32, 8, requires_grad=True)
    c = normalize(torch.randn(256, 8), dim=-1)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        losses = axes_discrepancy(z, target), gaussian_discrepancy(z, c, target)
    assert all(loss.requires_grad for loss in losses)
    assert kept == [z.shape, z.shape]


@pytest.fixture
def searches(monkeypatch):
    """The (p, n) that quantiles of a Generalized Gaussian are searched for, from nothing kept on."""
    found, search = [], standard._search
    monkeypatch.setattr(standard, "_KEPT", {})
    monkeypatch.setattr(
        standard, "_search", lambda *key, **home: found.append((key[0], key[2])) or search(*key, **home)
    )
    return found


@pytest.mark.filterwarnings("ignore:All .* quantiles of the target are zero")
@pytest.mark.parametrize("n", [2, 7, 256, 4096])
@pytest.mark.parametrize("p", [0.2, 0.5, 1.0, 1.3, 2.0, 5.0])
@pytest.mark.parametrize("kind", [GeneralizedGaussian, RectifiedGeneralizedGaussian])
def test_target_quantiles(kind, p, n):
    """By scipy in float64, and those of the distribution itself in float32, in both tails."""
    for loc, scale in ((-3.0, 0.7), (0.0, 1.0), (1.5, 0.02)):
        exact = target_quantiles(kind(double(loc), double(scale), double(p)), n, 4, torch.float64, CPU)
        expected = torch.from_numpy(quantiles(loc, scale, p, n, kind is RectifiedGeneralizedGaussian))
        torch.testing.assert_close(exact, expected, rtol=1e-9, atol=1e-10)
        target = kind(loc, scale, p)
        levels = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        single = target_quantiles(target, n, 4, torch.float32, CPU)
        torch.testing.assert_close(single, target.icdf(levels), rtol=2.0**-22, atol=0)


def test_a_target_that_moves_is_searched_for_once(searches):
    target = RectifiedGeneralizedGaussian(0.0, 1.0, 1.7)
    z = torch.randn(2, 12, 3, dtype=torch.float64)
    for n in (12, 7, 12):
        for loc, scale in ((0.0, 1.0), (-0.4, 0.3), (2.0, 0.3)):
            target.loc.fill_(loc)
            target.scale.fill_(scale)
            there = torch.from_numpy(quantiles(loc, scale, 1.7, n, True))
            expected = (z[:, :n].sort(dim=1).values - there[:, None]).square().mean()
            torch.testing.assert_close(axes_discrepancy(z[:, :n], target), expected, rtol=1e-6, atol=1e-7)
    assert searches == [(1.7, 12), (1.7, 7)]
    axes_discrepancy(z, GeneralizedGaussian(0.0, 1.0, 1.7))  # has the same w
    assert len(searches) == 2


@pytest.mark.parametrize(
    "build",
    [
        lambda loc: torch.distributions.Laplace(loc, 0.5),
        lambda loc: TruncatedGeneralizedGaussian(loc, 0.5, 1.4),
        lambda loc: RectifiedGeneralizedGaussian(loc, 0.5, torch.tensor(1.4, requires_grad=True)),
        lambda loc: GeneralizedGaussian(loc.expand(3), 0.5, torch.tensor([1.0, 1.4, 2.0])),
    ],
    ids=["torch's own", "truncated", "p with a gradient", "several p"],
)
def test_other_targets_are_asked_for_their_quantiles(build, monkeypatch):
    """And again only when a parameter was changed in place."""
    loc, levels, calls = torch.tensor(0.3), (torch.arange(6) + 0.5) / 6, []
    target = build(loc)
    ask = target.icdf
    monkeypatch.setattr(target, "icdf", lambda q: calls.append(q.shape) or ask(q), raising=False)
    for value in (0.3, 0.3, -0.1, -0.1):
        if loc != value:
            loc.fill_(value)
        found = target_quantiles(target, 6, 3, torch.float32, CPU)
        expected = ask(levels.unsqueeze(-1)).expand(6, 3).mT
        torch.testing.assert_close(found.expand(3, 6), expected)
        assert not found.requires_grad
    assert len(calls) == 2


def test_what_is_kept_is_not_written_to_and_the_oldest_makes_way(searches, monkeypatch):
    monkeypatch.setattr(standard, "_MOST_KEPT", 2)
    p = torch.tensor(1.7)
    with torch.inference_mode():
        first = standard.standard_quantiles(p, 1.7, 5, CPU)
    assert not first.is_inference()
    for n in (5, 6, 7, 7, 6, 5):
        expected = torch.from_numpy(quantiles(0.0, 1.0, float(p), n, False))
        torch.testing.assert_close(standard.standard_quantiles(p, 1.7, n, CPU), expected)
    assert searches == [(1.7, n) for n in (5, 6, 7, 5)]
    torch.ops.lpjepa.standard_quantiles(p, 1.7, 5, CPU).zero_()
    assert standard.standard_quantiles(p, 1.7, 5, CPU).any()


def test_what_a_captured_graph_may_read_makes_way_for_nothing(monkeypatch):
    """As on a GPU, on a device that is not the CPU; what is kept for the CPU does not count there."""
    other, made = torch.device("meta"), []
    monkeypatch.setattr(standard, "_KEPT", {})
    monkeypatch.setattr(standard, "_MOST_KEPT", 2)
    monkeypatch.setattr(standard, "_search", lambda *key, home: made.append(key[2]) or torch.zeros(key[2]))
    p = torch.tensor(1.7)
    first, *_ = [standard.standard_quantiles(p, 1.7, n, device) for device in (other, CPU) for n in (5, 6)]
    assert [standard.standard_quantiles(p, 1.7, 7, other).shape for _ in range(2)] == [(7,)] * 2
    assert standard.standard_quantiles(p, 1.7, 5, other) is first
    assert made == [5, 6, 5, 6, 7, 7]


def test_compiles_as_one_graph():
    target = GeneralizedGaussian(0.0, 1.0, 2.0)
    rectified = RectifiedGeneralizedGaussian(-0.3, 0.7, 1.0)
    plan = parse_directions("random", 16)
    seed = torch.tensor(3)

    def loss(z):
        return gaussian_discrepancy(z, plan.draw(z, seed).c, target) + axes_discrepancy(z, rectified)

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    eager, fused = (torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    loss(eager.requires_grad_()).backward()
    compiled(fused.requires_grad_()).backward()
    torch.testing.assert_close(fused.grad, eager.grad)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_it_moves_without_another_search(searches, dynamic):
    """Nor another graph; p and the number of samples may be other ones."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(axes_discrepancy, fullgraph=True, backend=counter, dynamic=dynamic)
    for p, n in ((1.7, 9), (0.8, 9), (0.8, 10)):
        target, z = RectifiedGeneralizedGaussian(-0.3, 0.7, p), torch.randn(2, n, 5)
        graphs = []
        for loc in (-0.3, -0.1, 0.2):
            target.loc.fill_(loc)
            found = compiled(z, target)  # before anyone else has searched
            torch.testing.assert_close(found, axes_discrepancy(z, RectifiedGeneralizedGaussian(loc, 0.7, p)))
            graphs.append(counter.frame_count)
        assert len(set(graphs)) == 1
    assert searches == [(1.7, 9), (0.8, 9), (0.8, 10)]


def test_a_target_beyond_the_batch_is_warned_of_once():
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.01, p=1.0)
    with pytest.warns(UserWarning, match="All 20 quantiles of the target are zero, .* use a larger batch"):
        axes_discrepancy(torch.rand(20, 3), target)
    axes_discrepancy(torch.rand(20, 3), target)
    axes_discrepancy(torch.rand(60, 3), target)  # 0.6 of a sample: its largest quantile is positive


def test_a_target_that_moves_is_warned_of_once_and_where_it_is():
    target, z = RectifiedGeneralizedGaussian(1.0, 1.0, 1.0), torch.rand(20, 3)
    axes_discrepancy(z, target)  # dense: nothing to warn of, wherever it goes
    target.loc.fill_(-5.0)
    with pytest.warns(UserWarning, match="All 20 quantiles of the target are zero"):
        axes_discrepancy(z, target)
    for loc in (-6.0, 0.0, -5.0):
        target.loc.fill_(loc)
        axes_discrepancy(z, target)


def test_what_is_made_in_a_captured_graph_is_neither_kept_nor_looked_at(searches, monkeypatch):
    silent, z = RectifiedGeneralizedGaussian(-5.0, 0.3, 1.7), torch.rand(20, 3)
    with monkeypatch.context() as capture:
        for module in (standard, quantiles_of_targets):
            capture.setattr(module, "is_capturing", lambda device: True)
        for _ in range(2):
            torch.testing.assert_close(axes_discrepancy(z, silent), z.square().mean())
    assert searches == [(1.7, 20)] * 2
    with pytest.warns(UserWarning, match="All 20 quantiles of the target are zero"):
        axes_discrepancy(z, silent)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("home", ["cpu", "cuda"])
def test_on_a_gpu_a_target_moves_without_waiting(searches, home):
    target = RectifiedGeneralizedGaussian(*torch.tensor([-0.3, 0.7], device=home), 1.6)
    z = torch.randn(2, 64, 5, device="cuda")
    axes_discrepancy(z, target)
    try:
        torch.cuda.set_sync_debug_mode("error")
        target.loc.fill_(0.4)
        found = axes_discrepancy(z, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = axes_discrepancy(z.cpu(), RectifiedGeneralizedGaussian(0.4, 0.7, 1.6))
    torch.testing.assert_close(found.cpu(), expected)
    assert len(searches) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["rectified_lpjepa", "lpjepa"])
def test_quantiles_of_a_trainings_target_are_searched_for_once(searches, method):
    config = load_config(None, {"loss": {"method": method}, "target": {"p": 1.6}})
    target, z = build_target(config, "cuda"), torch.randn(2, 64, 5, device="cuda")
    for _ in range(2):
        axes_discrepancy(z, target)
    assert searches == [(1.6, 64)]


@pytest.mark.gpu
@pytest.mark.parametrize("known", [True, False])
def test_replays_find_the_target_where_it_moved(searches, known):
    target = RectifiedGeneralizedGaussian(*torch.tensor([-0.3, 0.7], device="cuda"), 1.6)
    z = torch.randn(2, 64, 5, device="cuda")
    axes_discrepancy(z if known else z[:, :32], target)
    standard._search(1.6, torch.float32, 8, z.device, home=z.device)  # its kernels are there
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = axes_discrepancy(z, target)
    assert len(standard._KEPT) == 1  # what is made in a graph exists only within it
    for loc in (0.4, -0.2):
        target.loc.fill_(loc)
        graph.replay()
        expected = axes_discrepancy(z, RectifiedGeneralizedGaussian(loc, 0.7, 1.6))
        torch.testing.assert_close(found, expected)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the first one that torch records of itself
def test_a_compiler_that_records_graphs_keeps_out_of_what_is_kept(searches):
    """Its graphs have memory of their own, in which nothing else may live."""
    torch.compiler.reset()
    target = RectifiedGeneralizedGaussian(*torch.tensor([-0.3, 0.7], device="cuda"), 1.6)
    z = torch.randn(2, 64, 5, device="cuda")
    compiled = torch.compile(axes_discrepancy, fullgraph=True, mode="reduce-overhead")
    for loc in (-0.3, 0.1, 0.5, -0.2, 0.3):
        target.loc.fill_(loc)
        found = compiled(z, target).clone()
        torch.testing.assert_close(found, axes_discrepancy(z, RectifiedGeneralizedGaussian(loc, 0.7, 1.6)))
    assert searches == [(1.6, 64)]
