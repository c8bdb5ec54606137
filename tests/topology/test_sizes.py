"""A graph of another size than the data: the advice that is given is followed, and leads to a run."""

import networkx as nx
import pytest
from small_run import SmallRun

from dfl_lightning.callbacks import Gossip, Uniform
from dfl_lightning.data.partitions import ClassCounts
from dfl_lightning.utils.errors import UserError

ADVICE = "or set data.num_clients="


def run(folder, topology, **data):
    small = SmallRun(folder, rounds=1, policies=[Gossip(k=2), Uniform()], topology=topology, data=data)
    return small.fit()


@pytest.mark.parametrize("clients", [4, 9])
def test_data_may_be_divided_among_the_nodes_of_the_graph(tmp_path, clients):
    with pytest.raises(UserError) as error:
        run(tmp_path, nx.cycle_graph(clients))
    start, _, rest = str(error.value).partition(ADVICE)
    assert start == f"topology graph: {clients} nodes, but data has 6 clients; give a graph with 6 nodes; "
    advised = int(rest.partition(",")[0])
    assert advised == clients
    assert run(tmp_path, nx.cycle_graph(clients), num_clients=advised).trainer.run.path.is_dir()


@pytest.mark.parametrize(
    ("topology", "data"),
    [
        (nx.path_graph(1), {}),  # two clusters need two clients
        (nx.cycle_graph(2000), {}),  # there are 1797 samples
        (nx.cycle_graph(4), {"partition": ClassCounts([{0: 10, 1: 10}] * 6), "samples_per_client": None}),
        (nx.empty_graph(0), {}),
    ],
)
def test_what_the_data_refuse_is_not_advised(tmp_path, topology, data):
    with pytest.raises(UserError) as error:
        run(tmp_path, topology, **data)
    assert ADVICE not in str(error.value)
    assert str(error.value).endswith("give a graph with 6 nodes.")


def test_a_sequence_advises_the_number_of_all_its_nodes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\nb,c\n")
    (tmp_path / "b.csv").write_text("b,c\nc,d\n")
    keys = {"sequence": [{"graph": "a.csv", "rounds": 1}, {"graph": "b.csv"}]}
    with pytest.raises(UserError) as error:
        run(tmp_path, keys)
    assert str(error.value) == (
        "topology: the graph files of the sequence have 4 different nodes, but data has 6 clients; give them as many "
        "together; 'd' is first in item 2; or set data.num_clients=4, with which these data work."
    )
    run(tmp_path, keys, num_clients=4)
