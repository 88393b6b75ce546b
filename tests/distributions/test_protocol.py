"""The protocol of `torch.distributions`: shapes, dtypes, expand, Independent, compile."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.distributions import Independent

from lpjepa.distributions import (
    GeneralizedGaussian,
    RectifiedGeneralizedGaussian,
    TruncatedGeneralizedGaussian,
)

CLASSES = [GeneralizedGaussian, TruncatedGeneralizedGaussian, RectifiedGeneralizedGaussian]


@pytest.mark.parametrize("cls", CLASSES)
def test_shapes_broadcast(cls):
    d = cls(torch.zeros(3, 1), torch.ones(4), torch.tensor(1.5))
    assert d.batch_shape == (3, 4)
    assert d.event_shape == ()
    assert d.has_rsample
    for value in (d.mean, d.variance, d.stddev, d.mode, d.entropy(), d.loc, d.scale, d.p):
        assert value.shape == (3, 4)
    assert d.sample((2, 5)).shape == (2, 5, 3, 4)
    x = torch.rand(6, 3, 4)
    for value in (d.log_prob(x), d.cdf(x), d.icdf(x), d.log_prob(torch.tensor(0.5)).expand(6, 3, 4)):
        assert value.shape == (6, 3, 4)
    assert cls(0.0, 1.0, 2.0).sample().shape == ()


@pytest.mark.parametrize("cls", CLASSES)
def test_expand_gives_the_same_distribution(cls):
    d = cls(torch.tensor([0.3, -1.0]), 0.7, 1.4)
    e = d.expand((5, 2))
    assert type(e) is cls
    assert e.batch_shape == (5, 2)
    x = torch.rand(5, 2)
    torch.testing.assert_close(e.log_prob(x), d.log_prob(x))
    torch.testing.assert_close(e.mean, d.mean.expand(5, 2))
    assert torch.equal(
        e.sample(generator=torch.Generator().manual_seed(0)),
        d.sample((5,), generator=torch.Generator().manual_seed(0)),
    )


@pytest.mark.parametrize("cls", CLASSES)
def test_independent_products_add_up(cls):
    d = cls(torch.tensor([0.1, 0.2, 0.3]), 1.0, 1.5)
    product = Independent(d, 1)
    x = product.rsample((4,))
    assert product.event_shape == (3,)
    torch.testing.assert_close(product.log_prob(x), d.log_prob(x).sum(-1))
    torch.testing.assert_close(product.entropy(), d.entropy().sum(-1))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_and_float32_is_as_good_as_it_can_be(cls, dtype):
    loc = torch.tensor([-3.0, 0.5], dtype=dtype)
    d, wide = cls(loc, 0.7, 1.5), cls(loc.double(), loc.new_tensor(0.7).double(), 1.5)
    x = torch.tensor([0.2, 1.1], dtype=dtype)
    q = torch.tensor([0.3, 0.99], dtype=dtype)
    pairs = [
        (d.log_prob(x), wide.log_prob(x.double())),
        (d.cdf(x), wide.cdf(x.double())),
        (d.icdf(q), wide.icdf(q.double())),
        (d.mean, wide.mean),
        (d.variance, wide.variance),
        (d.entropy(), wide.entropy()),
    ]
    for value, reference in pairs:
        assert value.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(value, reference.to(dtype), rtol=16 * eps, atol=eps)
    assert d.rsample().dtype == dtype


def test_mixed_exponents_in_one_tensor():
    p = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    together = RectifiedGeneralizedGaussian(-0.3, torch.ones(4, dtype=torch.float64), p)
    for i, one in enumerate(p):
        alone = RectifiedGeneralizedGaussian(-0.3, torch.ones((), dtype=torch.float64), one)
        assert torch.equal(together.mean[i], alone.mean)
        assert torch.equal(together.entropy()[i], alone.entropy())
    samples = together.sample((100_000,))
    error = together.stddev / 100_000**0.5
    assert ((samples.mean(0) - together.mean).abs() < 5 * error).all()


@pytest.mark.parametrize("cls", CLASSES)
def test_compiles_without_graph_breaks(cls):
    def everything(x, loc, scale, p):
        d = cls(loc, scale, p)
        exact = (d.log_prob(x), d.cdf(x), d.icdf(x), d.mean, d.variance, d.entropy(), d.mode)
        return exact, d.rsample((3,))

    loc, scale, p = (torch.tensor(v) for v in ([-0.5, 0.2], [1.0, 2.0], [1.5, 2.0]))
    x = torch.rand(4, 2)
    torch._dynamo.reset()
    exact, sample = torch.compile(everything, fullgraph=True, backend="eager")(x, loc, scale, p)
    expected, _ = everything(x, loc, scale, p)
    for value, reference in zip(exact, expected):
        torch.testing.assert_close(value, reference)
    assert sample.shape == (3, 2)


def test_compiles_with_gradients_and_direct_sampling():
    target = RectifiedGeneralizedGaussian(-0.5, 1.0, 1.0)

    def loss(x, loc):
        d = RectifiedGeneralizedGaussian(loc, 1.0, 1.5)
        return (
            d.log_active_probability
            + d.cdf(x).sum()
            + target.sample((4,)).sum() * 0
            + target.log_prob(x).sum()
        )

    loc, x = torch.tensor(-0.2, requires_grad=True), torch.rand(5)
    torch._dynamo.reset()
    value = torch.compile(loss, fullgraph=True, backend="aot_eager")(x, loc)
    (grad,) = torch.autograd.grad(value, loc)
    (expected,) = torch.autograd.grad(loss(x, loc), loc)
    torch.testing.assert_close(grad, expected)


@pytest.mark.gpu
def test_cuda_agrees_with_cpu_and_samples_there():
    loc, p = torch.tensor([-1.0, 0.3], dtype=torch.float64), torch.tensor([0.7, 2.0], dtype=torch.float64)
    for cls in CLASSES:
        cpu, cuda = cls(loc, 1.1, p), cls(loc.cuda(), 1.1, p.cuda())
        x = torch.rand(5, 2, dtype=torch.float64)
        for here, there in (
            (cpu.log_prob(x), cuda.log_prob(x.cuda())),
            (cpu.cdf(x), cuda.cdf(x.cuda())),
            (cpu.icdf(x), cuda.icdf(x.cuda())),
            (cpu.mean, cuda.mean),
            (cpu.variance, cuda.variance),
            (cpu.entropy(), cuda.entropy()),
        ):
            torch.testing.assert_close(there.cpu(), here, rtol=1e-10, atol=1e-12)
        assert cuda.sample((3,)).is_cuda


@pytest.mark.parametrize("cls", CLASSES)
def test_whole_numbers_and_numpy_numbers(cls):
    # An integer tensor would turn the other parameters into integers: a scale of 0.7 would be 0.
    with pytest.raises(TypeError, match=r"loc is a tensor of torch\.int64"):
        cls(torch.tensor(0), 0.7, 1.5)
    expected = cls(0.0, 0.5, 1.5).mean
    assert torch.equal(cls(0, np.float32(0.5), np.float64(1.5)).mean, expected)


@pytest.mark.parametrize("cls", CLASSES)
def test_copies_are_equal(cls):
    d = cls(torch.tensor([0.3, -1.0]), 0.7, 1.4)
    for twin in (copy.deepcopy(d), pickle.loads(pickle.dumps(d))):
        assert torch.equal(twin.mean, d.mean)
        draws = [x.sample((3,), generator=torch.Generator().manual_seed(0)) for x in (d, twin)]
        assert torch.equal(*draws)
