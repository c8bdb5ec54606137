"""Topologies that a user's class makes: its graphs, resumed runs, several processes, and wrong output."""

# ruff: noqa: E501  # the tables below quote whole sentences

import importlib
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
import yaml
from pairs import weight_matrix
from small_run import SmallRun

from dfl_lightning.callbacks import AFIND, AdaptiveThreshold, Boltzmann, Gossip, Uniform
from dfl_lightning.cli.resolve import resolve, set_up
from dfl_lightning.topology import MovingTopology, load_topology
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

PAGE = Path(__file__).parents[2] / "docs" / "topologies.md"
WALKERS = next(code for code in PAGE.read_text().split("```python\n") if "class Walkers" in code).partition("```")[0]
"""The example of the page."""


@pytest.fixture
def walkers(tmp_path, monkeypatch):
    """Write the class into the working folder, under a name of its own, and return its import path."""
    name = f"walkers_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(WALKERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}.Walkers"


def near(seed, round, clients, reach=0.4, speed=0.1):
    """Return the links of the walkers, computed with the generator that the documentation names."""
    places = np.random.default_rng(7).random((clients, 2))
    places = places + speed * numpy_stream(seed, "topology", round).standard_normal((clients, 2))
    return {
        (i, j) for i in range(clients) for j in range(clients) if i != j and np.hypot(*(places[i] - places[j])) < reach
    }


def links_in(topology, round):
    return {(i, j) for i, j in torch.nonzero(topology.reachable(round).mask).tolist()}


def test_a_topology_file_names_a_class(walkers, tmp_path):
    (tmp_path / "my.yaml").write_text(f"class_path: {walkers}\ninit_args: {{reach: 0.5}}\nseed: 3\n")
    topology = load_topology("my.yaml", 8, seed=9)
    assert [links_in(topology, t) for t in (5, 0, 2, 5)] == [near(3, t, 8, reach=0.5) for t in (5, 0, 2, 5)]
    assert topology.changes
    assert topology.describe().startswith("my graph: 8 nodes, ")
    assert topology.describe().endswith(", another in each round")
    other = load_topology({"class_path": walkers, "init_args": {"reach": 0.6}, "seed": 3}, 8)
    assert topology.identity() != other.identity()


def test_an_object_is_a_topology(tmp_path, walkers):
    made = importlib.import_module(walkers.partition(".")[0]).Walkers(0.3)
    topology = load_topology(made, 6, seed=2)
    assert links_in(topology, 4) == near(2, 4, 6, reach=0.3)
    policies = [Gossip(k=1), Uniform()]
    run = SmallRun(tmp_path, rounds=1, policies=policies, topology=made).fit()
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["topology"] == {"class_path": walkers, "init_args": {"reach": 0.3, "speed": 0.1}}
    assert walkers.partition(".")[0] in config["code"]
    assert (run.folder / "code" / f"{walkers.partition('.')[0]}.py").read_text() == WALKERS


def test_a_stopped_run_goes_on_with_the_same_graphs(tmp_path, walkers):
    def run(rounds, checkpoint=None):
        policies = [AFIND(), AdaptiveThreshold(), Boltzmann()]
        topology = {"class_path": walkers, "link_up": 0.8}
        return SmallRun(tmp_path, rounds=rounds, policies=policies, topology=topology).fit(checkpoint)

    whole, half = run(4), run(2)
    resumed = run(4, half.folder)
    assert torch.equal(resumed.rows, whole.rows)
    assert (whole.folder / "code" / f"{walkers.partition('.')[0]}.py").read_text() == WALKERS


def test_the_command_line_takes_a_class_and_its_options(walkers, tmp_path):
    (tmp_path / "my.yaml").write_text(f"class_path: {walkers}\n")
    words = ["--config=gossip", "--data.num_clients=8", "--data.samples_per_client=20", "--trainer.accelerator=cpu"]
    config = resolve([*words, "--topology=my.yaml", "--topology.init_args.reach=0.7"])
    assert config["topology"] == {"class_path": walkers, "init_args": {"reach": 0.7}}
    set_up([*words, f"--topology={{class_path: {walkers}, init_args: {{reach: 0.7}}}}"])


class Given(MovingTopology):
    """A topology that returns what a function of the round returns."""

    def __init__(self, function, directed=False):
        self.function, self.directed = function, directed

    def graph(self, round, clients, random):
        return self.function(round)


ONE_WAY = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    ("made", "directed", "expected"),
    [
        (nx.path_graph(3), False, [[0, 1, 0], [1, 0, 1], [0, 1, 0]]),
        (nx.DiGraph([(0, 1), (1, 2)]), True, [[0, 0, 0], [1, 0, 0], [0, 1, 0]]),
        ([(0, 1), (1, 2), (1, 0)], False, [[0, 1, 0], [1, 0, 1], [0, 1, 0]]),
        ([(0, 1), (1, 2)], True, [[0, 0, 0], [1, 0, 0], [0, 1, 0]]),
        (ONE_WAY, True, ONE_WAY.tolist()),
        ([], False, [[0] * 3] * 3),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], False, [[0, 1, 0], [1, 0, 0], [0, 0, 0]]),
    ],
)
def test_a_class_may_return_graphs_matrices_and_pairs(made, directed, expected):
    topology = load_topology(Given(lambda round: made, directed), 3)
    assert topology.reachable(5).mask.int().tolist() == expected
    assert topology.directed == directed
    assert topology.weights(5) is None


def test_weights_and_arrivals_of_a_class():
    graphs = [nx.Graph([(0, 1, {"weight": 2})]), nx.Graph([(0, 1, {"weight": 2}), (1, 2, {"weight": 3})])]
    topology = load_topology(Given(lambda round: graphs[min(round, 1)]), 3)
    assert topology.present(0).tolist() == [True, True, False]
    assert topology.present(1).tolist() == [True, True, True]
    assert weight_matrix(topology, 1).tolist() == [[0, 2, 0], [2, 0, 3], [0, 3, 0]]
    mixing = np.full((3, 3), 1 / 3)
    topology = load_topology(Given(lambda round: mixing), 3)
    assert topology.mixing
    assert topology.at(4).mixing


def changing(round, counter=[0]):  # noqa: B006  # a state that calls change, which a user's class might have
    counter[0] += 1
    return [(0, 1)] if counter[0] % 2 else [(1, 2)]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda round: None, "Given.graph(0) returns nothing; give a networkx graph, a matrix, or pairs of clients."),
        (lambda round: 3, "Given.graph(0) returns a int; give a networkx graph, a matrix, or pairs of clients."),
        (lambda round: "ring", "Given.graph(0) returns a str; give a networkx graph,"),
        (lambda round: [(0, 3)], "Given.graph(0) has the node 3; nodes are the ids of clients, 0 to 2."),
        (lambda round: nx.path_graph(["a", "b"]), "Given.graph(0) has the node 'a'; nodes are the ids of clients"),
        (lambda round: [0, 1], "Given.graph(0) has the entry 0; give pairs of clients, (0, 1) for example."),
        (lambda round: np.eye(4), "Given.graph(0) returns a matrix of 4 rows; give 3, one for each client."),
        (lambda round: np.full((3, 3), np.nan), "Given.graph(0): the entry at [0, 0] is nan; give a finite number."),
        (lambda round: ONE_WAY, "Given.graph(0) returns a directed graph; set directed = True in the class."),
        (lambda round: [(0, 1, "x")], "Given.graph(0): link 0 - 1 has the weight 'x'; a finite number is needed."),
        (lambda round: [(0, 1, 1), (1, 0, 2)], "Given.graph(0): parallel links 0 - 1 carry different weights; keep one."),
        (lambda round: 1 // round, "Given.graph(0) fails (test_moving.py"),
        (lambda round: [(0, int(np.random.rand() > 2) + 1)], "Given.graph(0) draws from numpy.random, so that a resumed "
         "run would differ; draw from its argument random."),
        (changing, "Given.graph(0) returns another graph when it is called again; let it follow from round, clients and"),
    ],
)  # fmt: skip
def test_wrong_output_is_named(function, sentence, monkeypatch):
    with pytest.raises(UserError) as error:
        load_topology(Given(function), 3)
    assert str(error.value).replace("tests/topology/", "").startswith(sentence)


def test_a_later_round_must_be_like_the_first():
    topology = load_topology(Given(lambda round: [(0, 1, 2)] if round < 3 else [(0, 1)]), 3)
    topology.reachable(2)
    with pytest.raises(
        UserError, match=r"Given\.graph\(3\) has no weights, and graph\(0\) has weights; let all rounds"
    ):
        topology.reachable(3)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"class_path": "Walkers"}, "topology: class_path takes the path of a class, for example mine.Commuters."),
        ({"class_path": "no_such.Walkers"}, "topology: class_path no_such.Walkers cannot be imported (ModuleNotFoundError: "),
        ({"class_path": "networkx.Graph"}, "topology: class_path networkx.Graph is not a subclass of dfl_lightning.topology"),
        ({"class_path": "WALKERS", "init_args": {"rech": 1}}, "topology: Walkers has other arguments (got an unexpected "
         "keyword argument 'rech'); it takes reach, speed."),
        ({"class_path": "WALKERS", "init_args": [1]}, "topology: init_args takes names and values, for example init_args"),
        ({"class_path": "WALKERS", "every": 2}, "topology: every does not go with class_path; the class says"),
        ({"class_path": "WALKERS", "args": {"k": 2}}, "topology: args does not go with class_path; its arguments are init_"),
        ({"generator": "complete", "init_args": {}}, "topology: init_args goes with class_path; a generator takes args."),
        ({"sequence": [{"class_path": "WALKERS", "generator": "complete"}]}, "topology: item 1 of the sequence: exactly one"),
    ],
)  # fmt: skip
def test_mistakes_in_the_keys_are_named(walkers, keys, sentence):
    fill = lambda keys: {key: walkers if value == "WALKERS" else value for key, value in keys.items()}  # noqa: E731
    keys = fill(keys)
    if "sequence" in keys:
        keys["sequence"] = [fill(item) for item in keys["sequence"]]
    with pytest.raises(UserError) as error:
        load_topology(keys, 3)
    assert str(error.value).startswith(sentence)


def test_a_class_may_be_an_item_of_a_sequence(walkers):
    keys = {"sequence": [{"generator": "cycle_graph", "rounds": 2}, {"class_path": walkers}]}
    topology = load_topology(keys, 8)
    assert links_in(topology, 1) == {(i, j) for i in range(8) for j in range(8) if (i - j) % 8 in (1, 7)}
    assert links_in(topology, 5) == near(0, 3, 8)
