"""The fused way through a ResNet against timm's own, in float64."""

import copy

import pytest
import torch
from torch import nn

from lpjepa.models import build_encoder, synchronised
from lpjepa.models.fused import batch_norm, kernels, resnet, stem
from lpjepa.models.fused.layers import Layer, Unit
from lpjepa.models.fused.residual import convolve_backward, pooled_residual, rectified_norm, residual
from lpjepa.models.fused.resnet import FusedResNet, ResNet, fused_features, plan


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several programs and several tiles for each, even of small tensors."""
    monkeypatch.setattr(batch_norm, "STATISTICS", batch_norm.Summing(5, 512, 1, 1, 256))
    monkeypatch.setattr(batch_norm, "GRADIENT", batch_norm.Summing(3, 1024, 1, 1, 256))
    monkeypatch.setattr(batch_norm, "POOLED_TILE", 256)
    monkeypatch.setattr(stem, "_FORWARD", batch_norm.Summing(4, 1024, 1, 1, 256))
    monkeypatch.setattr(stem, "_BACKWARD", batch_norm.Summing(3, 2048, 1, 1, 256))
    monkeypatch.setattr(stem, "_PARTS", 2)


def encoder_of(name, size):
    """With normalisation that is not at its initial values, where much would cancel."""
    torch.manual_seed(3)
    encoder = build_encoder(name, size).to(memory_format=torch.channels_last).train()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
            nn.init.normal_(module.running_mean)
    return encoder


def images(count, size, channels=3):
    return torch.randn(count, channels, size, size).contiguous(memory_format=torch.channels_last)


def both(encoder, x, features, pooled):
    """Feature maps or features and their gradients: of the fused way and of timm's in float64."""
    reference = copy.deepcopy(encoder).double()
    reference.__class__ = ResNet
    expected = reference(x.double()) if pooled else reference.forward_features(x.double())
    found = features(encoder, x)
    assert found.shape == expected.shape
    # Small enough that no gradient exceeds float16.
    weights = torch.linspace(-1 / 64, 1 / 64, expected.numel(), device=x.device).view_as(expected)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    return (encoder, found.detach()), (reference, expected.detach())


def relative(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


# Two kinds of block, small and large stem, odd sizes with a stride, a shortcut without stride (resnet26).
@pytest.mark.parametrize(
    ("name", "size", "count", "pooled"),
    [("resnet18", 10, 3, True), ("resnet26", 10, 2, False), ("resnet18", 65, 2, True)],
)
def test_same_features_gradients_and_running_statistics_as_timm(name, size, count, pooled):
    def in_float32(encoder, x):
        return fused_features(encoder, plan(encoder), x, torch.float32, pooled)

    encoder = encoder_of(name, size)
    if name == "resnet26":
        for stage in (encoder.layer3, encoder.layer4):
            del stage[1:]  # of the same kind as those before them, and wide: the interpreter is slow
    (encoder, found), (reference, expected) = both(encoder, images(count, size), in_float32, pooled)
    assert relative(found, expected) < 2e-5
    for (key, mine), theirs in zip(encoder.named_parameters(), reference.parameters()):
        assert mine.grad.stride() == mine.stride()
        assert relative(mine.grad, theirs.grad) < 5e-4, key
    for (key, mine), theirs in zip(encoder.named_buffers(), reference.buffers()):
        assert relative(mine, theirs.double()) < 1e-5, key


@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_statistics_lose_no_digits_to_a_large_mean(mean):
    bn = nn.BatchNorm2d(24)
    x = (torch.randn(3, 24, 5, 7) + mean).contiguous(memory_format=torch.channels_last)
    stats = batch_norm.statistics(x, bn)
    expected = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(stats[0].double(), expected.mean(1), rtol=1e-6, atol=1e-6)
    rstd = (expected.var(1, unbiased=False) + bn.eps).rsqrt()
    torch.testing.assert_close(stats[1].double(), rstd, rtol=2e-5, atol=0)


class OneUnit:
    """y = relu(bn(conv(x)) + x), the fused way and, with the same parameters, in float64."""

    def __init__(self, shape):
        channels = shape[1]
        layer = Layer(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        nn.init.uniform_(layer.bn.weight, 0.5, 1.5)
        nn.init.normal_(layer.bn.bias)
        self.unit, self.kernels = Unit((layer,), None), [layer.conv.weight]
        self.x = torch.randn(shape).contiguous(memory_format=torch.channels_last).requires_grad_()
        conv, bn = copy.deepcopy(layer.conv).double(), copy.deepcopy(layer.bn).double()
        x64 = self.x.detach().double().requires_grad_()
        self.y64 = (bn(conv(x64)) + x64).relu()
        self.pairs = ((self.x, x64), *zip(layer.conv.parameters(), conv.parameters()))
        self.pairs += tuple(zip(layer.bn.parameters(), bn.parameters()))

    def compare_gradients(self, outputs, expected):
        weights = [torch.randn(output.shape) for output in outputs]
        sum((output * w).sum() for output, w in zip(outputs, weights)).backward()
        sum((output * w).sum() for output, w in zip(expected, weights)).backward()
        for mine, theirs in self.pairs:
            torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-3, atol=1e-4)


# Every choice of what is used; borders that strides do not meet.
@pytest.mark.parametrize("used", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize(("stride", "shape"), [(1, (2, 20, 3, 4)), (2, (3, 20, 7, 6)), (3, (2, 33, 4, 8))])
def test_a_unit_gives_some_of_its_pixels_and_takes_their_gradient(stride, shape, used):
    one = OneUnit(shape)
    outputs = residual(one.unit, one.x, one.x, one.kernels, stride)
    expected = (one.y64, one.y64[:, :, ::stride, ::stride])
    for mine, theirs in zip(outputs, expected):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)
        assert mine.is_contiguous(memory_format=torch.channels_last)
    one.compare_gradients([outputs[i] for i in used], [expected[i] for i in used])


# Maps of one tile and of several, channels that are no power of two, a single pixel.
@pytest.mark.parametrize("shape", [(3, 33, 1, 1), (2, 20, 4, 4), (3, 16, 7, 5), (2, 130, 2, 3)])
def test_a_unit_gives_the_mean_of_its_pixels_and_takes_its_gradient(shape):
    one = OneUnit(shape)
    mean, expected = pooled_residual(one.unit, one.x, one.x, one.kernels), one.y64.mean((2, 3))
    torch.testing.assert_close(mean.double(), expected, rtol=1e-4, atol=1e-5)
    one.compare_gradients([mean], [expected])


# Channels that are no power of two, odd maps, one column.
@pytest.mark.parametrize("shape", [(3, 1, 5, 7), (2, 20, 4, 4), (5, 33, 3, 1), (2, 130, 2, 3)])
def test_gradients_of_odd_shapes(shape):
    ours = nn.BatchNorm2d(shape[1], eps=1e-3, momentum=0.3)
    nn.init.uniform_(ours.weight, 0.5, 1.5)
    nn.init.normal_(ours.bias)
    torchs = copy.deepcopy(ours).double()
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last).requires_grad_()
    x64 = x.detach().double().requires_grad_()
    weights = torch.randn(shape)
    y = rectified_norm(ours, x)
    (y * weights).sum().backward()
    (torchs(x64).relu() * weights).sum().backward()
    for mine, theirs in ((x, x64), (ours.weight, torchs.weight), (ours.bias, torchs.bias)):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_var.double(), torchs.running_var, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_no_number_stays_none():
    """On a GPU `maximum` makes zero of it, so kernels must not call it; the interpreter would not tell."""
    for kernel in (kernels._rectified, kernels._finish_statistics):
        assert "maximum" not in kernel.fn.__code__.co_names
    x = torch.randn(4, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    x[0, 1, 0, 0] = torch.inf
    y = rectified_norm(nn.BatchNorm2d(3), x)
    assert not y[:, 1].isfinite().any()
    assert y[:, [0, 2]].isfinite().all()


def test_one_value_a_channel_is_refused():
    with pytest.raises(ValueError, match="more than one value a channel"):
        batch_norm.statistics(torch.randn(1, 8, 1, 1), nn.BatchNorm2d(8))


@pytest.mark.parametrize("channels", [1, 4])
def test_images_of_other_channels_are_refused(channels):
    encoder = encoder_of("resnet18", 16)
    with pytest.raises(ValueError, match=f"3 channels, these have {channels}"):
        fused_features(encoder, plan(encoder), images(2, 16, channels), torch.float32)


def test_gradients_are_channels_last_whatever_made_them(monkeypatch):
    conv = nn.Conv2d(4, 6, 3, padding=1, bias=False)
    x, d = images(2, 5, 4), images(2, 5, 6)
    plain = torch.ops.aten.convolution_backward
    monkeypatch.setattr(
        torch.ops.aten,
        "convolution_backward",
        lambda *a: [g if g is None else g.contiguous() for g in plain(*a)],
    )
    dx, _, _ = convolve_backward(d, x, conv.weight, conv, (True, False, False))
    assert dx.is_contiguous(memory_format=torch.channels_last)


def test_no_second_derivatives():
    encoder = encoder_of("resnet18", 16)
    features = fused_features(encoder, plan(encoder), images(2, 16), torch.float32)
    (gradient,) = torch.autograd.grad(
        features.square().sum(), encoder.layer4[1].bn2.weight, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_counters_are_left_at_zero_and_sums_are_reproducible():
    bn, x = nn.BatchNorm2d(24), images(3, 9, 24)
    first, second = batch_norm.statistics(x, bn), batch_norm.statistics(x, bn)
    assert torch.equal(first, second)
    assert not batch_norm.counter(x.device, 1).any()


def test_one_output_alone_may_be_used():
    """The last unit's second output has no use: its gradient does not come."""
    encoder = encoder_of("resnet18", 16)
    fused_features(encoder, plan(encoder), images(2, 16), torch.float32).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_plain_resnets_are_fused_and_keep_their_names():
    encoder = build_encoder("resnet18", 32)
    assert isinstance(encoder, FusedResNet)
    assert set(encoder.state_dict()) == set(timm_model("resnet18").state_dict())
    copied = copy.deepcopy(encoder)
    assert isinstance(copied, FusedResNet)
    x = images(2, 32)
    torch.testing.assert_close(copied.eval()(x), encoder.eval()(x))


def timm_model(name, **options):
    import timm

    return timm.create_model(name, num_classes=0, **options)


@pytest.mark.parametrize("name", ["resnet18d", "resnetaa50", "resnetrs50", "seresnet50"])
def test_blocks_with_other_parts_are_left_to_timm(name):
    # resnet18d is fused where its parts allow: its stem and shortcuts are of another kind.
    assert not isinstance(build_encoder(name, 32), FusedResNet)


def test_convolutions_of_other_kinds_are_left_to_timm():
    class Standardised(nn.Conv2d):
        pass

    for conv in (
        nn.Conv2d(64, 64, 3, padding=1, bias=False, padding_mode="circular"),
        Standardised(64, 64, 3),
    ):
        encoder = build_encoder("resnet18", 32)
        encoder.layer1[0].conv1 = conv
        assert plan(encoder) is None


def test_synchronised_normalisation_is_left_to_torch():
    encoder = synchronised.synchronise_batch_norm(build_encoder("resnet18", 32), "cpu")
    assert plan(encoder) is None


@pytest.fixture
def taken(monkeypatch):
    """Which way a forward pass takes, on the CPU as if it were a GPU under autocast."""
    ways = []
    monkeypatch.setattr(resnet, "_dtype_of_training", lambda encoder, x: torch.float32)
    fused, plain = resnet.fused_features, ResNet.forward_features

    def fused_features(*arguments, pooled=False):
        ways.append("pooled" if pooled else "fused")
        return fused(*arguments, pooled=pooled)

    monkeypatch.setattr(resnet, "fused_features", fused_features)
    monkeypatch.setattr(ResNet, "forward_features", lambda *a: ways.append("plain") or plain(*a))
    return ways


def test_frozen_statistics_and_hooks_are_left_to_timm(taken):
    encoder, x = encoder_of("resnet18", 16), images(2, 16)
    encoder(x)
    assert taken == ["pooled"]
    encoder.layer2[0].bn1.eval()
    before = encoder.layer2[0].bn1.running_mean.clone()
    encoder(x)
    assert torch.equal(encoder.layer2[0].bn1.running_mean, before)
    encoder.train()
    seen = []
    handle = encoder.layer3.register_forward_hook(lambda *_: seen.append(True))
    encoder(x)
    assert seen
    handle.remove()
    encoder(x)
    assert taken == ["pooled", "plain", "plain", "pooled"]


def test_other_poolings_are_left_to_timm(monkeypatch):
    encoder, x, map_NCHW, pooled = build_encoder("resnet18", 16), images(2, 16), torch.rand(2, 512, 2, 2), []

    def fused(*arguments, **options):
        pooled.append(options.get("pooled", False))
        return map_NCHW.mean((2, 3)) if pooled[-1] else map_NCHW

    monkeypatch.setattr(resnet, "_dtype_of_training", lambda encoder, x: torch.float32)
    monkeypatch.setattr(resnet, "fused_features", fused)
    for kind, expected in (("max", map_NCHW.amax((2, 3))), ("", map_NCHW)):
        encoder.global_pool = timm_model("resnet18", global_pool=kind).global_pool
        torch.testing.assert_close(encoder(x), expected)
    encoder.global_pool = timm_model("resnet18").global_pool
    encoder.drop_rate = 0.5
    assert (encoder(x) == 0).any()
    assert pooled == [False] * 3
    encoder.drop_rate = 0.0
    encoder.fc = nn.Linear(512, 3)
    torch.testing.assert_close(encoder(x), encoder.fc(map_NCHW.mean((2, 3))))
    assert pooled[-1]


@pytest.mark.gpu
def test_an_overflow_is_seen_in_the_features():
    encoder, x = encoder_of("resnet18", 32).cuda(), images(8, 32).cuda()
    x[0, 0, 3, 3] = torch.inf
    with torch.autocast("cuda", torch.float16):
        assert not encoder(x).isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize(("name", "size"), [("resnet18", 32), ("resnet50", 32), ("resnet18", 96)])
def test_in_16_bits_no_further_from_the_truth_than_torch(name, size, pooled, dtype, monkeypatch):
    monkeypatch.undo()  # the tiles of real use
    encoder, x = encoder_of(name, size).cuda(), images(32, size).cuda()

    def under_autocast(model, images):
        with torch.autocast("cuda", dtype):
            return model(images) if pooled else model.forward_features(images)

    (fused, found), (reference, expected) = both(copy.deepcopy(encoder), x, under_autocast, pooled)
    encoder.__class__ = ResNet
    (plain, rounded), _ = both(encoder, x, under_autocast, pooled)
    assert relative(found, expected) < 1.1 * relative(rounded, expected)
    for mine, torchs, theirs in zip(fused.parameters(), plain.parameters(), reference.parameters()):
        assert relative(mine.grad, theirs.grad) < 1.5 * relative(torchs.grad, theirs.grad)
