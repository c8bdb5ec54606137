"""Files of others can neither run code, nor write outside a run folder, nor exhaust the machine."""

import gzip
import io
import json
import os
import pickle
import resource
import signal
import struct
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from commands import SMALL

from dfl_lightning import UserError
from dfl_lightning.callbacks.dropout.trace import read_trace
from dfl_lightning.checkpoints.io import read_checkpoint, rounds_in
from dfl_lightning.cli import command as cli
from dfl_lightning.cli.arguments import run_name
from dfl_lightning.cli.exports.export import export
from dfl_lightning.data import FEMNIST, Digits
from dfl_lightning.data.readers.leaf import read_leaf_file
from dfl_lightning.data.readers.mnist_writers import read_writers
from dfl_lightning.models.start_file import load_parameters
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.storage.files import read_bounded, read_npz, write_atomically
from dfl_lightning.utils.storage.yaml_files import read_config

CLIENTS = 6


def read_split_file(path):
    Digits(num_clients=CLIENTS, split=str(path)).setup()


LOADERS = {
    "split.npz": read_split_file,
    "femnist.npz": lambda path: FEMNIST(path=str(path)).load(),
    "mnist_writers.npz": lambda path: read_writers(path.parent, np.zeros(6), np.zeros(6)),
    "last.ckpt": read_checkpoint,
    "run.ckpt": rounds_in,
    "export.ckpt": export,
    "net.pt": lambda path: load_parameters(str(path)),
    "net.safetensors": lambda path: load_parameters(str(path)),
    "trace.txt": read_trace,
    "all.json": lambda path: list(read_leaf_file(path)),
    "config.yaml": read_config,
    **{f"t.{suffix}": lambda path: load_topology(path, CLIENTS) for suffix in ("yaml", "graphml", "gml", "json")},
    **{f"t.{suffix}": lambda path: load_topology(path, CLIENTS) for suffix in ("edgelist", "adjlist")},
}


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def payloads(canary):
    """Files that would make the canary in the hands of a careless reader."""
    evil, torched, legacy, arrays, tar = Payload(canary), io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save({"dfl_lightning": {"format": 1, "more": evil}, "w": torch.zeros(2), "evil": evil}, torched)
    torch.save({"dfl_lightning": {"format": 1}, "evil": evil}, legacy, _use_new_zipfile_serialization=False)
    names = ("train_indices", "images", "train_writer", "format", "labels", "writers", "writer_ids", "is_test")
    np.savez(arrays, allow_pickle=True, **dict.fromkeys(names, np.array([evil], dtype=object)))
    np.save(tar, np.array([evil], dtype=object), allow_pickle=True)
    code = f"__import__('os').mkdir({str(canary)!r})"
    texts = [
        f"!!python/object/apply:os.mkdir [{canary}]",
        f"generator: !!python/object/apply:os.mkdir [{canary}]",
        f"seed: !!python/object/new:os.mkdir [{canary}]\n",
        f"a b {code}",
        f"a b {{'weight': {code}}}",
        f'graph [ node [ id 0 label "{code}" ] node [ id {code} ] ]',
        f'graph [ directed "{code}" node [ id 0 weight {code} ] ]',
        f'<graphml><key id="d" for="node" attr.name="budget" attr.type="{code}"/><graph><node id="0"><data key="d">'
        f"{code}</data></node></graph></graphml>",
        '<graphml><key id="d" for="node" attr.name="budget" attr.type="int"/><graph edgedefault="directed">'
        f'<node id="0"><data key="d">{code}</data></node></graph></graphml>',
        json.dumps({"nodes": [{"id": code}], "links": [], "directed": code, "__reduce__": code}),
        code,
    ]
    return [pickle.dumps(evil), torched.getvalue(), legacy.getvalue(), arrays.getvalue(), tar.getvalue()] + [
        text.encode() for text in texts
    ]


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_file_runs_code(name, tmp_path):
    canary, refused = tmp_path / "canary", 0
    for content in payloads(canary):
        (tmp_path / name).write_bytes(content)
        try:
            LOADERS[name](tmp_path / name)
        except UserError as error:
            refused += name in str(error)
        assert not canary.exists(), content[:80]
    assert refused >= 8, "some of the texts are files of some kind"


def test_the_payloads_run_when_unpickled(tmp_path):
    pickle.loads(payloads(tmp_path / "canary")[0])
    assert (tmp_path / "canary").is_dir()


# --- bombs ------------------------------------------------------------------------------------------------------------
@contextmanager
def at_once(seconds=10):
    """A bomb is refused before it goes off, which would take hours or all memory."""

    def too_long(*_):
        raise BaseException(f"more than {seconds} s")

    former = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    started = resident()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
    assert resident() - started < 300 * 2**20


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def array_header(dtype, shape):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(method=zipfile.ZIP_STORED, **members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return out.getvalue()


def laughs(levels, open_, close, first, again):
    lines = [f"a0: &a0 {first}"] + [
        f"a{i}: &a{i} {open_}{', '.join([again.format(i - 1)] * 9)}{close}" for i in range(1, levels)
    ]
    return "\n".join(lines).encode()


XML = b'<!DOCTYPE g [<!ENTITY a "aaaaaaaaaa">' + b"".join(
    f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">'.encode() for i in range(12)
)
ZEROS = bytes(150 * 2**20)
BOMBS = {
    "yaml aliases in a config": ("config.yaml", laughs(12, "[", "]", "x", "*a{}")),
    "yaml mappings in a config": ("config.yaml", b"data: &d {a: {b: *d}}\n"),
    "yaml aliases in a topology": ("t.yaml", laughs(12, "[", "]", "x", "*a{}")),
    "deep yaml in a config": ("config.yaml", b"data: " + b"[" * 200_000),
    "deep yaml in a topology": ("t.yaml", b"args: " + b"{a: " * 200_000),
    "deep json": ("t.json", b'{"nodes":' * 100_000),
    "deep leaf json": ("all.json", b'{"user_data":' + b"[" * 200_000),
    "a large number in a topology": ("t.yaml", b"generator: cycle_graph\nseed: " + b"9" * 10**6),
    "entities": ("t.graphml", XML + b"]><graphml>&m;</graphml>"),
    "many nodes": ("t.yaml", b"generator: complete_graph\nargs: {n: 1000000000}"),
    "many cells": ("t.yaml", b"generator: grid_graph\nargs: {dim: [100000, 100000]}"),
    "many tries": (
        "t.yaml",
        b"generator: connected_watts_strogatz_graph\nargs: {k: 2, p: 1.0, tries: 100000000000}\nseed: 1",
    ),
    "many iterations": (
        "t.yaml",
        b"generator: LFR_benchmark_graph\n"
        b"args: {tau1: 3, tau2: 1.5, mu: 0.1, average_degree: 2, max_iters: 100000000000}",
    ),
    "a deep expression": ("t.edgelist", b"a b " + b"(" * 1900),
    "a packed split": ("split.npz", lambda: archive(zipfile.ZIP_DEFLATED, train_indices=ZEROS)),
    "a packed femnist": ("femnist.npz", lambda: archive(zipfile.ZIP_DEFLATED, images=ZEROS)),
    "an array of a trillion": ("split.npz", archive(train_indices=array_header("<i8", (10**12,)) + b"\0" * 8)),
    "an array of a trillion images": ("femnist.npz", archive(images=array_header("|u1", (10**12, 28, 28)))),
    "a trillion empty texts": ("split.npz", archive(train_indices=array_header("<U0", (10**12,)))),
    "a trillion rows of nothing": ("split.npz", archive(train_offsets=array_header("<i8", (10**12, 0)))),
    "a packed graph": ("t.graphml", gzip.compress(b"<graphml>" + ZEROS[: 10**6])),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_is_refused(name, tmp_path):
    file, content = BOMBS[name]
    content = content() if callable(content) else content
    assert len(content) < 2 * 10**6
    (tmp_path / file).write_bytes(content)
    with at_once(), pytest.raises(UserError) as caught:
        LOADERS[file](tmp_path / file)
    assert file in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", [name for name in LOADERS if name != "mnist_writers.npz"])
def test_a_named_pipe_is_refused_without_waiting(name, tmp_path):
    os.mkfifo(tmp_path / name)
    writer = threading.Timer(60, lambda: open(tmp_path / name, "wb").close())  # ends a reader's waiting
    writer.daemon = True
    writer.start()
    with pytest.raises(UserError):
        LOADERS[name](tmp_path / name)
    assert writer.is_alive()
    writer.cancel()


def test_a_valid_archive_may_be_large_or_well_compressed(tmp_path):
    (tmp_path / "a.npz").write_bytes(
        archive(zipfile.ZIP_DEFLATED, x=array_header("|u1", (30 * 2**20,)) + ZEROS[: 30 * 2**20])
    )
    assert read_npz(tmp_path / "a.npz")["x"].shape == (30 * 2**20,)


# --- places -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("config", ["...yaml", "..yaml", ".yaml", "a/..", "a/b/.."])
def test_no_config_names_a_run_outside_its_folder(config):
    assert run_name([config]) not in ("", ".", "..")
    assert os.sep not in run_name([config])


def test_a_temporary_name_is_never_written_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / f".x.{os.getpid()}.tmp").symlink_to(tmp_path / "victim")
    (tmp_path / "x").symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "x", lambda file: file.write(b"new"))
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "x").read_text() == "new"
    assert not (tmp_path / "x").is_symlink()


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.delenv("DFL_DEBUG", raising=False)
    return tmp_path


def test_a_resumed_run_folder_full_of_links_writes_nothing_outside(here, capsys):
    """A run folder from another person may contain links to the user's files."""
    assert cli.run("fit", SMALL) == 0
    (run,) = Path("runs/afind").iterdir()
    mine = here / "mine"
    mine.mkdir()
    for file in [path for path in run.iterdir() if path.is_file()]:
        (mine / file.name).write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(mine / file.name)
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    words = [*SMALL, "--trainer.max_rounds", "2", "--ckpt_path", str(run / "checkpoints" / "last.ckpt")]
    assert cli.run("fit", words) == 0, capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == before
    assert len((run / "metrics.csv").read_text().splitlines()) == 3
    assert not [path for path in run.iterdir() if path.is_symlink()]


@pytest.mark.parametrize("name", ["checkpoints", "superseded"])
def test_a_run_folder_with_a_linked_folder_is_refused(here, capsys, name):
    assert cli.run("fit", SMALL) == 0
    (run,) = Path("runs/afind").iterdir()
    outside = here / "outside"
    if (run / name).exists():
        (run / name).rename(outside)
    else:
        outside.mkdir()
    (run / name).symlink_to(outside)
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    capsys.readouterr()
    words = [*SMALL, "--trainer.max_rounds", "2", "--ckpt_path", str(run / "checkpoints" / "last.ckpt")]
    code = cli.run("fit", words)
    if name == "superseded":
        assert code == 2
        assert "superseded is a link" in capsys.readouterr().err
    else:  # the checkpoint lies in no run folder: a new one is made
        assert code == 0
        assert len(list(Path("runs/afind").iterdir())) == 2
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


def test_names_in_graphs_are_not_paths(here, capsys):
    """Labels, clusters and graph names that look like paths stay words."""
    graph = nx.cycle_graph([f"../../{i}" for i in range(CLIENTS)])
    nx.set_node_attributes(graph, "/tmp/../x", "cluster")
    graph.name = "../../up"
    Path("g.gml").write_text("\n".join(nx.generate_gml(graph)))
    words = [*SMALL, "--topology", "g.gml", "--data.partition", "IID"]
    assert cli.run("fit", words) == 0, capsys.readouterr().err
    assert {path.name for path in here.iterdir()} == {"work"}
    assert {path.name for path in (here / "work").iterdir()} <= {"g.gml", "runs"}


# --- files of unexpected size -----------------------------------------------------------------------------------------
HUGE = 20 * 10**9


@pytest.mark.parametrize(
    ("name", "load", "sentence"),
    [
        *(
            (f"net.{suffix}", lambda path: load_topology(path, 24), "it has 20.0 GB, and at most 8.6 MB are read")
            for suffix in ("graphml", "gml", "json", "edgelist", "adjlist")
        ),
        ("net.yaml", lambda path: load_topology(path, 24), "it has 20.0 GB, and at most 2.0 MB are read"),
        ("up.txt", read_trace, "a dropout trace of 20.0 GB, and at most 64.0 MB are read"),
        ("run.yaml", read_config, "a config has at most 2 MB"),
    ],
)
def test_a_huge_file_is_refused_before_reading(tmp_path, name, load, sentence):
    path = tmp_path / name
    path.touch()
    os.truncate(path, HUGE)  # takes no place on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=f"{name}: .*{sentence}"):
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kilobytes


def test_a_file_without_a_size_is_read_within_bounds():
    with pytest.raises(ValueError, match=r"it has 1\.0 kB, and at most 1\.0 kB are read"):
        read_bounded(Path("/dev/zero"), 1000)


def test_a_large_graph_of_many_clients_is_read(tmp_path):
    (tmp_path / "net.edgelist").write_text("# " + "x" * 9 * 10**6 + "\n0 1\n")
    with pytest.raises(UserError, match=r"net\.edgelist: it has 9\.0 MB, and at most 8\.0 MB are read; give a smaller"):
        load_topology(tmp_path / "net.edgelist", 2)
    with pytest.raises(UserError, match="2 nodes, but data has 100 clients"):
        load_topology(tmp_path / "net.edgelist", 100)


def test_an_archive_is_bounded_by_what_may_be_in_it(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(1000))
    assert read_npz(tmp_path / "a.npz", most=9000)["x"].shape == (1000,)
    with pytest.raises(ValueError, match=r"it has 8\.1 kB of arrays, and at most 8\.0 kB are read"):
        read_npz(tmp_path / "a.npz", most=8000)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_an_array_twice_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("x.npy", archive.read("x.npy"))
    with pytest.raises(ValueError, match="it has two arrays 'x'"):
        read_npz(tmp_path / "a.npz")
