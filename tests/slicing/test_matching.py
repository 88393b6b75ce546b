"""The sliced matching: POT, gradcheck, invariants, memory, types, compilation, bad input."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from lpjepa.slicing import DISCREPANCIES, sliced_discrepancy


def problem(views=2, n=12, m=None, dim=5, slices=9, dtype=torch.float64, per_view=False):
    z = torch.randn(views, n, dim, dtype=dtype)
    y = torch.randn(views, m or n, dim, dtype=dtype) * 1.3 + 0.2
    shape = (views, slices, dim) if per_view else (slices, dim)
    c = normalize(torch.randn(shape, dtype=torch.float64), dim=-1).to(dtype)
    return z, c, y


def gradient(z, *args, **kwargs):
    z = z.detach().requires_grad_()
    value = sliced_discrepancy(z, *args, **kwargs)
    return value.detach(), torch.autograd.grad(value, z)[0]


def pot(z, c, y):
    return ot.sliced_wasserstein_distance(z.numpy(), y.numpy(), projections=c.T.numpy()) ** 2


@pytest.mark.parametrize("m", [12, 24, 6, 17, 7])
@pytest.mark.parametrize("per_view", [False, True])
def test_wasserstein2_is_pots_sliced_distance_squared(m, per_view):
    z, c, y = problem(m=m, per_view=per_view)
    expected = np.mean([pot(z[v], c[v] if per_view else c, y[v]) for v in range(2)])
    assert sliced_discrepancy(z, c, y).item() == pytest.approx(expected, rel=1e-12)


def test_one_view_and_shared_target_samples():
    z, c, y = problem()
    assert sliced_discrepancy(z[0], c, y[0]).item() == pytest.approx(pot(z[0], c, y[0]), rel=1e-12)
    shared = sliced_discrepancy(z, c, y[0]).item()
    assert shared == pytest.approx((pot(z[0], c, y[0]) + pot(z[1], c, y[0])) / 2, rel=1e-12)


@pytest.mark.parametrize("case", [0, 1, 2, 3, 4])
def test_authors_numbers(parity, case):
    cases, arrays, _ = parity
    name = f"rdmreg{case}"
    z = torch.stack([arrays[f"{name}_z1"], arrays[f"{name}_z2"]]).double()
    y = torch.stack([arrays[f"{name}_target1"], arrays[f"{name}_target2"]]).double()
    c = arrays[f"{name}_projections"].double()
    expected = cases[name]["rdmreg"]
    assert sliced_discrepancy(z, c, y).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("discrepancy", DISCREPANCIES)
@pytest.mark.parametrize("m", [6, 12, 5])
@pytest.mark.parametrize("per_view", [False, True])
def test_gradcheck(discrepancy, m, per_view):
    z, c, y = problem(n=6, m=m, dim=3, slices=3, per_view=per_view)
    weight = torch.rand(2, 3, dtype=torch.float64)
    z.requires_grad_()
    for w in (None, weight):
        assert torch.autograd.gradcheck(
            lambda z, w=w: sliced_discrepancy(z, c, y, discrepancy, chunk=2, weight_VK=w), (z,)
        )


@pytest.mark.parametrize("discrepancy", DISCREPANCIES)
def test_order_of_samples_does_not_matter(discrepancy):
    z, c, y = problem()
    value, grad = gradient(z, c, y, discrepancy)
    order = torch.randperm(z.shape[1])
    permuted, permuted_grad = gradient(z[:, order], c, y[:, order.flip(0)], discrepancy)
    torch.testing.assert_close(permuted, value)
    torch.testing.assert_close(permuted_grad, grad[:, order])


@pytest.mark.parametrize("discrepancy", DISCREPANCIES)
def test_rotating_everything_together_changes_nothing(discrepancy):
    z, c, y = problem()
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    value, grad = gradient(z, c, y, discrepancy)
    rotated, rotated_grad = gradient(z @ rotation, c @ rotation, y @ rotation, discrepancy)
    torch.testing.assert_close(rotated, value)
    torch.testing.assert_close(rotated_grad, grad @ rotation)


@pytest.mark.parametrize(("discrepancy", "power"), [("wasserstein2", 2), ("wasserstein1", 1), ("energy", 1)])
def test_scaling(discrepancy, power):
    z, c, y = problem()
    scaled = sliced_discrepancy(3 * z, c, 3 * y, discrepancy)
    torch.testing.assert_close(scaled, 3**power * sliced_discrepancy(z, c, y, discrepancy))


def test_same_samples_give_zero():
    z, c, _ = problem()
    assert sliced_discrepancy(z, c, z.flip(1)).item() == pytest.approx(0, abs=1e-28)


@pytest.mark.parametrize("per_view", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 9, 100])
def test_chunks_do_not_change_the_result(chunk, per_view):
    z, c, y = problem(per_view=per_view)
    weight = torch.rand(2, 9, dtype=torch.float64)
    value, grad = gradient(z, c, y, weight_VK=weight)
    chunked, chunked_grad = gradient(z, c, y, weight_VK=weight, chunk=chunk)
    torch.testing.assert_close(chunked, value)
    torch.testing.assert_close(chunked_grad, grad)


def test_default_chunk_bounds_the_number_of_slices(monkeypatch):
    from lpjepa.slicing import discrepancies, matching

    seen = []
    original = discrepancies.DISCREPANCIES["wasserstein2"]

    def spy(x, y, want_gradient):
        seen.append((x.numel() + y.numel()) * x.element_size())
        return original(x, y, want_gradient)

    monkeypatch.setitem(discrepancies.DISCREPANCIES, "wasserstein2", spy)
    monkeypatch.setattr(matching, "CHUNK_BYTES", 8192)
    z, c, y = problem(n=32, slices=64)
    sliced_discrepancy(z, c, y)
    assert len(seen) > 1
    assert max(seen) * matching.LIVE_COPIES <= 8192


def test_weights_add_the_slices():
    z, c, y = problem()
    weight = torch.rand(2, 9, dtype=torch.float64)
    expected = sum(weight[v, k] * pot(z[v], c[k : k + 1], y[v]) for v in range(2) for k in range(9))
    assert sliced_discrepancy(z, c, y, weight_VK=weight).item() == pytest.approx(expected.item(), rel=1e-12)
    assert sliced_discrepancy(z, c, y, weight_VK=0.5).item() == pytest.approx(
        9 * sliced_discrepancy(z, c, y).item(), rel=1e-12
    )


def test_shares_of_the_slices_add_up():
    z, c, y = problem()
    whole, whole_grad = gradient(z, c, y)
    parts = [gradient(z, c[lo:hi], y, weight_VK=1 / 18) for lo, hi in ((0, 4), (4, 4), (4, 9))]
    torch.testing.assert_close(sum(value for value, _ in parts), whole)
    torch.testing.assert_close(sum(grad for _, grad in parts), whole_grad)


def test_backward_keeps_one_tensor_of_the_size_of_the_features():
    z, c, y = problem(n=64, dim=8, slices=512, dtype=torch.float32)
    kept = []

    def pack(tensor):
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        sliced_discrepancy(z.requires_grad_(), c, y)
    assert kept == [((2, 64, 8), torch.float32)]


def test_nothing_is_differentiated_when_no_gradient_is_asked_for():
    z, c, y = problem()
    assert not sliced_discrepancy(z, c, y).requires_grad
    with torch.no_grad():
        assert not sliced_discrepancy(z.requires_grad_(), c, y).requires_grad


def test_differentiating_twice_is_refused():
    z, c, y = problem()
    value = sliced_discrepancy(z.requires_grad_(), c, y)
    (grad,) = torch.autograd.grad(value.square(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_precision_under_autocast(dtype):
    z, c, y = problem(n=32, dim=16, slices=64, dtype=dtype)
    exact, exact_grad = gradient(z.double(), c.double(), y.double())
    tolerance = {torch.float64: 1e-12}.get(dtype, 2e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, grad = gradient(z, c, y)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert grad.dtype == dtype
    assert value.item() == pytest.approx(exact.item(), rel=tolerance)
    resolution = torch.finfo(dtype).eps
    torch.testing.assert_close(grad.double(), exact_grad, rtol=max(resolution, 1e-5), atol=1e-7)


def test_exact_precision_orders_samples_as_float64_does():
    z, c, y = (
        torch.randn(1, 400, 64),
        torch.nn.functional.normalize(torch.randn(200, 64), dim=1),
        torch.randn(1, 400, 64),
    )
    leaf = z.double().requires_grad_()
    (
        (leaf @ c.double().T).sort(dim=1).values - (y.double() @ c.double().T).sort(dim=1).values
    ).square().mean().backward()
    error = {}
    for precision in ("fast", "exact"):
        x = z.clone().requires_grad_()
        value = sliced_discrepancy(x, c, y, precision=precision)
        value.backward()
        assert value.dtype == x.grad.dtype == torch.float32
        error[precision] = ((x.grad.double() - leaf.grad).norm() / leaf.grad.norm()).item()
    # Features and target agree here, so that in float32 a few swapped neighbours show.
    assert error["exact"] < 1e-6 < error["fast"]


@settings(max_examples=30, deadline=None)
@given(
    views=st.integers(1, 3),
    n=st.integers(2, 20),
    m=st.integers(1, 20),
    dim=st.integers(1, 7),
    slices=st.integers(1, 9),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    layout=st.sampled_from(["contiguous", "transposed", "strided", "expanded"]),
)
def test_shapes_types_and_strides(views, n, m, dim, slices, dtype, layout):
    torch.manual_seed(n * 31 + m)
    z, c, y = problem(views, n, m, dim, slices, dtype)
    if layout == "transposed":
        z = z.transpose(0, 2).contiguous().transpose(0, 2)
        y = y.transpose(1, 2).contiguous().transpose(1, 2)
        c = c.T.contiguous().T
    elif layout == "strided":
        z = torch.stack([z, z + 1], dim=-1)[..., 0]
        c = torch.cat([c, c])[:slices]
    elif layout == "expanded":
        z = z[:1].expand(views, n, dim)
        y = y[:1].expand(views, m, dim)
    value, grad = gradient(z, c, y)
    expected = np.mean([pot(z[v].double(), c.double(), y[v].double()) for v in range(views)])
    assert value.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert grad.shape == z.shape
    assert grad.dtype == dtype


def compiled(function):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("discrepancy", DISCREPANCIES)
def test_compiles_as_one_graph(discrepancy):
    z, c, y = problem(dtype=torch.float32)
    loss = lambda z: 2 * sliced_discrepancy(z.relu(), c, y, discrepancy)
    eager, fused = z.clone().requires_grad_(), z.clone().requires_grad_()
    loss(eager).backward()
    compiled(loss)(fused).backward()
    torch.testing.assert_close(fused.grad, eager.grad)


def test_operator_passes_torch_checks():
    z, c, y = problem(n=4, slices=3, dtype=torch.float32)
    for weight in (None, torch.rand(2, 3)):
        torch.library.opcheck(
            torch.ops.lpjepa.sliced_matching.default,
            (z, c, y, weight, 0.1, "wasserstein2", 2, "fast", True),
            test_utils=("test_schema", "test_faketensor"),
        )


GOOD = dict(zip(("z_VND", "c", "y_VMD"), problem(dtype=torch.float32)))
NAN = GOOD["z_VND"].clone()
NAN[1, 2, 3] = float("nan")
INFINITE = GOOD["z_VND"].clone()
INFINITE[0, 0, 0] = float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z_VND": GOOD["z_VND"][:, :1]}, "z holds one sample"),
        ({"z_VND": NAN}, "z contains NaN or infinite"),
        ({"z_VND": INFINITE}, "z contains NaN or infinite"),
        ({"z_VND": torch.zeros(5)}, r"z must have shape .* got \(5,\)"),
        ({"z_VND": torch.zeros(2, 12, 0)}, "z must have shape"),
        ({"c": GOOD["c"][:, :4]}, r"projections must have shape \(K, 5\).*got \(9, 4\)"),
        ({"c": GOOD["c"].expand(3, 9, 5)}, "projections must have shape"),
        ({"c": 2 * GOOD["c"]}, "projections must have rows of unit norm"),
        ({"c": GOOD["c"] * (torch.arange(9) > 0).unsqueeze(1)}, "projections must have rows of unit norm"),
        ({"c": GOOD["c"].clone().requires_grad_()}, r"projections is a constant.*projections.detach\(\)"),
        ({"y_VMD": GOOD["y_VMD"][..., :4]}, r"target_samples must have shape \(2, M, 5\)"),
        ({"y_VMD": GOOD["y_VMD"][:1]}, "target_samples must have shape"),
        ({"y_VMD": NAN}, "target_samples contains NaN"),
        ({"y_VMD": GOOD["y_VMD"].clone().requires_grad_()}, "target_samples is a constant"),
        ({"discrepancy": "kl"}, "discrepancy 'kl' is unknown"),
        ({"precision": "low"}, "precision 'low' is unknown"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"weight_VK": torch.ones(9)}, r"weight_VK must have shape \(2, 9\)"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message) as error:
        sliced_discrepancy(**{**GOOD, **change})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", GOOD)
def test_integers_are_refused(name):
    argument = {"z_VND": "z", "c": "projections", "y_VMD": "target_samples"}[name]
    with pytest.raises(TypeError, match=f"{argument} must be a floating-point tensor"):
        sliced_discrepancy(**{**GOOD, name: torch.ones_like(GOOD[name], dtype=torch.int64)})


def test_a_slice_of_weight_zero_may_have_no_direction():
    z, c, y = problem()
    weight = torch.full((2, 9), 1 / 18, dtype=torch.float64)
    weight[:, 0] = 0
    null = c.clone()
    null[0] = 0
    torch.testing.assert_close(
        sliced_discrepancy(z, null, y, weight_VK=weight), sliced_discrepancy(z, c[1:], y, weight_VK=1 / 18)
    )
