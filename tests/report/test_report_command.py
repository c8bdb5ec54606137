"""`dfl-report` and `dfl-fit --report`: what they write, and what they refuse."""

import re

import pytest

from dfl_lightning.cli.command import run as command
from dfl_lightning.cli.report import main
from dfl_lightning.report import writing as module


def test_the_page_goes_into_the_run_or_where_it_is_asked_for(tmp_path, make_run, capsys):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    run = make_run(tmp_path / "run", [[0.5, 0.6]])
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{run / 'report.html'} (")
    assert main([str(run), "--to", str(tmp_path / "a" / "b.html"), "--png", str(tmp_path / "pictures")]) == 0
    assert (tmp_path / "a" / "b.html").read_bytes() == (run / "report.html").read_bytes()
    assert (tmp_path / "pictures" / "learning-curves.png").read_bytes().startswith(b"\x89PNG")
    head, row = (tmp_path / "pictures" / "learning-curves.csv").read_text().splitlines()
    assert head.startswith("method,round,mean")
    assert ",0,55.0," in row


def test_mistakes_are_sentences(tmp_path, make_run, capsys, monkeypatch):
    assert main([str(tmp_path / "none")]) == 2
    assert "no metrics.csv in there; give a run folder" in capsys.readouterr().err
    run = make_run(tmp_path / "run", [[0.5, 0.6]])
    (tmp_path / "file").write_text("")
    assert main([str(run), "--to", str(tmp_path / "file" / "page.html")]) == 2
    assert "choose another file with --to" in capsys.readouterr().err
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert main([str(run)]) == 2
    assert "pip install 'dfl-lightning[report]'" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert command("fit", ["--config", "gossip", "--report"]) == 2
    assert "pip install 'dfl-lightning[report]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_fit_makes_its_page_and_names_the_command(tmp_path, monkeypatch, capsys):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    monkeypatch.chdir(tmp_path)
    words = ["--config", "gossip", "--report", "--data.num_clients", "4", "--trainer.max_rounds=1"]
    assert command("fit", words) == 0
    (page,) = tmp_path.glob("runs/gossip/*/report.html")
    folder = page.parent.relative_to(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"its page: dfl-report {folder}", f"page: {folder}/report.html"]
    assert f"dfl-fit {' '.join(words)}" in re.sub("</?span>", "", page.read_text(encoding="utf-8"))
