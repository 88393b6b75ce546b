import json

import pytest

from lpjepa.cli import main


def test_a_table_and_a_picture(tmp_path, capsys):
    out = tmp_path / "new folder" / "target.png"
    assert main(["target", "--active", "0.05", "--p", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    # p = 1, mu < 0: mu = σ log(2a), l1 metric a/2.
    assert "-1.62817" in text
    assert "0.025" in text
    assert str(out) in text.replace("\n", "")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_json_of_several_exponents_draws_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["target", "--mu", "0", "--compare", "0.5", "1", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["p"] for entry in found] == [0.5, 1.0, 2.0]
    assert all(entry["active_fraction"] == pytest.approx(0.5) for entry in found)
    assert not list(tmp_path.iterdir())


def test_sigma_by_name_and_by_number(capsys):
    assert main(["target", "--active", "0.2", "--sigma", "rgn", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["variance"] == pytest.approx(1.0)
    assert main(["target", "--mu", "-1", "--sigma", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["sigma"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--active", "1.5"], "--active 1.5 is not possible"),
        (["--active", "0.05", "--p", "0"], "--p 0.0 is not possible"),
        (["--active", "0.05", "--p", "0.001"], "--p 0.001 is not possible: pass a finite number above 0.009"),
        (["--active", "0.05", "--compare", "1", "0.001"], "--compare 0.001 is not possible"),
        (["--active", "0.05", "--mu", "1"], "either --active"),
        ([], "either --active"),
        (["--mu", "nan"], "--mu nan is not possible"),
        (["--active", "0.1", "--out", "target.txt"], "target.txt"),
        (["--active", "0.1", "--sigma", "-2"], "--sigma -2.0 is not possible"),
        (
            ["--active", "1e-9", "--sigma", "1e308"],
            "--active 1e-09, --p 1.0, --sigma 1e+308: these do not go",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(arguments, words, capsys):
    assert main(["target", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(("mu", "l1"), [("-1e5", 0.0), ("1e300", 1.0)])
def test_locations_out_of_all_proportion_are_drawn_without_a_word(mu, l1, tmp_path, capsys):
    assert main(["target", "--mu", mu, "--out", str(tmp_path / "t.png")]) == 0
    assert capsys.readouterr().err == ""
    assert main(["target", "--mu", mu, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["l1_metric"] == l1
