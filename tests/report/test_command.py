"""`thinwire report` as a user meets it."""

import json
from pathlib import Path

import pytest

from tests.report import made
from thinwire.cli import main


def test_one_run_is_reported_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.run(tmp_path / "run", epochs=4, asked=9, complete=False, tail="{")
    main(["report", str(folder), "--json", str(tmp_path / "printed.json")])
    printed = " ".join(capsys.readouterr().out.split())
    assert "run sylvie 4/9 - 200 ms 300 kB unfinished" in printed
    assert "run: stopped after epoch 4 of 9, or is still running; the last line was cut off" in printed
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    written = json.loads((tmp_path / "printed.json").read_text())
    assert written["page"] == str(folder / "report.html")
    assert written["runs"][0]["epochs_done"] == 4
    assert written["runs"][0]["state"] == "unfinished"


def test_several_runs_are_reported_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(made.run(tmp_path / name, method=name)) for name in ("exact", "adaqp")]
    monkeypatch.chdir(tmp_path)
    main(["report", *folders, "--tensorboard", "boards"])
    assert "complete" in capsys.readouterr().out
    assert {"report.html", "trace.json", "boards"} <= {path.name for path in tmp_path.iterdir()}
    main(["report", *folders, "--out", "other.html", "--trace", "other.json"])
    assert (tmp_path / "other.html").exists()
    assert (tmp_path / "other.json").exists()


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(made.run(tmp_path / "run", epochs=1))
    for arguments, said in [
        ((str(tmp_path / "none"),), "does not exist; give a folder that `thinwire train --out` has written"),
        ((str(tmp_path),), "holds no run"),
        ((folder, "--out", str(tmp_path / "no" / "x.html")), "does not exist; create it"),
        ((folder, "--out", str(tmp_path / "x"), "--trace", str(tmp_path / "x")), "lead to the same file"),
    ]:
        with pytest.raises(SystemExit) as left:
            main(["report", *arguments])
        assert left.value.code == 2
        assert said in " ".join(capsys.readouterr().err.split())
