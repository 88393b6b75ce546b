"""Sorting: numpy's vectorised path gives what torch.sort gives, ties and signed zeros included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpjepa import _sort


@pytest.fixture(params=[True, False], ids=["numpy", "torch"])
def path(request, monkeypatch):
    monkeypatch.setattr(_sort, "_HAS_NUMPY", request.param)


def check(x):
    before = x.clone()
    expected, positions = torch.sort(x, dim=-1, stable=True)
    values, order = _sort.sort_stable(x)
    assert torch.equal(values, expected)
    assert torch.equal(order, positions)
    assert torch.equal(_sort.sort_values(x), expected)
    assert torch.equal(x, before)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_positions(dtype):
    check(torch.randn(3, 5, 700, dtype=dtype))
    check(torch.randn(700, 4, 2, dtype=dtype).transpose(0, 2))
    check(torch.randn(4, 600, dtype=dtype)[:, ::2])


@pytest.mark.usefixtures("path")
def test_ties_signed_zeros_and_extremes():
    check(torch.randint(-2, 3, (50, 300)).float())
    check(torch.tensor([[0.0, -0.0, 1.0, -0.0, 0.0, -1.0]]))
    tiny, huge = 1e-45, 3.4e38
    check(torch.tensor([[huge, -huge, tiny, -tiny, float("inf"), float("-inf"), 0.0]]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_any_numbers(numbers):
    check(torch.tensor([numbers], dtype=torch.float32))


def test_a_compiler_sees_one_operator_it_does_not_look_into():
    seen = []

    def keep(graph, _inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def all_three(x):
        return _sort.sort_values(x), *_sort.sort_stable(x), _sort.argsort(x)

    x = torch.randint(-2, 3, (7, 5)).float().T
    values, expected, order, again = torch.compile(all_three, backend=keep)(x)
    assert torch.equal(values, expected)
    assert torch.equal(order, again)
    assert torch.equal(expected, x.sort(stable=True).values)
    assert torch.equal(order, x.sort(stable=True).indices)
    assert sum("lpjepa" in name for name in seen) == 3
    assert not any("sort" in name and "lpjepa" not in name for name in seen)
