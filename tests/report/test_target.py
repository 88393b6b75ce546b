import io
import json

import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.report.target import draw_targets, print_targets, target_summary


def target(active=0.05, p=1.0, **options):
    return RectifiedGeneralizedGaussian.from_active_fraction(active, p, **options)


def test_summary_of_the_rectified_laplace_in_closed_form():
    """p = 1, mu < 0: E[x] = σ a, E[x²] = 2 σ² a with a = P(x > 0), so the l1 metric is a/2."""
    summary = target_summary(target(0.05, dtype=torch.float64))
    sigma = 0.5**0.5
    assert summary["sigma"] == pytest.approx(sigma)
    assert summary["active_fraction"] == pytest.approx(0.05)
    assert summary["information_dimension"] == summary["active_fraction"]
    assert summary["mean"] == pytest.approx(sigma * 0.05)
    assert summary["variance"] == pytest.approx(2 * sigma**2 * 0.05 - (sigma * 0.05) ** 2)
    assert summary["l1_metric"] == pytest.approx(0.025)
    assert json.loads(json.dumps(summary)) == summary


def test_summary_wants_one_target_at_a_time():
    with pytest.raises(ValueError, match="one by one"):
        target_summary(RectifiedGeneralizedGaussian(torch.zeros(2), 1.0, 1.0))


def test_table_names_every_quantity_and_target():
    from rich.console import Console

    stream = io.StringIO()
    print_targets([target(p=0.5), target(p=2.0)], Console(width=100, file=stream))
    text = stream.getvalue()
    for expected in ("p = 0.5", "p = 2", "E[x]", "entropy", "0.05"):
        assert expected in text


@pytest.mark.parametrize("exponents", [(1.0,), (0.5, 1.0, 2.0)])
def test_figure_shows_a_panel_for_each_target(tmp_path, exponents):
    from PIL import Image

    path = draw_targets([target(p=p) for p in exponents], tmp_path / "targets.png")
    with Image.open(path) as image:
        width, height = image.size
        assert width / height > (2.5 if len(exponents) == 3 else 1.2)
        # Each panel has its own colour: the stems and curves of that many hues are there.
        found = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    hues = [(0x2A, 0x6F, 0x97), (0xC8, 0x55, 0x3D), (0x5B, 0x8E, 0x55)]
    assert [hue in found for hue in hues] == [i < len(exponents) for i in range(3)]


def test_figure_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="empty"):
        draw_targets([], tmp_path / "none.png")
