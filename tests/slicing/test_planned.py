"""Matching along a plan: the same as drawing the directions first, by torch or by a kernel."""

import pytest
import torch

from lpjepa.slicing import _backend, parse_directions, planned_discrepancy, sliced_discrepancy

SEED = torch.tensor(11)


def problem(dtype=torch.float64):
    return torch.randn(2, 10, 6, dtype=dtype), torch.randn(2, 10, 6, dtype=dtype)


def drawn_first(z, y, plan, seed, lo=0, hi=None, **kwargs):
    c, weight = plan.draw(z, seed, lo, hi)
    return sliced_discrepancy(z, c, y, weight_VK=weight, **kwargs)


@pytest.mark.parametrize("spec", ["random", "orthogonal", "eigen", {"random": 20, "axes": 6}])
@pytest.mark.parametrize("discrepancy", ["wasserstein2", "energy"])
def test_the_same_as_drawing_first(spec, discrepancy):
    z, y = problem()
    plan = parse_directions(spec, 26)
    expected = drawn_first(z, y, plan, SEED, discrepancy=discrepancy)
    whole = planned_discrepancy(z, y, plan, SEED, discrepancy=discrepancy)
    torch.testing.assert_close(whole, expected)
    parts = [planned_discrepancy(z, y, plan, SEED, lo, hi, discrepancy) for lo, hi in ((0, 9), (9, 26))]
    torch.testing.assert_close(sum(parts), expected)


class Kernels:
    """Stands in for the Triton kernels: records its calls and answers by torch."""

    def __init__(self, plan):
        self.plan, self.calls = plan, []

    def supports(self, z_VND, samples):
        return samples == z_VND.shape[1]

    def matcher(self, *args):
        return None

    def random_wasserstein2(self, z_VND, y_VMD, seed, lo, hi, weight, want_gradient):
        self.calls.append((lo, hi))
        c = self.plan.draw(z_VND, seed, lo, hi).c
        return torch.ops.lpjepa.sliced_matching(
            z_VND, c, y_VMD, None, weight, "wasserstein2", 0, "fast", want_gradient
        )


@pytest.fixture
def kernels(monkeypatch):
    stand_in = Kernels(parse_directions("random", 300))
    monkeypatch.setattr(_backend, "_kernels", lambda z: stand_in)
    return stand_in


def test_a_kernel_that_draws_is_used_where_it_applies(kernels):
    z, y = problem(torch.float32)
    plan = kernels.plan
    for lo, hi in ((0, 300), (100, 290)):
        leaf, other = z.clone().requires_grad_(), z.clone().requires_grad_()
        value = planned_discrepancy(leaf, y, plan, SEED, lo, hi)
        expected = drawn_first(other, y, plan, SEED, lo, hi)
        torch.testing.assert_close(value, expected)
        value.backward()
        expected.backward()
        torch.testing.assert_close(leaf.grad, other.grad)
    assert kernels.calls == [(0, 300), (100, 290)]
    with torch.no_grad():
        torch.testing.assert_close(planned_discrepancy(leaf, y, plan, SEED), drawn_first(z, y, plan, SEED))


@pytest.mark.parametrize(
    ("spec", "settings", "samples"),
    [
        ("orthogonal", {}, 10),
        ({"random": 20, "axes": 6}, {}, 10),
        ("random", {"precision": "exact"}, 10),
        ("random", {"discrepancy": "wasserstein1"}, 10),
        ("random", {"lo": 5, "hi": 5}, 10),
        ("random", {}, 5),
    ],
)
def test_and_not_elsewhere(kernels, spec, settings, samples):
    z, y = problem(torch.float32)
    plan = parse_directions(spec, 26)
    value = planned_discrepancy(z, y[:, :samples], plan, SEED, **settings)
    torch.testing.assert_close(value, drawn_first(z, y[:, :samples], plan, SEED, **settings))
    assert kernels.calls == []


def test_compiles_as_one_graph(kernels):
    z, y = problem(torch.float32)
    loss = lambda z: planned_discrepancy(z.relu(), y, kernels.plan, SEED)
    eager, fused = z.clone().requires_grad_(), z.clone().requires_grad_()
    loss(eager).backward()
    torch.compiler.reset()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(fused).backward()
    torch.testing.assert_close(fused.grad, eager.grad)
    assert len(kernels.calls) == 2
