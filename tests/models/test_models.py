"""Encoders, projector, pair."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from lpjepa.models import ModelConfig, build, build_encoder, build_projector
from lpjepa.models.encoders import StemConv


@pytest.mark.parametrize(
    ("name", "size", "features"),
    [
        ("narrow", 8, 512),
        ("narrow", 32, 512),
        ("resnet18", 32, 512),
        ("vit_tiny", 32, 192),
        ("convnext_atto", 32, 320),
    ],
)
def test_encoders_give_one_vector_an_image(name, size, features):
    encoder = build_encoder(name, size).eval()
    with torch.no_grad():
        assert encoder(torch.randn(2, 3, size, size)).shape == (2, features)
    assert encoder.num_features == features


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto"])
def test_small_images_keep_their_resolution(name):
    """After the stem a 32-pixel image still has 32 × 32 positions; larger ones have shrunk to a quarter."""
    widths = {}
    for size in (32, 96):
        encoder = build_encoder(name, size)
        first = encoder.layer1 if name == "resnet18" else encoder.stages[0]
        first.register_forward_pre_hook(
            lambda _, inputs, size=size: widths.update({size: inputs[0].shape[-1]})
        )
        with torch.no_grad():
            encoder.eval()(torch.randn(1, 3, size, size))
    assert widths == {32: 32, 96: 24}


def test_vision_transformer_cuts_small_images_into_64_patches():
    encoder = build_encoder("vit_tiny", 32)
    assert encoder.patch_embed.num_patches == 64


def test_unknown_encoder_names_the_nearest():
    with pytest.raises(ValueError, match="'resnet18'"):
        build_encoder("resnet81", 32)


@pytest.mark.parametrize(("activation", "negative"), [("relu", False), ("rep_relu", False), ("none", True)])
def test_projector_activation(activation, negative):
    projector = build_projector(16, 32, 24, layers=3, activation=activation)
    z = projector(torch.randn(64, 16))
    assert z.shape == (64, 24)
    assert bool((z < 0).any()) is negative
    assert sum(isinstance(m, nn.Linear) for m in projector) == 3
    assert sum(isinstance(m, nn.BatchNorm1d) for m in projector) == 2


def test_rep_relu_projector_passes_gradient_where_relu_does_not():
    x = torch.randn(64, 16)
    gradients = {}
    for activation in ("relu", "rep_relu"):
        torch.manual_seed(1)
        projector = build_projector(16, 32, 8, activation=activation)
        with torch.no_grad():
            projector[6].bias.fill_(-3.0)  # every output negative but close enough for GELU's gradient
        projector(x).sum().backward()
        gradients[activation] = projector[6].weight.grad.abs().sum()
    assert gradients["relu"] == 0
    assert gradients["rep_relu"] > 0


def test_bad_projector_settings():
    with pytest.raises(ValueError, match="projector_layers"):
        build_projector(4, 4, 4, layers=0)
    with pytest.raises(ValueError, match="relu, calibrated, top, soft_top, rep_relu, none"):
        build_projector(4, 4, 4, activation="tanh")


def test_pair():
    model = build(ModelConfig(projector_hidden=32, projector_dim=24, projector_layers=2), image_size=8)
    x = torch.randn(5, 3, 8, 8)
    h, z = model(x)
    assert h.shape == (5, model.encoder_dim)
    assert z.shape == (5, model.projector_dim) == (5, 24)
    model.eval()
    torch.testing.assert_close(model.project(model.encode(x)), model(x)[1])


def test_shim_makes_torchvision_importable():
    """In a fresh interpreter, as a user's first import; harmless where torchvision works by itself."""
    code = (
        "from lpjepa._torchvision_shim import declare_missing_ops as d; d(); d();"
        "import torch, torchvision, timm;"
        "assert torch.ops.torchvision.nms is not None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_residual_branches_of_a_resnet_take_part_from_the_start():
    """As torchvision's, and so the authors', do; timm's own default begins with branches of zero."""
    encoder = build_encoder("resnet18", 32)
    assert all(bool((block.bn2.weight == 1).all()) for block in encoder.layer1)


@pytest.mark.gpu
def test_padded_stem_computes_what_the_convolution_does():
    stem = StemConv(3, 64, 3, padding=1, bias=False).cuda().double()
    x = torch.randn(2, 3, 8, 8, device="cuda", dtype=torch.float64)
    expected = torch.nn.functional.conv2d(x, stem.weight, padding=1)
    torch.testing.assert_close(stem(x), expected)
    (gradient,) = torch.autograd.grad(stem(x).square().sum(), stem.weight)
    (wanted,) = torch.autograd.grad(expected.square().sum(), stem.weight)
    torch.testing.assert_close(gradient, wanted)
