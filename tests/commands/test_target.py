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
        (["--active", "1.5"], "fraction = 1.5"),
        (["--active", "0.05", "--p", "0"], "p = 0"),
        (["--active", "0.05", "--mu", "1"], "either --active"),
        ([], "either --active"),
        (["--mu", "nan"], "loc = nan"),
        (["--active", "0.1", "--out", "target.txt"], "target.txt"),
        (["--active", "0.1", "--sigma", "-2"], "scale = -2"),
    ],
)
def test_a_mistake_gets_one_sentence(arguments, words, capsys):
    assert main(["target", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
