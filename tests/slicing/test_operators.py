"""The functions that run where only autograd looks on are the operators that all others see."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lpjepa import _random
from lpjepa._operators import unobserved
from lpjepa._random import CounterSeed, mix, sample_target
from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.losses import RDMReg, SIGReg
from lpjepa.slicing import _backend, sliced_discrepancy


class Seen(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_who_looks_on():
    x = torch.zeros(2)
    assert unobserved(x)
    assert unobserved(torch.nn.Parameter(x))
    assert not unobserved(x.as_subclass(Subclass))
    with Seen():
        assert not unobserved(x)
    seen = []
    torch.func.vmap(lambda row: seen.append(unobserved(row)) or row)(x)
    torch.jit.trace(lambda row: seen.append(unobserved(row)) or row + 1, (x,), check_trace=False)
    assert seen == [False, False]


def problem():
    z, y = torch.randn(2, 2, 6, 4)
    return z, torch.nn.functional.normalize(torch.randn(5, 4), dim=-1), y


def test_both_ways_give_the_same_bits():
    z, c, y = problem()
    direct, observed = z.clone().requires_grad_(), z.clone().requires_grad_()
    value = sliced_discrepancy(direct, c, y)
    with Seen() as seen:
        expected = sliced_discrepancy(observed, c, y)
    assert {"lpjepa::sliced_matching", "lpjepa::known_gradient"} <= seen.names
    (3 * value).backward()
    (3 * expected).backward()
    assert torch.equal(value, expected)
    assert torch.equal(direct.grad, observed.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_gradients_have_the_type_of_the_features(dtype):
    z, c, y = problem()
    z = z.to(dtype).requires_grad_()
    sliced_discrepancy(z, c, y).backward()
    assert z.grad.dtype == dtype


def test_without_gradient_there_is_no_graph():
    z, c, y = problem()
    assert not sliced_discrepancy(z, c, y).requires_grad
    with torch.no_grad():
        assert not sliced_discrepancy(z.requires_grad_(), c, y).requires_grad
    with torch.inference_mode():
        assert not sliced_discrepancy(z, c, y).requires_grad


@pytest.mark.parametrize("observed", [False, True])
def test_a_second_derivative_is_refused(observed):
    z, c, y = problem()
    z.requires_grad_()
    if observed:
        with Seen():
            value = sliced_discrepancy(z, c, y)
    else:
        value = sliced_discrepancy(z, c, y)
    (gradient,) = torch.autograd.grad(value.square(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.fixture
def by_kernels(monkeypatch):
    """Draws and losses as on a GPU, by Triton's interpreter."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("kernels take CPU tensors when interpreted")
    monkeypatch.setattr(_random, "_direct", unobserved)
    monkeypatch.setattr(_backend, "_kernels", lambda z_VND: _backend._import_kernels())
    for operator in (_random._next_key, _random._generalized_gaussian):
        monkeypatch.setitem(operator._backend_fns, "cpu", operator._backend_fns["cuda"])


def test_keys_and_samples_are_those_of_the_operators(by_kernels):
    direct, observed = CounterSeed(5), CounterSeed(5)
    for step in range(2):
        key = direct.next("cpu")
        assert key == mix(torch.tensor(5), step)
        with Seen() as seen:
            assert observed.next("cpu") == key
        assert "lpjepa::next_key" in seen.names
    for target in (RectifiedGeneralizedGaussian(-0.3, 0.8, 1.0), GeneralizedGaussian(0.1, 1.0, 3.0)):
        sample = sample_target(key, target, (3, 5))
        with Seen() as seen:
            assert torch.equal(sample_target(key, target, (3, 5)), sample)
        assert "lpjepa::generalized_gaussian" in seen.names


def test_samples_follow_parameters_that_change_in_place(by_kernels):
    target, seed = (
        GeneralizedGaussian(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2.0)),
        torch.tensor(3),
    )
    before = sample_target(seed, target, (50,))
    target.loc.add_(10.0)
    torch.testing.assert_close(sample_target(seed, target, (50,)), before + 10.0)


def test_parameters_in_memory_and_as_numbers_are_the_same(by_kernels):
    from lpjepa.slicing._triton import random

    seed, numbers = torch.tensor(3), (0.3, 0.8, 1.5)
    tensors = [torch.tensor(number) for number in numbers]
    rest = (True, (40,), 1 << 40, torch.float32)
    # Rounded to float32, as the tensors are.
    as_numbers = random.generalized_gaussian(seed, *(x.item() for x in tensors), *rest)
    assert torch.equal(as_numbers, random.generalized_gaussian(seed, *tensors, *rest))
    assert as_numbers.min() == 0


@pytest.mark.parametrize("regularizer", [RDMReg, SIGReg])
def test_losses_on_a_gpu_are_the_same_both_ways(by_kernels, regularizer):
    settings = {"target": RectifiedGeneralizedGaussian(-0.3, 0.8, 1.0)} if regularizer is RDMReg else {}
    features = torch.randn(2, 6, 5)
    results = []
    for observed in (False, True):
        criterion, z = regularizer(num_slices=3, **settings), features.clone().requires_grad_()
        if observed:
            with Seen() as seen:
                loss = criterion(z)
        else:
            loss = criterion(z)
        loss.backward()
        results.append((loss.detach(), z.grad, criterion.random.counter))
    assert all(map(torch.equal, *results))
    assert seen.names & {"lpjepa::random_matching", "lpjepa::drawn_epps_pulley"}
