"""Graph files as other programs write them, compared with networkx, scipy and numpy."""

# ruff: noqa: E501  # the tables below quote whole files and sentences

import io
import json

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from pairs import weight_matrix

from dfl_lightning.topology import load_topology
from dfl_lightning.utils.errors import UserError


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def links_of(topology):
    """Return the links as pairs of labels, in both directions if undirected."""
    names = topology.labels
    return {(str(names[j]), str(names[i])) for i, j in torch.nonzero(topology.reachable(0).mask).tolist()}


def both_ways(*pairs):
    return {(str(a), str(b)) for a, b in pairs} | {(str(b), str(a)) for a, b in pairs}


# lists of links

KARATE = nx.karate_club_graph()


@pytest.mark.parametrize("delimiter", [" ", "\t", ",", ";", ", ", "   ", " \t "])
@pytest.mark.parametrize("suffix", [".edgelist", ".txt", ".csv", ".tsv"])
def test_links_may_be_separated_by_anything(tmp_path, delimiter, suffix):
    lines = [f"{u}{delimiter}{v}" for u, v in KARATE.edges()]
    topology = load_topology(
        write(tmp_path / f"my{suffix}", "# karate\n% konect\n\n" + "\r\n".join(lines) + "\r\n"), 34
    )
    assert torch.equal(topology.reachable(0).mask, torch.tensor(nx.to_numpy_array(KARATE, weight=None) > 0))
    assert topology.weights() is None


@pytest.mark.parametrize(
    ("text", "clients", "expected"),
    [
        ("Ward A,Ward B\nWard B,Ward C\n", 3, both_ways(("Ward A", "Ward B"), ("Ward B", "Ward C"))),
        ("Ward A\tWard B\nWard B\tWard C\n", 3, both_ways(("Ward A", "Ward B"), ("Ward B", "Ward C"))),
        ('"Ward A" "Ward B"\n"Ward B" c\n', 3, both_ways(("Ward A", "Ward B"), ("Ward B", "c"))),
        ('"Ward A, left","Ward B"\nWard C\n"Ward C","Ward B"\n', 3,
         both_ways(("Ward A, left", "Ward B"), ("Ward C", "Ward B"))),
        ('"Ward #1",b\n', 2, both_ways(("Ward #1", "b"))),
        ('b,c\n"Ward A"\n', 3, both_ways(("b", "c"))),
        ("source,target\n0,1\n1,2\n", 3, both_ways((0, 1), (1, 2))),
        ("Source;Target;Type;Id;Label;Weight\n0;1;Undirected;0;;1.0\n1;2;Undirected;1;;1.0\n", 3,
         both_ways((0, 1), (1, 2))),
        ("Source,Target,Type\na,b,Directed\nc,b,Directed\n", 3, {("a", "b"), ("c", "b")}),
        ("id,to,from\n7,a,b\n8,b,c\n", 3, both_ways(("a", "b"), ("b", "c"))),
        ("Knoten1 Knoten2\n0 1\n1 2\n", 3, both_ways((0, 1), (1, 2))),
        ("from to\nto from\n", 2, both_ways(("from", "to"))),  # they are clients
        ("# FromNodeId\tToNodeId\n0\t1\n", 2, both_ways((0, 1))),
        ("3\n0 1\n1 0\n1 2\n2 1\n", 3, both_ways((0, 1), (1, 2))),  # the number of nodes, as decentralizepy has it
        ("5\n0 1\n", 5, both_ways((0, 1))),
        ("2\n0 1\n", 3, both_ways((0, 1))),  # a client without links
        ("# Directed graph (each unordered pair of nodes is saved once): my.txt\n0\t1\n1\t0\n1\t2\n", 3,
         {("0", "1"), ("1", "0"), ("1", "2")}),
        ("% asym unweighted\n1 2\n", 2, {("1", "2")}),
        ("a b # a comment\n", 2, both_ways(("a", "b"))),
        ('a b {"weight": 1, "since": "2, 3"}\n', 2, both_ways(("a", "b"))),
        ("\ufeffa,b\n", 2, both_ways(("a", "b"))),
    ],
)  # fmt: skip
def test_lists_of_links_as_people_have_them(tmp_path, text, clients, expected):
    topology = load_topology(write(tmp_path / "my.txt", text), clients)
    assert links_of(topology) == expected
    assert topology.directed == (expected != {(b, a) for a, b in expected})


def test_weights_are_read_from_their_column(tmp_path):
    text = "time;source;weight;target\n9;a;0,5;b\n8;b;2;c\n"
    topology = load_topology(write(tmp_path / "my.csv", text), 3)
    assert weight_matrix(topology).tolist() == [[0, 0.5, 0], [0.5, 0, 2], [0, 2, 0]]
    assert topology.warnings() == ["my graph: columns that are not read: time."]


def test_a_topology_file_says_whether_links_are_directed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "my.edgelist", "0 1\n1 2\n1 0\n")
    for directed in (True, False):
        topology = load_topology({"graph": "my.edgelist", "directed": directed}, 3)
        assert topology.directed == directed
        assert links_of(topology) == ({("0", "1"), ("1", "2"), ("1", "0")} if directed else both_ways((0, 1), (1, 2)))


# matrices

MIXING = np.array([[0.5, 0.5, 0, 0], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.5, 0.25], [0, 0, 0.5, 0.5]])


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def as_csv(matrix, separator=",", names=None, index=False):
    lines = [separator.join(map(str, row)) for row in matrix.tolist()]
    if names and index:
        lines = [f"{name}{separator}{line}" for name, line in zip(names, lines, strict=True)]
    head = [separator.join(([""] if index else []) + names)] if names else []
    return "\n".join([*head, *lines])


def as_mtx(matrix):
    file = io.BytesIO()
    scipy.io.mmwrite(file, scipy.sparse.coo_array(matrix))
    return file.getvalue()


MATRICES = {
    "my.npy": saved,
    "my.mtx": as_mtx,
    "my.csv": as_csv,
    "my.txt": lambda matrix: as_csv(matrix, " "),
    "my.tsv": lambda matrix: as_csv(matrix, "\t"),
    "named.csv": lambda matrix: as_csv(matrix, ";", ["a", "b", "c", "d"]),
    "indexed.csv": lambda matrix: as_csv(matrix, ",", ["a", "b", "c", "d"], index=True),
}


@pytest.mark.parametrize("name", sorted(MATRICES))
def test_a_mixing_matrix_is_read_from_a_file(tmp_path, name):
    topology = load_topology(write(tmp_path / name, MATRICES[name](MIXING)), 4)
    assert weight_matrix(topology).tolist() == (MIXING - np.diag(MIXING.diagonal())).tolist()
    assert topology.mixing
    assert topology.directed  # W_01 = 1/2, W_10 = 1/4
    assert topology.labels == (["a", "b", "c", "d"] if name[0] in "ni" else [0, 1, 2, 3])
    assert "the client of a row receives from those of its columns" in topology.warnings()[0]


@pytest.mark.parametrize("name", sorted(MATRICES))
def test_an_adjacency_matrix_is_read_from_a_file(tmp_path, name):
    ring = nx.to_numpy_array(nx.cycle_graph(4), dtype=int)
    topology = load_topology(write(tmp_path / name, MATRICES[name](ring)), 4)
    assert topology.reachable(0).mask.int().tolist() == ring.tolist()
    assert topology.weights() is None
    assert not topology.directed
    assert not topology.mixing
    assert topology.warnings() == []


@pytest.mark.parametrize("make", [np.asarray, torch.tensor, np.ndarray.tolist, scipy.sparse.csr_array])
def test_a_matrix_in_python_is_a_topology(make):
    one_way = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    topology = load_topology(make(one_way), 3)
    assert topology.reachable(0).mask.int().tolist() == one_way.tolist()  # row receives from column
    assert topology.directed
    assert not topology.mixing  # although its rows sum to 1
    similar = np.array([[1, 0.2, 0], [0.2, 1, 0.9], [0, 0.9, 1]])
    topology = load_topology(make(similar), 3)
    assert weight_matrix(topology).tolist() == (similar - np.eye(3)).tolist()
    assert not topology.mixing


def test_arrays_of_two_or_three_columns_are_links(tmp_path):
    ends = np.array([[0, 1], [1, 2], [2, 0], [1, 0]])
    write(tmp_path / "my.npy", saved(ends))
    topology = load_topology(tmp_path / "my.npy", 5)
    assert links_of(topology) == both_ways((0, 1), (1, 2), (2, 0))
    write(tmp_path / "my.yaml", "graph: my.npy\ndirected: true")
    assert links_of(load_topology(tmp_path / "my.yaml", 5)) == {("0", "1"), ("1", "2"), ("2", "0"), ("1", "0")}
    write(tmp_path / "my.npy", saved(np.array([[0, 1, 0.5], [1, 2, 4]])))
    assert weight_matrix(load_topology(tmp_path / "my.npy", 3)).tolist() == [[0, 0.5, 0], [0.5, 0, 4], [0, 4, 0]]


def test_three_weighted_links_are_no_matrix_of_three_clients(tmp_path):
    topology = load_topology(write(tmp_path / "my.csv", "0,1,0.5\n1,2,0.25\n2,0,0.125\n"), 3)
    assert weight_matrix(topology).tolist() == [[0, 0.5, 0.125], [0.5, 0, 0.25], [0.125, 0.25, 0]]
    topology = load_topology(write(tmp_path / "my.csv", "0,1,1\n1,0,1\n1,1,0\n"), 3)
    assert links_of(topology) == both_ways((0, 1), (1, 2), (2, 0))


# formats of other programs

GEPHI = """<?xml version='1.0' encoding='UTF-8'?>
<gexf xmlns="http://gexf.net/1.3" version="1.3" xmlns:viz="http://gexf.net/1.3/viz"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="http://gexf.net/1.3 http://gexf.net/1.3/gexf.xsd">
  <meta lastmodifieddate="2024-03-01"><creator>Gephi 0.10.1</creator><description></description></meta>
  <graph defaultedgetype="undirected" mode="static">
    <attributes class="node" mode="static">
      <attribute id="cluster" title="cluster" type="string"></attribute>
    </attributes>
    <nodes>
      <node id="n1" label="Ward A"><attvalues><attvalue for="cluster" value="north"></attvalue></attvalues>
        <viz:size value="10.0"></viz:size><viz:position x="1" y="2"></viz:position><viz:color r="1" g="2" b="3"></viz:color></node>
      <node id="n2" label="Ward B"><attvalues><attvalue for="cluster" value="south"></attvalue></attvalues></node>
      <node id="n10" label="Ward C"><attvalues><attvalue for="cluster" value="north"></attvalue></attvalues></node>
    </nodes>
    <edges>
      <edge id="0" source="n1" target="n2" weight="2.5"></edge>
      <edge id="1" source="n2" target="n10"></edge>
    </edges>
  </graph>
</gexf>
"""


def test_a_gephi_export_is_read(tmp_path):
    topology = load_topology(write(tmp_path / "my.gexf", GEPHI), 3)
    assert topology.labels == ["n1", "n2", "n10"]
    assert topology.clusters.tolist() == [0, 1, 0]
    assert weight_matrix(topology).tolist() == [[0, 2.5, 0], [2.5, 0, 1], [0, 1, 0]]  # Gephi leaves weights of 1 out


@pytest.mark.parametrize("directed", [False, True])
def test_gexf_and_pajek_agree_with_networkx(tmp_path, directed):
    graph = nx.gnp_random_graph(9, 0.4, seed=3, directed=directed)
    graph = nx.relabel_nodes(graph, {i: f"Ward {i}" for i in graph})
    nx.set_edge_attributes(graph, {edge: 1.0 + index for index, edge in enumerate(graph.edges())}, "weight")
    nx.write_gexf(graph, tmp_path / "my.gexf")
    nx.write_pajek(graph, tmp_path / "my.net")
    for name in ("my.gexf", "my.net"):
        topology = load_topology(tmp_path / name, 9)
        assert topology.labels == sorted(graph)
        assert topology.directed == directed
        assert weight_matrix(topology).tolist() == nx.to_numpy_array(graph, nodelist=sorted(graph)).T.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('*Vertices 3\n1 "Ward A"\n2 "Ward B"\n*Arcs\n1 2 1\n*Edges\n2 3 1\n', {("Ward A", "Ward B"), ("Ward B", "3"), ("3", "Ward B")}),
        ("*Vertices 3\n*Edgeslist\n1 2 3\n", both_ways((1, 2), (1, 3))),
        ("% of Pajek\n*Network my\n*Vertices 3\n*Arcslist\n1 2 3\n", {("1", "2"), ("1", "3")}),
        ("*Vertices 3\n*Matrix\n0 1 0\n0 0 1\n0 0 0\n", {("1", "2"), ("2", "3")}),
    ],
)  # fmt: skip
def test_sections_of_pajek(tmp_path, text, expected):
    assert links_of(load_topology(write(tmp_path / "my.net", text), 3)) == expected


def test_dot_is_read_by_pydot(tmp_path):
    pytest.importorskip("pydot")
    text = 'graph my {\n  "Ward A" [cluster=north];\n  "Ward B" [cluster=south];\n  c [cluster=north];\n  "Ward A" -- "Ward B" [weight="0.5"];\n  "Ward B" -- c [weight=2];\n}\n'
    topology = load_topology(write(tmp_path / "my.dot", text), 3)
    assert topology.labels == ["Ward A", "Ward B", "c"]
    assert topology.clusters.tolist() == [0, 1, 0]
    assert weight_matrix(topology).tolist() == [[0, 0.5, 0], [0.5, 0, 2], [0, 2, 0]]


def test_without_pydot_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"\.dot files are read by the package pydot; install it, or save the graph as"):
        load_topology(write(tmp_path / "my.dot", "graph { a -- b }"), 2)


# links that stand twice

TWICE = {
    "my.edgelist": "0 1\n1 0\n0 1\n",
    "my.csv": "source,target\n0,1\n1,0\n",
    "my.adjlist": "0 1 1\n1 0\n",
    "my.json": json.dumps({"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1}] * 2}),
    "my.graphml": '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected"><node id="0"/>'
    '<node id="1"/><edge source="0" target="1"/><edge source="1" target="0"/></graph></graphml>',
    "my.gexf": '<gexf xmlns="http://gexf.net/1.3" version="1.3"><graph defaultedgetype="undirected"><nodes><node id="0"/>'
    '<node id="1"/></nodes><edges><edge source="0" target="1"/><edge source="1" target="0"/></edges></graph></gexf>',
    "my.gml": "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] edge [ source 1 target 0 ] ]",
    "keys.gml": "graph [ multigraph 1 node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 key 7 ] "
    "edge [ source 0 target 1 key 7 ] ]",
    "my.net": "*Vertices 2\n*Edges\n1 2\n2 1\n",
    "my.npy": saved(np.array([[0, 1], [1, 0], [0, 1]])),
    "my.mtx": "%%MatrixMarket matrix coordinate pattern general\n2 2 3\n1 2\n2 1\n1 2\n",
}


@pytest.mark.parametrize("name", sorted(TWICE))
def test_in_each_format_a_link_that_stands_twice_counts_once(tmp_path, name):
    topology = load_topology(write(tmp_path / name, TWICE[name]), 2)
    assert topology.reachable(0).mask.tolist() == [[False, True], [True, False]]
    assert topology.weights() is None


# mistakes


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("my.txt", "0 1 2 3\n", "my.txt: line 1 has 4 columns: a line is: a b, or a b 0.5 with a weight; other columns need "
         "a header line such as source target weight time (a name with blanks is put in quotation marks)."),
        ("my.txt", "0 1 friend\n", "my.txt: line 1: 'friend' is no weight; a line is: a b, or a b 0.5 with a weight;"),
        ("my.txt", "source target\n0 1 5\n", "my.txt: line 2 has 3 columns, and the header 2; give as many."),
        ("my.csv", "a,b\nb c\n", 'my.csv: line 2 has no comma, as others have; if b c is one client, write "b c" in '
         "quotation marks, otherwise separate the names as in the other lines."),
        ("my.csv", "a,,0.5\n", "my.csv: line 1 has an empty name; fill it in."),
        ("my.csv", '"a,b\n', "my.csv: line 1 has a quotation mark that is not closed, or text after a closed one; "),
        ("my.txt", "node#1 node#2\n", "my.txt: line 1 has # in the middle of a name; put the name in quotation marks, or "
         "a blank before a comment."),
        ("my.txt", "Ward A Ward B\nWard B c d\n", "my.txt: line 1 has 4 columns"),
        ("my.csv", "Source,Target,Type\na,b,Directed\nb,c,Undirected\n", "my.csv: lines 2 and 3 are of a directed and of an "
         "undirected link; give undirected links as two directed ones."),
        ("my.txt", "A,B C\n", "my.txt: 2 nodes, but data has 3 clients; give a graph with 3 nodes (its nodes are 'A', 'B C'); "
         "a client without links has a line of its own."),
        ("my.txt", "Zürich Bern\n".encode("latin-1"), "my.txt: the text is not UTF-8 ("),
        ("my.txt", "a b {weight: 1}\n", "my.txt: line 1 has no attributes in its braces; write {'weight': 0.5}."),
        ("my.txt", "a b 1 {'weight': 1}\n", "my.txt: line 1 has a weight and attributes in braces; keep one."),
        ("my.npy", saved(np.zeros((2, 40))), "my.npy: an array of the shape [2, 40] is not a graph; give a square matrix, or a "
         "link in each of its rows of two or three columns."),
        ("my.npy", saved(np.array([[0, 1.5]] * 4)), "my.npy: the ends of links are whole numbers from 0 on; give the weights"),
        ("my.npy", saved(np.full((3, 3), np.nan)), "my.npy: the entry at [0, 0] is nan; give a finite number."),
        ("my.npy", saved(np.array([["a", "b"]] * 4)), "my.npy: the entries are of the type <U1; give numbers."),
        ("my.npy", saved(np.array([{}], dtype=object)), "my.npy: not a .npy graph (Object arrays cannot be loaded"),
        ("my.npy", saved(np.zeros((4, 4))), "my.npy: 4 nodes, but data has 3 clients; give a graph with 3 nodes."),
        ("my.mtx", "%%MatrixMarket matrix coordinate real general\n3 4 1\n1 2 1\n", "my.mtx: a matrix of 3 x 4; it must be 3"),
        ("my.mtx", "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 2 1\n1 2 5\n", "my.mtx: the entry in row 0, column 1"
         " (from 0) has two values; keep one."),
        ("my.mtx", "%%MatrixMarket matrix array real general\n1000000 1000000\n", "my.mtx: a matrix of 1000000 x 1000000;"),
        ("my.gml", 'graph [ node [ id 0 label "a" ]\n node [ id 1 label "b" ]\n node [ id 2 label "a" ] ]',
         "my.gml: the label 'a' is of two nodes, in lines 1 and 3; give each its own."),
        ("my.gml", 'graph [ node [ id 0 label "a" ]\n node [ id 1 ] node [ id 2 label "b" ] ]',
         "my.gml: the node that ends in line 2 has no label; label all nodes or none."),
        ("my.json", '{"nodes": [{"id": 0}, {"name": "b", "group": 1}], "links": []}',
         "my.json: node 2 has no 'id' (it has name, group); give each one."),
        ("my.json", '{"nodes": [0, 1, 2], "links": []}', "my.json: node 1 is 0; it must have 'id', as in {\"id\": 0}."),
        ("my.json", '{"nodes": [{"id": 0}], "links": [{"from": 0}]}', "my.json: link 1 has no 'source' (it has from); give"),
        ("my.gexf", GEPHI.replace('id="n2"', 'id="n1"'), "my.gexf: the node 'n1' is there twice, in lines 10 and 12; keep one."),
        ("my.gexf", GEPHI.replace('<edge id="1"', '<edge id="0"'), "my.gexf: the edge id '0' is there twice, in lines 16 and 17"),
        ("my.gexf", GEPHI.replace("undirected", "both"), "my.gexf: line 5: defaultedgetype is 'both'; it must be directed or "
         "undirected or mutual."),
        ("my.gexf", "<!DOCTYPE a SYSTEM 'b'>" + GEPHI.partition("\n")[2], "document type and entity declarations are not"),
        ("my.net", "1 2\n", "my.net: there is no section *Vertices; give one with the number of nodes."),
        ("my.net", "*Vertices 3\n1 a\n2 a\n", "my.net: the label 'a' is of two vertices; give each its own."),
        ("my.net", "*Vertices 3\n*Edges\n1 9\n", "my.net: line 3 names the unknown vertex 9; vertices are 1 to 3."),
        ("my.net", "*Vertices 3\n*Edges\n1 2 x\n", "my.net: line 3: 'x' is no weight; give a number."),
        ("my.net", "*Vertices 3\n*Matrix\n0 1\n", "my.net: line 3 of the matrix has 2 entries, and 3 are needed."),
        ("my.net", "*Vertices 3\n*Hypergraph\n", "my.net: line 2 begins the unknown section *Hypergraph; leave it out."),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, name, text, sentence):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name, text)
    with pytest.raises(UserError) as error:
        load_topology(name, 3)
    assert sentence in str(error.value)
    assert str(error.value).startswith(name)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        (np.ones((2, 3)), "topology matrix: a matrix has as many rows as columns, and this has the shape [2, 3]."),
        (np.ones((4, 4)), "topology matrix: 4 nodes, but data has 3 clients; give a graph with 3 nodes."),
        ([[0, 1], [1]], "topology matrix: the matrix cannot be read ("),
        (np.array([[0, 1j], [1, 0]]), "topology matrix: the entries are of the type complex128; give numbers."),
        (torch.full((3, 3), float("inf")), "topology matrix: the entry at [0, 0] is inf; give a finite number."),
    ],
)
def test_matrices_that_are_no_graphs_are_refused(matrix, sentence):
    with pytest.raises(UserError) as error:
        load_topology(matrix, 3)
    assert str(error.value).startswith(sentence)


def test_the_advice_on_clients_without_links_is_right(tmp_path):
    """The message asks for a line of its own; such a file is read."""
    with pytest.raises(UserError, match="a client without links has a line of its own"):
        load_topology(write(tmp_path / "my.txt", "0 1\n1 2\n"), 4)
    assert load_topology(write(tmp_path / "my.txt", "0 1\n1 2\n3\n"), 4).num_clients == 4


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("Ward A Ward B\n", '"Ward A" "Ward B"\n'),
        ("a b 0.5 12\n", "source target weight time\na b 0.5 12\n"),
        ("a,b\nb c\n", "a,b\nb,c\n"),
        ('a,b\nb c\n"b c",a\n', 'a,b\n"b c"\n"b c",a\n'),
        ("node#1 b\n", '"node#1" b\n'),
        ("a b {weight: 1}\n", "a b {'weight': 0.5}\n"),
    ],
)
def test_what_the_messages_advise_is_read(tmp_path, wrong, right):
    clients = 3 if "c" in right.partition("\n")[2] else 2
    write(tmp_path / "my.txt", wrong)
    if wrong.count('"') == 0:
        with pytest.raises(UserError):
            load_topology(tmp_path / "my.txt", clients)
    assert load_topology(write(tmp_path / "my.txt", right), clients).num_clients == clients
