"""Files with any bytes are valid, or refused by one sentence that names them, within a time limit.

A few examples of each kind run always, thousands with `-m slow`.
"""

import io
import json
import math
import resource
import signal
import sys
import tempfile
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_lightning import UserError
from dfl_lightning.callbacks.dropout.trace import read_trace
from dfl_lightning.checkpoints.io import FORMAT, read_checkpoint
from dfl_lightning.cli import command as cli
from dfl_lightning.data import FEMNIST, Digits
from dfl_lightning.data.materialise import materialise
from dfl_lightning.data.partitions import FlippedLabels, RotatedClusters
from dfl_lightning.data.readers.leaf import read_leaf_file
from dfl_lightning.data.readers.mnist_writers import read_writers
from dfl_lightning.data.splits.split_file import read_split
from dfl_lightning.models.start_file import load_parameters
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.storage.shipped_files import shipped

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
SECONDS = 20
CLIENTS = 6


class HangError(BaseException):
    """Not an Exception: no loader may take it for a damaged file."""


@contextmanager
def in_good_time(seconds=SECONDS):
    """Ends what takes so many seconds of this process, or waits ten times as long for anything else."""

    def too_long(*_):
        raise HangError(f"more than {seconds} s")

    timers = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    former = {signum: signal.signal(signum, too_long) for signum in timers}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)
    try:
        yield
    finally:
        for signum, timer in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(signum, former[signum])


@contextmanager
def in_little_memory(more=2**30):
    """Lets the process have so many bytes of address space more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


def valid_or_sentence(load, path):
    """Return a loader's sentence about a file; empty if it is valid. Any other error fails the test."""
    with in_good_time():
        try:
            load(path)
        except UserError as error:
            sentence = str(error)
        else:
            return ""
    assert "\n" not in sentence
    assert path.name in sentence
    assert len(sentence) < 1500
    return sentence


# --- loaders: what a run does with a file before it trains -----------------------------------------------------------
def topology(path):
    found = load_topology(path, CLIENTS)
    found.describe(), found.warnings(), found.identity()
    for number in (0, 1, 7, 10**6):
        assert found.reachable(number).mask.shape == (found.num_nodes, found.num_nodes)
        assert not found.reachable(number).mask.diagonal().any()
        found.weights(number)


@cache
def digits():
    data = Digits(num_clients=CLIENTS, partition=FlippedLabels(clients=[1], base=RotatedClusters([0, 90])), seed=0)
    data.setup()
    return data


def split(path):
    found = materialise(digits().source, read_split(path, digits().source, CLIENTS))
    assert found.images.isfinite().all()
    assert all(len(found.train[client]) for client in range(CLIENTS))


def leaf(path):
    for _, samples, classes in read_leaf_file(path):
        assert len(samples) == len(classes) > 0
        assert np.isfinite(samples).all()


def femnist(path):
    source = FEMNIST(path=str(path)).load()
    assert source.images.shape[1:] == (1, 28, 28)


MNIST = np.arange(60) % 10


def writers(path):
    _, train, test = read_writers(path.parent, MNIST, MNIST[:20])
    assert (len(train), len(test)) == (60, 20)


def checkpoint(path):
    assert isinstance(read_checkpoint(path)["dfl_lightning"], dict)


def state_dict(path):
    assert all(isinstance(value, torch.Tensor) for value in load_parameters(str(path)).values())


# --- valid files ------------------------------------------------------------------------------------------------------
RING = nx.cycle_graph(CLIENTS)
nx.set_node_attributes(RING, {node: node // 3 for node in RING}, "cluster")
nx.set_node_attributes(RING, 2, "budget")
nx.set_edge_attributes(RING, 0.5, "weight")
LEAF = {
    "users": ["ann", "bob"],
    "num_samples": [2, 1],
    "user_data": {"ann": {"x": [[0.0, 1.0], [0.2, 1e-3]], "y": [3, 1]}, "bob": {"x": [[1, 0]], "y": [0]}},
}
TOPOLOGIES: list[dict[str, Any]] = [
    {"generator": "watts_strogatz_graph", "args": {"k": 4, "p": 0.5}, "seed": 1, "link_up": 0.9},
    {"generator": "partial", "args": {"fraction": 0.5}, "every": 2, "arc_up": 0.5},
    {"generator": "stochastic_block_model", "args": {"sizes": [3, 3], "p": [[0.9, 0.1], [0.1, 0.9]]}},
    {"generator": "server", "args": {"servers": 2}},
    {"generator": "connected_watts_strogatz_graph", "args": {"k": 2, "p": 0.3, "tries": 10}},
    {
        "sequence": [{"generator": "complete", "rounds": 2}, {"generator": "cycle_graph", "rounds": 1, "seed": 3}],
        "repeat": True,
        "link_share": 0.8,
    },
]


def node_link(graph):
    nodes = [{**attributes, "id": node} for node, attributes in graph.nodes(data=True)]
    links = [{**attributes, "source": u, "target": v} for u, v, attributes in graph.edges(data=True)]
    return {"directed": False, "multigraph": False, "graph": {}, "nodes": nodes, "links": links}


def npz(arrays, **options):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, **options)
    return buffer.getvalue()


@cache
def split_arrays():
    with tempfile.TemporaryDirectory() as folder:
        digits().save_split(Path(folder) / "split.npz")
        with np.load(Path(folder) / "split.npz") as file:
            return {name: file[name] for name in file.files}


def femnist_arrays():
    return {
        "images": np.arange(8 * 784, dtype=np.int64).reshape(8, 28, 28).astype(np.uint8),
        "labels": np.arange(8),
        "writers": np.arange(8) % 2,
        "writer_ids": np.array(["f1", "f2"]),
        "is_test": np.arange(8) >= 6,
    }


def saved(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


STATE = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.zeros(2)}
CHECKPOINT = {
    "dfl_lightning": {
        **{"format": FORMAT, "metrics": {"train_loss": 1.0}, "network": {"name": "MLP"}, "clients": CLIENTS},
        **{"nodes": CLIENTS, "seed": 0, "data": "Digits", "rows": "torch.float32", "row sets": ["models"]},
        **{"reported": "models", "of_server": False, "policies": {}, "config": {}, "checksums": {}, "rounds": {}},
    },
    "state_dict": {"bank.progress": torch.tensor([4, 1]), "bank.rows.models": torch.zeros(CLIENTS, 9)},
    "callbacks": {"AFIND": {"history": torch.ones(2)}},
    "loops": {"fit_loop": {}},
    "epoch": 4,
}


@dataclass(frozen=True)
class Kind:
    """Files of a kind: how they are called, valid ones, and who loads them."""

    name: str
    examples: Any  # a function: some take a moment to make
    load: Any
    trees: Any = ()  # contents that are changed in their structure, and how they are written
    write: Any = None


def as_json(value):
    return json.dumps(value).encode()


def as_yaml(value):
    return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", errors="surrogatepass")


def texts(tree, write):
    return lambda: [write(content) for content in tree]


KINDS = {
    "topology yaml": Kind("t.yaml", texts(TOPOLOGIES, as_yaml), topology, TOPOLOGIES, as_yaml),
    "graphml": Kind("g.graphml", lambda: ["\n".join(nx.generate_graphml(RING)).encode()], topology),
    "gml": Kind("g.gml", lambda: ["\n".join(nx.generate_gml(RING)).encode()], topology),
    "node-link json": Kind("g.json", texts([node_link(RING)], as_json), topology, [node_link(RING)], as_json),
    "edgelist": Kind("g.edgelist", lambda: ["\n".join(nx.generate_edgelist(RING)).encode()], topology),
    "adjlist": Kind("g.adjlist", lambda: ["\n".join(nx.generate_adjlist(RING)).encode()], topology),
    "trace": Kind("trace.txt", lambda: [b"# up\n1 0 1\n0, 1, 1\n", b"0 1\n"], lambda path: read_trace(path)),
    "split": Kind("split.npz", lambda: [npz(split_arrays())], split),
    "leaf": Kind("all.json", texts([LEAF], as_json), leaf, [LEAF], as_json),
    "femnist": Kind("femnist.npz", lambda: [npz(femnist_arrays())], femnist),
    "writers": Kind(
        "mnist_writers.npz", lambda: [npz({"train_writer": np.arange(60), "test_writer": np.arange(20)})], writers
    ),
    "checkpoint": Kind("last.ckpt", lambda: [saved(CHECKPOINT)], checkpoint, [CHECKPOINT], saved),
    "state dict": Kind("net.pt", lambda: [saved(STATE)], state_dict, [STATE], saved),
    "safetensors": Kind("net.safetensors", lambda: [safetensors.torch.save(STATE)], state_dict),
}
ARRAYS = {
    "split": split_arrays,
    "femnist": femnist_arrays,
    "writers": lambda: {"train_writer": np.arange(60), "test_writer": np.arange(20)},
}
ARCHIVES = ("split", "femnist", "writers", "checkpoint", "state dict")


# --- how they are damaged ---------------------------------------------------------------------------------------------
@st.composite
def damaged(draw, content):
    """Bytes with some of them flipped, taken out, put in or repeated, or cut off."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        act = draw(st.sampled_from(["flip", "replace", "insert", "repeat", "cut"]))
        if act == "flip" and start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
        elif act == "replace":
            content[start : start + draw(st.integers(0, 20))] = draw(st.binary(max_size=20))
        elif act == "insert":
            odd = draw(st.sampled_from(ODD_TEXTS)).encode("utf-8", errors="surrogatepass")
            content[start:start] = odd
        elif act == "repeat":
            content[start:start] = content[start : start + draw(st.integers(1, 200))]
        elif act == "cut":
            del content[start + draw(st.integers(0, 50)) :]
    return bytes(content)


ODD_TEXTS = [*"\n {[}]<#0\0é\x1b", "&a;", "-1", "1e999", "nan", "9" * 30, "*a", "&a ", "../up", "/tmp/up", "x.yaml"]
ODD_NUMBERS = [0, 1, -1, 3, 2**31, 2**63, -(2**63) - 1, 10**18, 10**400, 0.5, -0.0, 1e308, math.inf, math.nan]
odd_numbers = st.sampled_from(ODD_NUMBERS)
odd_texts = st.sampled_from(ODD_TEXTS) | st.text(max_size=6)
leaves = st.none() | st.booleans() | odd_numbers | st.integers() | st.floats() | odd_texts
lists = st.lists(leaves, max_size=3)
mappings = st.dictionaries(st.text(max_size=5), leaves | lists, max_size=3)
odd = leaves | leaves | lists | mappings | st.lists(lists | mappings, max_size=3)


def deep(value, depth):
    for _ in range(depth):
        value = [value]
    return value


@st.composite
def changed(draw, tree):
    """A tree of mappings and lists with some values replaced, taken out, renamed, added or nested."""
    tree = copied(tree)
    for _ in range(draw(st.integers(1, 3))):
        place = tree
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or not draw(st.integers(0, 3)):
                break
            place = place[key]
        if not keys:
            continue
        act = draw(st.sampled_from(["replace", "replace", "remove", "rename", "nest", "repeat"]))
        if act == "replace":
            place[key] = draw(odd)
        elif act == "remove":
            del place[key]
        elif act == "rename" and isinstance(place, dict):
            place[draw(st.sampled_from(keys) | st.text(max_size=5))] = place.pop(key)
        elif act == "nest":
            place[key] = deep(place[key], draw(st.integers(1, 60)))
        elif isinstance(place, list):
            place += [copied(place[key])] * draw(st.integers(1, 3))
    return tree


def copied(value):
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


SHAPES = [(0,), (1,), (), (3,), (2, 2), (CLIENTS,), (CLIENTS + 1,), (0, 5), (CLIENTS, 10), (1, 1, 1)]
DTYPES = [
    "<i8",
    ">i8",
    "<u8",
    "<i4",
    "i1",
    "u1",
    "<f8",
    ">f8",
    "<f2",
    "<c16",
    "?",
    "<U3",
    "S3",
    "O",
    "<M8[s]",
    "<i4,f4",
]


def with_value(array, at, value):
    array = array.copy()
    array.flat[at] = value
    return array


def or_nothing(make, *args):
    """An array, or one of an object where numpy cannot make it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a cast that loses something is what is wanted
        try:
            return make(*args)
        except (ValueError, TypeError, OverflowError):
            return np.array(None)


@st.composite
def changed_arrays(draw, arrays):
    """Arrays by name, some of another kind or shape, with other values, under another name, or gone."""
    arrays = dict(arrays)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(arrays)))
        act = draw(st.sampled_from(["kind", "value", "value", "shape", "new", "remove", "rename", "cut"]))
        array = np.array(arrays[name])
        if act == "kind":
            arrays[name] = or_nothing(array.astype, draw(st.sampled_from(DTYPES)))
        elif act == "value" and array.size:
            arrays[name] = or_nothing(with_value, array, draw(st.integers(0, array.size - 1)), draw(odd_numbers))
        elif act == "shape":
            arrays[name] = array.reshape(-1, 1) if draw(st.booleans()) else array[None]
        elif act == "new":
            arrays[name] = np.zeros(draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES)))
        elif act == "remove" and len(arrays) > 1:
            del arrays[name]
        elif act == "rename":
            arrays[draw(st.sampled_from(["../up", "/tmp/up", "a.npy", "x", ""]))] = arrays.pop(name)
        elif act == "cut" and array.ndim:
            arrays[name] = array[: draw(st.integers(0, len(array)))]
    return arrays


@st.composite
def forged(draw, content):
    """A zip archive with damaged members and checksums that say that nothing is wrong; sometimes packed otherwise."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        victims = draw(st.lists(st.sampled_from(names), max_size=2))
        method = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]))
        with zipfile.ZipFile(out, "w", method) as new:
            for name in names:
                data = archive.read(name)
                if name in victims and draw(st.booleans()):
                    head = data[:200]
                    data = draw(damaged(head)) + data[200:]
                elif name in victims:
                    data = draw(damaged(data))
                new.writestr(draw(st.sampled_from(["../up", "x"])) if not draw(st.integers(0, 20)) else name, data)
    return out.getvalue()


def each(strategy, check, examples):
    """Check examples, the same ones each time."""

    @settings(max_examples=examples)
    @given(strategy)
    def run(case):
        check(case)

    run()


def few_and_many(few, many):
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)], ids=["few", "many"])


# --- the property -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", KINDS)
def test_the_valid_files_are_valid(name, tmp_path):
    kind = KINDS[name]
    for content in kind.examples():
        (tmp_path / kind.name).write_bytes(content)
        assert valid_or_sentence(kind.load, tmp_path / kind.name) == ""


@few_and_many(40, 3000)
@pytest.mark.parametrize("name", KINDS)
def test_damaged_bytes_are_valid_or_a_sentence(name, examples, tmp_path):
    kind = KINDS[name]
    path = tmp_path / kind.name

    def check(content):
        path.write_bytes(content)
        valid_or_sentence(kind.load, path)

    each(st.sampled_from(kind.examples()).flatmap(damaged) | st.binary(max_size=300), check, examples)
    assert [file.name for file in tmp_path.iterdir()] == [kind.name]


@few_and_many(60, 3000)
@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name].trees])
def test_changed_content_is_valid_or_a_sentence(name, examples, tmp_path):
    kind = KINDS[name]
    path = tmp_path / kind.name

    def check(tree):
        try:
            path.write_bytes(kind.write(tree))
        except (ValueError, TypeError, OverflowError, RuntimeError, UnicodeEncodeError):
            return  # no such file can be written
        valid_or_sentence(kind.load, path)

    each(st.sampled_from(list(kind.trees)).flatmap(changed), check, examples)


@few_and_many(60, 3000)
@pytest.mark.parametrize("name", ARRAYS)
def test_changed_arrays_are_valid_or_a_sentence(name, examples, tmp_path):
    kind = KINDS[name]
    path = tmp_path / kind.name

    def check(arrays):
        path.write_bytes(npz(arrays, allow_pickle=True))
        valid_or_sentence(kind.load, path)

    each(changed_arrays(ARRAYS[name]()), check, examples)


@few_and_many(60, 3000)
@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_forged_archives_are_valid_or_a_sentence(name, examples, tmp_path):
    kind = KINDS[name]
    path = tmp_path / kind.name

    def check(content):
        path.write_bytes(content)
        valid_or_sentence(kind.load, path)

    each(forged(kind.examples()[0]), check, examples)


# --- configs: through the command, in process -------------------------------------------------------------------------
CONFIGS = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in shipped("configs").values()]
CONFIGS.append(
    {
        **CONFIGS[0],
        "data": {
            "class_path": "Digits",
            "init_args": {
                "partition": {"class_path": "FlippedLabels", "init_args": {"base": {"class_path": "Shards"}}}
            },
        },
        "monitors": ["FriendAccuracy", {"class_path": "NeighbourAccuracy"}],
        "trainer": {"callbacks": [{"class_path": "EarlyStopping", "init_args": {"monitor": "train_loss"}}]},
        "topology": TOPOLOGIES[0],
        "dropout": {"class_path": "Markov", "init_args": {"rate": 0.2}},
    }
)
WORDS = [
    *("trainer", "model", "data", "topology", "dropout", "selection", "threshold", "aggregation", "monitors"),
    *("class_path", "init_args", "network", "Digits", "MLP", "AFIND", "Gossip", "Uniform", "Dirichlet", "partition"),
    *("num_clients", "max_rounds", "k", "nu", "hidden", "null", "true", "-1", "0", "1", "3.5", "{", "}", "[", "]"),
    *(":", ": ", "- ", ",", "\n", "\n  ", "'", '"', "&a ", "*a", "#", "!!python/object", "é", "\t", "<<"),
]
yaml_like = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=30).map("".join)


@pytest.fixture
def explain(tmp_path, monkeypatch, capsys):
    """Has `dfl-fit` explain a config, which it does or answers by one sentence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.delenv("DFL_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(content, *words):
        Path("fuzz.yaml").write_bytes(content)
        with in_good_time(60), in_little_memory(4 * 2**30):
            code = cli.run("fit", ["--config", "fuzz.yaml", "--trainer.accelerator", "cpu", *words, "--explain"])
        out, err = capsys.readouterr()
        assert code in (0, 2), err
        assert "Traceback" not in out + err
        assert len(err.splitlines()) == (code == 2), err
        assert len(err) < 1500
        assert [path.name for path in tmp_path.iterdir()] == ["fuzz.yaml"]
        return code

    return run


@few_and_many(25, 2000)
@pytest.mark.parametrize("what", ["changed", "damaged", "any text"])
def test_any_config_is_explained_or_refused(what, examples, explain):
    strategies = {
        "changed": st.sampled_from(CONFIGS).flatmap(changed).map(as_yaml),
        "damaged": st.sampled_from(CONFIGS).map(as_yaml).flatmap(damaged),
        "any text": yaml_like.map(lambda text: text.encode("utf-8", errors="surrogatepass")) | st.binary(max_size=100),
    }
    each(strategies[what], explain, examples)
