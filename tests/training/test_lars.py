"""LARS against the authors' own steps, and by its definition."""

import copy

import pytest
import torch

from lpjepa.training.lars import LARS


@pytest.mark.parametrize("rate_as_tensor", [False, True])
@pytest.mark.parametrize("with_found_inf", [False, True])
def test_same_steps_as_the_authors(parity, rate_as_tensor, with_found_inf):
    _, arrays, _ = parity
    w, b = (torch.nn.Parameter(arrays[f"lars_{name}0"].clone()) for name in "wb")
    optimizer = LARS([w, b], lr=torch.tensor(0.3, dtype=torch.float64) if rate_as_tensor else 0.3)
    if with_found_inf:
        optimizer.found_inf = torch.zeros(1)
    for step in range(6):
        rate = 0.3 * (1 - step / 10)
        for group in optimizer.param_groups:
            if rate_as_tensor:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        w.grad, b.grad = arrays["lars_grad_w"][step].clone(), arrays["lars_grad_b"][step].clone()
        optimizer.step()
        torch.testing.assert_close(w.detach(), arrays["lars_w"][step], rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(b.detach(), arrays["lars_b"][step], rtol=1e-14, atol=1e-15)


def test_found_inf_leaves_everything_as_it_is():
    w = torch.nn.Parameter(torch.randn(4, 3))
    optimizer = LARS([w], lr=0.1)
    w.grad = torch.randn(4, 3)
    optimizer.step()
    before, velocity = w.detach().clone(), optimizer.state[w]["momentum_buffer"].clone()
    optimizer.found_inf = torch.ones(())
    w.grad = torch.full((4, 3), torch.inf)
    optimizer.step()
    assert torch.equal(w.detach(), before)
    assert torch.equal(optimizer.state[w]["momentum_buffer"], velocity)


def test_zero_weights_take_the_plain_gradient_and_zero_gradients_do_not_decay():
    zero = torch.nn.Parameter(torch.zeros(3, 2))
    still = torch.nn.Parameter(torch.randn(3, 2))
    kept = still.detach().clone()
    optimizer = LARS([zero, still], lr=0.5, momentum=0.0, weight_decay=0.1)
    zero.grad, still.grad = torch.ones(3, 2), torch.zeros(3, 2)
    optimizer.step()
    torch.testing.assert_close(zero.detach(), torch.full((3, 2), -0.5))
    assert torch.equal(still.detach(), kept)


def test_without_exclusion_one_dimensional_parameters_are_scaled():
    b = torch.nn.Parameter(torch.ones(4))
    optimizer = LARS([b], lr=1.0, momentum=0.0, weight_decay=0.0, eta=0.1, clip=False, exclude_1d=False)
    b.grad = torch.full((4,), 100.0)
    optimizer.step()
    # The step has length lr · eta · ‖b‖ whatever the gradient's.
    torch.testing.assert_close(b.detach(), torch.full((4,), 0.9))


def test_negative_settings_are_refused():
    for name in ("lr", "momentum", "weight_decay", "eta"):
        with pytest.raises(ValueError, match=name):
            LARS([torch.nn.Parameter(torch.ones(1))], **{"lr": 0.1, name: -1.0})


def _parameters(shapes, device):
    """The same parameters twice, as leaves: among them one in channels-last order and one of zeros."""
    starts = [torch.randn(shape) for shape in shapes]
    starts[2] = starts[2].contiguous(memory_format=torch.channels_last)
    starts[3].zero_()
    return [[torch.nn.Parameter(start.to(device, copy=True)) for start in starts] for _ in range(2)]


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("scaled", [False, True])
def test_kernels_take_the_steps_of_the_operations(monkeypatch, clip, scaled):
    """In Triton's interpreter where there is no GPU; parameters of one chunk and of several, whole or not."""
    kernels = pytest.importorskip("lpjepa.training._lars_kernels")
    monkeypatch.setattr(kernels, "CHUNK", 16)
    monkeypatch.setattr(kernels, "_PIECE", 4)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    both = _parameters([(5, 3), (7,), (4, 2, 3, 3), (3, 3), (2, 2), (37,), (4, 8)], device)
    plain, fused = (LARS(params, lr=torch.tensor(0.3, device=device), clip=clip) for params in both)
    monkeypatch.setattr(plain, "_table", lambda group, params: None)
    table = kernels.build_table(both[1], True)
    monkeypatch.setattr(fused, "_table", lambda group, params: table)
    for step in range(4):
        fused.found_inf = torch.tensor(float(step == 2), device=device)
        plain.found_inf = fused.found_inf
        factor = 1.0
        if scaled:
            factor = 2.0 ** (step + 1)
            fused.grad_scale = torch.tensor(factor, device=device)
        for mine in both[0]:
            mine.grad = torch.randn_like(mine)
            if step == 2:
                mine.grad[0] = torch.inf
        both[0][4].grad.zero_()
        for mine, other in zip(*both):
            other.grad = mine.grad * factor
        if step % 2:  # what the step does by itself else
            norms = fused.gradient_norms(both[1])
            expected = torch.stack([p.grad.double().norm() for p in both[1]])
            torch.testing.assert_close(norms.double(), expected, rtol=1e-6, atol=0)
        plain.step()
        fused.step()
        for mine, other in zip(*both):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
            assert mine.isfinite().all()


def test_gradient_scale_divides_the_gradients_of_the_operations():
    """Twice the gradient with scale two is the same step, in the parameters' own precision."""
    start, gradient = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    moved = []
    for scale in (None, 2.0):
        w = torch.nn.Parameter(start.clone())
        optimizer = LARS([w], lr=0.1)
        w.grad = gradient * (scale or 1.0)
        if scale is not None:
            optimizer.grad_scale = torch.tensor(scale)
        optimizer.step()
        moved.append(w.detach())
    assert not torch.equal(moved[0], start)
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-14, atol=0)


def test_norms_are_measured_only_where_kernels_move_these_parameters(monkeypatch):
    kernels = pytest.importorskip("lpjepa.training._lars_kernels")
    a, b = (torch.nn.Parameter(torch.randn(3)) for _ in range(2))
    a.grad, b.grad = torch.randn(3), torch.randn(3)
    optimizer = LARS([a, b], lr=0.1)
    assert optimizer.gradient_norms([a, b]) is None  # no GPU, no kernels
    build = lambda group, params: kernels.build_table(params, True)
    monkeypatch.setattr(optimizer, "_table", build)
    assert optimizer.gradient_norms([b, a]) is None
    assert optimizer.gradient_norms([a]) is None
    two_groups = LARS([{"params": [a]}, {"params": [b]}], lr=0.1)
    monkeypatch.setattr(two_groups, "_table", build)
    assert two_groups.gradient_norms([a, b]) is None
    if not torch.cuda.is_available():
        norms = optimizer.gradient_norms([a, b])
        torch.testing.assert_close(norms, torch.stack([a.grad.norm(), b.grad.norm()]))


def test_a_captured_step_has_a_table_of_its_own_filled_once_afterwards(monkeypatch):
    from lpjepa.training.deferral import tables_sent_after_capture

    kernels = pytest.importorskip("lpjepa.training._lars_kernels")
    p = torch.nn.Parameter(torch.randn(4))
    velocity = torch.zeros(4)
    table = kernels.build_table([p], True)
    p.grad = in_eager = torch.randn(4)
    table.point_to([p], [velocity])
    plain = table.rows
    assert plain[0, :3].tolist() == [p.data_ptr(), in_eager.data_ptr(), velocity.data_ptr()]
    monkeypatch.setattr(kernels, "_capturing", lambda tensor: True)
    p.grad = in_graph = torch.randn(4)
    with tables_sent_after_capture():
        table.point_to([p], [velocity])
        captured = table.rows
        captured.zero_()
        table.point_to([p], [velocity])  # the same addresses: nothing new
        assert table.rows is captured
        assert captured is not plain
        assert captured[0, 1] == 0  # nothing is copied while the graph is recorded
    assert captured[0, 1] == in_graph.data_ptr()
    monkeypatch.setattr(kernels, "_capturing", lambda tensor: False)
    for p.grad in (in_eager, torch.randn(4)):
        table.point_to([p], [velocity])
        assert table.rows is plain
        assert plain[0, 1] == p.grad.data_ptr()
    assert captured[0, 1] == in_graph.data_ptr()  # what replays read is as it was
    monkeypatch.setattr(kernels, "_capturing", lambda tensor: True)
    p.grad = torch.randn(4)
    table.point_to([p], [velocity])  # whoever captures without the context gets the copy in the graph
    assert table.rows[0, 1] == p.grad.data_ptr()
    assert captured[0, 1] == in_graph.data_ptr()


def test_kernels_refuse_what_they_would_misread():
    kernels = pytest.importorskip("lpjepa.training._lars_kernels")
    p = torch.nn.Parameter(torch.randn(4, 2, 3, 3))
    p.grad = torch.randn(4, 2, 3, 3)
    assert kernels.applies([p], [torch.zeros_like(p)])
    assert not kernels.applies([p], [torch.zeros(4, 2, 3, 3).contiguous(memory_format=torch.channels_last)])
    assert not kernels.applies([torch.nn.Parameter(p.detach().double())], [torch.zeros_like(p)])
    assert not kernels.applies([torch.nn.Parameter(p.detach()[:, :1])], [p.detach()[:, :1]])


def test_a_copy_steps_by_itself():
    weight = torch.nn.Parameter(torch.randn(4, 3))
    optimizer = LARS([weight], lr=0.1)
    weight.grad = torch.ones(4, 3)
    other, copied = copy.deepcopy((weight, optimizer))
    other.grad = torch.ones(4, 3)
    copied.step()
    optimizer.step()
    torch.testing.assert_close(other, weight)
