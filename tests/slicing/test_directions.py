"""Directions: unit norm, orthonormality, uniformity, eigenvectors against numpy, shares, mixtures, errors."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import torch

from lpjepa._random import CounterSeed
from lpjepa.slicing import DirectionPlan, parse_directions, sliced_discrepancy

SEED = torch.tensor(99)
OF_SEED = ["random", "orthogonal", "hadamard"]
KINDS = [*OF_SEED, "eigen", "bottom_eigen"]


def features(views=2, n=24, dim=40, dtype=torch.float64):
    return torch.randn(views, n, dim, dtype=dtype) * torch.linspace(0.5, 3, dim, dtype=dtype) + 1


def draw(spec, num_slices, z=None, **kwargs):
    z = features() if z is None else z
    return parse_directions(spec, num_slices).draw(z, SEED, **kwargs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_unit_norm_and_type(kind, dtype):
    c, _ = draw(kind, 300, features(dtype=dtype))
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert c.dtype == expected
    assert c.shape[-2:] == (300, 40)
    norms = c.norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms), atol=1e-5, rtol=0)
    assert not c.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_decide(kind):
    plan, z, seeds = parse_directions(kind, 60), features(), CounterSeed(1)
    first, second = seeds.next("cpu"), seeds.next("cpu")
    assert torch.equal(plan.draw(z, first).c, plan.draw(z, first).c)
    assert not torch.equal(plan.draw(z, first).c[..., -1, :], plan.draw(z, second).c[..., -1, :])


@pytest.mark.parametrize("dim", [3, 40, 64])
@pytest.mark.parametrize("kind", ["orthogonal", "hadamard"])
def test_blocks_are_orthonormal(kind, dim):
    c, _ = draw(kind, 2 * dim + dim // 2, features(dim=dim))
    for block in c.split(dim):
        gram = block @ block.T
        torch.testing.assert_close(gram, torch.eye(len(block), dtype=gram.dtype), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", OF_SEED)
@pytest.mark.parametrize("dim", [3, 33, 64])
def test_uniform_on_the_sphere(kind, dim):
    count = 40 * dim
    c, _ = draw(kind, max(count, 3000), features(dim=dim))
    size = len(c)
    error = 6 / np.sqrt(size)
    # E[c] = 0, E[c c'] = I/D, E[c_i⁴] = 3/(D(D+2)), E[c_i² c_j²] = 1/(D(D+2)).
    assert c.mean(0).abs().max() < error / np.sqrt(dim)
    assert (c.T @ c / size * dim - torch.eye(dim)).abs().max() < 1.5 * error
    fourth = c.pow(4).mean().item() * dim * (dim + 2) / 3
    assert fourth == pytest.approx(1, abs=0.03)
    cross = (c[:, 0] * c[:, 1]).square().mean().item() * dim * (dim + 2)
    assert cross == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize("kind", ["random", "orthogonal"])
@pytest.mark.parametrize("dim", [2, 3, 10])
def test_coordinates_follow_their_exact_law(kind, dim):
    """(1 + c_i)/2 of a uniform direction is Beta((D−1)/2, (D−1)/2)."""
    c, _ = draw(kind, 4000, features(dim=dim))
    law = scipy.stats.beta((dim - 1) / 2, (dim - 1) / 2)
    # One coordinate of one row of each block: independent draws.
    sample = (1 + (c if kind == "random" else c[::dim])[:, 0].numpy()) / 2
    assert scipy.stats.kstest(sample, law.cdf).pvalue > 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shares", [2, 3])
def test_shares_see_the_same_directions_and_weights(kind, shares):
    num_slices = 700
    z = features()
    plan = parse_directions(kind, num_slices)
    whole = plan.draw(z, SEED)
    edges = [num_slices * r // shares for r in range(shares + 1)]
    parts = [plan.draw(z, SEED, lo, hi) for lo, hi in pairwise(edges)]
    torch.testing.assert_close(torch.cat([part.c for part in parts], dim=-2), whole.c)
    y = torch.randn(2, 24, 40, dtype=torch.float64)
    loss = lambda d: sliced_discrepancy(z, d.c, y, weight_VK=d.weight)
    torch.testing.assert_close(sum(loss(part) for part in parts), loss(whole))


def test_a_share_may_be_empty():
    for spec in ("random", {"eigen": 5, "random": 5}):
        empty = draw(spec, 10, lo=4, hi=4)
        assert empty.c.shape[-2] == 0
        z = features().requires_grad_()
        value = sliced_discrepancy(z, empty.c, features(), weight_VK=empty.weight)
        value.backward()
        assert value.item() == 0
        assert z.grad.abs().max() == 0


def singular_vectors(z):
    """Right singular vectors of each view's centred features by numpy, with their singular values."""
    x = z.numpy()
    _, s, vt = np.linalg.svd(x - x.mean(axis=1, keepdims=True), full_matrices=False)
    return s, torch.from_numpy(vt)


def assert_same_up_to_sign(c, expected, atol=1e-9):
    torch.testing.assert_close(
        (c * expected).sum(-1).abs(), torch.ones(c.shape[:-1], dtype=c.dtype), atol=atol, rtol=0
    )


@pytest.mark.parametrize(("n", "dim"), [(24, 40), (40, 24), (30, 30)])
def test_eigen_is_numpys_svd_then_random(n, dim):
    z = features(n=n, dim=dim)
    rank = min(n - 1, dim)
    c, weight = draw("eigen", 100, z)
    _, vt = singular_vectors(z)
    assert_same_up_to_sign(c[:, :rank], vt[:, :rank])
    assert torch.equal(c[0, rank:], c[1, rank:])
    assert torch.equal(c[0, rank:], draw("random", 100 - rank, z).c)
    torch.testing.assert_close(weight, torch.full((2, 100), 1 / 200, dtype=torch.float64))


@pytest.mark.parametrize(("n", "dim"), [(24, 40), (40, 24)])
def test_bottom_eigen_is_the_lower_half(n, dim):
    z = features(n=n, dim=dim)
    rank = min(n - 1, dim)
    c, _ = draw("bottom_eigen", 100, z)
    _, vt = singular_vectors(z)
    half = rank - rank // 2
    assert_same_up_to_sign(c[:, :half], vt[:, rank - half : rank].flip(1))
    assert torch.equal(c[:, half:], draw("random", 100 - half, z).c.expand(2, -1, -1))


def test_counted_eigenvectors_come_from_their_end_of_the_spectrum():
    z = features()
    _, vt = singular_vectors(z)
    assert_same_up_to_sign(draw({"eigen": 5}, 1, z).c, vt[:, :5])
    assert_same_up_to_sign(draw({"bottom_eigen": 15}, 1, z).c, vt[:, 8:23].flip(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "dim"), [(24, 40), (60, 40)])
def test_null_directions_do_not_count(n, dim, dtype):
    """View 0 has 6 dead coordinates and 3 copies; view 1 has full rank."""
    z = features(n=n, dim=dim, dtype=dtype)
    z[0, :, 10:] = 0
    z[0, :, 7:10] = z[0, :, :3]
    rank = 7
    c, weight = draw("eigen", 64, z)
    available = min(n - 1, dim)
    assert (weight[0, rank:available] == 0).all()
    assert (c[0, rank:available] == 0).all()
    counted = 64 - available + rank
    torch.testing.assert_close(weight[0, :rank], torch.full((rank,), 0.5 / counted, dtype=dtype))
    torch.testing.assert_close(weight[1], torch.full((64,), 0.5 / 64, dtype=dtype))
    torch.testing.assert_close(weight.sum(1), torch.full((2,), 0.5, dtype=dtype))
    assert_same_up_to_sign(c[:1, :rank].double(), singular_vectors(z[:1].double())[1][:, :rank], 1e-6)
    # The lower half of seven non-null directions is four.
    _, weight = draw("bottom_eigen", 64, z)
    assert (weight[0] > 0).sum() == 64 - (available - available // 2) + 4
    # The loss is the mean over directions that exist.
    y = torch.randn(2, n, dim, dtype=dtype)
    d = draw({"eigen": 20}, 1, z)
    expected = sum(sliced_discrepancy(z[v], d.c[v, :k], y[v]) for v, k in ((0, 7), (1, 20))) / 2
    torch.testing.assert_close(sliced_discrepancy(z, d.c, y, weight_VK=d.weight), expected)


def test_collapsed_features_have_no_eigenvectors():
    z = torch.ones(2, 8, 5)
    d = draw({"eigen": 5, "random": 3}, 1, z)
    assert (d.weight[:, :5] == 0).all()
    torch.testing.assert_close(d.weight[:, 5:], torch.full((2, 3), 1 / 6))
    assert draw({"eigen": 5}, 1, z).weight.sum() == 0


def test_eigenvectors_are_constants():
    z = features().requires_grad_()
    d = draw("eigen", 50, z)
    assert not d.c.requires_grad
    assert not d.weight.requires_grad


def test_axes_are_the_coordinates():
    z = features(dim=6)
    assert torch.equal(draw("axes", 6, z).c, torch.eye(6, dtype=torch.float64))
    some = draw({"axes": 4}, 1, z).c
    assert torch.equal(some.sum(1), torch.ones(4, dtype=torch.float64))
    assert len(set(some.argmax(1).tolist())) == 4
    subsets = {
        tuple(parse_directions({"axes": 4}, 1).draw(z, SEED + i).c.argmax(1).tolist()) for i in range(5)
    }
    assert len(subsets) > 1


def test_mixtures_are_their_parts_in_order():
    z = features()
    c, weight = draw({"axes": 40, "random": 300, "orthogonal": 60}, 8192, z)
    assert torch.equal(c[:40], draw("axes", 40, z).c)
    assert torch.equal(c[40:340], draw("random", 300, z).c)
    assert torch.equal(c[340:], draw("orthogonal", 60, z).c)
    assert weight == pytest.approx(1 / 800)
    c, weight = draw({"random": 30, "bottom_eigen": 10}, 8192, z)
    assert c.shape == (2, 40, 40)
    assert torch.equal(c[0, :30], draw("random", 30, z).c)
    assert torch.equal(c[:, 30:], draw({"bottom_eigen": 10}, 1, z).c)


def test_axes_by_name_are_all_coordinates_then_random():
    z = features()
    c = draw("axes", 100, z).c
    assert torch.equal(c[:40], torch.eye(40, dtype=c.dtype))
    assert torch.equal(c[40:], draw("random", 60, z).c)


@pytest.mark.parametrize("kind", [*KINDS, "axes"])
def test_compiles_as_one_graph(kind):
    plan = parse_directions({kind: 20, "random": 12}, 1) if kind != "random" else parse_directions(kind, 32)
    z = features(dtype=torch.float32)
    seeds = CounterSeed(4)
    torch.compiler.reset()
    compiled = torch.compile(lambda z, s: plan.draw(z, s), fullgraph=True, backend="aot_eager")
    seed = seeds.next("cpu")
    torch.testing.assert_close(compiled(z, seed), plan.draw(z, seed))


@pytest.mark.parametrize(
    ("spec", "available"), [({"eigen": 24}, 23), ({"bottom_eigen": 30}, 23), ({"axes": 41}, 40)]
)
def test_more_than_there_are_is_an_error(spec, available):
    with pytest.raises(ValueError, match=f"has only {available}; ask for fewer"):
        draw(spec, 41)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("radial", ValueError, "'radial' is unknown; did you mean 'random'"),
        ({"radial": 3}, ValueError, "'radial' is unknown"),
        ({"random": 0}, ValueError, r"directions\['random'\] must be a whole number"),
        ({"random": True}, ValueError, "must be a whole number"),
        ({"random": 1.5}, ValueError, "must be a whole number"),
        ({}, TypeError, "must be a name or a mixture"),
        (7, TypeError, "must be a name or a mixture"),
    ],
)
def test_bad_specifications(spec, error, message):
    with pytest.raises(error, match=message):
        parse_directions(spec, 16)


@pytest.mark.parametrize("number", [0, -1, 8.0, True])
def test_at_least_one_slice(number):
    with pytest.raises(ValueError, match="num_slices must be a whole number of slices above 0"):
        parse_directions("random", number)


def test_counts_may_come_from_numpy():
    assert parse_directions("random", np.int64(8)) == parse_directions("random", 8)
    assert parse_directions({"axes": np.int32(3)}, 1) == parse_directions({"axes": 3}, 1)


def test_a_mixture_states_its_own_number_of_slices():
    assert parse_directions({"random": 7936, "bottom_eigen": 256}, 1) == DirectionPlan(
        (("random", 7936), ("bottom_eigen", 256)), 8192
    )
