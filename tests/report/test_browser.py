"""The page in a real browser: it renders, its controls work, nothing goes wrong and nothing leaves."""

import base64
import hashlib
import json
import re

import pytest

from lpjepa.distributions import RectifiedGeneralizedGaussian

WATCH = """
window.seen = {errors: [], blocked: []};
// The browser's virtual time runs ahead of its frames; frames on that clock make every drawing happen.
window.requestAnimationFrame = (draw) => setTimeout(draw, 16);
addEventListener("error", (e) => seen.errors.push(String(e.message || e.target.tagName)), true);
addEventListener("unhandledrejection", (e) => seen.errors.push(String(e.reason)));
addEventListener("securitypolicyviolation",
  (e) => seen.blocked.push(e.violatedDirective + " " + e.blockedURI));
for (const kind of ["error", "warn"]) console[kind] = (...words) => seen.errors.push(words.join(" "));
"""
REPORT = """
addEventListener("load", async () => {
  const wait = () => new Promise((go) => setTimeout(go, 100));
  const $ = (id) => document.getElementById(id);
  const set = async (id, value) => {
    $(id).value = value; $(id).dispatchEvent(new Event("input", {bubbles: true})); await wait();
  };
  const values = () => Object.fromEntries(["active", "atom", "l1", "mean", "variance", "entropy", "sigma"]
    .map((k) => [k, Number($("value-" + k).textContent.replace("\\u2212", "-"))]));
  const picture = () => $("chart-density").innerHTML + $("chart-l0").innerHTML;
  await wait();
  try { SCRIPT } catch (error) { seen.errors.push("harness: " + error); }
  seen.resources = performance.getEntriesByType("resource").map((entry) => entry.name.slice(0, 40));
  const out = document.createElement("pre");
  out.id = "harness"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
});
"""


@pytest.fixture(scope="module")
def drive(comparison, open_page):
    """Runs a script inside a copy of the page (its policy widened by that script's hash) and gives `seen`."""

    def run(script, page=None, width=1200):
        before, after = WATCH, REPORT.replace("SCRIPT", script)
        hashes = " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
            for code in (before, after)
        )
        page = (page or comparison[0]).replace("script-src ", f"script-src {hashes} ", 1)
        page = page.replace("<title>", f"<script>{before}</script><title>", 1)
        page = page.replace("</body>", f"<script>{after}</script></body>", 1)
        seen = json.loads(open_page(page, "harness", width))
        return seen

    return run


def quiet(seen):
    assert seen["errors"] == []
    assert seen["blocked"] == []
    assert all(name.startswith("data:") for name in seen["resources"])


def test_sliders_move_the_target(drive):
    seen = drive("""
      seen.steps = []; seen.pictures = [];
      const note = () => { seen.steps.push(values()); seen.pictures.push(picture()); };
      note();
      await set("active-number", 5); note();
      await set("p", 1); seen.p = Number($("p-number").value); note();
      document.querySelector("input[name=scale][value=rgn]").click(); await wait(); note();
      await set("mu", -2); seen.mu = Number($("mu-number").value); note();
      document.querySelector("input[name=scale][value=number]").click();
      await set("sigma-number", 0.5); note();
      document.querySelector("input[name=axis][value=active]").click(); await wait(); note();
      seen.shapes = document.querySelectorAll("#chart-l0 .ring").length;
    """)
    quiet(seen)
    start, five, gaussian, unit, moved, number, axis = seen["steps"]
    assert start["active"] == 0.5  # the first run's target
    assert (seen["p"], seen["mu"]) == (2, -2)
    assert five["active"] == gaussian["active"] == unit["active"] == 0.05  # held while p and sigma move
    assert unit["variance"] == moved["variance"] == 1
    assert number["sigma"] == 0.5
    assert axis == number
    laplace = RectifiedGeneralizedGaussian.from_active_fraction(0.05, 1.0)
    assert five["l1"] == pytest.approx(float(laplace.expected_l1_metric), rel=1e-3)
    assert five["entropy"] == pytest.approx(float(laplace.entropy()), rel=1e-3)
    normal = RectifiedGeneralizedGaussian.from_location(-2.0, 2.0, "rgn")
    assert moved["active"] == pytest.approx(float(normal.active_probability), rel=1e-3)
    assert moved["sigma"] == pytest.approx(float(normal.scale), rel=1e-3)
    assert len(set(seen["pictures"])) == 7  # every step redraws
    assert seen["shapes"] == 2  # both runs with a target are points


def test_chips_keyboard_and_sorting(drive):
    seen = drive("""
      const chips = Array.from(document.querySelectorAll(".chip"));
      chips[1].click(); await wait();
      seen.chip = values().active; seen.pressed = chips.map((c) => c.getAttribute("aria-pressed"));
      const table = document.querySelector("#summary table");
      const order = () => Array.from(table.tBodies[0].rows).map((r) => r.cells[0].textContent);
      const header = Array.from(table.tHead.rows[0].cells)
        .find((cell) => cell.querySelector("sub")?.textContent === "0");
      const button = header.querySelector("button");
      button.focus();
      seen.focused = document.activeElement === button;
      button.click(); seen.up = order(); seen.sort = header.getAttribute("aria-sort");
      button.click(); seen.down = order(); seen.sort2 = header.getAttribute("aria-sort");
      const rows = Array.from(document.querySelectorAll("#config-table tbody tr"));
      const shown = () => rows.filter((row) => row.offsetHeight).length;
      seen.head = document.querySelector("#config-table thead").offsetHeight;
      seen.differing = shown(); $("only-differences").click(); seen.all = shown();
      seen.tabbable = Array.from(document.querySelectorAll("input, button, summary, a, [tabindex]"))
        .every((e) => e.tabIndex >= 0);
    """)
    quiet(seen)
    assert seen["chip"] == 0.05
    assert seen["pressed"] == ["false", "true"]
    assert seen["focused"]
    assert [name.split()[0] for name in seen["up"]] == ["twentieth", "half", "<img"]
    assert seen["down"] == seen["up"][::-1]
    assert (seen["sort"], seen["sort2"]) == ("ascending", "descending")
    assert seen["head"] > 0
    assert 0 < seen["differing"] < seen["all"]
    assert seen["tabbable"]


def test_notes_keep_their_distance(drive):
    seen = drive("""
      const box = (e) => e.getBoundingClientRect();
      seen.gaps = Array.from(document.querySelectorAll("main .note-line"))
        .map((note) => box(note).top - box(note.previousElementSibling).bottom);
      seen.after_table = Boolean(document.querySelector(".scroll + .note-line"));
    """)
    quiet(seen)
    assert seen["after_table"]
    assert min(seen["gaps"]) >= 8


def test_a_phone_scrolls_down_only(comparison, drive):
    """Laid out 360 pixels wide: windows cannot be made that narrow, but the page's body can."""
    page = comparison[0].replace("</style>", "html { width: 360px; overflow-x: auto; }</style>", 1)
    page = page.replace("@media (max-width: 760px)", "@media (max-width: 9999px)")
    seen = drive(
        """
      document.querySelectorAll("details").forEach((d) => { d.open = true; });
      await wait(); dispatchEvent(new Event("resize")); await wait();
      seen.width = document.documentElement.clientWidth; seen.scroll = document.body.scrollWidth;
      const inScroller = (e) => e.closest(".scroll, .chart");
      seen.wide = Array.from(document.querySelectorAll("main *"))
        .filter((e) => !inScroller(e) && e.getBoundingClientRect().right > 361)
        .map((e) => e.tagName + "." + e.className + " " + e.textContent.slice(0, 40));
    """,
        page,
        width=500,
    )
    quiet(seen)
    assert seen["wide"] == []
    assert seen["scroll"] <= 360


def test_the_watch_sees_what_it_should(comparison, drive):
    """The tests above can fail: a stray request and an error are both noticed."""
    page = comparison[0].replace("</main>", '<img src="https://example.invalid/x.png" alt=""></main>', 1)
    seen = drive("nothing.here();", page)
    assert any(re.match("img-src https://example.invalid", entry) for entry in seen["blocked"])
    assert any("harness" in entry for entry in seen["errors"])
