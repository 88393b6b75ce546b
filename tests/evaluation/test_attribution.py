"""Attribution: the heat lies on a planted pattern, the right way round, and its sum is what calculus says."""

import pytest
import torch
from torch import nn

from lpjepa.evaluation import attribute, late_layer
from lpjepa.models import SparseModel, build_encoder


def planted(size, row, column, cells=4):
    """A black image with noise in one cell of a `cells` × `cells` grid."""
    x, side = torch.zeros(1, 3, size, size), size // cells
    x[..., row * side : (row + 1) * side, column * side : (column + 1) * side] = torch.randn(1, 3, side, side)
    return x


def linear_pair(encoder):
    """No bias in the head: the score ||z||² is homogeneous of degree two in the pooled activations."""
    width = encoder.num_features
    return SparseModel(encoder, nn.Linear(width, 32, bias=False), width, 32)


@pytest.mark.parametrize("name", ["narrow", "resnet18"])
@pytest.mark.parametrize("where", [(0, 3), (3, 1)])
def test_heat_lies_on_the_pattern(name, where):
    size = 64
    model = linear_pair(build_encoder(name, size))
    result = attribute(model, planted(size, *where))
    cells = result.heat[0].unfold(0, size // 4, size // 4).unfold(1, size // 4, size // 4).sum((-2, -1))
    assert divmod(int(cells.argmax()), 4) == where
    assert result.heat.shape == (1, size, size)
    assert result.heat.amax().item() == pytest.approx(1.0)
    assert result.heat.amin() >= 0


def test_raw_map_sums_to_twice_the_score():
    """Euler: with global average pooling and a linear head, sum G·A = 2 ||z||², all at the late layer."""
    model = linear_pair(build_encoder("resnet18", 32)).train()
    x = torch.randn(2, 3, 32, 32)
    raw = attribute(model, x).raw
    assert model.training
    model.eval()
    with torch.no_grad():
        score = model(x)[1].square().sum(1)
    torch.testing.assert_close(raw.sum((-2, -1)), 2 * score, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "cells", "where"),
    # A ConvNeXt's stem leaks a pixel into the next patches, and its norms amplify that: give it larger cells.
    [
        ("vit_tiny", 8, (1, 6)),
        ("vit_tiny", 8, (5, 2)),
        ("convnext_atto", 4, (1, 3)),
        ("convnext_atto", 4, (2, 0)),
    ],
)
def test_tokens_and_stages_keep_their_places(name, cells, where):
    """The cell that differs from all the others is the one that differs in the image."""
    model = linear_pair(build_encoder(name, 64))
    with torch.no_grad():
        if hasattr(model.encoder, "pos_embed"):
            model.encoder.pos_embed.zero_()  # black patches are then all the same
    raw = attribute(model, planted(64, *where, cells=cells)).raw[0]
    assert raw.shape[0] == raw.shape[1]
    grid = nn.functional.adaptive_avg_pool2d((raw - raw.median()).abs()[None], cells)[0]
    assert divmod(int(grid.argmax()), cells) == where


def test_a_frozen_model_and_no_grad_make_no_difference():
    model = linear_pair(build_encoder("narrow", 16))
    x = torch.randn(1, 3, 16, 16)
    free = attribute(model, x)
    model.requires_grad_(False)
    with torch.no_grad():
        frozen = attribute(model, x)
    torch.testing.assert_close(frozen.raw, free.raw)
    assert all(p.grad is None for p in model.parameters())


def test_no_positive_value_gives_no_heat():
    model = linear_pair(build_encoder("narrow", 16))
    assert attribute(model, torch.zeros(1, 3, 16, 16)).heat.sum() == 0


def test_unknown_encoders_and_unused_layers_are_named():
    class Plain(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)), x.mean((2, 3))

    with pytest.raises(ValueError, match="late layer in Plain"):
        late_layer(Plain())
    with pytest.raises(ValueError, match="did not use the layer"):
        attribute(Plain(), torch.randn(1, 3, 4, 4), layer=nn.Identity())
