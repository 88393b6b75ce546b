"""VICReg, SimCLR and their rectified forms, against the authors' numbers and independent formulas."""

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.losses import NonNegativeContrastive, NonNegativeVICReg, RepReLU, SimCLR, VICReg


@pytest.mark.parametrize(
    ("case", "inputs", "gradients", "criterion"),
    [
        ("vicreg", "vicreg", "vicreg", VICReg(25.0, 25.0, 1.0)),
        ("simclr", "simclr", "simclr", SimCLR(temperature=0.2)),
        ("ncl_relu", "simclr", "ncl", NonNegativeContrastive(temperature=0.2, activation="relu")),
    ],
)
def test_authors_numbers(parity, case, inputs, gradients, criterion):
    cases, arrays, _ = parity
    views = [arrays[f"{inputs}_z{k}"].clone().requires_grad_() for k in (1, 2)]
    loss = criterion(*views)
    loss.backward()
    assert loss.item() == pytest.approx(cases[case]["loss"], rel=1e-9)
    for k, z in enumerate(views, start=1):
        torch.testing.assert_close(z.grad, arrays[f"{gradients}_grad{k}"], rtol=0, atol=1e-9)


def test_vicreg_parts_for_three_views():
    z_VND = 0.8 * torch.randn(3, 7, 5, dtype=torch.float64)
    parts = VICReg(2.0, 3.0, 4.0).components(z_VND)
    invariance = torch.stack([F.mse_loss(a, b) for a, b in combinations(z_VND, 2)]).mean()
    covariances = [torch.cov(z.T) for z in z_VND]
    # Two thirds: the sum over three views, on the scale of the sum over two.
    variance = sum(F.relu(1 - (c.diag() + 1e-4).sqrt()).mean() for c in covariances) * 2 / 3
    covariance = sum((c.square().sum() - c.diag().square().sum()) / 5 for c in covariances) * 2 / 3
    expected = (2 * invariance + 3 * variance + 4 * covariance, invariance, variance, covariance)
    torch.testing.assert_close(tuple(parts), expected)
    assert variance > 0


def test_simclr_is_a_cross_entropy_over_all_other_views():
    z1, z2 = torch.randn(2, 6, 4, dtype=torch.float64)
    both = F.normalize(torch.cat([z1, z2]), dim=1)
    logits = (both @ both.T / 0.3).fill_diagonal_(-torch.inf)
    partner = torch.arange(12).roll(6)
    parts = SimCLR(temperature=0.3).components(z1, z2)
    torch.testing.assert_close(parts.loss, F.cross_entropy(logits, partner))
    torch.testing.assert_close(parts.alignment, -logits[torch.arange(12), partner].mean())


def test_simclr_with_several_positives():
    z_VND = torch.randn(3, 4, 5, dtype=torch.float64)
    flat = F.normalize(z_VND.flatten(0, 1), dim=1)
    sample = torch.arange(12) % 4
    expected = 0.0
    for a in range(12):
        others = [b for b in range(12) if b != a]
        similarity = {b: torch.exp(flat[a] @ flat[b] / 0.2) for b in others}
        positives = sum(similarity[b] for b in others if sample[b] == sample[a])
        expected -= torch.log(positives / sum(similarity.values())) / 12
    torch.testing.assert_close(SimCLR()(z_VND), expected)


def test_simclr_stays_finite_at_small_temperature():
    z = torch.randn(2, 8, 4)
    assert SimCLR(temperature=1e-3)(z).isfinite()


def test_dead_features_have_no_direction_and_no_gradient():
    z_VND = torch.randn(2, 4, 3)
    z_VND[0, 1] = -1.0
    z_VND.requires_grad_()
    loss = NonNegativeContrastive(activation="rep_relu")(z_VND)
    loss.backward()
    assert loss.isfinite()
    assert z_VND.grad.abs().max() < 100
    assert z_VND.grad[0, 1].abs().max() == 0


@pytest.mark.parametrize(
    "plain_and_rectified", [(SimCLR, NonNegativeContrastive), (VICReg, NonNegativeVICReg)]
)
@pytest.mark.parametrize("activation", ["relu", "rep_relu"])
def test_rectified_forms_rectify_and_may_be_given_rectified_features(plain_and_rectified, activation):
    plain, rectified = plain_and_rectified
    z_VND = torch.randn(2, 6, 5)
    expected = plain()(z_VND.relu())
    torch.testing.assert_close(rectified(activation=activation)(z_VND), expected)
    torch.testing.assert_close(rectified(activation=activation)(z_VND.relu()), expected)
    torch.testing.assert_close(rectified(activation="identity")(z_VND.relu()), expected)


def test_rep_relu_is_relu_with_the_gradient_of_gelu():
    z = (3 * torch.randn(1000)).requires_grad_()
    y = RepReLU()(z)
    assert torch.equal(y, z.relu())
    (grad,) = torch.autograd.grad(y.sum(), z)
    (gelu_grad,) = torch.autograd.grad(F.gelu(z).sum(), z)
    torch.testing.assert_close(grad, gelu_grad)
    assert grad[z < 0].abs().max() > 0


def test_unknown_activation_names_the_nearest():
    with pytest.raises(ValueError, match="activation 'reprelu' is unknown; did you mean 'rep_relu'"):
        NonNegativeVICReg(activation="reprelu")


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ValueError, match="temperature must be positive"):
        SimCLR(temperature=temperature)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (VICReg, "invariance_weight"),
        (NonNegativeVICReg, "invariance_weight"),
        (SimCLR, "temperature"),
        (NonNegativeContrastive, "temperature"),
    ],
)
def test_a_target_in_the_place_of_a_number_is_named(method, name):
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.05, p=1.0)
    with pytest.raises(TypeError, match=f"^{name} must be a number, got a RectifiedGeneralizedGaussian"):
        method(target)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["invariance_weight", "variance_weight", "covariance_weight"])
def test_weights_must_be_finite(name, weight):
    with pytest.raises(ValueError, match=f"{name} must be zero or positive"):
        NonNegativeVICReg(**{name: weight})
