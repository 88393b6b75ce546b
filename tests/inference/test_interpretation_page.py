"""The section of single features in a report."""

from lpjepa.report.interpretation import interpretation
from lpjepa.report.observation import observe
from lpjepa.report.run import read_runs


def drawn(folder):
    runs = read_runs([folder])
    return interpretation(runs, [observe(run) for run in runs])


def test_a_run_has_its_features_drawn(run_folder):
    html = drawn(run_folder)
    assert html.count("<figure>") == 2
    assert "Images that activate a feature most" in html
    assert "Median class selectivity" in html
    files = {path.name: path.stat().st_size for path in (run_folder / "figures").iterdir()}
    assert files.keys() == {
        f"features-{name}.{kind}" for name in ("images", "predictions") for kind in ("png", "svg")
    }
    assert all(size > 1000 for size in files.values())


def test_a_run_without_checkpoint_says_so(run_folder, tmp_path):
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text())
    html = drawn(tmp_path)
    assert "no pictures of single features" in html
    assert "<figure>" not in html
