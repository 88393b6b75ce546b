"""pretrain, evaluate, report on digits: the page of a real run, opened in the browser."""

import json
import re
from dataclasses import replace

import pytest

from lpjepa.evaluation import EvaluationSettings, evaluate_run
from lpjepa.report import write_report
from lpjepa.training.config import Config
from lpjepa.training.loop import pretrain


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two short trainings with their evaluations."""
    folders = []
    for active in (0.5, 0.1):
        config = Config()
        config.target.active = active
        config.views = replace(config.views, size=8)  # the pixels that digits have
        config.train.epochs, config.train.batch_size = 2, 256
        config.train.out = str(tmp_path_factory.mktemp("runs") / f"active-{active:g}")
        config.model.projector_dim = config.model.projector_hidden = 64
        config.loss.num_slices, config.log.plain = 64, True
        run = pretrain(config)
        settings = EvaluationSettings(epochs=2, draws=1, fractions=(1.0,), posthoc=False)
        evaluate_run(run.folder, settings=settings, device="cpu")
        folders.append(run.folder)
    return folders


SECTIONS = ("summary", "trade-off", "training", "features", "samples", "further", "config", "environment")


@pytest.mark.slow
def test_report_of_real_runs_is_complete(trained, tmp_path, open_page):
    page = write_report(trained, tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(f'<section id="{section}"' in page for section in SECTIONS)
    notes = re.findall(r'class="note-line">(.*?)</p>', re.sub(r"<noscript>.*?</noscript>", "", page))
    assert notes == []  # nothing is missing
    evaluation = json.loads((trained[0] / "evaluation.json").read_text())["evaluations"][-1]
    accuracy = evaluation["pieces"]["probe 1"]["encoder"]["top1"]["mean"]
    assert f">{100 * accuracy:.2f}</td>" in page
    for folder in trained:
        assert {path.suffix for path in (folder / "figures").iterdir()} == {".png", ".svg"}
    # In the browser, the explorer opens on the first run's target.
    page = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page)
    tell = "document.getElementById('out').textContent = document.getElementById('value-active').textContent"
    shown = page.replace("</body>", f"<pre id=out></pre><script>{tell}</script></body>")
    assert float(open_page(shown, "out")) == 0.5
