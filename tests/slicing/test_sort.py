"""Sorting: numpy's vectorised path gives what torch.sort gives, ties and signed zeros included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpjepa.slicing import _sort


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
