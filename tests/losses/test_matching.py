"""RDMReg, SIGReg and the objectives built on them, against the authors' numbers and independent formulas."""

from itertools import combinations

import numpy as np
import ot
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch.distributions import Independent

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.losses import LeJEPA, LpJEPA, RDMReg, RectifiedLpJEPA, SIGReg


def rectified_laplace(mu=0.0):
    return RectifiedGeneralizedGaussian.from_location(mu, p=1.0)


def plain(p=2.0):
    return GeneralizedGaussian(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(p))


def unit_rows(*shape, dtype=torch.float64):
    return F.normalize(torch.randn(*shape, dtype=dtype), dim=-1)


@pytest.mark.parametrize("index", range(5))
def test_authors_numbers(parity, index):
    cases, arrays, _ = parity
    case, array = cases[f"rdmreg{index}"], lambda name: arrays[f"rdmreg{index}_{name}"]
    kind = RectifiedGeneralizedGaussian if case["rectified"] else GeneralizedGaussian
    criterion = RectifiedLpJEPA if case["rectified"] else LpJEPA
    target = kind(*(torch.tensor(case[name], dtype=torch.float64) for name in ("mu", "sigma", "p")))
    z1, z2 = (array(name).clone().requires_grad_() for name in ("z1", "z2"))
    fixed = {
        "projections": array("projections"),
        "target_samples": torch.stack([array("target1"), array("target2")]),
    }
    parts = criterion(target).components(z1, z2, **fixed)
    for part, name in zip(parts, ("loss", "invariance", "rdmreg")):
        assert part.item() == pytest.approx(case[name], rel=1e-9)
    assert RDMReg(target)(torch.stack([z1, z2]), **fixed).item() == pytest.approx(case["rdmreg"], rel=1e-9)
    parts.loss.backward()
    torch.testing.assert_close(z1.grad, array("grad1"), rtol=0, atol=1e-9)
    torch.testing.assert_close(z2.grad, array("grad2"), rtol=0, atol=1e-9)


def test_sigreg_is_lejepas(parity):
    _, arrays, _ = parity
    x, c = arrays["sigreg_x"].clone().requires_grad_(), arrays["sigreg_projections"]
    loss = SIGReg()(x, projections=c)
    loss.backward()
    torch.testing.assert_close(loss, arrays["sigreg_per_slice"].mean(), rtol=1e-5, atol=0)
    torch.testing.assert_close(x.grad, arrays["sigreg_grad"], rtol=1e-5, atol=1e-6)
    for k in (0, 17, 39):
        one = SIGReg()(x, projections=c[k : k + 1])
        torch.testing.assert_close(one, arrays["sigreg_per_slice"][k], rtol=1e-5, atol=0)


def test_sigreg_memory_bound_changes_nothing(monkeypatch):
    z, c = torch.randn(2, 9, 4, dtype=torch.float64), unit_rows(11, 4)
    whole = SIGReg()(z, projections=c)
    monkeypatch.setattr("lpjepa.losses._epps_pulley._LARGEST_TEMPORARY", 1)
    torch.testing.assert_close(SIGReg()(z, projections=c), whole)


def test_rdmreg_is_pots_sliced_distance_squared():
    z, y, c = torch.randn(40, 6), torch.randn(25, 6).relu(), unit_rows(30, 6, dtype=torch.float32)
    value = RDMReg(rectified_laplace())(z, projections=c, target_samples=y)
    expected = ot.sliced_wasserstein_distance(z, y, projections=c.T) ** 2
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)


def test_views_may_have_their_own_directions():
    z_VND, y_VND = torch.randn(2, 2, 10, 4)
    c_VKD = unit_rows(2, 7, 4, dtype=torch.float32)
    reg = RDMReg(rectified_laplace())
    both = reg(z_VND, projections=c_VKD, target_samples=y_VND)
    each = [reg(z, projections=c, target_samples=y) for z, c, y in zip(z_VND, c_VKD, y_VND)]
    torch.testing.assert_close(both, torch.stack(each).mean())


def test_axes_are_matched_to_exact_quantiles():
    z_VND = torch.randn(2, 15, 4, dtype=torch.float64).relu()
    c = unit_rows(9, 4)
    y = torch.randn(2, 15, 4, dtype=torch.float64)
    target = RectifiedGeneralizedGaussian(*torch.tensor([-0.3, 0.8, 1.0], dtype=torch.float64))
    parts = RDMReg(target, axes_weight=0.1).components(z_VND, projections=c, target_samples=y)
    without = RDMReg(target).components(z_VND, projections=c, target_samples=y)
    # GN_1(μ, σ) is a Laplace distribution with scale σ; rectify its quantiles.
    q = (np.arange(15) + 0.5) / 15
    quantiles = torch.from_numpy(np.maximum(scipy.stats.laplace(-0.3, 0.8).ppf(q), 0))
    expected = (z_VND.sort(dim=1).values - quantiles[:, None]).square().mean()
    torch.testing.assert_close(parts.axes, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(parts.slices, without.loss)
    torch.testing.assert_close(parts.loss, without.loss + 0.1 * expected, rtol=1e-6, atol=0)
    assert without.axes == 0


@pytest.mark.parametrize("discrepancy", ["wasserstein2", "wasserstein1", "energy"])
def test_axes_among_the_directions_meet_exact_quantiles_too(discrepancy):
    """The mean over 10 coordinates, by scipy, and over 30 random slices, weighted by their numbers."""
    z = torch.randn(2, 24, 10, dtype=torch.float64).relu()
    target = rectified_laplace(-0.3)
    q = target.icdf((torch.arange(24, dtype=torch.float64) + 0.5) / 24).numpy()
    distance = {
        "wasserstein2": lambda x: np.mean((np.sort(x) - np.sort(q)) ** 2),
        "wasserstein1": lambda x: scipy.stats.wasserstein_distance(x, q),
        "energy": lambda x: scipy.stats.energy_distance(x, q) ** 2,
    }[discrepancy]
    axes = np.mean([distance(z[v, :, d].numpy()) for v in range(2) for d in range(10)])
    y = torch.rand(2, 24, 10, dtype=torch.float64)
    fix = {"target_samples": y, "generator": torch.Generator().manual_seed(3)}
    rest = float(RDMReg(target, 30, discrepancy=discrepancy)(z, **fix))
    fix["generator"].manual_seed(3)
    both = RDMReg(target, directions={"random": 30, "axes": 10}, discrepancy=discrepancy)(z, **fix)
    assert float(both) == pytest.approx((30 * rest + 10 * axes) / 40, rel=1e-6)
    by_name = RDMReg(target, 10, directions="axes", discrepancy=discrepancy)(z)
    assert float(by_name) == pytest.approx(axes, rel=1e-6)


def test_some_axes_are_another_subset_each_time():
    z = torch.randn(64, 40, dtype=torch.float64).relu() * torch.linspace(0.1, 3, 40, dtype=torch.float64)
    z.requires_grad_()
    loss = RDMReg(rectified_laplace(), directions={"axes": 5})
    touched = [frozenset(torch.autograd.grad(loss(z), z)[0].abs().sum(0).nonzero().flatten().tolist())
               for _ in range(4)]  # fmt: skip
    assert all(len(coordinates) == 5 for coordinates in touched)
    assert len(set(touched)) > 1


def test_exact_gaussian_quantiles_are_the_limit_of_many_samples():
    z, c = torch.randn(2, 64, 8) * 1.5, unit_rows(16, 8, dtype=torch.float32)
    exact = RDMReg(plain(), target_quantiles="exact")(z, projections=c)
    sampled = RDMReg(plain(), target_ratio=2000.0)(z, projections=c)
    torch.testing.assert_close(sampled, exact, rtol=0.02, atol=0)
    q = scipy.stats.norm.ppf((np.arange(64) + 0.5) / 64)
    expected = ((z @ c.T).sort(dim=1).values - torch.from_numpy(q).float()[:, None]).square().mean()
    torch.testing.assert_close(exact, expected, rtol=1e-5, atol=0)


def test_more_target_samples_lower_the_noise():
    z, c = rectified_laplace().sample((64, 8)), unit_rows(32, 8, dtype=torch.float32)
    few, many = (RDMReg(rectified_laplace(), target_ratio=ratio) for ratio in (1.0, 16.0))
    few, many = (torch.stack([reg(z, projections=c) for _ in range(30)]) for reg in (few, many))
    assert many.std() < 0.6 * few.std()


def test_invariance_is_the_mean_over_pairs_of_views():
    z_VND = torch.randn(4, 6, 5, dtype=torch.float64)
    found = RectifiedLpJEPA(rectified_laplace(), num_slices=4).components(z_VND).invariance
    torch.testing.assert_close(
        found, torch.stack([F.mse_loss(a, b) for a, b in combinations(z_VND, 2)]).mean()
    )


@pytest.mark.parametrize("global_views", [None, 1, 2])
def test_lejepa(global_views):
    z_VND, c = torch.randn(3, 8, 5, dtype=torch.float64), unit_rows(12, 5)
    parts = LeJEPA(matching_weight=0.2, global_views=global_views).components(z_VND, projections=c)
    centre = z_VND[:global_views].mean(0)
    invariance = torch.stack([F.mse_loss(z, centre) for z in z_VND]).mean()
    torch.testing.assert_close(parts.invariance, invariance)
    torch.testing.assert_close(parts.matching, SIGReg()(z_VND, projections=c))
    torch.testing.assert_close(parts.loss, 0.8 * parts.invariance + 0.2 * parts.matching)


def test_sigreg_prefers_what_is_normal():
    x = torch.randn(512, 6)
    reg = SIGReg(num_slices=128)
    assert reg(x) < 3
    assert reg(2 * x) > 10 * reg(x)
    assert reg(x.sign()) > reg(x)


def test_matching_along_eigenvectors_makes_the_covariance_isotropic():
    """Proposition "Implicit Regularization of Second-Order Statistics", numerically.

    Correlated Gaussian features are matched to the target along the eigenvectors of their covariance, and
    along nothing else; their covariance becomes γI.
    """
    target = RectifiedGeneralizedGaussian(*torch.tensor([-0.2, 0.7, 1.0], dtype=torch.float64))
    z = torch.randn(20000, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)
    y = target.sample((20000, 6))
    eigenvectors = torch.linalg.eigh(torch.cov(z.T)).eigenvectors.T.contiguous()

    def matching(x):
        return RDMReg(target)(x, projections=eigenvectors, target_samples=y)

    def distance_from_isotropy(x):
        return (torch.cov(x.T) / target.variance - torch.eye(6)).norm().item()

    assert distance_from_isotropy(z) > 10
    # The loss is |Δz|²/(N·D) along D orthonormal directions: one step puts every projection on its quantile.
    z.requires_grad_()
    (grad,) = torch.autograd.grad(matching(z), z)
    z = z.detach() - grad * z.numel() / 2
    assert matching(z) < 1e-12
    # The target's samples themselves are about 0.05 away from γI.
    assert distance_from_isotropy(z) < 0.1


def test_constructor_mistakes_are_named():
    target = rectified_laplace()
    with pytest.raises(ValueError, match="target_ratio must be positive"):
        RDMReg(target, target_ratio=0)
    with pytest.raises(ValueError, match="axes_weight must be"):
        RDMReg(target, axes_weight=-1.0)
    with pytest.raises(ValueError, match="target_quantiles must be 'sampled' or 'exact'"):
        RDMReg(target, target_quantiles="samples")
    with pytest.raises(ValueError, match="needs a Gaussian target"):
        RDMReg(target, target_quantiles="exact")
    with pytest.raises(ValueError, match=r"one coordinate.* got \(4,\) and \(\)"):
        RDMReg(target.expand((4,)))
    with pytest.raises(ValueError, match=r"one coordinate.* got \(1, 1\) and \(\)"):
        RDMReg(target.expand((1, 1)))
    with pytest.raises(ValueError, match=r"one coordinate.* got \(\) and \(4,\)"):
        RDMReg(Independent(target.expand((4,)), 1))
    with pytest.raises(TypeError, match="target must be a distribution"):
        RDMReg(3.0)
    with pytest.raises(ValueError, match="target_ratio must be positive and finite"):
        RDMReg(target, target_ratio=float("inf"))
    with pytest.raises(ValueError, match="num_slices must be a whole number"):
        RDMReg(target, num_slices=8.0)
    with pytest.raises(ValueError, match="precision 'quick' is unknown"):
        RDMReg(target, precision="quick")
    with pytest.raises(ValueError, match="directions 'randon' is unknown"):
        RDMReg(target, directions="randon")
    with pytest.raises(ValueError, match="discrepancy 'wasserstein' is unknown"):
        RDMReg(target, discrepancy="wasserstein")
    for name, weight in (("invariance_weight", float("nan")), ("matching_weight", -1.0)):
        with pytest.raises(ValueError, match=f"{name} must be zero or positive, and finite, got {weight}"):
            RectifiedLpJEPA(target, **{name: weight})
    with pytest.raises(TypeError, match="target of LpJEPA must be a GeneralizedGaussian"):
        LpJEPA(target)
    with pytest.raises(ValueError, match="matching_weight is LeJEPA's λ"):
        LeJEPA(matching_weight=5.0)
    with pytest.raises(ValueError, match="global_views"):
        LeJEPA(global_views=3)(torch.randn(2, 4, 3))
