"""The runs of `dfl-report --watch`: what their files say, and what is read again."""

import json
import os
import time

import pytest
import yaml

from dfl_lightning.bench.report.watch import collection as module
from dfl_lightning.bench.report.watch.collection import Collection
from dfl_lightning.bench.report.watch.settings import SettingsReader, flat

CONFIG = {
    "seed_everything": 3,
    "selection": {"class_path": "dfl_lightning.callbacks.Gossip", "init_args": {"k": 5, "within": None}},
    "model": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "nesterov": False}}},
    "monitors": [{"class_path": "dfl_lightning.callbacks.Fairness"}, "x.Time"],
    "code": {"mine": "abc"},
}


def shown(collection):
    """Return the cells and settings of each run by its name."""
    answer, rows = collection.since(0), {}
    for _, cells, parts in answer["rows"]:
        row = {name: value for name, value in zip(answer["columns"], cells, strict=True) if value is not None}
        for number in parts:
            row |= answer["parts"][number]
        rows[row["run"]] = row
    return rows


def looked(collection):
    collection.refresh(at_once=True)
    return shown(collection)


@pytest.fixture
def old(monkeypatch):
    """Let a folder be settled at once."""
    monkeypatch.setattr(module, "_SETTLED", -1)


def test_a_row_has_summary_and_settings(tmp_path, make_run):
    make_run(tmp_path / "afind" / "1", [[0.4, 0.6], [0.5, 0.8]], seed=7, config=CONFIG)
    (row,) = looked(Collection([tmp_path])).values()
    assert row.pop("changed") == int((tmp_path / "afind" / "1" / "metrics.csv").stat().st_mtime)
    assert row == {
        "run": "afind/1",
        "status": "finished",
        "test accuracy": 65.0,
        "worst tenth": 50.0,
        "rounds": 0,
        "seed": 7,
        "MB received": 2.0,
        "seconds": 1.0,
        "seed_everything": 3,
        "selection": "Gossip",
        "selection.k": 5,
        "model.optimizer": "SGD",
        "model.optimizer.lr": 0.1,
        "model.optimizer.nesterov": "false",
        "monitors": "Fairness, x.Time",
    }


def test_own_class_with_a_shipped_name_keeps_its_module(tmp_path, make_run):
    for path in ("mine.Gossip", "mine.Ours", "dfl_lightning.callbacks.Gossip"):
        make_run(tmp_path / path, [[0.4]], config={"selection": {"class_path": path}})
    rows = looked(Collection([tmp_path]))
    assert sorted(row["selection"] for row in rows.values()) == ["Gossip", "Ours", "mine.Gossip"]


def test_parts_of_configs_say_what_the_whole_says():
    reader, texts = SettingsReader(), []
    for lr in (0.1, 0.2):
        content = {**CONFIG, "data": {"x": [[1], [2]], "text": "a\nb: c\n"}, "topology": None}
        content["model"]["optimizer"]["init_args"]["lr"] = lr
        texts.append(yaml.safe_dump(content, sort_keys=False))
        texts.append(f"# by hand\n\nmodel: {{lr: {lr}}}\nname: 'a\n\n  b'\n")
        texts.append("a: &x {b: 1}\nc: *x\n")
        texts.append('a: "x\ny: z"\n')
    for text in texts:
        found = {}
        for number in reader.read(text):
            found |= reader.parts[number]
        assert found == flat(yaml.safe_load(text)), text
    assert len(reader.parts) < 20  # equal ones once


@pytest.mark.parametrize(
    "text", ["- 1\n", "a: [", "a: " + "[" * 500, "a: " + "- " * 9000, "x", "a: !!python/name:os.system\n"]
)
def test_a_config_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="it is not"):
        SettingsReader().read(text)


def test_a_run_that_trains_shows_its_last_whole_round(tmp_path, make_run, old):
    run = make_run(tmp_path / "1", [[0.5]] * 3, status=None)
    (run / ".lock").write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "since": ""}))
    collection = Collection([tmp_path])
    row = looked(collection)["1"]
    assert (row["status"], row["rounds"], row["test accuracy"]) == ("running", 3, 50.0)
    with (run / "metrics.csv").open("a") as file:
        file.write("3,0.1,0.75,2,1,1.0,0.5\n4,0.1,,2,1,1.0,0.5\n5,0.1,0.9")
    row = looked(collection)["1"]
    assert (row["rounds"], row["test accuracy"]) == (5, 75.0)
    (run / ".lock").write_text(json.dumps({"pid": 2**22 + 1, "host": os.uname().nodename, "since": ""}))  # killed
    assert looked(collection)["1"]["status"] == "not finished"
    (run / "summary.json").write_text(json.dumps({"status": "finished", "rounds": 9, "test_accuracy": {"mean": 0.8}}))
    row = looked(collection)["1"]
    assert (row["status"], row["rounds"], row["test accuracy"]) == ("finished", 9, 80.0)


def test_only_what_has_changed_is_read_and_sent_again(tmp_path, make_run, old, monkeypatch):
    for name in "abc":
        make_run(tmp_path / name, [[0.5]], config=CONFIG)
    read, original = [], module.read_row
    monkeypatch.setattr(module, "read_row", lambda row, *rest: (read.append(row.folder[-1]), original(row, *rest)))
    collection = Collection([tmp_path])
    looked(collection)
    assert sorted(read) == ["a", "b", "c"]
    version, parts = collection.since(0)["version"], len(collection.parts)
    looked(collection)
    assert len(read) == 3
    assert collection.since(version, parts)["rows"] == collection.since(version, parts)["parts"] == []
    make_run(tmp_path / "later" / "d", [[0.5]], config=CONFIG)
    (tmp_path / "b" / "summary.json").unlink()
    (tmp_path / "c").rename(tmp_path.parent / f"{tmp_path.name} c")
    looked(collection)
    assert sorted(read[3:]) == ["b", "d"]
    answer = collection.since(version, parts)
    assert [row[1][0] for row in answer["rows"]] == ["b", "later/d"]
    (gone,) = answer["gone"]
    assert collection.folder_of(gone) is None
    assert answer["parts"] == []
    (tmp_path.parent / f"{tmp_path.name} c").rename(tmp_path / "c")
    looked(collection)
    assert collection.folder_of(gone) == str(tmp_path / "c")  # the same name as before


def test_a_folder_that_has_just_changed_is_listed_again(tmp_path, make_run):
    run = make_run(tmp_path / "a", [[0.5]])
    collection = Collection([tmp_path])
    looked(collection)
    before = run.stat()
    (run / "summary.json").write_text('{"status": "failed"}')
    os.utime(run, ns=(before.st_atime_ns, before.st_mtime_ns))  # as on a file system whose clock is rough
    assert looked(collection)["a"]["status"] == "failed"


def test_damaged_files_are_noted_and_hide_no_other_run(tmp_path, make_run):
    make_run(tmp_path / "whole", [[0.5]])
    for name, file, content in (
        ("summary", "summary.json", b"[" * 100_000),
        ("numbers", "summary.json", b'{"status": [1], "test_accuracy": {"mean": "much"}, "seeds": 3, "rounds": NaN}'),
        ("config", "config.yaml", b"\xff\xfe"),
        ("metrics", "metrics.csv", b""),
    ):
        run = make_run(tmp_path / name, [[0.5]])
        (run / file).write_bytes(content)
    os.mkfifo(make_run(tmp_path / "pipe", [[0.5]], status=None) / "summary.json")
    rows = looked(Collection([tmp_path]))
    assert set(rows) == {"whole", "summary", "numbers", "config", "metrics", "pipe"}
    assert rows["summary"]["note"] == "summary.json cannot be read"
    assert rows["config"]["note"] == "config.yaml cannot be read"
    json.dumps(list(rows.values()), allow_nan=False)


def test_several_folders_and_links(tmp_path, make_run):
    make_run(tmp_path / "one" / "a", [[0.5]])
    make_run(tmp_path / "two" / "a", [[0.5]])
    make_run(tmp_path / "two" / ".trash" / "b", [[0.5]])
    (tmp_path / "two" / "link").symlink_to(tmp_path / "one")
    collection = Collection([tmp_path / "one", tmp_path / "two", tmp_path / "gone"])
    assert set(looked(collection)) == {"one/a", "two/a"}
    assert set(looked(Collection([tmp_path / "one" / "a"]))) == {"a"}


def test_methods_have_the_names_of_the_pages(tmp_path, make_run):
    from dfl_lightning import read_run
    from dfl_lightning.bench.report.method_names import base_name
    from dfl_lightning.bench.report.watch.names import naming

    gossip = {"selection": {"class_path": "dfl_lightning.callbacks.Gossip", "init_args": {"k": 5}}}
    afind = {"selection": {"class_path": "dfl_lightning.callbacks.AFIND"}}
    runs = [
        make_run(tmp_path / "g", [[0.5]], config=gossip),
        make_run(
            tmp_path / "l", [[0.5]], config={"selection": {**gossip["selection"], "init_args": {"k": 0}}}, received=0.0
        ),
        make_run(tmp_path / "a", [[0.5]], config=afind),
        make_run(
            tmp_path / "b", [[0.5]], config={**afind, "objective": {"class_path": "dfl_lightning.objectives.Ditto"}}
        ),
        make_run(tmp_path / "python", [[0.5]], policies=["AFIND"]),
    ]
    collection = Collection([tmp_path])
    looked(collection)
    collection.name_methods(naming(collection.parts))
    named = {name: row["method"] for name, row in shown(collection).items()}
    assert named == {run.name: base_name(read_run(run)) for run in runs}
    assert {named["g"], named["l"], named["a"]} == {"Gossip", "Local", "AFIND"}


def test_a_look_a_moment_later_is_none(tmp_path, make_run):
    collection = Collection([tmp_path])
    collection.refresh()
    make_run(tmp_path / "a", [[0.5]])
    collection.refresh()
    assert not shown(collection)
    collection._next = time.perf_counter()
    collection.refresh()
    assert set(shown(collection)) == {"a"}
