"""Nothing that grows with the square of the clients is made in a round on a sparse graph."""

import functools

import pytest
import torch
from threads import Watching

from dfl_lightning import DFLModule, DFLTrainer, UserError
from dfl_lightning import callbacks as cb
from dfl_lightning.data import FromDataset
from dfl_lightning.models import MLP
from dfl_lightning.objectives import GradientTracking
from dfl_lightning.round.federation import listed_links

CLIENTS, DEGREE = 400, 4
LINKS = CLIENTS * DEGREE
MOST = 60 * (LINKS + CLIENTS)
"""Numbers of a tensor, at most: 120,000. A matrix of pairs would have 160,000."""

POLICIES = {
    "gossip": lambda: [cb.Gossip(k=3), cb.Uniform()],
    "fixed neighbours": lambda: [cb.Gossip(k=3, redraw=False), cb.SampleWeighted()],
    "oracle": lambda: [cb.Gossip(k="all", within="cluster"), cb.Uniform()],
    "AFIND+": lambda: [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()],
    "AFIND+ as printed": lambda: [
        cb.AFIND(rule="literal", center=False),
        cb.AdaptiveThreshold(rule="literal"),
        cb.Boltzmann(contribution="own"),
    ],
    "PANMGrad": lambda: [cb.PANM(k=2, l=2, stage_one=1, tau=1), cb.Uniform()],
    "PANMLoss": lambda: [cb.PANM("loss", k=2, l=2, stage_one=1, tau=1), cb.Uniform()],
    "PENS": lambda: [cb.PENS(k=2, sampled=3, top=2, stage_one=1), cb.Uniform()],
    "FedeRiCo": lambda: [cb.FedeRiCo(k=2), cb.ScoreWeighted()],
    "DPFL": lambda: [cb.DPFL(budget=2, initial_epochs=1), cb.SampleWeighted(count="train_and_val")],
    "D-SGD": lambda: [cb.Gossip(k="all"), cb.Metropolis()],
    "median": lambda: [cb.Gossip(k="all"), cb.Median()],
    "clients dropped out": lambda: [cb.Gossip(k=3), cb.Uniform(), cb.Bernoulli(rate=0.2), cb.Stale()],
    "what is sent": lambda: [cb.Gossip(k=3), cb.Uniform(), cb.GaussianNoise(clip=1.0, sigma=0.1)],
}


@pytest.fixture(autouse=True)
def as_large_ones(monkeypatch):
    """Small federations would have matrices for the report and a spectrum."""
    monkeypatch.setattr("dfl_lightning.topology.graph._LARGEST_SPECTRUM", 100)
    monkeypatch.setattr("dfl_lightning.runs.by_round.recorded.MOST_CLIENTS", 100)


class NoLargeTensors(Watching):
    """Refuses to make a tensor of more than so many numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() > tensor.element_size() * MOST:
                raise AssertionError(f"{func} made {list(tensor.shape)}, stored in {tensor.untyped_storage().nbytes()}")
        return found


class Pool(FromDataset):
    """Four images of eight numbers a client, of three classes, in five clusters that the topology does not know."""

    def __init__(self, clients):
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(4 * clients, 8, generator=generator), torch.arange(4 * clients) % 3
        parts = [part.tolist() for part in torch.arange(4 * clients).split(4)]
        dataset = torch.utils.data.TensorDataset(x, y)
        super().__init__(dataset, parts=parts, num_classes=3, test_fraction=0.25, val_fraction=0.25)

    def setup(self, stage=None):
        super().setup(stage)
        self.clients.clusters = torch.arange(self.num_clients) % 5


@functools.cache
def pool(clients):
    """All runs have the same data, which are read once."""
    return Pool(clients)


def fit(policies, folder, topology, clients=CLIENTS, rounds=3, **model):
    trainer = DFLTrainer(
        max_rounds=rounds,
        topology=topology,
        callbacks=[
            *policies,
            cb.NeighbourAccuracy(),
            cb.GraphSparsity(),
            cb.LinkMessages(),
            cb.SimulatedTime(speed=100.0, up=1e6, down=1e6),
        ],
        accelerator="cpu",
        check_val_every_n_epoch=rounds,
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    optimizer = functools.partial(torch.optim.SGD, lr=0.1)
    module = DFLModule(MLP([4]), local_epochs=1, batch_size=2, optimizer=optimizer, **model)
    trainer.fit(module, datamodule=pool(clients))
    return trainer


REGULAR = {"generator": "random_regular_graph", "args": {"d": DEGREE}}


@pytest.mark.parametrize("name", POLICIES)
def test_no_tensor_grows_with_the_square_of_the_clients(name, tmp_path):
    with NoLargeTensors():
        fit(POLICIES[name](), tmp_path, REGULAR)


@pytest.mark.parametrize("change", [{"link_up": 0.8}, {"link_share": 0.5}, {"every": 1}])
def test_changing_graphs_need_no_tensor_of_quadratic_size(change, tmp_path):
    topology = {**REGULAR, **change}
    with NoLargeTensors():
        fit(POLICIES["AFIND+"](), tmp_path, topology)
        fit(POLICIES["gossip"](), tmp_path, topology, objective=GradientTracking())


@pytest.mark.parametrize("name", ["gossip", "fixed neighbours", "PANMGrad", "PANMLoss"])
def test_selections_on_a_complete_graph_list_no_pairs(name, tmp_path):
    with NoLargeTensors():
        fit(POLICIES[name](), tmp_path, "complete")


def test_lists_beyond_memory_are_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("dfl_lightning.round.federation.machine_memory", lambda: 10**8)
    sentence = r"AFIND looks at every link, and 600 clients of a complete graph have 359,400 links.* 143\.8 MB"
    with pytest.raises(UserError, match=sentence):
        fit(POLICIES["AFIND+"](), tmp_path, "complete", clients=600)


@pytest.mark.parametrize("prediction", [[], [cb.KNN(k=100)]])
def test_all_neighbours_of_a_complete_graph_are_refused_by_name(prediction, tmp_path, monkeypatch):
    monkeypatch.setattr("dfl_lightning.round.federation.machine_memory", lambda: 10**7)
    sentence = r"Gossip looks at every link, and 200 clients .* --selection Gossip with a number as its k"
    with pytest.raises(UserError, match=sentence):
        fit([cb.Gossip(k="all"), cb.Uniform(), *prediction], tmp_path, "complete", clients=200, rounds=1)
    fit([cb.Gossip(k=10), cb.Uniform(), *prediction], tmp_path, "complete", clients=200, rounds=1)  # the remedy


def test_memory_is_foreseen_of_the_links_that_selections_list(tmp_path):
    foreseen = [
        ([cb.Gossip(k=3), cb.Uniform(), cb.KNN(k=30)], 2 * 3 * 40),
        ([cb.PANM(k=3, l=4), cb.Uniform()], 2 * (3 + 4) * 40),
        (POLICIES["AFIND+"](), 40 * 39),
    ]
    for policies, links in foreseen:
        trainer = fit(policies, tmp_path, "complete", clients=40, rounds=1)
        assert listed_links(trainer.lightning_module.federation) == links
