"""Statistics behind the pictures, and looking at a run with its checkpoint and its kept features."""

import numpy as np
import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.evaluation import features
from lpjepa.report import interpretation, observation
from lpjepa.report.observation import observe
from lpjepa.report.portrait import QUANTILE_LEVELS, portrait
from lpjepa.report.run import read_run
from lpjepa.training import checkpoint
from lpjepa.training.config import Config
from lpjepa.training.run import Run, build_model


def test_portrait_of_target_samples_is_the_targets():
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.2, 1.0, dtype=torch.float64)
    z = target.sample((1500, 400), generator=torch.Generator().manual_seed(7))
    seen = portrait(z, target)
    assert seen.l0 == pytest.approx(0.2, abs=0.005)
    assert seen.l1 == pytest.approx(float(target.expected_l1_metric), rel=0.05)  # its limit for many features
    assert seen.variance == pytest.approx(float(target.variance), rel=0.05)
    np.testing.assert_allclose(seen.active_D, 0.2, atol=0.05)
    np.testing.assert_allclose(seen.quantiles_KQ[:, 20:-20], seen.target_quantiles_KQ[:, 20:-20], atol=0.1)
    assert seen.quantiles_KQ.shape == (24, len(QUANTILE_LEVELS))
    assert seen.rectified


@pytest.mark.parametrize("samples", [10, 200])
def test_spectrum_is_that_of_the_covariance(samples):
    z = torch.randn(samples, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seen = portrait(z)
    expected = np.linalg.eigvalsh(np.cov(z.numpy().T))[::-1]
    np.testing.assert_allclose(seen.eigenvalues_D, expected, atol=1e-12)
    assert seen.quantiles_KQ is None
    assert not seen.rectified
    np.testing.assert_array_equal(np.sort(seen.values), np.sort(z.numpy().ravel()))


def test_unusable_features_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        portrait(torch.tensor([[0.0, float("nan")], [1.0, 2.0]]))
    with pytest.raises(ValueError, match="at least 2 samples"):
        portrait(torch.zeros(1, 4))


@pytest.fixture
def trained(tmp_path):
    """A run on digits whose model was never trained: enough to look with."""
    config = Config()
    config.model.projector_dim = 32
    config.model.projector_hidden = 32
    run = Run(tmp_path / "run", config)
    run.folder.mkdir()
    run.save_config()
    torch.manual_seed(0)
    weights = {f"model.{name}": value for name, value in build_model(config).state_dict().items()}
    checkpoint.save(run.checkpoints, 0, {"trainee": weights})
    return run


def test_a_run_is_seen_through_its_checkpoint(trained):
    seen = observe(read_run(trained.folder))
    assert seen.notes == ()
    assert seen.portrait.active_D.shape == (32,)
    assert seen.portrait.rectified
    assert len(seen.neighbours) == 4
    for key, row in seen.neighbours.items():
        assert key.startswith("digits, image ")
        assert np.asarray(row.query).shape == (8, 8, 3)
        assert len(row.neighbours) == len(row.agrees) == 6
        assert row.similarities == sorted(row.similarities, reverse=True)
        assert not any(np.array_equal(row.query, other) for other in row.neighbours)  # never the query itself
    assert len(seen.attributions) == 6
    assert all(image.shape[:2] == heat.shape for image, heat in seen.attributions.values())


def test_queries_are_searched_for_by_their_centres_as_well(trained, monkeypatch):
    seen = observe(read_run(trained.folder))
    assert seen.cropped.keys() == seen.neighbours.keys()
    plain, cropped = ([row.similarities for row in rows.values()] for rows in (seen.neighbours, seen.cropped))
    assert not np.allclose(plain, cropped, rtol=0, atol=5e-6)  # an untrained model finds all much alike
    for row in seen.cropped.values():
        assert row.label == "run, cropped"
        assert row.similarities == sorted(row.similarities, reverse=True)
    # A crop that keeps everything finds what the query finds, again without the query itself.
    monkeypatch.setattr(observation, "CROP", (0.0, 0.0, 1.0, 1.0))
    seen = observe(read_run(trained.folder))
    for key, row in seen.neighbours.items():
        whole = seen.cropped[key]
        np.testing.assert_allclose(whole.similarities, row.similarities, rtol=0, atol=1e-6)
        assert not any(np.array_equal(row.query, other) for other in whole.neighbours)


def test_kept_features_are_used_and_need_no_checkpoint(trained):
    z = torch.arange(64.0).reshape(16, 4) % 5
    (trained.folder / "features").mkdir()
    kept = {"projector": z, "labels": torch.arange(16) % 2, "indices": torch.arange(16), "step": 0}
    torch.save(kept, trained.folder / "features" / "digits.pt")
    seen = observe(read_run(trained.folder))
    assert seen.portrait.samples == 16
    np.testing.assert_allclose(seen.portrait.active_D, (z != 0).double().mean(0))
    assert len(seen.neighbours) == 2  # two classes
    assert seen.cropped == {}
    assert seen.notes == ("no cropped queries: the kept features have 4 entries, the model gives 32",)
    for path in trained.checkpoints.iterdir():
        path.unlink()
    seen = observe(read_run(trained.folder))
    assert seen.portrait.samples == 16
    assert seen.neighbours == {}
    assert "no checkpoint" in seen.notes[0]
    assert seen.images.name == "digits"  # single features are shown from these and the kept rows
    torch.testing.assert_close(seen.rows.z_ND, z)


def test_features_are_computed_once(trained, monkeypatch):
    computed, hung = [], []
    whole = features.extract
    monkeypatch.setattr(features, "extract", lambda *a, **k: computed.append(whole(*a, **k)) or computed[-1])
    monkeypatch.setattr(interpretation, "hang", lambda folder, name, *a, **k: hung.append(name) or name)
    run, loaded = read_run(trained.folder), {}
    first = observe(run, loaded)
    html = interpretation.interpretation([run], [first])
    assert len(computed) == 1
    torch.testing.assert_close(first.rows.z_ND, computed[0].projector)
    assert hung == ["features-images", "features-predictions"]
    assert all(name in html for name in hung)
    # Another run on the same data looks at the same images.
    assert observe(run, loaded).images is first.images


def test_damaged_features_are_computed_anew(trained):
    (trained.folder / "features").mkdir()
    (trained.folder / "features" / "digits.pt").write_bytes(b"not a file of torch's")
    assert observe(read_run(trained.folder)).portrait.active_D.shape == (32,)


def test_a_run_without_anything_to_see_says_why(tmp_path, make_run):
    seen = observe(read_run(make_run(tmp_path / "run")))
    assert seen.portrait is None
    assert seen.notes == (f"no pictures of features and images: {seen.missing}",)
    assert "checkpoints are gone" in seen.missing
