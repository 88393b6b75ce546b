"""LARS against the authors' own steps, and by its definition."""

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


@pytest.mark.parametrize("clip", [True, False])
def test_kernels_take_the_steps_of_the_operations(monkeypatch, clip):
    """In Triton's interpreter where there is no GPU; parameters of one chunk and of several."""
    kernels = pytest.importorskip("lpjepa.training._lars_kernels")
    monkeypatch.setattr(kernels, "CHUNK", 16)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = [(5, 3), (7,), (4, 2, 3, 3), (3, 3), (2, 2)]
    starts = [torch.randn(shape) for shape in shapes]
    starts[2] = starts[2].contiguous(memory_format=torch.channels_last)
    starts[3].zero_()
    both = [[torch.nn.Parameter(start.to(device, copy=True)) for start in starts] for _ in range(2)]
    plain, fused = (LARS(params, lr=torch.tensor(0.3, device=device), clip=clip) for params in both)
    monkeypatch.setattr(plain, "_move_by_kernels", lambda group, params: False)
    table = kernels.build_table(both[1], True)
    for step in range(4):
        found_inf = torch.tensor(float(step == 2), device=device)
        for mine, other in zip(*both):
            mine.grad = torch.randn_like(mine)
            if step == 2:
                mine.grad[0] = torch.inf
            other.grad = mine.grad.clone()
        both[0][4].grad.zero_()
        both[1][4].grad.zero_()
        plain.found_inf = found_inf
        plain.step()
        for p in both[1]:
            fused.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        velocities = [fused.state[p]["momentum_buffer"] for p in both[1]]
        assert kernels.applies(both[1], velocities)
        kernels.move(table, both[1], velocities, fused.param_groups[0], found_inf)
        for mine, other in zip(*both):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
            assert mine.isfinite().all()


def test_kernels_refuse_what_they_would_misread():
    kernels = pytest.importorskip("lpjepa.training._lars_kernels")
    p = torch.nn.Parameter(torch.randn(4, 2, 3, 3))
    p.grad = torch.randn(4, 2, 3, 3)
    assert kernels.applies([p], [torch.zeros_like(p)])
    assert not kernels.applies([p], [torch.zeros(4, 2, 3, 3).contiguous(memory_format=torch.channels_last)])
    assert not kernels.applies([torch.nn.Parameter(p.detach().double())], [torch.zeros_like(p)])
    assert not kernels.applies([torch.nn.Parameter(p.detach()[:, :1])], [p.detach()[:, :1]])
