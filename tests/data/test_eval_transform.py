import pytest
import torch

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.data import STATISTICS, DataError, EvalTransform, statistics_for

declare_missing_ops()
from torchvision.transforms.v2 import functional as F  # noqa: E402


@pytest.mark.parametrize("shape", [(50, 70), (70, 50), (24, 24), (33, 47)])
@pytest.mark.parametrize(("size", "resize"), [(20, 24), (21, 32), (16, 16)])
def test_equals_torchvisions_resize_and_centre_crop(shape, size, resize):
    pixels = torch.randint(0, 256, (3, 3, *shape), dtype=torch.uint8)
    mean, std = STATISTICS["cifar100"]
    ours = EvalTransform(size, resize, mean, std)(pixels)
    theirs = F.resize(pixels / 255, [resize], F.InterpolationMode.BICUBIC, antialias=True).clamp(0, 1)
    theirs = F.normalize(F.center_crop(theirs, [size, size]), list(mean), list(std))
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_small_images_are_used_whole():
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    out = EvalTransform(32, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))(pixels)
    torch.testing.assert_close(out, pixels / 255)


def test_defaults_are_the_papers():
    assert EvalTransform(224).resize == 256
    assert EvalTransform(64).resize == 64


def test_squeezed_images_are_unsqueezed():
    # the centre of a wide image, from its squeezed form and from itself
    wide = torch.zeros(1, 3, 40, 80, dtype=torch.uint8)
    wide[..., 20:60] = 200
    squeezed = F.resize(wide, [40, 40], F.InterpolationMode.BILINEAR, antialias=True)
    transform = EvalTransform(40, 40, (0.0,) * 3, (1.0,) * 3)
    out = transform(squeezed, torch.tensor([[40, 80]]))
    assert (out[..., 2:-2] * 255 - 200).abs().max() < 20  # only the centre is left, the black sides are gone
    assert (transform(squeezed)[..., :5] < 0.1).all()  # without the sizes the sides stay


def test_statistics_and_errors():
    assert statistics_for("cifar10") == STATISTICS["cifar10"]
    assert statistics_for("digits") == STATISTICS["plain"]
    assert statistics_for("torchvision:DTD") == STATISTICS["imagenet"]
    with pytest.raises(DataError, match="32"):
        EvalTransform(32, resize=16)
    with pytest.raises(DataError, match="std"):
        EvalTransform(32, std=(1.0, 0.0, 1.0))
