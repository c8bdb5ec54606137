"""Graph files that say something twice: refused with the place, or one meaning that both agree on."""

# ruff: noqa: E501  # the table below quotes whole files and sentences

import json

import networkx as nx
import pytest
import torch
from pairs import weight_matrix

from dfl_lightning.topology import load_topology
from dfl_lightning.utils.errors import UserError


def node_link(nodes, links, **more):
    return json.dumps({"nodes": nodes, "links": links, **more})


NODES = [{"id": 0}, {"id": 1}]
LINK = {"source": 0, "target": 1}
XML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n{}</graphml>'
WEIGHT = '<key id="w" for="edge" attr.name="weight" attr.type="double"/>\n'
TWO = '<graph edgedefault="undirected">\n<node id="0"/>\n<node id="1"/>\n'

CONTRADICTIONS = [
    # edge lists
    ("my.edgelist", "0 1 0.5\n# a comment\n0 1 0.7\n", "lines 1 and 3 give the link 0 - 1 different weights (0.5 and 0.7); keep one."),
    ("my.edgelist", "0 1 0.5\n1 0 0.7\n", "lines 1 and 2 give the link 1 - 0 different weights"),
    ("my.edgelist", "0 1 0.5\n0 1\n", "lines 1 and 2 give the link 0 - 1 different weights (0.5 and none)"),
    ("my.edgelist", "0 1\n0 1 {'weight': 1}\n", "different weights (none and 1)"),
    ("my.edgelist", "0 1 {'weight': 1, 'weight': 2}\n", "line 1 has an attribute twice; keep one."),
    # adjacency lists
    ("my.adjlist", "0 1\n1\n0\n", "lines 1 and 3 both begin with 0; keep one line a client."),
    # node-link data
    ("my.json", node_link(NODES, [{**LINK, "weight": 1}, {**LINK, "weight": 2}]), "parallel links 0 - 1 carry different weights; keep one."),
    ("my.json", node_link(NODES, [{**LINK, "weight": 1}, {"source": 1, "target": 0}]), "parallel links"),
    ("my.json", node_link(NODES, [LINK], edges=[]), "both of the keys 'links' and 'edges' are there; keep one."),
    ("my.json", node_link(NODES, [LINK], directed="false"), "'directed' is 'false'; it must be true or false."),
    ("my.json", node_link(NODES, [LINK], multigraph=1), "'multigraph' is '1'; it must be true or false."),
    ("my.json", node_link([*NODES, {"id": 0, "cluster": 1}], [LINK]), "nodes 1 and 3 have the same id '0'; keep one."),
    ("my.json", node_link([*NODES, {"id": "1"}], [LINK]), "nodes 2 and 3 have the same id '1'; keep one."),
    ("my.json", node_link([*NODES, {"id": True}], [LINK]), "nodes 2 and 3 have the same id 'True'; keep one."),
    ("my.json", '{"nodes": [{"id": 0}, {"id": 1, "id": 2}], "links": []}', "the key 'id' is there twice in {'id': 1"),
    ("my.json", '{"nodes": [], "nodes": [{"id": 0}, {"id": 1}], "links": []}', "the key 'nodes' is there twice in {"),
    ("my.json", node_link([{"id": 0, "cluster": [1]}, {"id": 1, "cluster": 2}], []), "node 0 has the cluster [1]; a number or a name is needed."),
    ("my.json", node_link([{"id": 0, "cluster": float("nan")}, {"id": 1, "cluster": 2}], []), "node 0 has the cluster nan; a number or a name"),
    # GML
    ("my.gml", 'graph [\n node [ id 0 label "[" cluster 1 cluster 2 ]\n node [ id 1 label "b" cluster 1 ]\n]', "the node has cluster in lines 2 and 2; keep one."),
    ("my.gml", "graph [\n# directed 7\n directed 0\n directed 1\n node [ id 0 ] node [ id 1 ]\n]", "the graph has directed in lines 3 and 4; keep one."),
    ("my.gml", 'graph [\n directed "false"\n node [ id 0 ] node [ id 1 ]\n]', 'line 2: directed is "false"; it must be 0 or 1.'),
    ("my.gml", "graph [\n node [ id 0 ] node [ id 1 ]\n edge [ source 0 target 1 weight 1\n weight 2 ]\n]", "the edge has weight in lines 3 and 4; keep one."),
    ("my.gml", "graph [ node [ id 0 ] node [ id 0 ] ]", "node id 0 is duplicated"),
    ("my.gml", "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 weight 1 ] edge [ source 0 target 1 weight 2 ] ]", "parallel links 0 - 1 carry different weights; keep one."),
    # GraphML
    ("my.graphml", XML.format(TWO + '<node id="0"/></graph>'), "the node '0' is there twice, in lines 3 and 5; keep one."),
    ("my.graphml", XML.format(TWO + "</graph>\n<graph/>"), "line 6 begins a second graph; give a file for each graph."),
    ("my.graphml", XML.format(TWO + '<node id="2"><graph><node id="3"/></graph></node></graph>'), "begins a second graph"),
    ("my.graphml", XML.format(TWO.replace("undirected", "Directed") + "</graph>"), "line 2: edgedefault is 'Directed'; it must be directed or undirected."),
    ("my.graphml", XML.format(WEIGHT + TWO + '<edge source="0" target="1">\n<data key="w">1</data>\n<data key="w">2</data></edge></graph>'), "line 8 gives the edge a second value of 'w'; keep one."),
    ("my.graphml", XML.format(WEIGHT + TWO + '<edge source="0" target="1"><data key="w">1</data></edge><edge source="0" target="1"><data key="w">2</data></edge></graph>'), "parallel links '0' - '1' carry different weights; keep one."),
    # topology files
    ("my.yaml", "generator: complete\nseed: 1\ngenerator: cycle_graph\n", "line 3: the key 'generator' is there twice, first in line 1; keep one"),
    ("my.yaml", "generator: watts_strogatz_graph\nargs: {k: 4, p: 0.1, k: 2}\n", "line 2: the key 'k' is there twice; keep one"),
    # weights that are not finite
    ("my.edgelist", "0 1 1e400\n", "link '0' - '1' has the weight inf; a finite number is needed."),
    ("my.json", '{"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1, "weight": 1e400}]}', "the weight inf; a finite"),
    ("my.json", node_link(NODES, [{**LINK, "weight": float("nan")}]), "the weight nan; a finite"),
    ("my.graphml", XML.format(WEIGHT + TWO + '<edge source="0" target="1"><data key="w">1e400</data></edge></graph>'), "the weight inf; a finite"),
    ("my.gml", "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 weight 1.0E400 ] ]", "the weight inf; a finite"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "sentence"), CONTRADICTIONS)
def test_a_contradictory_file_is_refused_naming_the_place(tmp_path, monkeypatch, name, text, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        load_topology(name, 2)
    assert str(error.value).startswith(f"{name}")
    assert sentence in str(error.value)


AGREEING = {
    "my.edgelist": "0 1 0.5\n1 0 0.5\n",
    "my.json": node_link(NODES, [{**LINK, "weight": 0.5}, {"source": 1, "target": 0, "weight": 0.5}], multigraph=False),
    "my.graphml": XML.format(
        WEIGHT + TWO + '<edge source="0" target="1"><data key="w">0.5</data></edge>'
        '<edge source="1" target="0"><data key="w">0.5</data></edge></graph>'
    ),
    "my.gml": "graph [ multigraph 1 node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 key 0 weight 0.5 ]"
    " edge [ source 1 target 0 key 1 weight 0.5 ] ]",
}


@pytest.mark.parametrize("name", sorted(AGREEING))
def test_links_that_agree_count_once(tmp_path, name):
    (tmp_path / name).write_text(AGREEING[name])
    topology = load_topology(tmp_path / name, 2)
    assert torch.equal(weight_matrix(topology), torch.tensor([[0, 0.5], [0.5, 0]], dtype=torch.float64))


def test_both_directions_of_an_adjacency_are_one_link(tmp_path):
    (tmp_path / "my.adjlist").write_text("a b c\nb a\n")
    topology = load_topology(tmp_path / "my.adjlist", 3)
    assert sorted(topology.graph.edges()) == [(0, 1), (0, 2)]


def test_gml_fields_that_are_not_read_may_repeat(tmp_path):
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {0: [1, 2], 1: [3, 4], 2: [5, 6]}, "position")
    nx.write_gml(graph, tmp_path / "my.gml")
    assert load_topology(tmp_path / "my.gml", 3).graph.number_of_edges() == 2
