"""The section of single features in a report."""

from lpjepa.report.gallery import Gallery
from lpjepa.report.interpretation import interpretation
from lpjepa.report.run import read_runs


def test_a_run_has_its_features_drawn(run_folder):
    gallery = Gallery()
    html = interpretation(read_runs([run_folder]), gallery)
    assert html.count("<figure>") == 2
    assert "Images that activate a feature most" in html
    assert "Median class selectivity" in html
    assert [path.name for path in gallery.files if path.suffix == ".png"] == [
        "features-images.png",
        "features-predictions.png",
    ]
    assert all(path.stat().st_size > 1000 for path in gallery.files)


def test_a_run_without_checkpoint_says_so(run_folder, tmp_path):
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text())
    html = interpretation(read_runs([tmp_path]), Gallery())
    assert "no pictures of single features" in html
    assert "<figure>" not in html
