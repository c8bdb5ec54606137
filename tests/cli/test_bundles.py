"""Bundles: a run is packed, repeated elsewhere bit for bit, and nothing hostile is unpacked."""

import csv
import dataclasses
import hashlib
import json
import os
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import yaml
from forked import Forked

from dfl_lightning.bench.study.file.settings import overridden
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.cli.arguments import split, with_configs
from dfl_lightning.cli.exports import bundle as packing
from dfl_lightning.cli.exports import unpacking
from dfl_lightning.cli.exports.bundle import bundle, collect
from dfl_lightning.cli.exports.bundle_format import LeftOut, Manifest, read_manifest
from dfl_lightning.cli.exports.export_command import main as export
from dfl_lightning.cli.exports.unpacking import config_in, remarks_on_bundles, require_code, unpack
from dfl_lightning.data import Digits
from dfl_lightning.data.splits.expected_split import difference
from dfl_lightning.utils.errors import UserError

MINE = """
from dfl_lightning.callbacks import Gossip

from bundled_helpers import NUMBER


class Two(Gossip):
    def __init__(self, k: int = NUMBER):
        super().__init__(k=k)
"""
CONFIG = """
trainer: {max_rounds: 3, accelerator: cpu, checkpoint_every: 3}
model: {network: {class_path: MLP, init_args: {hidden: [4]}}, local_epochs: 1}
data: {class_path: Vectors, init_args: {file: my table.csv, target: y, client: site, num_clients: 6}}
topology: changing.yaml
dropout: {class_path: Trace, init_args: {file: tables/active.txt}}
selection: bundled_mine.Two
"""


def write_inputs(folder):
    """Write a topology of three graph files, a dropout trace, a table, and a class that imports another module."""
    (folder / "graphs").mkdir(parents=True)
    (folder / "tables").mkdir()
    for name, graph in (("ring", nx.cycle_graph(6)), ("all", nx.complete_graph(6)), ("path", nx.path_graph(6))):
        nx.write_graphml(graph, folder / "graphs" / f"{name}.graphml")
    stages = [{"graph": "graphs/ring.graphml", "rounds": 1}, {"graph": "graphs/all.graphml", "rounds": 1}]
    (folder / "changing.yaml").write_text(yaml.safe_dump({"sequence": [*stages, {"graph": "graphs/path.graphml"}]}))
    (folder / "tables" / "active.txt").write_text("1 1 1 1 1 0\n1 0 1 1 1 1\n1 1 1 1 0 1\n")
    numbers = np.random.default_rng(0).normal(size=(120, 2))
    lines = [f"{a},{b},s{i % 6},{a + 2 * b}" for i, (a, b) in enumerate(numbers)]
    (folder / "my table.csv").write_text("\n".join(["a,b,site,y", *lines]))
    (folder / "bundled_mine.py").write_text(MINE)
    (folder / "bundled_helpers.py").write_text("NUMBER = 2\n")
    (folder / "my.yaml").write_text(CONFIG)


def fit(folder, *words, code=0):
    """Run `dfl-fit` in a process of its own; return what it prints."""
    process = Forked("dfl_lightning.cli.main:fit", ["dfl-fit", *map(str, words)], folder)
    out, err = process.communicate()
    assert process.returncode == code, err
    return out + err


def numbers(run):
    """Read the rows of metrics.csv without the seconds."""
    with open(run / "metrics.csv", newline="") as file:
        return [{name: text for name, text in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Return a bundle and its run, whose working folder has been renamed since."""
    root = tmp_path_factory.mktemp("packed")
    write_inputs(root / "here")
    fit(root / "here", "--config", "my.yaml")
    (run,) = (root / "here").glob("runs/my/*")
    bundle(run, root / "run.zip")  # from another working folder: the run's own is found
    (root / "here").rename(root / "gone")
    return root / "run.zip", root / "gone" / run.relative_to(root / "here")


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- a run is repeated ------------------------------------------------------------------------------------------------
def test_bundle_repeats_its_run_exactly_in_an_empty_folder(packed, empty):
    file, first = packed
    out = fit(empty, "--config", file)
    assert "which this run executes: bundled_helpers, bundled_mine" in out
    assert "have other samples" not in out
    (again,) = empty.glob("runs/run/*")
    assert len(numbers(again)) == 3
    assert numbers(again) == numbers(first)
    for name in ("clients.npz", "graphs.npz", "dropouts.npz"):
        one, other = np.load(again / name), np.load(first / name)
        assert set(one.files) == set(other.files)
        for key in one.files:
            np.testing.assert_array_equal(one[key], other[key])
    changed = fit(empty, "--config", file, "--seed_everything", "1", "--selection.k", "1", "--trainer.max_rounds=2")
    assert "seed 1" in changed
    assert "other samples" not in changed  # another seed draws others, as it should
    assert {len(numbers(run)) for run in empty.glob("runs/run/*")} == {2, 3}


def test_a_bundle_names_what_it_holds(packed):
    with zipfile.ZipFile(packed[0]) as archive:
        manifest = read_manifest(archive.read("bundle.json"))
        config = yaml.safe_load(archive.read("config.yaml"))
        assert set(archive.namelist()) == {"bundle.json", *manifest.files}
    assert {name for name in manifest.files if "/" in name} == {
        *("code/bundled_mine.py", "code/bundled_helpers.py", "files/changing.yaml", "files/my table.csv"),
        *("files/ring.graphml", "files/all.graphml", "files/path.graphml", "files/active.txt"),
    }
    assert config["data"]["init_args"]["file"] == "files/my table.csv"
    assert config["topology"] == "files/changing.yaml"
    assert manifest.left_out == ()
    assert manifest.versions["torch"]


def test_a_study_can_begin_from_a_bundle(packed, empty):
    study = {"name": "s", "rows": {"A": {"config": str(packed[0])}}, "columns": {"B": {}}, "seeds": [0]}
    (empty / "s.yaml").write_text(yaml.safe_dump({**study, "base": {"trainer.max_rounds": 2}}))
    assert "trainer.max_rounds is 2, not 3" in next(iter(overridden(read_study_file("s.yaml"))))


# --- what is packed ---------------------------------------------------------------------------------------------------
def run_with(folder, **config):
    """Write a folder that looks like a run's, with a config of these keys."""
    run = folder / "runs" / "my" / "1"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def test_files_of_one_name_are_kept_apart(empty):
    for name in ("one", "two"):
        (empty / name).mkdir()
        (empty / name / "a.txt").write_text(name)
    graph = nx.to_dict_of_lists(nx.cycle_graph(4))
    (empty / "one" / "a.adjlist").write_text("\n".join(" ".join(map(str, (a, *bs))) for a, bs in graph.items()))
    (empty / "two" / "graph.yaml").write_text("graph: ../one/a.adjlist")
    trace = {"class_path": "dfl_lightning.callbacks.Trace", "init_args": {"file": "one/a.txt"}}
    monitor = {"class_path": "dfl_lightning.callbacks.SimulatedTime", "init_args": {"trace": "two/a.txt"}}
    run = run_with(empty, dropout=trace, monitors=[monitor], topology="two/graph.yaml")
    found = collect(run)
    assert found.config["dropout"]["init_args"]["file"] == "files/a.txt"
    assert found.config["monitors"][0]["init_args"]["trace"] == "files/2/a.txt"
    assert found.members["files/2/a.txt"].read_text() == "two"
    assert yaml.safe_load(found.members["files/graph.yaml"]) == {"graph": "a.adjlist"}
    assert found.members["files/a.adjlist"].name == "a.adjlist"


def test_names_that_are_not_paths_stay_unchanged(empty):
    (empty / "mean").write_text("a file that happens to have this name")
    config = {"topology": "ring", "model": {"init": "common", "loss": "mean"}, "engine": "auto"}
    found = collect(run_with(empty, **config))
    assert found.config == config
    assert set(found.members) == {"config.yaml"}
    assert found.left_out == []


def test_large_and_missing_files_are_named_and_requested(empty, monkeypatch):
    monkeypatch.setattr(packing, "MOST_OF_A_FILE", 10)
    (empty / "large.csv").write_text("a" * 11)
    data = {"class_path": "dfl_lightning.data.Vectors", "init_args": {"file": "large.csv", "root": str(empty)}}
    trace = {"class_path": "dfl_lightning.callbacks.Trace", "init_args": {"file": "lost.txt"}}
    run = run_with(empty, data=data, dropout=trace, trainer={"default_root_dir": str(empty / "runs")})
    found = bundle(run, "run.zip")
    assert {(entry.place, entry.value) for entry in found.left_out} == {
        *(("data.file", "large.csv"), ("data.root", None), ("dropout.file", "lost.txt"))
    }
    assert str(empty) not in found.members["config.yaml"].decode()  # nothing of this machine
    assert any("trainer.default_root_dir is a place of this machine" in remark for remark in found.remarks)
    (empty / "large.csv").unlink()
    with pytest.raises(UserError, match=r"data\.file=large\.csv \(11 B; .*--data\.file PLACE --dropout\.file PLACE"):
        with_configs(split(["--config", "run.zip"]))
    typed = ["--config", "run.zip", "--data.file", "here.csv", "--dropout", "null"]
    assert len(with_configs(split(typed))) == 3


def test_data_sets_are_named_and_not_packed(empty):
    found = collect(run_with(empty, data={"class_path": "dfl_lightning.data.CIFAR10", "init_args": {"num_clients": 4}}))
    assert [(entry.place, entry.value) for entry in found.left_out] == [("data.root", None)]
    assert any("CIFAR10 are not packed" in remark for remark in found.remarks)


def test_a_file_that_is_younger_than_the_run_is_noticed(empty):
    (empty / "a.edgelist").write_text("0 1\n")
    run = run_with(empty, topology="a.edgelist")
    os.utime(run / "config.yaml", (1, 1))
    (remark,) = collect(run).remarks
    assert "a.edgelist was changed after the run began" in remark


def test_bundle_without_code_or_over_a_file_is_refused(empty, capsys):
    run = run_with(empty, selection={"class_path": "not_here.Best"}, code={"not_here": "unknown"})
    assert export([str(run), "--bundle", "run.zip"]) == 2
    assert "keeps no source of not_here" in capsys.readouterr().err
    (empty / "run.zip").write_text("something else")
    assert export([str(run), "--bundle", "run.zip"]) == 2
    assert "exists" in capsys.readouterr().err
    assert export([str(run), "--bundle", "run.zip", "--client", "1"]) == 2
    assert "leave it out" in capsys.readouterr().err
    assert (empty / "run.zip").read_text() == "something else"
    assert export([str(empty), "--bundle", "new.zip"]) == 2
    assert "has no config.yaml" in capsys.readouterr().err
    (run / "config.yaml").write_text("selection: {class_path: __main__.Best}")
    assert export([str(run), "--bundle", "new.zip"]) == 2
    assert "put it into a file of its own" in capsys.readouterr().err


# --- what is unpacked -------------------------------------------------------------------------------------------------
def archive_of(members, manifest=None, mode=0, flags=0):
    """Write a zip file with a correct list of these members, unless another manifest is given."""
    if manifest is None:
        files = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in members}
        manifest = Manifest("my", files).as_json()
    with zipfile.ZipFile("run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in [("bundle.json", manifest), *members]:
            info = zipfile.ZipInfo()
            info.filename, info.external_attr = name, (mode if name != "bundle.json" else 0) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text)
    if flags:
        content = bytearray(Path("run.zip").read_bytes())
        at = content.rindex(b"PK\1\2")
        content[at + 8] |= flags
        Path("run.zip").write_bytes(content)


HONEST = ("config.yaml", "topology: ring\n")
HOSTILE_NAMES = [
    *("../evil", "files/../../evil", "/evil", "files//evil", "files/./evil", "files/..", "files\\..\\evil", "C:/evil"),
    *("files/a\nb", "files/evil.", "evil", "code/evil.txt", "code/../evil.py", "code/a-b.py", "files/", ".git/hooks/x"),
    *("bundle.json/x", "files/C:evil", "runs/my/1/config.yaml", f"files/{'x' * 300}", "/".join(["files", *"x" * 40])),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_that_leaves_the_folder_is_refused(empty, name):
    archive_of([HONEST, (name, "x")])
    with pytest.raises(UserError, match="not a bundle"):
        unpack(Path("run.zip"))
    assert os.listdir() == ["run.zip"]
    assert not list(empty.parent.glob("*evil*"))


@pytest.mark.parametrize(
    ("members", "options", "words"),
    [
        ([HONEST, ("files/a", "/etc/passwd")], {"mode": stat.S_IFLNK | 0o777}, "link"),
        ([HONEST, ("files/a", "x")], {"flags": 1}, "encrypted"),
        ([HONEST, ("files/a", "x"), ("files/A", "y")], {}, "twice"),
        ([HONEST, ("files/a", "x"), ("files/a/b", "y")], {}, "a file and a folder"),
        ([HONEST, ("files/a", "x" * 3000)], {}, "would have 3.0 kB"),
        ([HONEST, *((f"files/{i}", "x" * 900) for i in range(8))], {}, "unpack to"),
        ([HONEST, *((f"files/{i}", "") for i in range(20))], {}, "members"),
        ([("files/a", "x")], {}, "no config.yaml"),
        ([HONEST, ("files/a", "x")], {"manifest": Manifest("my", {"config.yaml": "0"}).as_json()}, "files/a"),
        ([HONEST], {"manifest": Manifest("my", {"config.yaml": "0" * 64}).as_json()}, "not what was packed"),
        ([HONEST], {"manifest": "[]"}, "format"),
        ([HONEST], {"manifest": '{"format": 1}'}, "incomplete"),
        ([HONEST], {"manifest": json.dumps({"format": 2})}, "format 2"),
        ([HONEST], {"manifest": Manifest("my", {"config.yaml": 3}).as_json()}, "values that are not texts"),
    ],
)
def test_an_unusual_archive_is_refused_and_leaves_nothing(empty, monkeypatch, members, options, words):
    for name, most in (("MOST_OF_A_FILE", 2000), ("MOST_BYTES", 6000), ("MOST_MEMBERS", 15)):
        monkeypatch.setattr(unpacking, name, most)
    archive_of(members, **options)
    with pytest.raises(UserError, match=words):
        unpack(Path("run.zip"))
    assert os.listdir() == ["run.zip"]


def test_damaged_archives_are_refused(packed, empty):
    content = packed[0].read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 3] ^= 1
    for number, text in enumerate((b"", b"PK", content[: len(content) // 2], bytes(damaged))):
        Path(f"{number}.zip").write_bytes(text)
        with pytest.raises(UserError, match="not a bundle"):
            unpack(Path(f"{number}.zip"))
    assert {file.suffix for file in empty.iterdir()} == {".zip"}
    with pytest.raises(UserError, match="no such file"):
        with_configs(split(["--config", "lost.zip"]))


def test_a_folder_that_exists_is_never_written_to(empty):
    archive_of([HONEST, ("files/a", "x")])
    assert unpack(Path("run.zip")) == Path("run")
    (empty / "run" / "mine.txt").write_text("more files do no harm")
    assert unpack(Path("run.zip")) == Path("run")
    (empty / "run" / "config.yaml").write_text("topology: complete\n")
    with pytest.raises(UserError, match=r"has another config\.yaml; .*--config run/config\.yaml"):
        unpack(Path("run.zip"))
    assert config_in(Path("run/config.yaml"))[1] == {"topology": "complete"}  # the remedy
    (empty / "run").rename(empty / "aside")
    (empty / "run").write_text("a file")
    with pytest.raises(UserError, match="rename the bundle"):
        unpack(Path("run.zip"))
    assert (empty / "run").read_text() == "a file"


def test_an_unpacked_bundle_is_understood_from_any_folder(empty, monkeypatch):
    archive_of([("config.yaml", "topology: files/a\n"), ("files/a", "x")])
    assert config_in(Path("run.zip"))[1] == {"topology": "run/files/a"}
    (empty / "below").mkdir()
    monkeypatch.chdir(empty / "below")
    assert config_in(Path("../run/config.yaml"))[1] == {"topology": "../run/files/a"}


@pytest.mark.parametrize("name", ["...zip", ".zip", "run.ZIP"])
def test_odd_names_of_bundles_stay_in_the_folder(empty, name):
    archive_of([HONEST])
    Path("run.zip").rename(name)
    folder = unpack(Path(name))
    assert folder.resolve().parent == empty.resolve()
    assert (folder / "config.yaml").is_file()


# --- what differs here ------------------------------------------------------------------------------------------------
def test_another_module_of_the_same_name_is_refused(empty, monkeypatch):
    manifest = Manifest("my", {}, modules=("bundle_tested", "bundle_package.part"))
    (empty / "run" / "code" / "bundle_package").mkdir(parents=True)
    (empty / "run" / "bundle.json").write_text(manifest.as_json())
    for name in ("bundle_tested.py", "bundle_package/part.py"):
        (empty / "run" / "code" / name).write_text("NUMBER = 1")
    (empty / "bundle_package").mkdir()
    monkeypatch.syspath_prepend(str(empty))
    require_code("run/config.yaml")
    for name in ("bundle_tested.py", "bundle_package/part.py"):
        (empty / name).write_text("NUMBER = 1")
        require_code("run/config.yaml")
        (empty / name).write_text("NUMBER = 2")
        with pytest.raises(UserError, match="which is not the code of the bundle"):
            require_code("run/config.yaml")
        (empty / name).unlink()


def test_versions_that_differ_are_said_in_one_sentence(empty):
    (empty / "run").mkdir()
    versions = {"python": "2.7", "numpy": np.__version__, "bundle_tested": "1"}
    manifest = Manifest("my", {}, versions, left_out=(LeftOut("a", None, "b"),))
    (empty / "run" / "bundle.json").write_text(replace(manifest, device="cuda:1").as_json())
    (sentence,) = remarks_on_bundles([("run/config.yaml", {}), ("other.yaml", {})], "cuda:0")
    assert "device" not in sentence
    (sentence,) = remarks_on_bundles([("run/config.yaml", {})], "cpu")
    assert "the device cuda:1 (here cpu)" in sentence
    assert "python 2.7 (here 3." in sentence
    assert "bundle_tested 1 (here none)" in sentence
    assert "numpy" not in sentence


def test_other_data_and_other_draws_are_told_apart(empty):
    def data(**options):
        made = Digits(num_clients=4, **options)
        made.setup()
        return made

    first = data(seed=0)
    first.save_split("split.npz")
    other = data(seed=1)
    file = Path("split.npz")
    assert difference(file, first.client_split, first.source, same_draw=True) == ""
    assert difference(file, other.client_split, other.source, same_draw=False) == ""
    assert "clients have other samples" in difference(file, other.client_split, other.source, same_draw=True)
    other.expected = (file, True)
    assert "--data.split split.npz gives them those" in other.notes()[0]
    assert data(split="split.npz").client_split.train[0].tolist() == first.client_split.train[0].tolist()  # the remedy
    changed = dataclasses.replace(other.source, labels=other.source.labels + (other.source.labels == 0))
    assert "these are not the data" in difference(file, other.client_split, changed, same_draw=False)
