"""The kernel that sorts and compares projections, at the sizes it is meant for.

Projections are given, so that Triton's interpreter, where there is no GPU, has few programs to run.
"""

import math

import pytest
import torch

pytest.importorskip("triton")

from lpjepa.slicing import _triton
from lpjepa.slicing._triton import layout, matching
from lpjepa.slicing._triton.layout import Layout
from lpjepa.slicing._triton.sorting import wasserstein2_kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def matched(z_KVN, y_KVN):
    """Losses (V, K), and differences from the matched targets (K, V, N), by the kernel."""
    slices, views, n = z_KVN.shape
    sizes = Layout(views, n, 64, slices, sides=2)
    p = torch.full((slices, views, 2, sizes.pitch), math.nan, device=DEVICE)
    p[:, :, 0, :n], p[:, :, 1, :n] = z_KVN, y_KVN
    # Differences are at most twice the bound, and scaled to at most 2^14 times it.
    bound = 2.0 ** math.ceil(math.log2(p[..., :n].abs().max()))
    bound_bits = torch.tensor([bound], device=DEVICE).view(torch.int32)
    loss_VK = torch.empty(views, slices, device=DEVICE)
    wasserstein2_kernel[(slices, views)](
        p, p.view(torch.float16), loss_VK, loss_VK, bound_bits, n, sizes.pitch, views, slices, 0,
        WEIGHTED=False, GRADIENT=True, FULL=n == 2**sizes.log_n, LOG_N=sizes.log_n, LOG_WARPS=sizes.log_warps,
        num_warps=2**sizes.log_warps, maxnreg=sizes.registers,
    )  # fmt: skip
    slope = p.view(torch.float16)[:, :, 0, :n].double() * (bound / 2**13)
    return loss_VK, slope


def by_sorting(z_KVN, y_KVN):
    """The same in float64, through torch.sort."""
    z = z_KVN.double().sort(dim=-1, stable=True)
    difference = z.values - y_KVN.double().sort(dim=-1).values
    slope = torch.zeros_like(difference).scatter_(-1, z.indices, difference)
    return difference.square().mean(dim=-1).T, slope


def projections(slices, n, where):
    """Features and targets of one view: of another distribution, of the same one, or heavy-tailed ones."""
    generator = torch.Generator().manual_seed(n)
    z, y = torch.randn((2, slices, 1, n), generator=generator)
    if where == "far":
        z = 1.5 * z.abs() - 0.3
    if where == "heavy":  # Student's t with two degrees of freedom, whose variance is infinite
        chi = torch.empty(2, slices, 1, n).exponential_(generator=generator).sqrt()
        z, y = z / chi[0], y / chi[1]
    return z.to(DEVICE), y.to(DEVICE)


# One warp, and two, four and sixteen of them; whole blocks, and blocks with padding.
@pytest.mark.parametrize(
    ("n", "where"),
    [(n, where) for n in (1, 33, 256, 1000, 2048, 3001, 4096, 16384) for where in ("far", "near")]
    + [(1000, "heavy"), (4096, "heavy")],
)
def test_sorted_projections_are_matched(n, where):
    z, y = projections(2 if n > 256 else 3, n, where)
    loss, slope = matched(z, y)
    expected_loss, expected = by_sorting(z, y)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-3, atol=1e-7)
    # Far away only the float16 gradient shows. Near the target, samples do that are closer than a level of
    # their keys (2^18 for 16,384 samples) and were taken in the other order.
    bound = 1e-3 if where == "far" else 5e-3 if n <= 4096 else 1e-2
    assert ((slope - expected).norm() / expected.norm()).item() < bound


@pytest.mark.parametrize("n", [1000, 3001])
def test_every_sample_has_one_place_and_the_same_one_each_time(n):
    z, y = projections(1, n, "near")
    z = (z * 4).round() / 4  # many ties
    loss, slope = matched(z, y)
    # Ties keep the samples' order, so that exactly the differences of a stable sort come out.
    torch.testing.assert_close(slope, by_sorting(z, y)[1], rtol=1e-3, atol=1e-3)
    again = matched(z, y)
    assert torch.equal(loss, again[0])
    assert torch.equal(slope, again[1])


def test_slices_and_views_keep_apart():
    """None may see another's scale."""
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn((2, 4, 2, 60), generator=generator).to(DEVICE)
    scale = torch.tensor([1.0, 1e-3, 30.0, 1e-2], device=DEVICE)[:, None, None]
    together = matched(z * scale, y * scale)[0]
    alone = torch.stack(
        [
            matched(z[k : k + 1, v : v + 1], y[k : k + 1, v : v + 1])[0][0, 0]
            for v in range(2)
            for k in range(4)
        ]
    ).reshape(2, 4)
    torch.testing.assert_close(together, alone * scale.flatten() ** 2, rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with numpy
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["features", "targets"])
def test_one_bad_number_shows_in_its_slice_alone(side, bad):
    z, y = projections(2, 40, "near")
    (z if side == "features" else y)[1, 0, 7] = bad
    p = torch.stack([z, y], dim=2)
    loss = torch.empty(1, 2, device=DEVICE)
    p = torch.nn.functional.pad(p, (0, 8))
    bound = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    wasserstein2_kernel[(2, 1)](
        p, p.view(torch.float16), loss, loss, bound, 40, 48, 1, 2, 0,
        WEIGHTED=False, GRADIENT=False, FULL=False, LOG_N=6, LOG_WARPS=0, num_warps=1,
    )  # fmt: skip
    assert loss[0, 0].isfinite()
    assert not loss[0, 1].isfinite()


def drawn_gradient(seed):
    generator = torch.Generator().manual_seed(3)
    z, y = torch.randn((2, 2, 20, 12), generator=generator).to(DEVICE)
    return _triton.random_wasserstein2(z, y, torch.tensor(seed, device=DEVICE), 0, 5, 1.0, True)


@pytest.fixture
def replanned():
    """Plans are kept by shape, and those of a layout that a test changed must not be."""
    yield matching._wasserstein2_plan.cache_clear
    matching._wasserstein2_plan.cache_clear()


def test_chunks_of_slices_add_up(monkeypatch, replanned):
    value, gradient = drawn_gradient(11)
    monkeypatch.setattr(Layout, "chunk", 2)
    replanned()
    by_chunks = drawn_gradient(11)
    torch.testing.assert_close(by_chunks[0], value, rtol=1e-6, atol=0)
    torch.testing.assert_close(by_chunks[1], gradient, rtol=1e-5, atol=1e-6)


def test_one_view_at_a_time_and_larger_blocks_change_nothing(monkeypatch, replanned):
    """What large shapes take, at a small one."""
    value, gradient = drawn_gradient(12)
    monkeypatch.setattr(layout, "ENOUGH_BLOCKS", 1)
    monkeypatch.setattr(Layout, "chunk", 3)
    replanned()
    assert Layout(2, 20, 12, 5, sides=2).group == 1
    by_view = drawn_gradient(12)
    torch.testing.assert_close(by_view[0], value, rtol=1e-6, atol=0)
    torch.testing.assert_close(by_view[1], gradient, rtol=1e-5, atol=1e-6)
