"""The page: complete in itself, escaped, structured for screen readers, tolerant of missing pieces."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
import yaml

from lpjepa.cli import main
from lpjepa.report import write_report
from lpjepa.report.comparable import data_names
from lpjepa.report.figures import DARK, LIGHT
from lpjepa.report.html import build_page
from lpjepa.report.markup import number, percent, script_data, template, text
from lpjepa.report.observation import Observation
from lpjepa.report.run import read_run, read_runs
from lpjepa.report.sections import configuration

VOID = {"meta", "img", "input", "br", "source", "link", "hr", "circle", "path"}


class Page(HTMLParser):
    """Elements in order as (tag, attributes), the text of the page, and whether tags nest properly."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text, self.stack, self.errors = [], "", [], []
        self.feed(page)
        assert not self.errors, self.errors
        assert not self.stack

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.stack or self.stack.pop() != tag:
            self.errors.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        if self.stack and self.stack[-1] not in ("script", "style"):
            self.text += data

    def all(self, *tags):
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.fixture(scope="module")
def page(comparison):
    return Page(comparison[0])


def test_nothing_is_loaded_from_elsewhere(comparison, page):
    for tag, attributes in page.elements:
        for name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/", "#")), (tag, name, value[:80])
        assert not any(name.startswith("on") for name in attributes)
    assert not page.all("link", "iframe", "object", "embed", "base")
    assert not re.search(r"@import|url\(", template("report.css"))


def test_policy_allows_only_the_pages_own_script(comparison):
    html = comparison[0]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (script,) = scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe-eval" not in policy


def test_names_are_escaped_everywhere(comparison, page):
    html, runs, _ = comparison
    assert runs[2].name in page.text
    assert "<img src=x" not in html
    assert "<b>why</b>" not in html
    assert "no pictures: <b>why</b>" in page.text


def test_data_cannot_end_its_script():
    data = script_data({"name": "</script><!-- &", "bad": float("nan")})
    assert "<" not in data
    assert ">" not in data
    assert '"bad": null' in data


def test_summary_table_shows_the_papers_columns(comparison):
    html, runs, _ = comparison
    (summary,) = re.findall(r'<section id="summary".*?</section>', html, re.DOTALL)
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", summary, re.DOTALL)
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]
    predicted = runs[0].target.predicted
    assert cells[0] == [
        "Rectified LpJEPA", "RGN₁(0, σ_GN)", "98.12", "96.89",
        f"{predicted['l1'] + 0.01:.4f}", f"{predicted['l1']:.4f}", "0.5100", "0.5000",
    ]  # fmt: skip
    assert cells[2][:2] == ["VICReg", ""]
    assert cells[2][5] == cells[2][7] == ""  # nothing is predicted without a target
    assert "lpjepa evaluate" in summary


def test_structure_serves_keyboard_and_screen_reader(page):
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    assert all(attributes.get("alt") for attributes in page.all("img"))
    labelled = {attributes.get("for") for attributes in page.all("label")}
    for attributes in page.all("input"):
        named = (
            attributes.get("id") in labelled
            or "aria-label" in attributes
            or attributes["type"] in ("radio", "checkbox")
        )
        assert named, attributes
    sortable = [attributes for attributes in page.all("th") if "aria-sort" in attributes]
    assert len(sortable) > 8
    assert all(attributes["aria-sort"] == "none" for attributes in sortable)
    for attributes in page.all("div"):
        if attributes.get("class") == "scroll":
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"]
    anchors = {attributes["href"][1:] for attributes in page.all("a")}
    assert anchors <= set(identifiers)
    assert len(page.all("h1")) == 1
    assert page.all("html")[0]["lang"] == "en"


def test_figures_lie_beside_the_runs(comparison):
    _, runs, root = comparison
    for run in runs[:2]:
        names = {path.name for path in (run.folder / "figures").iterdir()}
        for name in ("active-fraction", "marginals", "qq", "covariance-spectrum"):
            assert {f"{name}.png", f"{name}.svg"} <= names
    names = {path.stem for path in (root / "figures").iterdir()}
    assert {"pareto-l0", "pareto-l1", "training-l0", "training-loss", "neighbours-1", "attribution"} <= names
    assert "sparsity-by-correctness" in names


def test_photographs_are_embedded_as_saved(comparison):
    page, _, root = comparison
    for name in ("attribution", "neighbours-1"):
        saved = base64.b64encode((root / "figures" / f"{name}.png").read_bytes()).decode()
        assert f'<img src="data:image/png;base64,{saved}"' in page


def test_both_themes_are_embedded(page):
    sources, images = page.all("source"), page.all("img")
    assert len(sources) == len(images) > 15
    for source, image in zip(sources, images, strict=True):
        assert source["media"] == "(prefers-color-scheme: dark)"
        light, dark = (base64.b64decode(uri.split(",")[1]) for uri in (image["src"], source["srcset"]))
        assert light != dark
        assert light.startswith(b"\x89PNG" if "image/png" in image["src"] else b"<?xml")


def test_config_diff_marks_what_differs(tmp_path, make_run):
    a, b = (read_run(make_run(tmp_path / name, active=active)) for name, active in (("a", 0.1), ("b", 0.2)))
    html = configuration([a, b])
    changed = re.findall(r'<tr class="?changed"?><th scope="row">(.*?)</th>', html)
    assert changed == ["target.active"]
    assert "Only the 1 of 15 keys that differ" in html
    assert 'class="changed"' not in configuration([a])


def test_runs_on_different_data_are_not_ranked_together(tmp_path, make_run):
    folders = [make_run(tmp_path / name, active=active) for name, active in (("a", 0.5), ("b", 0.2))]
    for name, other in (("c", {"source": "cifar100", "root": "/x"}), ("d", {"source": "digits"})):
        folders.append(make_run(tmp_path / name, active=0.05, evaluated=False))
        config = yaml.safe_load((folders[-1] / "config.yaml").read_text())
        config["data"] = other
        (folders[-1] / "config.yaml").write_text(yaml.safe_dump(config))
    lines = (folders[2] / "metrics.jsonl").read_text()
    (folders[2] / "metrics.jsonl").write_text(re.sub(r'(_accuracy": )0\.\d+', r"\g<1>0.999", lines))
    runs = read_runs(folders)
    page = build_page(runs, [Observation()] * 4, tmp_path / "figures")
    (summary,) = re.findall(r'<section id="summary".*?</section>', page, re.DOTALL)
    assert "trained on different data" in summary
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', summary, re.DOTALL)
    assert [re.findall(r"<td[^>]*>([^<]*)", row)[0] for row in rows] == [
        "digits",
        "digits",
        "cifar100",
        "digits",
    ]
    # The most accurate run is alone on its data, and beats nobody there.
    assert ["99.90" in row for row in rows] == [False, False, True, False]
    assert [row.count('class="best"') for row in rows] == [2, 2, 0, 0]
    (trade_off,) = re.findall(r'<section id="trade-off".*?</section>', page, re.DOTALL)
    assert "on digits" in trade_off
    assert "c: l0" not in trade_off  # a run on other data is in no frontier of theirs
    page = build_page(runs[:2], [Observation()] * 2, tmp_path / "figures")
    assert "trained on different data" not in page
    page = build_page(runs[1:3], [Observation()] * 2, tmp_path / "figures")
    assert 'id="trade-off"' not in page


def test_folders_of_one_name_are_different_data(tmp_path, make_run):
    def run(name, **data):
        folder = make_run(tmp_path / name, evaluated=False)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"data": data}))
        return read_run(folder)

    here, there = str(tmp_path / "here" / "pets"), str(tmp_path / "there" / "pets")
    one = run("one", source="folder", root=here)
    two = run("two", source="folder", root=there)
    whole = run("whole", source="cifar100", root=here, options={"keep": "whole"})
    cut = run("cut", source="cifar100", root=there)  # the same files in another place
    coarse = run("coarse", source="cifar100", root=there, options={"coarse": True})
    assert data_names([one, whole, cut, coarse]) == ["pets", "cifar100", "cifar100", "cifar100, coarse True"]
    assert data_names([one, two]) == [f"pets ({here})", f"pets ({there})"]


def test_a_bare_run_says_which_commands_fill_the_gaps(tmp_path, make_run):
    folder = make_run(tmp_path / "bare", evaluated=False)
    (folder / "metrics.jsonl").unlink()
    path = write_report([folder])
    assert path == folder / "report.html"
    seen = Page(path.read_text(encoding="utf-8")).text
    assert f"lpjepa evaluate {folder}" in seen
    assert "metrics.jsonl has no curves yet; lpjepa pretrain writes it." in seen
    assert "no pictures of features and images" in seen
    assert "Target explorer" in seen
    assert not list(folder.glob("*.partial"))


def test_several_runs_default_beside_them(tmp_path, make_run, monkeypatch):
    folders = [make_run(tmp_path / "runs" / name, evaluated=False, epochs=1) for name in "ab"]
    written = {}
    monkeypatch.setattr(
        "lpjepa.report.html.build_page", lambda runs, seen, figures: written.update(figures=figures) or "x"
    )
    monkeypatch.setattr("lpjepa.report.html.observe", lambda run, loaded: None)
    assert write_report(folders) == tmp_path / "runs" / "report.html"
    assert written["figures"] == tmp_path / "runs" / "report_figures"
    assert write_report(folders, tmp_path / "else.html") == tmp_path / "else.html"
    assert written["figures"] == tmp_path / "else_figures"  # another comparison's are not overwritten
    assert write_report(folders, tmp_path) == tmp_path / "report.html"


@pytest.mark.filterwarnings("default")  # the command prints the warning of each damaged file
def test_the_command_tells_of_damaged_checkpoints(tmp_path, make_run, capsys, monkeypatch):
    folder = make_run(tmp_path / "damaged", evaluated=False, epochs=1)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-000000007.pt").write_bytes(b"cut")
    monkeypatch.setattr("lpjepa.report.html.build_page", lambda runs, seen, figures: "x")
    assert main(["report", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{folder / 'report.html'}\n"
    assert f"every checkpoint is damaged; train it anew: lpjepa pretrain {folder / 'config.yaml'}" in err


def test_mistakes_are_one_sentence(tmp_path, make_run):
    with pytest.raises(ValueError, match="no run given"):
        write_report([])
    with pytest.raises(ValueError, match="no such folder"):
        write_report([tmp_path / "nothing"])


def contrast(one, other):
    """WCAG 2 contrast ratio of two colours #rrggbb."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(c * w for c, w in zip(linear, (0.2126, 0.7152, 0.0722)))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_marks_stand_out_in_both_themes():
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{(.*?)\}", template("report.css"), re.DOTALL)
    )
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        for ink, ground in (
            ("ink", "page"), ("ink", "card"), ("muted", "page"), ("muted", "card"), ("accent", "card"),
            ("good", "card"), ("warn", "warn-soft"), ("ink", "soft"), ("ink", "changed"),
        ):  # fmt: skip
            assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        for run in range(8):
            assert contrast(theme[f"run-{run}"], theme["card"]) >= 3.0


def test_tables_and_figures_share_the_runs_colours():
    css = template("report.css")
    for theme in (LIGHT, DARK):
        for index, colour in enumerate(theme.series):
            assert f"--run-{index}: {colour};" in css


def test_cells():
    assert percent(0.98125).shown == "98.12"
    assert percent(0.5, spread=0.01).shown == "50.00 ± 1.00"
    assert percent(None).shown == number(float("nan")).shown == ""
    assert text('<a href="x">') == "&lt;a href=&quot;x&quot;&gt;"
