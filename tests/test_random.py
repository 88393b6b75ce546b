"""Counter-based randomness: reproducible, divisible, saved and restored, and of the right distribution."""

import copy

import numpy as np
import pytest
import scipy.stats
import torch

from lpjepa import _philox
from lpjepa._random import CounterSeed, mix, rand, randn, randn_blocks, sample_target
from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian

SEED = torch.tensor(1234)
# A correct sampler fails a Kolmogorov–Smirnov test at this level once in a million seeds; seeds are fixed.
LEVEL = 1e-6


def splitmix64(x):
    """The published finaliser in Python integers."""
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


@pytest.mark.parametrize("seed", [0, 1, -5, (1 << 63) - 1])
@pytest.mark.parametrize("stream", [0, 7, 1 << 40])
def test_mix_is_splitmix64_twice(seed, stream):
    expected = splitmix64((splitmix64(seed % (1 << 64)) + stream) % (1 << 64)) % (1 << 63)
    assert mix(torch.tensor(seed), stream).item() == expected
    assert mix(torch.tensor(seed), torch.tensor(stream)).item() == expected


def test_successive_seeds_differ_and_repeat_from_a_saved_state():
    counter = CounterSeed(7)
    first = [counter.next("cpu").item() for _ in range(5)]
    state = copy.deepcopy(counter.state_dict())
    later = [counter.next("cpu").item() for _ in range(5)]
    assert len(set(first + later)) == 10
    restored = CounterSeed(0)
    restored.load_state_dict(state)
    assert [restored.next("cpu").item() for _ in range(5)] == later
    assert [CounterSeed(7).next("cpu").item()] == first[:1]
    assert CounterSeed(8).next("cpu").item() != first[0]


def test_a_given_generator_takes_over_and_leaves_the_counter_alone():
    counter = CounterSeed()
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    drawn = [counter.next("cpu", generator).item() for _ in range(2)]
    assert drawn[0] != drawn[1]
    generator.set_state(state)
    assert [counter.next("cpu", generator).item() for _ in range(2)] == drawn
    assert counter.counter.item() == 0


def test_seeds_returned_earlier_do_not_change():
    counter = CounterSeed()
    first = counter.next("cpu")
    value = first.item()
    counter.next("cpu")
    assert first.item() == value


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_blocks_are_the_streams_one_by_one(dtype):
    blocks = randn_blocks(SEED, 4, (3, 5), stream=10, dtype=dtype)
    assert blocks.dtype == dtype
    for b in range(4):
        assert torch.equal(blocks[b], randn(SEED, (3, 5), stream=10 + b, dtype=dtype))
    assert torch.equal(randn_blocks(SEED, 2, (3, 5), stream=12, dtype=dtype), blocks[2:])


def test_draws_are_functions_of_seed_and_stream():
    for draw in (randn, rand):
        assert torch.equal(draw(SEED, (6,), 1), draw(SEED, (6,), 1))
        assert not torch.equal(draw(SEED, (6,), 1), draw(SEED, (6,), 2))
        assert not torch.equal(draw(SEED, (6,), 1), draw(SEED + 1, (6,), 1))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    randn(SEED, (6,), 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_normal_and_uniform_distributions():
    assert scipy.stats.kstest(randn(SEED, (20000,), 0).numpy(), "norm").pvalue > LEVEL
    uniform = rand(SEED, (20000,), 0)
    assert scipy.stats.kstest(uniform.numpy(), "uniform").pvalue > LEVEL
    assert uniform.min() > 0
    assert uniform.max() < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "target",
    [
        GeneralizedGaussian(0.3, 0.7, 1.0),
        GeneralizedGaussian(-0.2, 1.1, 2.0),
        GeneralizedGaussian(0.0, 1.0, 0.5),
        RectifiedGeneralizedGaussian(-0.5, 0.7, 1.0),
    ],
    ids=["laplace", "normal", "p=0.5", "rectified"],
)
def test_target_samples_follow_the_target(target, dtype):
    shape = (2, 3000, 2)
    sample = sample_target(SEED, target, shape, dtype=dtype)
    assert sample.shape == shape
    assert sample.dtype == dtype
    check_distribution(sample, target)
    assert torch.equal(sample, sample_target(SEED, target, shape, dtype=dtype))
    assert not torch.equal(sample[0], sample[1])


def check_distribution(sample, target):
    """Kolmogorov–Smirnov above the atom at zero, and the share of the atom itself."""
    flat = sample.flatten().double().numpy()
    reference = scipy.stats.gennorm(
        target.p.item(),
        loc=target.loc.item(),
        scale=target.scale.item() * target.p.item() ** (1 / target.p.item()),
    )
    if isinstance(target, RectifiedGeneralizedGaussian):
        atom = reference.cdf(0)
        assert scipy.stats.binomtest(int((flat == 0).sum()), flat.size, atom).pvalue > LEVEL
        flat = flat[flat > 0]
        cdf = lambda x: (reference.cdf(x) - atom) / (1 - atom)
    else:
        cdf = reference.cdf
    assert scipy.stats.kstest(flat, cdf).pvalue > LEVEL


def test_a_target_with_a_parameter_for_each_dimension():
    target = GeneralizedGaussian(torch.tensor([-10.0, 0.0, 10.0]), 1.0, 1.0)
    sample = sample_target(SEED, target, (2, 400, 3))
    torch.testing.assert_close(sample.mean((0, 1)), target.loc, atol=0.3, rtol=0)


def test_any_distribution_with_quantiles_can_be_a_target():
    sample = sample_target(SEED, torch.distributions.Exponential(2.0), (5000,))
    assert scipy.stats.kstest(sample.numpy(), scipy.stats.expon(scale=0.5).cdf).pvalue > LEVEL


def test_a_distribution_without_quantiles_is_a_clear_error():
    with pytest.raises(ValueError, match=r"target Poisson cannot be sampled.*target_samples"):
        sample_target(SEED, torch.distributions.Poisson(2.0), (5,))


def test_compiles_as_one_graph_and_advances():
    counter, reference = CounterSeed(1), CounterSeed(1)
    target = RectifiedGeneralizedGaussian(-0.5, 0.7, 1.0)

    def draw(counter):
        seed = counter.next("cpu")
        return randn(seed, (4, 3), 0), rand(seed, (4,), 1), sample_target(seed, target, (4, 3))

    torch.compiler.reset()
    compiled = torch.compile(draw, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        for a, b in zip(compiled(counter), draw(reference)):
            assert torch.equal(a, b)
    assert counter.counter.item() == 3


# The torch fallback for GPUs without triton, called directly.


def test_philox_known_answers():
    """Vectors published with the generator (Random123's kat_vectors, philox4x32-10)."""
    zero = _philox.words(torch.tensor(0), 1)
    assert [int(w) for w in zero] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_philox_key_and_counter_words():
    """numpy's Philox is 4x64; torch's own CUDA generator cannot run here, so a plain Python version."""

    def philox(key, counter):
        k0, k1 = key & 0xFFFFFFFF, key >> 32
        c = list(counter)
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        return c

    key = 0x299F31D0A4093822
    drawn = torch.stack(_philox.words(torch.tensor(key), 50, sequence=9), dim=-1)
    assert drawn.tolist() == [philox(key, (i, 0, 9, 0)) for i in range(50)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_philox_normal_and_uniform(dtype):
    keys = mix(SEED, torch.arange(3))
    normal = _philox.normal(keys, (4001, 2), dtype)
    assert normal.shape == (3, 4001, 2)
    assert torch.equal(normal[1], _philox.normal(keys[1], (4001, 2), dtype))
    assert scipy.stats.kstest(normal.flatten().numpy(), "norm").pvalue > LEVEL
    # Box–Muller makes four numbers of one counter: neighbours must still be uncorrelated.
    neighbours = normal.flatten()[: 4 * 6000].view(-1, 4).numpy()
    assert np.abs(np.corrcoef(neighbours.T) - np.eye(4)).max() < 0.07
    assert np.abs(np.corrcoef(neighbours.T**2) - np.eye(4)).max() < 0.07
    uniform = _philox.uniform(keys[0], (20001,), dtype)
    assert uniform.dtype == dtype
    assert scipy.stats.kstest(uniform.numpy(), "uniform").pvalue > LEVEL


def test_philox_uniform_stays_inside_the_open_interval():
    ends = torch.tensor([0, 0xFFFFFFFF])
    for dtype in (torch.float32, torch.float64):
        low, high = _philox._open_interval(ends, dtype)
        assert low > 0
        assert high < 1


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
def test_philox_generalized_gaussian(p, rectified):
    kind = RectifiedGeneralizedGaussian if rectified else GeneralizedGaussian
    target = kind(-0.4, 0.8, p)
    sample = _philox.generalized_gaussian(
        mix(SEED, 0), target.loc, target.scale, target.p, rectified, (100, 120), torch.float32
    )
    check_distribution(sample, target)


def test_philox_rejects_what_marsaglia_and_tsang_reject():
    """Only a few percent of the proposals are rejected: enough numbers to see them missing."""
    zero, one, p = torch.tensor(0.0), torch.tensor(1.0), torch.tensor(3.0)
    sample = _philox.generalized_gaussian(mix(SEED, 0), zero, one, p, False, (300000,), torch.float64)
    assert scipy.stats.kstest(sample.numpy(), scipy.stats.gennorm(3, scale=3 ** (1 / 3)).cdf).pvalue > LEVEL
