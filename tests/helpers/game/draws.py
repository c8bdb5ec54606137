"""Strategies of hypothesis for runs: clients and their sizes, topologies, dropouts, and data that are not finite."""

import networkx as nx
from hypothesis import HealthCheck
from hypothesis import strategies as st

from game.parts import AGGREGATIONS, DROPOUTS, SELECTIONS, SUBSTITUTIONS
from game.play import ROUNDS, Case

POISONS = (float("nan"), float("inf"), -float("inf"), 1e30, 3e38)
RULES = {"suppress_health_check": list(HealthCheck)}


@st.composite
def graphs(draw, clients):
    """A graph with weights and clusters, maybe of arcs, in pieces or without any link."""
    directed = draw(st.booleans())
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(clients))
    pairs = [(i, j) for i in range(clients) for j in range(clients) if (i != j if directed else i < j)]
    graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), max_size=3 * clients)))
    nx.set_edge_attributes(graph, 2.0, "weight")
    nx.set_node_attributes(graph, {i: i % 2 for i in range(clients)}, "cluster")
    return graph


PIECES = (
    {"generator": "complete"},
    {"generator": "empty_graph"},
    {"generator": "path_graph"},
    {"generator": "gnp_random_graph", "args": {"p": 0.4}, "every": 1},
    {"generator": "gnp_random_graph", "args": {"p": 0.4, "directed": True}},
)


@st.composite
def changing_graphs(draw):
    """A graph that falls apart and comes together, or whose links fail."""
    if draw(st.booleans()):
        return {"sequence": [{**draw(st.sampled_from(PIECES)), "rounds": 1} for _ in range(ROUNDS)]}
    word = draw(st.sampled_from(["link_up", "arc_up", "link_share"]))
    return {"generator": "complete", word: draw(st.sampled_from([0.05, 0.5, 0.9])), "seed": draw(st.integers(0, 9))}


def names(table, *without):
    return st.sampled_from([name for name in table if name not in without])


@st.composite
def cases(draw, **fixed):
    """Runs; most of them are allowed."""
    clients = draw(st.integers(2, 5))
    kind = draw(st.sampled_from(["given", "given", "changing", "server", "servers"]))
    alone, clustered = kind in ("given", "changing"), kind == "given"
    if not alone:
        topology = {"generator": "server", "args": {"servers": 1 if kind == "server" else 2}}
    else:
        topology = draw(graphs(clients) if kind == "given" else changing_graphs())

    of_servers = {
        "server": ["gossip", "all neighbours", "no neighbours", "fixed neighbours", "ifca"],
        "servers": ["ifca"],
    }
    chosen = (
        names(SELECTIONS, "ifca", *([] if clustered else ["oracle"])) if alone else st.sampled_from(of_servers[kind])
    )
    selection = draw(chosen)
    dpfl = selection.startswith("dpfl")
    if dpfl:
        aggregation = st.sampled_from(["uniform", "by samples"])
    elif selection == "federico":
        aggregation = names(AGGREGATIONS, *([] if clustered else ["from the topology"]))
    elif alone:
        aggregation = names(AGGREGATIONS, "by scores", *([] if clustered else ["from the topology"]))
    else:
        aggregation = st.sampled_from(["uniform", "half a step", "by samples", "boltzmann of own losses"])
    up = st.lists(st.lists(st.booleans(), min_size=clients, max_size=clients), min_size=ROUNDS, max_size=ROUNDS)
    dropout = names(DROPOUTS, *([] if clustered else ["one of a group"]))
    substitution = names(SUBSTITUTIONS, "candidates") if alone else names(SUBSTITUTIONS)
    poisons = st.dictionaries(st.integers(0, clients - 1), st.sampled_from(POISONS), max_size=clients)
    others = st.lists(st.integers(1 if dpfl else 0, 2), min_size=clients, max_size=clients)
    drawn = {
        "train": st.lists(st.integers(1, 7), min_size=clients, max_size=clients),
        "val": others,
        "test": others,
        "topology": st.just(topology),
        "selection": st.just(selection),
        "aggregation": aggregation,
        "threshold": st.sampled_from(["none", "literal" if "as printed" in selection else "adaptive"]),
        "dropout": st.one_of(st.none(), dropout, up, up),
        "substitution": st.just("none") if selection == "ifca" else substitution,
        "objective": st.sampled_from(["plain", "plain", "fedprox", *(["tracking", "quasi-global momentum"] * alone)]),
        "engine": st.sampled_from(["stacked", "loop"]),
        "personal": st.booleans(),
        "watched": st.booleans(),
        "poisoned": st.dictionaries(st.integers(0, ROUNDS - 1), poisons),
    }
    return Case(**{name: draw(strategy) for name, strategy in (drawn | fixed).items()})
