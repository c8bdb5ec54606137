"""scripts/draw_graph.py draws a round of a run, or of a topology."""

import importlib.util
import sys
from pathlib import Path

import networkx as nx
import pytest
import torch

from dfl_lightning.topology import load_topology

SCRIPT = Path(__file__).parents[2] / "scripts" / "draw_graph.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("draw_graph", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "draw_graph", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def painted(script, monkeypatch):
    """What the script paints: graphs and titles."""
    found, paint = [], script.paint

    def spy(graph, groups, title, picture):
        found.append((graph, title))
        paint(graph, groups, title, picture)

    monkeypatch.setattr(script, "paint", spy)
    return found


@pytest.mark.parametrize("name", ["ring_then_complete", "dpfl_participation", "failing_links", "server"])
def test_a_topology_is_drawn_as_it_is_in_a_round(script, painted, tmp_path, name):
    script.main([name, str(tmp_path / "a.png"), "--clients", "8", "--round", "12", "--seed", "3"])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    ((graph, title),) = painted
    topology = load_topology(name, 8, 3)
    drawn = torch.tensor(nx.to_numpy_array(graph, nodelist=range(topology.num_nodes), weight=None).T > 0)
    assert torch.equal(drawn, topology.reachable(12).mask)
    assert title.endswith("in round 12") == (name != "server")


def test_a_round_of_a_run_is_drawn(script, painted, small_run, tmp_path):
    run = small_run(3, topology={"sequence": [{"generator": "cycle_graph", "rounds": 1}, {"generator": "path_graph"}]})
    run.fit()
    for words, round in (([], 2), (["--round", "0"], 0)):
        script.main([str(run.folder), str(tmp_path / "a.png"), *words])
        graph, title = painted.pop()
        assert title == f"who learned from whom in round {round}"
        reachable = load_topology(run.trainer.topology, 6).reachable(round).mask
        assert all(reachable[receiver, sender] for sender, receiver in graph.edges)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ring"], "ring is no run folder; if it is a topology, say how many --clients it has"),
        (["rink", "--clients", "4"], "did you mean 'ring'?"),
        (["ring", "--clients", "4", "--round", "-1"], "--round -1; rounds are counted from 0"),
    ],
)
def test_mistakes_are_one_sentence(script, capsys, tmp_path, words, sentence):
    with pytest.raises(SystemExit) as left:
        script.main([words[0], str(tmp_path / "a.png"), *words[1:]])
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err
