"""Every operation of a view against torchvision's, kornia's and Pillow's on the same parameters."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.data import ViewConfig, apply_views, draw_parameters
from lpjepa.data._colour import grey, jitter, solarise, turn_hue
from lpjepa.data._separable import apply_separable, blur_weights, resize_weights

declare_missing_ops()
from torchvision.transforms.v2 import functional as F  # noqa: E402

MODES = {"bicubic": F.InterpolationMode.BICUBIC, "bilinear": F.InterpolationMode.BILINEAR}


@pytest.fixture
def images():
    return torch.rand(24, 3, 20, 26, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [7, 16, 33])
def test_crop_flip_resize_equal_torchvision(images, interpolation, size):
    generator = torch.Generator().manual_seed(2)
    config = ViewConfig(
        size=size, num_views=1, interpolation=interpolation, jitter_prob=0, grey=0, solarize=0
    )
    parameters = draw_parameters(24, config, (20, 26), generator)
    ours = apply_views(images, parameters, config)[0]
    for i in range(24):
        box = [int(getattr(parameters, name)[0, i]) for name in ("top", "left", "height", "width")]
        theirs = F.resized_crop(images[i], *box, [size, size], MODES[interpolation], antialias=True).clamp(
            0, 1
        )
        theirs = theirs.flip(-1) if parameters.flip[0, i] else theirs
        torch.testing.assert_close(ours[i], theirs, atol=3e-6, rtol=0)


def test_bicubic_kernel_is_pillows():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 31, 3), np.uint8)
    theirs = np.asarray(Image.fromarray(pixels).resize((12, 50), Image.Resampling.BICUBIC)).astype(float)
    rows = resize_weights(torch.zeros(1), torch.full((1,), 40.0), 40, 50, "bicubic")
    columns = resize_weights(torch.zeros(1), torch.full((1,), 31.0), 31, 12, "bicubic")
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    ours = apply_separable(image, rows, columns).clamp(0, 255)[0].permute(1, 2, 0).numpy()
    assert np.abs(ours - theirs).max() <= 1.5  # Pillow rounds to whole numbers after each direction


def test_uint8_and_float_images_agree(images):
    pixels = (images * 255).round().to(torch.uint8)
    config = ViewConfig(size=16, blur=0.5)
    parameters = draw_parameters(24, config, (20, 26), torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        apply_views(pixels, parameters, config),
        apply_views(pixels / 255, parameters, config),
        atol=1e-6,
        rtol=0,
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
def test_jitter_in_any_order_equals_torchvision(images, order):
    factors = torch.tensor([[0.7, 1.3, 0.85, -0.08], [1.35, 0.65, 1.2, 0.1], [1.0, 1.0, 1.0, 0.5]])
    operations = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    orders = torch.tensor([order] * 3)
    ours = jitter(images[:3], torch.tensor([True, True, True]), orders, factors)
    for i in range(3):
        theirs = images[i]
        for operation in order:
            theirs = operations[operation](theirs, float(factors[i, operation]))
        torch.testing.assert_close(ours[i], theirs, atol=2e-6, rtol=0)


def test_static_jitter_equals_grouped_jitter(images, monkeypatch):
    parameters = draw_parameters(24, ViewConfig(num_views=1), (20, 26), torch.Generator().manual_seed(3))
    arguments = (images, parameters.jitter[0], parameters.order[0], parameters.factors[0])
    grouped = jitter(*arguments)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # the form that compiles and captures
    torch.testing.assert_close(jitter(*arguments), grouped, atol=1e-6, rtol=0)
    untouched = ~parameters.jitter[0]
    assert 0 < untouched.sum() < 24
    assert torch.equal(grouped[untouched], images[untouched])


def test_hue_on_corner_cases():
    # grey, pure and tied colours: where two channels are the largest the hue has two formulas
    corners = torch.tensor(list(itertools.product([0.0, 0.5, 1.0], repeat=3))).T.reshape(1, 3, 1, 27)
    for shift in (-0.5, -0.1, 0.0, 0.25, 0.5):
        ours = turn_hue(corners, torch.tensor([shift]))
        torch.testing.assert_close(ours, F.adjust_hue(corners, shift), atol=2e-6, rtol=0)


def test_hue_and_grey_equal_kornia(images):
    kornia = pytest.importorskip("kornia")
    shifts = torch.linspace(-0.1, 0.1, 24)
    theirs = kornia.enhance.adjust_hue(images, shifts * 2 * torch.pi)
    torch.testing.assert_close(turn_hue(images, shifts), theirs, atol=1e-4, rtol=0)
    torch.testing.assert_close(grey(images), kornia.color.rgb_to_grayscale(images), atol=1e-3, rtol=0)


def test_grey_and_solarise_equal_torchvision(images):
    torch.testing.assert_close(grey(images), F.rgb_to_grayscale(images), atol=1e-6, rtol=0)
    chosen = torch.arange(24) % 2 == 0
    ours = solarise(images, chosen, 128 / 255)
    assert torch.equal(ours[chosen], F.solarize(images[chosen], 128 / 255))
    assert torch.equal(ours[~chosen], images[~chosen])


def test_solarise_at_the_threshold_is_pillows():
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    theirs = np.asarray(ImageOps.solarize(Image.fromarray(pixels)))
    image = torch.from_numpy(pixels).expand(1, 3, 16, 16).float() * (1 / 255)
    ours = (solarise(image, torch.tensor([True]), 128 / 255) * 255).round().byte()
    assert np.array_equal(ours[0, 0].numpy(), theirs)


def blurred(x, sigma):
    """torchvision's blur, which mirrors at the borders, of an image whose border pixels go on."""
    return F.gaussian_blur(F.pad(x, [6] * 4, padding_mode="edge"), [13, 13], [sigma] * 2)[:, 6:-6, 6:-6]


@pytest.mark.parametrize("size", [4, 7, 16, 40])
def test_blur_equals_torchvision(size):
    x = torch.rand(4, 3, size, size)
    sigma = torch.tensor([0.1, 0.7, 1.3, 2.0])
    weights = blur_weights(sigma, size, radius=6)
    ours = apply_separable(x, weights, weights)
    for i in range(4):
        torch.testing.assert_close(ours[i], blurred(x[i], float(sigma[i])), atol=1e-6, rtol=0)


def test_blur_is_pillows_up_to_its_approximation_also_at_the_borders():
    pixels = np.asarray(Image.effect_noise((48, 48), 60).convert("RGB"))
    theirs = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(1.0))).astype(float)
    weights = blur_weights(torch.tensor([1.0]), 48, ViewConfig().blur_radius)
    ours = apply_separable(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float(), weights, weights)
    difference = np.abs(ours[0].permute(1, 2, 0).numpy() - theirs) / pixels.std()
    for part in (np.s_[6:-6, 6:-6], np.s_[:3], np.s_[-3:], np.s_[:, :3], np.s_[:, -3:]):
        assert difference[part].mean() < 0.03  # with mirrored borders 0.07 there
    assert difference.max() < 0.25


def test_whole_pipeline_equals_torchvision_step_by_step(images):
    config = ViewConfig(size=16, num_views=2, blur=0.5, solarize=0.3)
    p = draw_parameters(24, config, (20, 26), torch.Generator().manual_seed(5))
    ours = apply_views(images, p, config)
    operations = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    for view, i in itertools.product(range(2), range(24)):
        box = [int(getattr(p, name)[view, i]) for name in ("top", "left", "height", "width")]
        x = F.resized_crop(images[i], *box, [16, 16], MODES["bicubic"], antialias=True).clamp(0, 1)
        if p.jitter[view, i]:
            for operation in p.order[view, i].tolist():
                x = operations[operation](x, float(p.factors[view, i, operation]))
        x = F.rgb_to_grayscale(x, 3) if p.grey[view, i] else x
        x = blurred(x, float(p.sigma[view, i])) if p.blur[view, i] else x
        if p.solarize[view, i]:
            near = (x - config.solarize_threshold).abs() < 1e-5  # rounding decides there
            x = torch.where(
                near, ours[view, i].flip(-1) if p.flip[view, i] else ours[view, i], F.solarize(x, 128 / 255)
            )
        x = x.flip(-1) if p.flip[view, i] else x
        torch.testing.assert_close(ours[view, i], x, atol=1e-5, rtol=0)


def test_crop_of_a_squeezed_image_is_the_crop_of_the_original():
    # A smooth image, stored squeezed from 48 x 96 to 64 x 64: the same crop in either geometry.
    y, x = torch.meshgrid(torch.linspace(0, 1, 48), torch.linspace(0, 1, 96), indexing="ij")
    original = torch.stack([y, x, (3 * x).sin() * y])[None].clamp(0, 1)
    stored = F.resize(original, [64, 64], MODES["bicubic"], antialias=True)
    config = ViewConfig(size=24, num_views=1, jitter_prob=0, grey=0, solarize=0)
    sizes = torch.tensor([[48, 96]])
    drawn = [
        draw_parameters(1, config, shape, torch.Generator().manual_seed(7), sizes=s)
        for shape, s in (((48, 96), None), ((64, 64), sizes))
    ]
    direct, squeezed = (apply_views(i, p, config) for i, p in zip((original, stored), drawn))
    assert float(drawn[1].width[0, 0]) == pytest.approx(float(drawn[0].width[0, 0]) * 64 / 96)
    torch.testing.assert_close(squeezed, direct, atol=0.01, rtol=0)
