"""The calibrated rectifier: shares of active features against numpy's quantiles and by definition."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from lpjepa.data import EvalTransform, load_source
from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.models import CalibratedReLU, SoftTopReLU, TopReLU, build_projector
from lpjepa.training import checkpoint
from lpjepa.training._typed import ConfigError
from lpjepa.training.layers import load_config
from lpjepa.training.loop import pretrain


@pytest.mark.parametrize("active", [0.007, 0.03, 0.5, 0.88])
@pytest.mark.parametrize("count", [2, 64, 257])
def test_the_first_batch_sets_its_own_quantile(active, count):
    u = torch.randn(count, 5, dtype=torch.float64) * 3 + 1
    relu = CalibratedReLU(5, active)
    z = relu(u.float())
    expected = np.quantile(u.numpy(), 1 - active, axis=0, method="hazen")
    np.testing.assert_allclose(relu.threshold.numpy(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(z.double(), (u - torch.tensor(expected)).relu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("active", [0.03, 0.5])
def test_every_feature_becomes_active_as_often_as_asked(active):
    """Whatever its location, scale and shape, and even if it was dead."""
    location, scale = torch.linspace(-9, 4, 24), torch.logspace(-1, 1, 24)
    relu = CalibratedReLU(24, active)
    for _ in range(150):
        relu(torch.distributions.Laplace(location, scale).sample((256,)))
    share = (relu.eval()(torch.distributions.Laplace(location, scale).sample((20000,))) > 0).float().mean(0)
    torch.testing.assert_close(share, torch.full((24,), active), rtol=0.2, atol=0.01)


def test_until_its_time_has_come_it_is_a_relu():
    relu, other = CalibratedReLU(4, 0.2), CalibratedReLU(4, 0.2)
    relu.after.fill_(3)
    batches = torch.randn(5, 64, 4) + 1
    for u in batches[:3]:
        torch.testing.assert_close(relu(u), u.relu(), rtol=0, atol=0)
    for u in batches[3:]:  # and then the first batch sets its own quantile, as if nothing had been before
        torch.testing.assert_close(relu(u), other(u), rtol=0, atol=0)
    assert not torch.equal(relu.threshold, torch.zeros(4))


def test_evaluation_leaves_thresholds_and_gradients_pass_where_features_are_active():
    relu = CalibratedReLU(3, 0.25)
    relu(torch.randn(40, 3))
    before = copy.deepcopy(relu.state_dict())
    u = torch.randn(8, 3, requires_grad=True)
    z = relu.eval()(u)
    z.sum().backward()
    assert torch.equal(u.grad, (z > 0).float())
    for name, value in relu.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_features_keep_their_type(dtype):
    for relu in (CalibratedReLU(3), TopReLU(), SoftTopReLU()):
        assert relu(torch.randn(8, 3).to(dtype)).dtype == dtype


def test_projector_has_it_last():
    for name, kind in (("calibrated", CalibratedReLU), ("top", TopReLU), ("soft_top", SoftTopReLU)):
        assert type(build_projector(4, 8, 6, activation=name)[-1]) is kind


def test_training_takes_the_share_from_the_target(tmp_path):
    config = load_config(
        "presets:digits",
        {
            "model": {"activation": "calibrated"},
            "target": {"active": 0.1},
            "train": {"epochs": 2, "out": str(tmp_path / "run")},
            "log": {"plain": True},
        },
    )
    run = pretrain(config)
    relu = run.model(torch.device("cpu")).projector[-1]
    assert float(relu.active) == pytest.approx(0.1, rel=1e-5)
    assert relu.threshold.abs().sum() > 0
    assert float(relu.batches) == 22


@pytest.mark.parametrize("accumulate", [1, 3])
def test_late_in_a_training_and_over_an_interruption(tmp_path, accumulate):
    """Thresholds stay zero up to the share asked for, and a run that was stopped knows how far it is."""
    changes = {
        "model": {"activation": "calibrated"},
        "optim": {"accumulate": accumulate},
        "train": {"epochs": 4, "calibrate_from": 0.5, "checkpoint_every": 2, "out": str(tmp_path / "run")},
        "log": {"plain": True},
    }
    run = pretrain(load_config("presets:digits", changes))
    halfway, end = sorted(run.checkpoints.glob("step-*.pt"))
    relus = [run.model(torch.device("cpu"), run.weights(path)[0]).projector[-1] for path in (halfway, end)]
    assert relus[0].threshold.abs().sum() == 0
    assert relus[1].threshold.abs().sum() > 0
    end.unlink()
    (run.folder / "metrics.jsonl").write_text("")
    again = pretrain(load_config("presets:digits", changes)).model(torch.device("cpu")).projector[-1]
    assert torch.equal(again.threshold, relus[1].threshold)


@pytest.mark.parametrize("active", [0.001, 0.03, 0.5, 0.88, 0.9999])
def test_the_largest_features_of_each_image(active):
    """By numpy's partition: the k largest keep their values; where fewer are positive, all are raised."""
    values = torch.randn(200, 130, generator=torch.Generator().manual_seed(0)) - 0.2
    found = TopReLU(active).eval()(values).numpy()
    count = min(max(1, round(active * 130)), 129)
    for row, z in zip(values.numpy(), found):
        largest = np.argpartition(row, -count)[-count:]
        assert set(np.flatnonzero(z)) == set(largest)
        following = np.sort(row)[-count - 1]
        np.testing.assert_allclose(z[largest], row[largest] - min(following, 0), rtol=1e-6)


@pytest.mark.parametrize("active", [0.001, 0.03, 0.5, 0.88, 0.9999])
def test_the_largest_features_less_the_next_one(active):
    """By numpy's sort: whatever the sign, each of the k largest is what it has above the next."""
    values = torch.randn(200, 130, generator=torch.Generator().manual_seed(0)) - 0.2
    found = SoftTopReLU(active).eval()(values).numpy()
    count = min(max(1, round(active * 130)), 129)
    following = np.sort(values.numpy(), axis=1)[:, -count - 1, None]
    np.testing.assert_allclose(found, np.maximum(values.numpy() - following, 0), rtol=1e-6)
    assert ((found > 0).sum(1) == count).all()


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("mu", [-2.0, 0.0])
def test_a_dense_target_less_the_next_feature_is_a_sparser_one(p, mu):
    """Samples of RGN_p(1, σ), cut so, are of RGN_p(μ, σ), by the two-sample distance of scipy."""
    dense, sparse = (RectifiedGeneralizedGaussian(place, 1.0, p) for place in (1.0, mu))
    generator = torch.Generator().manual_seed(0)
    z = SoftTopReLU(sparse.active_probability).eval()(dense.sample((500, 2048), generator=generator))
    found, expected = z.flatten().numpy(), sparse.sample((1_000_000,), generator=generator).numpy()
    assert ks_2samp(found[found > 0], expected[expected > 0]).statistic < 0.02
    assert found.mean() == pytest.approx(expected.mean(), rel=0.02)
    kept = TopReLU(sparse.active_probability).eval()(dense.sample((50, 2048), generator=generator)).numpy()
    assert ks_2samp(kept[kept > 0], expected[expected > 0]).statistic > 0.1, "the largest as they are do not"


@pytest.mark.parametrize("kind", [TopReLU, SoftTopReLU])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_as_many_features_where_values_are_equal(dtype, kind):
    values = torch.randn(500, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert ((kind(0.2).eval()(values) > 0).sum(1) == 102).all()


@pytest.mark.parametrize("kind", [TopReLU, SoftTopReLU])
def test_of_one_feature_none_is_kept(kind):
    assert kind(0.5).eval()(torch.tensor([[2.0], [-1.0]])).tolist() == [[0.0], [0.0]]


def test_where_all_values_are_equal_none_is_above_the_next():
    values = torch.full((3, 8), 2.0, requires_grad=True)
    z = SoftTopReLU(0.25)(values)
    assert not z.any()
    assert torch.autograd.grad(z.sum(), values)[0].isfinite().all()


def test_largest_features_alone_learn_and_only_when_it_is_time():
    relu, values = TopReLU(0.25), torch.rand(6, 8).sub(0.1)
    values[:, :2] = torch.rand(6, 2) + 0.1  # enough that are positive
    values.requires_grad_()
    relu.after.fill_(2)
    for batch in range(4):
        z = relu.train()(values)
        expected = 2 if batch >= 2 else (values > 0).sum(1)
        assert ((z > 0).sum(1) == expected).all()
    relu.load_state_dict(relu.state_dict())
    grad = torch.autograd.grad(z.sum(), values)[0]
    assert torch.equal(grad != 0, z > 0)
    fresh = TopReLU()
    fresh.load_state_dict(relu.state_dict())
    assert float(fresh.active) == 0.25
    assert ((fresh.eval()(values) > 0).sum(1) == 2).all(), "a loaded one knows no schedule"


@pytest.mark.parametrize(("kind", "place"), [(TopReLU, -3), (SoftTopReLU, -3), (SoftTopReLU, 3)])
def test_the_gradient_of_shifted_features_is_that_of_finite_differences(kind, place):
    """A shift of all features changes nothing where one of them is subtracted: its gradient is zero."""
    generator = torch.Generator().manual_seed(0)
    values = (torch.randn(6, 8, generator=generator) + place).requires_grad_()
    weights, relu = torch.randn(6, 8, generator=generator), kind(0.5).train()
    of = lambda u: (relu(u) * weights).sum(1)
    grad = torch.autograd.grad(of(values).sum(), values)[0]
    torch.testing.assert_close(grad.sum(1), torch.zeros(6), atol=1e-5, rtol=0)
    step = 1e-3 * torch.eye(8)
    with torch.no_grad():
        numeric = torch.stack([(of(values + one) - of(values - one)) / 2e-3 for one in step], 1)
    torch.testing.assert_close(grad, numeric, atol=2e-3, rtol=0)


@pytest.mark.parametrize("active", [0.007, 0.3, 0.5, 0.9])
def test_fitted_to_all_images_at_once(active):
    values = torch.randn(3001, 130, generator=torch.Generator().manual_seed(0))
    relu = CalibratedReLU(130, active)
    relu.fit(values)
    expected = np.quantile(values.double().numpy(), 1 - active, axis=0, method="hazen")
    np.testing.assert_allclose(relu.threshold, expected, atol=1e-4)
    shares = (relu.eval()(values) > 0).float().mean(0)
    assert (shares - active).abs().max() <= 1 / 3001


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_set_by_the_training_images_when_the_training_is_over(tmp_path, start, ema):
    """Every feature is active as often as asked on the images as evaluation sees them, saved and reloaded."""
    changes = {
        "model": {"activation": "calibrated"},
        "target": {"active": 0.1},
        "optim": {"ema": ema},
        "train": {
            "epochs": 2,
            "calibrate_from": start,
            "calibrate_on": "images",
            "out": str(tmp_path / "run"),
        },
        "log": {"plain": True},
    }
    config = load_config("presets:digits", changes)
    run = pretrain(config)
    images = load_source("digits", None, "train")
    preprocess = EvalTransform(config.views.size, mean=config.views.mean, std=config.views.std)
    with torch.no_grad():
        z_ND = run.model()(preprocess(images.images))[1]
    shares_D = (z_ND > 0).float().mean(0)
    assert (shares_D - 0.1).abs().max() < 2 / len(z_ND), "but for ties of rounding"
    assert run.final["l0"] == pytest.approx(0.1, abs=0.02)
    path = run.weights()[1]
    before = checkpoint.load(path)["trainee"]
    (run.folder / "metrics.jsonl").write_text("")
    again = checkpoint.load(pretrain(config).weights()[1])["trainee"]  # stopped before its last measurement
    assert all(torch.equal(again[name], value) for name, value in before.items())


def test_at_the_end_only_by_images(tmp_path):
    changes = {"model": {"activation": "calibrated"}, "train": {"calibrate_from": 1.0}}
    with pytest.raises(ConfigError, match=r"calibrate_from: at 1 .* set train.calibrate_on images"):
        pretrain(load_config("presets:digits", changes, {"train": {"out": str(tmp_path / "run")}}))
    changes = {"train": {"calibrate_on": "images", "out": str(tmp_path / "run")}}
    for activation in ("relu", "top"):
        own = {"model": {"activation": activation}}
        with pytest.raises(ConfigError, match=rf"images is of no use with model\.activation {activation}"):
            pretrain(load_config("presets:digits", changes, own))


def test_a_time_without_thresholds_is_refused(tmp_path):
    changes = {"train": {"calibrate_from": 0.9, "out": str(tmp_path / "run")}}
    with pytest.raises(ConfigError, match=r"calibrate_from: 0\.9 is of no use with model\.activation relu"):
        pretrain(load_config("presets:digits", changes))


@pytest.mark.parametrize("activation", ["calibrated", "top", "soft_top"])
def test_without_a_rectified_target_it_is_refused(tmp_path, activation):
    changes = {"model": {"activation": activation}, "loss": {"method": "lejepa"}}
    config = load_config("presets:digits", {**changes, "train": {"out": str(tmp_path / "run")}})
    with pytest.raises(ConfigError, match=rf"model\.activation: {activation} .* rectified_lpjepa"):
        pretrain(config)
