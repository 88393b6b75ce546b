"""Views as a whole: distributions of their parameters, reproducibility, shapes, bad input."""

import pytest
import torch
from scipy import stats

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.data import DataError, ViewConfig, Views, draw_parameters

declare_missing_ops()
from torchvision.transforms import RandomResizedCrop  # noqa: E402

PIXELS = torch.randint(0, 256, (12, 3, 10, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("shape", "scale", "ratio"),
    [
        ((32, 32), (0.2, 1.0), (3 / 4, 4 / 3)),
        ((40, 90), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((20, 200), (0.6, 1.0), (3 / 4, 4 / 3)),  # too wide: mostly the central fallback
        ((200, 20), (0.6, 1.0), (3 / 4, 4 / 3)),
    ],
)
def test_crops_are_distributed_as_torchvisions(shape, scale, ratio):
    count = 1500
    config = ViewConfig(crop_scale=scale, crop_ratio=ratio, num_views=1)
    p = draw_parameters(count, config, shape, torch.Generator().manual_seed(0))
    image = torch.empty(3, *shape)
    torch.manual_seed(1)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(count)]
    )
    for name, column in zip(("top", "left", "height", "width"), theirs.T):
        ours = getattr(p, name)[0]
        assert stats.ks_2samp(ours.numpy(), column.numpy()).pvalue > 1e-3, name
        assert torch.equal(ours, ours.round())
    assert min(p.top.min(), p.left.min()) >= 0
    assert (p.top + p.height).max() <= shape[0]
    assert (p.left + p.width).max() <= shape[1]


def test_colour_parameters_are_distributed_as_asked():
    config = ViewConfig(num_views=2, blur=0.5)
    p = draw_parameters(6000, config, (32, 32), torch.Generator().manual_seed(0))
    for name, probability in (
        ("flip", 0.5), ("jitter", 0.8), ("grey", 0.2), ("blur", 0.5), ("solarize", 0.1)
    ):  # fmt: skip
        assert getattr(p, name).float().mean().item() == pytest.approx(probability, abs=0.015), name
    ranges = [(0.6, 1.4), (0.6, 1.4), (0.8, 1.2), (-0.1, 0.1)]
    for operation, (low, high) in enumerate(ranges):
        factor = p.factors[..., operation].flatten().numpy()
        assert stats.kstest(factor, "uniform", (low, high - low)).pvalue > 1e-3
    assert stats.kstest(p.sigma.flatten().numpy(), "uniform", (0.1, 1.9)).pvalue > 1e-3
    places = (p.order * torch.tensor([1, 4, 16, 64])).sum(-1).flatten()
    counts = torch.unique(places, return_counts=True)[1]
    assert len(counts) == 24  # all orders, equally often
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    # independent of each other: views, and different draws for the same image
    assert abs(torch.corrcoef(torch.stack([p.width[0], p.width[1]]))[0, 1]) < 0.05


def test_views_are_a_function_of_the_seed():
    views = Views(ViewConfig(size=8, num_views=3, blur=0.5))
    seed = torch.tensor(11)
    first = views(PIXELS, seed)
    assert first.shape == (3, 12, 3, 8, 8)
    assert first.dtype == torch.float32
    assert torch.equal(first, views(PIXELS, seed))
    assert not torch.equal(first, views(PIXELS, torch.tensor(12)))
    assert not torch.equal(first[0], first[1])
    same = [views(PIXELS, torch.Generator().manual_seed(4)) for _ in range(2)]
    assert torch.equal(*same)


def test_processes_make_together_the_views_of_one():
    views = Views(ViewConfig(size=8, blur=0.5))
    seed = torch.tensor(3)
    together = torch.cat([views(PIXELS[4 * r : 4 * r + 4], seed, part=(r, 3)) for r in range(3)], 1)
    torch.testing.assert_close(together, views(PIXELS, seed), atol=1e-5, rtol=0)


def test_normalisation_and_range():
    config = ViewConfig(size=8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0), jitter_prob=0, grey=0, solarize=0)
    views = Views(config)
    white = views(torch.full((2, 3, 9, 9), 255, dtype=torch.uint8), torch.tensor(0))
    expected = torch.tensor([0.9 / 0.5, 0.8 / 0.25, 0.7 / 2.0]).view(3, 1, 1).expand_as(white)
    torch.testing.assert_close(white, expected)


def test_autocast_does_not_coarsen_views():
    views = Views(ViewConfig(size=8))
    exact = views(PIXELS, torch.tensor(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(views(PIXELS, torch.tensor(1)), exact)


def test_the_form_for_devices_equals_the_eager_one(monkeypatch):
    views = Views(ViewConfig(size=9, blur=0.5))
    eager = views(PIXELS, torch.tensor(5))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(views(PIXELS, torch.tensor(5)), eager, atol=1e-5, rtol=0)


def test_views_trace_without_graph_breaks():
    views = Views(ViewConfig(size=8, blur=0.5))
    compiled = torch.compile(views, fullgraph=True, backend="aot_eager")
    seed = torch.tensor(9)
    torch.testing.assert_close(compiled(PIXELS, seed), views(PIXELS, seed), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "bad",
    [
        {"size": 0}, {"flip": 1.5}, {"crop_scale": (0.5, 0.2)}, {"crop_scale": (0.5, 1.2)}, {"hue": 0.6},
        {"interpolation": "nearest"}, {"std": (0.0, 1.0, 1.0)}, {"blur_sigma": (0.0, 1.0)}, {"num_views": 0},
    ],
)  # fmt: skip
def test_bad_settings_are_named(bad):
    with pytest.raises(DataError, match=next(iter(bad)).split("_views")[0]):
        ViewConfig(**bad)


def test_a_batch_in_which_no_image_is_blurred():
    """On the CPU only the chosen images are blurred; there may be none."""
    images = torch.randint(0, 256, (3, 3, 12, 12), dtype=torch.uint8)
    made = [
        Views(ViewConfig(size=8, blur=blur))(images, torch.Generator().manual_seed(1)) for blur in (1e-9, 0.0)
    ]
    assert torch.equal(*made)
