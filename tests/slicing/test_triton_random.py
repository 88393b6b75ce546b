"""Target samples drawn on the GPU: four numbers share one counter of the generator."""

import pytest
import scipy.stats
import torch

pytest.importorskip("triton")

from lpjepa.slicing._triton import random

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNT = 2**16


def samples(p, shape=(COUNT,), stream=3):
    zero, one, power = (torch.tensor(value, device=DEVICE) for value in (0.0, 1.0, p))
    seed = torch.tensor(2**40 + 7, device=DEVICE)
    return (
        random.generalized_gaussian(seed, zero, one, power, False, shape, stream, torch.float32)
        .cpu()
        .double()
    )


@pytest.fixture(scope="module", params=[1.0, 2.0])
def drawn(request):
    """The law, and samples of it. The paper's density is proportional to exp(−|x|^p / p)."""
    p = request.param
    return (scipy.stats.laplace if p == 1.0 else scipy.stats.norm), samples(p)


def test_law_and_moments(drawn):
    law, x = drawn
    assert scipy.stats.kstest(x.numpy(), law.cdf).pvalue > 1e-3
    # E x^k: k! for Laplace's, (k - 1)!! for the normal law, 0 for odd k.
    even = {2: 2, 4: 24, 6: 720, 8: 40320} if law is scipy.stats.laplace else {2: 1, 4: 3, 6: 15, 8: 105}
    for power in (1, 2, 3, 4):
        mean = even.get(power, 0)
        variance = even[2 * power] - mean**2
        assert abs((x**power).mean().item() - mean) < 4.5 * (variance / COUNT) ** 0.5


def test_each_word_of_a_counter_follows_the_law(drawn):
    law, x = drawn
    for lane in x.reshape(-1, 4).T:
        assert scipy.stats.kstest(lane.numpy(), law.cdf).pvalue > 1e-4


def test_numbers_of_a_counter_and_of_neighbours_are_independent(drawn):
    """Neither values nor magnitudes nor signs of numbers up to nine places apart are correlated."""
    _, x = drawn
    for feature in (x, x.abs(), x.sign()):
        centred = (feature - feature.mean()) / feature.std()
        for lag in range(1, 10):
            assert abs((centred[lag:] * centred[:-lag]).mean().item()) < 5 / COUNT**0.5


def test_sign_is_independent_of_magnitude(drawn):
    _, x = drawn
    positive, negative = x[x > 0], -x[x < 0]
    assert scipy.stats.ks_2samp(positive.numpy(), negative.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("p", [1.0, 2.0, 0.7])
def test_numbers_do_not_depend_on_how_many_are_drawn(p):
    few, more = samples(p, (1030,)), samples(p, (3, 700))
    assert torch.equal(few, more.flatten()[:1030])
    assert not torch.equal(few, samples(p, (1030,), stream=4))
