"""Batches that grow from round to round, against an ordinary loop of torch for each client."""

import copy
import functools
from types import SimpleNamespace

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dfl_lightning import DFLModule
from dfl_lightning.bank.references import References
from dfl_lightning.callbacks import AFIND, Gossip, SimulatedTime, Uniform
from dfl_lightning.callbacks.devices import Devices
from dfl_lightning.engines.stacked.gpu.cuda_graphs import obstacle
from dfl_lightning.models import MLP
from dfl_lightning.objectives.tracking.plain_steps import local_steps
from dfl_lightning.terminal.training import describe_training
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

SIZES, RATE = [6, 3, 9, 2, 5], 0.05
GROWN = [2, 5, 8, 9, 9]
"""Batches of two samples, three more in each round, and at most the nine of the largest client."""


@pytest.fixture
def federation(start, make_data):
    def _start(*policies, engine="stacked", sizes=SIZES, **settings):
        defaults = {"batch_size": 2, "batch_growth": 3, "local_epochs": 2}
        defaults["optimizer"] = functools.partial(torch.optim.SGD, lr=RATE, momentum=0.9)
        return start(
            *(policies or (Gossip(k=0), Uniform())),
            topology=nx.cycle_graph(len(SIZES)),
            data=make_data(sizes=sizes),
            rounds=settings.pop("rounds", 1000),
            trainer={"precision": "64-true", "engine": engine},
            **defaults | settings,
        )

    return _start


TIED = [5, 6, 9, 9, 2]
"""Clients of five and six samples have three batches of two each, but one and two of five."""


def trained_by_hand(run, row, owner, round, epochs=2, steps=None, purpose="local", batch_size=None):
    """Train a client's row for one round with ordinary modules and a new optimizer."""
    network, samples = copy.deepcopy(run.module.network).double(), run.data.train[owner]
    with torch.no_grad():
        nn.utils.vector_to_parameters(row.clone(), network.parameters())
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9)
    parts = []
    for epoch in range(20 if steps else epochs):
        order = drawn_order(len(samples), 0, purpose, round, owner, epoch)
        parts += samples[order].split(batch_size or GROWN[round])
    for part in parts[:steps]:
        x, y = run.data.batch(part, dtype=torch.float64)
        optimizer.zero_grad()
        cross_entropy(network(x), y).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach()


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("sizes", [SIZES, TIED])
def test_batches_grow_as_in_a_plain_loop(engine, steps, sizes, federation):
    run = federation(engine=engine, local_steps=steps, sizes=sizes)
    rows = run.models.clone()
    for round in range(len(GROWN)):
        run.go(1)
        rows = torch.stack([trained_by_hand(run, row, i, round, steps=steps) for i, row in enumerate(rows)])
        torch.testing.assert_close(run.models, rows, rtol=0, atol=1e-12)


def test_growth_by_the_first_size_is_the_papers_schedule(federation):
    """FL-FDMS, section 5: B_t = B_0 t in round t = 1, 2, ..."""
    local = federation(batch_growth=2).module.federation.local
    assert [local.batch_size_in(round) for round in range(6)] == [2, 4, 6, 8, 9, 9]


def test_resumed_run_goes_on_with_the_grown_batches(federation, through_a_file):
    whole, first, second = (federation() for _ in range(3))
    second.take_up(through_a_file(first.go(2).state())).go(2)
    assert torch.equal(whole.go(4).models, second.models)


def test_fine_tuning_keeps_the_first_batch_size(federation):
    run = federation(finetune_epochs=1).go(3)
    tuned = run.bank.materialise(run.module.evaluated_models())[2]
    by_hand = trained_by_hand(run, run.models[2], 2, 3, epochs=1, purpose="finetune", batch_size=2)
    torch.testing.assert_close(tuned, by_hand, rtol=0, atol=1e-12)


class Watching(Gossip):
    """Computes the gradients of each round's first batch, and counts its steps."""

    gradients, steps = None, ()

    def on_trained(self, round):
        everyone = torch.arange(round.num_clients)
        self.gradients = round.gradients(References.rows("models", everyone), batches=1)
        self.steps = (*self.steps, local_steps(round).tolist())


def test_gradients_and_steps_of_a_round_are_of_its_batches(federation):
    """The gradient of client 2 is that of the first five samples in round 1."""
    watching, before = Watching(k=0), []
    run = federation(watching, Uniform(), local_epochs=1)
    for _ in range(2):
        before.append(run.models.clone())
        run.go(1)
    assert watching.steps == ([3, 2, 5, 1, 3], [2, 1, 2, 1, 1])
    owner, network = 2, copy.deepcopy(run.module.network).double()
    with torch.no_grad():
        nn.utils.vector_to_parameters(before[1][owner], network.parameters())
    first = run.data.train[owner][drawn_order(9, 0, "local", 1, owner, 0)][:5]
    x, y = run.data.batch(first, dtype=torch.float64)
    expected = torch.autograd.grad(cross_entropy(network(x), y), list(network.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in expected])
    torch.testing.assert_close(watching.gradients[owner], expected, rtol=0, atol=1e-12)


def test_noise_of_afinds_proxies_falls_as_batches_grow(federation):
    """Appendix C.3 of AFIND+: a standard deviation of sigma C / L, with L samples in a batch."""
    afind, spreads = AFIND(proxy="grad_batch", proxy_noise=1e6, proxy_clip=1.0), []
    run = federation().go(1)
    for number in (0, 2):
        round = SimpleNamespace(
            batch_size=GROWN[number], bank=run.bank, generator=lambda *words: torch.Generator().manual_seed(3)
        )
        proxies = torch.zeros_like(run.models)
        afind._add_noise(round, run.module.federation.layout.shared, proxies)
        spreads.append(float(proxies.std()))
    assert spreads[0] / spreads[1] == pytest.approx(GROWN[2] / GROWN[0])


def test_simulated_time_counts_the_samples_of_grown_batches(federation):
    run = federation(local_steps=1)
    devices = Devices("devices", {"speed": [1.0]}, 0.0, None, None, ("speed",))
    devices.start(run.module.federation)
    seconds = [devices.training_seconds(run.module.federation, round).tolist() for round in range(3)]
    assert seconds == [[2, 2, 2, 2, 2], [5, 3, 5, 2, 5], [6, 3, 8, 2, 5]]


def test_simulated_time_of_rounds_follows_the_grown_batches(federation):
    """The slowest client, at a sample a second and without messages, takes a batch of 2, 5, 8 and 9 samples."""
    monitor = SimulatedTime(speed=1.0, up=1e9, down=1e9)
    run = federation(Gossip(k=0), Uniform(), monitor, local_steps=1).go(4)
    assert [round.metrics["simulated_seconds"] for round in run.rounds] == pytest.approx([2, 7, 15, 24])


def test_largest_batches_count_in_the_predicted_memory(federation):
    """Activations, and their gradients, take as much memory as with all nine samples from the first round on."""
    grown, fixed, large = (federation(**options) for options in ({}, {"batch_growth": 0}, {"batch_size": 9}))
    memory = [run.module.engine.cohort_bytes for run in (grown, fixed, large)]
    assert memory[1] < memory[0] == memory[2]
    assert "model.batch_growth changes" in obstacle(grown.module.engine._context, grown.data.images[:2].double())
    assert "model.batch_growth" not in obstacle(fixed.module.engine._context, fixed.data.images[:2].double())


def test_banner_says_that_batches_grow(federation):
    assert "2 epochs a round in batches of 2, 3 more in each round" in describe_training(federation().module)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_growth": -1}, r"model\.batch_growth=-1; it must be 0 or more"),
        ({"batch_growth": 0.5}, r"model\.batch_growth=0\.5; it must be a whole number"),
        ({"batch_growth": 5, "batch_size": "full"}, r"batches cannot grow from model\.batch_size=full"),
    ],
)
def test_impossible_growth_is_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        DFLModule(MLP(hidden=[4]), **options)


def test_batch_of_one_sample_in_a_later_round_is_refused(federation):
    """Batches of four leave one of nine samples in round 1, on which BatchNorm cannot be trained."""
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    settings = {"network": network, "batch_size": 3, "batch_growth": 1}
    federation(rounds=1, **settings)
    assert federation(rounds=1, **settings).module.engine.config.later_batch_sizes == ()
    with pytest.raises(UserError, match=r"client 2 has 9 training samples, so that with model\.batch_size=4, to which"):
        federation(rounds=2, **settings)


def test_evaluation_is_not_refused_for_batches_of_later_rounds(small_run):
    """A batch of 23 leaves one of 24 samples, which matters to a fit of 100 rounds only."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    options = {
        "module": {"network": network, "batch_size": 12, "batch_growth": 1},
        "policies": [Gossip(k=2), Uniform()],
    }
    run = small_run(1, **options).fit()
    assert run.module.federation.data.sizes("train").tolist() == [24] * 6
    checkpoint = run.folder / "checkpoints" / "last.ckpt"
    with pytest.raises(UserError, match=r"model\.batch_size=23, to which model\.batch_growth leads"):
        small_run(100, **options).fit(checkpoint)
    other = small_run(100, **options)
    assert other.trainer.test(other.module, other.data, ckpt_path=checkpoint)
