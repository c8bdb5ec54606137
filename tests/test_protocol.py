"""The promises of a round, what happens when they are broken, and what a round costs."""

import contextlib
import functools
import math
from types import SimpleNamespace

import networkx as nx
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import TensorDataset

from dfl_lightning.bank.references import References
from dfl_lightning.callbacks import (
    AFIND,
    FDMS,
    AdaptiveThreshold,
    Aggregation,
    Boltzmann,
    Dropout,
    Gossip,
    Monitor,
    NeighbourAccuracy,
    SampleWeighted,
    Selection,
    Substitution,
    Threshold,
    Uniform,
)
from dfl_lightning.callbacks.base import mixed_terms
from dfl_lightning.data import FromDataset
from dfl_lightning.engines.jobs import Evaluation
from dfl_lightning.links import Links
from dfl_lightning.models import MLP
from dfl_lightning.module import DFLModule
from dfl_lightning.protocol import RoundProtocol
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.checks import all_finite
from dfl_lightning.terminal.banner import notes
from dfl_lightning.trainer import DFLTrainer
from dfl_lightning.utils.errors import UserError

CLIENTS = 4
WIDTH, LAYER = 5 * 4 + 4 + 4 * 3 + 3, 5 * 4 + 4


class Toy(FromDataset):
    """Six samples a client; those of `poisoned` become infinite, after they have passed for numbers."""

    poisoned: tuple[int, ...] = ()

    def setup(self, stage=None):
        super().setup(stage)
        for client in self.poisoned:
            self.clients.images[self.clients.train[client]] = math.inf


def toy_data(*poisoned, test_fraction=0.0):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(6 * CLIENTS, 5, generator=g), torch.arange(6 * CLIENTS) % 3
    parts = [part.tolist() for part in torch.arange(6 * CLIENTS).split(6)]
    data = Toy(TensorDataset(x, y), parts=parts, num_classes=3, test_fraction=test_fraction)
    data.poisoned = poisoned
    return data


@pytest.fixture(autouse=True)
def seed_zero(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


def set_up(*policies, topology="complete", data=None, trainer=None, **model):
    """A trainer that is ready for its first round, and its protocol."""
    defaults = {"accelerator": "cpu", "enable_progress_bar": False, "max_rounds": 3}
    the_trainer = DFLTrainer(callbacks=list(policies), topology=topology, **defaults | (trainer or {}))
    optimizer = functools.partial(torch.optim.SGD, lr=0.2)
    module = DFLModule(MLP(hidden=[4]), local_epochs=1, batch_size=3, optimizer=optimizer, **model)
    the_trainer.prepare(module, data or toy_data())
    return the_trainer, RoundProtocol(the_trainer)


def one_round(protocol):
    round = protocol.begin()
    protocol.train(round)
    protocol.mix(round)
    protocol.commit(round)
    bank = protocol.bank
    bank.boundary = bank.boundary._replace(closed=True)
    return round, bank.boundary.metrics


def go(*policies, **settings):
    return one_round(set_up(*policies, **settings)[1])


# --- promises ---------------------------------------------------------------------------------------------------------
def breaking(family, **hooks):
    """A policy called Broken of a family, with these hooks."""

    def hook(write):
        return lambda self, round: write(round)

    return type("Broken", (family,), {name: hook(write) for name, write in hooks.items()})()


def setting(**fields):
    def write(round):
        for name, make in fields.items():
            setattr(round, name, make(round))

    return write


def entries(links):
    return list(zip(links.receivers.tolist(), links.senders.tolist(), strict=True))


def outsiders(round):
    return Links.complete(4)


def weights(*numbers):
    return breaking(Aggregation, on_weigh=setting(weights=lambda r: torch.tensor(numbers, dtype=torch.float64)))


def select(links):
    return breaking(Selection, on_select=setting(selected=lambda r: links))


all_pairs = torch.ones(4, 4, dtype=torch.bool)
NAN = math.nan
BROKEN = {
    "candidates out of reach": (
        [breaking(Selection, on_propose=setting(candidates=outsiders))],
        r"Broken proposed sender 2 for receiver 0, which is out of its reach; stay within round\.available",
    ),
    "candidates of the wrong size": (
        [breaking(Selection, on_propose=setting(candidates=lambda r: Links.complete(3)))],
        "Broken wrote candidates between 3 nodes; there are 4$",
    ),
    "two jobs for a client": (
        [breaking(Selection, on_propose=setting(jobs=lambda r: References.rows("models", torch.tensor([1, 1]))))],
        "Broken proposed two jobs for client 1$",
    ),
    "similarity of the wrong size": (
        [breaking(Selection, on_compare=setting(similarity=lambda r: torch.zeros(3, 3)))],
        r"Broken wrote similarity of type float32 \[3, 3\]; it must be float \[8\], as many as candidates$",
    ),
    "scores that are not numbers": (
        [breaking(Selection, on_compare=setting(scores=lambda r: torch.ones(8) > 0))],
        r"Broken wrote scores of type bool \[8\]; it must be float \[8\], as many as candidates$",
    ),
    "a threshold for each pair": (
        [AFIND(), breaking(Threshold, on_threshold=setting(threshold=lambda r: torch.zeros(4, 4)))],
        r"Broken wrote threshold of type float32 \[4, 4\]; it must be float \[4\]",
    ),
    "nothing selected": ([breaking(Selection)], r"Broken selected nothing; write round\.selected"),
    "oneself selected": (
        [select(Links.from_mask(all_pairs))],
        "Broken selected sender 0 for receiver 0, which is the receiver",
    ),
    "out of reach selected": (
        [select(outsiders(None))],
        "Broken selected sender 2 for receiver 0, which is out of its reach",
    ),
    "probabilities selected": (
        [select(torch.rand(4, 4))],
        r"Broken wrote selected of type float32 \[4, 4\]; it must be Links; a matrix becomes one by Links.from_mask",
    ),
    "weights that are no shares": (
        [Gossip(k=0), weights(1, 1, 0.25, 0.5)],
        "Broken wrote weights that do not sum to 1: receiver 2 has 0.25 as their sum$",
    ),
    "a weight that is NaN": (
        [Gossip(k=0), weights(1, NAN, 1, 1)],
        "Broken wrote a weight that is not finite: receiver 1 has nan for row 1$",
    ),
    "infinite weights": (
        [Gossip(k="all"), weights(*[0, 1, 0] * 2, *[math.inf, 0, -math.inf], 0, 1, 0)],
        "Broken wrote a weight that is not finite: receiver 2 has inf for row 1$",
    ),
    "weights as a matrix": (
        [Gossip(k=0), weights(*torch.eye(4).tolist())],
        r"Broken wrote weights \[4, 4\]; they must be \[4\], as round\.votes is$",
    ),
    "no weights": ([Gossip(k=0), breaking(Aggregation)], r"Broken wrote no weights; write round\.weights in on_weigh$"),
    "models that are not finite": (
        [
            Gossip(k=0),
            type("Broken", (Uniform,), {"on_mix": lambda s, round: round.bank.rows("trained")[2:].fill_(NAN)})(),
        ],
        "Broken mixed a model that is not finite, for receiver 2$",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_policy_with_invalid_results_is_named_with_the_round(what):
    policies, sentence = BROKEN[what]
    if not any(isinstance(policy, Selection) for policy in policies):
        policies = [Gossip(k=0), *policies]
    if not any(isinstance(policy, Aggregation) for policy in policies):
        policies = [*policies, Uniform()]
    with pytest.raises(UserError, match=f"^round 1: {sentence}"):
        go(*policies, topology="ring")


@pytest.mark.parametrize(
    ("substitute", "sentence"),
    [
        (lambda r: torch.full((6,), 4), "names a row that does not exist: receiver 0 has 4 for row 1; rows are 0 to 3"),
        (
            lambda r: torch.tensor([1, 2, 3, 0, 2, -2]),
            "names a row that does not exist: receiver 1 has -2 for row 3; rows are 0 to 3, or -1 for the mean",
        ),
        (lambda r: torch.zeros(6), r"wrote substitute of type float32 \[6\]; it must be int \[6\], as many as are"),
    ],
)
def test_a_substitution_must_name_rows_that_exist(substitute, sentence, half_down):
    broken = breaking(Substitution, on_substitute=setting(substitute=substitute))
    with pytest.raises(UserError, match=f"^round 1: Broken {sentence}"):
        go(Gossip(k="all"), Uniform(), half_down(), broken)


def test_a_job_for_a_client_that_is_down_is_refused(half_down):
    eager = breaking(Selection, on_propose=setting(jobs=lambda r: References.rows("models", torch.arange(4))))
    with pytest.raises(UserError, match=r"^round 1: Broken proposed a job for client 2, which dropped out$"):
        go(eager, Uniform(), half_down())


@pytest.mark.parametrize(
    ("hook", "field", "sentence"),
    [
        ("on_propose", "candidates", "proposed sender 2 for receiver 0, which dropped out"),
        ("on_select", "selected", "selected sender 2 for receiver 0, which dropped out"),
    ],
)
def test_an_inactive_client_is_neither_proposed_nor_selected(hook, field, sentence, half_down):
    broken = breaking(Selection, **{hook: setting(**{field: lambda r: r.reachable})})
    with pytest.raises(UserError, match=f"^round 1: Broken {sentence}"):
        go(broken, Uniform(), half_down())


def test_no_client_is_selected_for_an_inactive_receiver(half_down):
    def last_row(round):
        return Links.of(torch.tensor([3]), torch.tensor([0]), 4)

    broken = breaking(Selection, on_select=setting(selected=last_row))
    with pytest.raises(UserError, match=r"selected sender 0 for receiver 3, which is in its reach, but the receiver"):
        go(broken, Uniform(), half_down())


def test_negative_and_integer_weights_are_accepted():
    class Beyond(Uniform):
        """A step of 2 from the first neighbour: twice one's own less what it says."""

        def on_weigh(self, round):
            matrix = (2 * torch.eye(4) - torch.eye(4).roll(1, 1)).long()
            round.weights = matrix[round.voters.receivers, round.voters.senders]

    round, _ = go(Gossip(k="all"), Beyond())
    trained = round.bank.rows("models")
    assert torch.isfinite(trained).all()
    assert round.voters.sum(round.weights).tolist() == [1, 1, 1, 1]


def test_a_topology_with_self_loops_is_refused(monkeypatch):
    trainer, protocol = set_up(Gossip(k=0), Uniform())
    monkeypatch.setattr(
        type(trainer.lightning_module.federation.topology), "reachable", lambda *_: Links.from_mask(all_pairs)
    )
    with pytest.raises(UserError, match="self loops, the first at node 0"):
        one_round(protocol)


def test_models_whose_sum_overflows_are_still_finite():
    class Huge(Uniform):
        def on_mix(self, round):
            round.bank.rows("trained").fill_(3e38)

    _, protocol = set_up(Gossip(k=0), Huge())
    one_round(protocol)


def test_scores_and_thresholds_of_any_float_type_will_do():
    class Mine(Selection):
        reads = frozenset({"threshold"})

        def on_compare(self, round):
            round.scores = round.candidates.senders.float()

    class Two(Threshold):
        def on_threshold(self, round):
            round.threshold = torch.full((4,), 2.0)

    round, _ = go(Mine(), Two(), Uniform())
    assert entries(round.selected) == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (3, 2)]


def test_hooks_are_called_in_their_order():
    seen = []
    hooks = (
        "on_dropout on_propose on_trained on_compare on_threshold on_select on_substitute on_weigh on_mix on_round_end"
    )
    watcher = {name: lambda s, round, name=name: seen.append(name) for name in hooks.split()}
    go(Gossip(k=1), Uniform(), type("Watcher", (RoundCallback,), watcher)())
    assert seen == hooks.split()


# --- who is there -----------------------------------------------------------------------------------------------------
@pytest.fixture
def half_down(trace):
    return lambda: trace("1 1 0 0")


@pytest.mark.parametrize("topology", ["complete", "server"])
def test_a_round_without_active_clients_is_only_counted(topology, trace, tmp_path):
    folder = {"default_root_dir": tmp_path, "enable_checkpointing": False}
    policies = Gossip(k="all"), Uniform(), trace("1 1 1 1", "0 0 0 0", "0 1 1 1"), NeighbourAccuracy()
    trainer, _ = set_up(*policies, topology=topology, trainer=folder)
    trainer.fit(trainer.lightning_module, datamodule=trainer.datamodule)
    metrics = trainer.run.metrics
    assert metrics["round"].tolist() == [0, 1, 2]
    assert metrics["active"].tolist() == [4, 0, 3]
    assert metrics["models_received"][1] == metrics["bytes_received"][1] == 0
    assert math.isnan(metrics["train_loss"][1])
    assert math.isnan(metrics["neighbours"][1])


def test_a_dropped_client_neither_trains_nor_mixes_nor_is_mixed(half_down):
    _trainer, protocol = set_up(Gossip(k="all"), Uniform(), half_down())
    before = protocol.bank.boundary.rows["models"].clone()
    round, _ = one_round(protocol)
    assert torch.equal(protocol.bank.boundary.rows["models"][2:], before[2:])
    assert entries(round.selected) == [(0, 1), (1, 0)]


# --- divergence -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("topology", ["complete", "server"])
def test_a_diverged_client_is_neither_selected_nor_mixed(topology):
    _trainer, protocol = set_up(Gossip(k="all"), Uniform(), topology=topology, data=toy_data(1))
    said = pytest.warns(UserWarning, match="training of client 1 diverged; excluded from this round")
    for once in (said, contextlib.nullcontext()):
        before = protocol.bank.boundary.rows["models"].clone()
        with once:
            round, metrics = one_round(protocol)
        assert metrics["diverged"] == 1
        assert round.diverged.tolist() == [False, True, False, False]
        assert round.losses.isnan().tolist() == [False, True, False, False]
        assert 1 not in round.voters.senders.tolist()
        assert 1 not in round.selected.receivers.tolist()
        after = protocol.bank.boundary.rows["models"]
        assert torch.equal(after[1], before[1])
        assert after.isfinite().all()
        assert math.isfinite(metrics["train_loss"])


def test_a_quarantined_client_does_not_change_the_others():
    _, protocol = set_up(Gossip(k="all"), Uniform(), data=toy_data(1))
    with pytest.warns(UserWarning, match="client 1"):
        one_round(protocol)
    others = nx.complete_graph(4)
    others.remove_edges_from(list(others.edges(1)))
    _, without = set_up(Gossip(k="all"), Uniform(), topology=others)
    one_round(without)
    rest = [0, 2, 3]
    torch.testing.assert_close(protocol.bank.boundary.rows["models"][rest], without.bank.boundary.rows["models"][rest])


def test_nothing_is_mixed_if_all_clients_diverge():
    _, protocol = set_up(Gossip(k="all"), Uniform(), data=toy_data(*range(CLIENTS)))
    before = protocol.bank.boundary.rows["models"].clone()
    with pytest.warns(UserWarning, match="client 0, 1, 2, 3 diverged"):
        round, metrics = one_round(protocol)
    assert not round.has("selected")
    assert metrics["diverged"] == 4
    assert torch.equal(protocol.bank.boundary.rows["models"], before)


# --- costs ------------------------------------------------------------------------------------------------------------
def costs(metrics):
    """Models, probes, proxies and bytes of all clients together."""
    return [CLIENTS * metrics[f"{name}_received"] for name in ("models", "probes", "proxies", "bytes")]


class Whole(Selection):
    """Compares whole models, and mixes none."""

    k = 0

    def on_compare(self, round):
        round.similarity = round.compare("trained", round.candidates).cosines
        round.scores = round.similarity


class Prober(Selection):
    """Looks at models twice, and mixes one."""

    k = 1

    def on_compare(self, round):
        round.scores = -round.loss_of(round.candidates)
        round.loss_of(round.candidates)


class Lazy(Uniform):
    """Mixes models from before the training, which cost as much."""

    def on_mix(self, round):
        ((weights, _),) = mixed_terms(round, round.weights, round.receivers)
        round.mix([(weights, "models")], into="models", where=round.receivers)


class Hoarder(Uniform):
    """Mixes its own memory."""

    row_sets = {"memory": "zeros"}

    def on_trained(self, round):
        round.mix([(torch.full((4, 4), 0.25), "trained")], into="memory", where=round.receivers)


@pytest.mark.parametrize(
    ("policies", "settings", "models", "probes", "width"),
    [
        ((Gossip(k=0), Uniform()), {}, 0, 0, WIDTH),
        ((Gossip(k=2), Uniform()), {}, 8, 0, WIDTH),
        ((Gossip(k=2), Uniform()), {"shared": ["features.*"]}, 8, 0, LAYER),
        ((Whole(), Uniform()), {"topology": "ring"}, 8, 8, WIDTH),
        ((Gossip(k="all"), SampleWeighted()), {"topology": "server"}, 8, 0, WIDTH),  # an upload and a download a client
        ((Gossip(k=1), SampleWeighted()), {"topology": "server"}, 2, 0, WIDTH),
        ((Prober(), Boltzmann()), {}, 12, 8, WIDTH),
        ((Gossip(k=2), Lazy()), {}, 8, 0, WIDTH),
        ((Gossip(k=0), Hoarder()), {}, 0, 0, WIDTH),
    ],
)
def test_a_received_model_costs_its_shared_columns_once(policies, settings, models, probes, width):
    assert costs(go(*policies, **settings)[1]) == [models, probes, 0, 4 * models * width]


def test_afind_costs_one_proxy_per_neighbour_and_selected_models():
    round, metrics = go(AFIND(), AdaptiveThreshold(), Boltzmann(), topology="ring")
    mixed = len(round.selected)
    assert costs(metrics) == [mixed, 0, 8, 4 * (mixed * WIDTH + 8 * LAYER)]


def test_fdms_costs_no_more_than_dropout(half_down):
    plain = go(Gossip(k="all"), Uniform(), half_down(), topology="server")[1]
    friends = go(Gossip(k="all"), Uniform(), half_down(), FDMS(), topology="server")[1]
    assert costs(plain) == costs(friends) == [4, 0, 0, 4 * 4 * WIDTH]


def test_monitors_that_ask_the_bank_and_reported_evaluation_cost_nothing(tmp_path):
    class Curious(Monitor):
        def on_trained(self, round):
            everyone = torch.arange(4)
            found = round.federation.engine.evaluate(
                References.rows("trained", everyone, everyone.flip(0), "trained"), "train"
            )
            assert isinstance(found, Evaluation)

    folder = {"default_root_dir": tmp_path, "enable_checkpointing": False}
    policies = Gossip(k=0), Uniform(), Curious()
    trainer, _ = set_up(*policies, data=toy_data(test_fraction=0.25), trainer=folder, finetune_epochs=1)
    trainer.fit(trainer.lightning_module, datamodule=trainer.datamodule)
    assert not trainer.run.metrics["bytes_received"].any()
    assert len(trainer.run.metrics["test_acc"]) == 3


def test_costs_are_in_the_run_folder(tmp_path):
    folder = {"default_root_dir": tmp_path, "enable_checkpointing": False}
    trainer, _ = set_up(Gossip(k=2), Uniform(), trainer=folder)
    trainer.fit(trainer.lightning_module, datamodule=trainer.datamodule)
    assert trainer.run.metrics["bytes_received"].tolist() == [4 * 2 * WIDTH] * 3
    assert trainer.run.summary["received_per_client"]["models"] == 6


# --- policies without effect ------------------------------------------------------------------------------------------
def test_a_threshold_under_gossip_is_switched_off_and_noted():
    threshold = AdaptiveThreshold()
    trainer, protocol = set_up(Gossip(k=1), threshold, Uniform())
    round, metrics = one_round(protocol)
    assert threshold.switched_off
    assert round.threshold is None
    assert "threshold" not in metrics
    assert notes(trainer, trainer.lightning_module) == [
        "AdaptiveThreshold has no effect in this run and is ignored: no policy reads what it writes"
    ]


def test_a_threshold_under_afind_is_not_switched_off():
    threshold = AdaptiveThreshold()
    trainer, _ = set_up(AFIND(), threshold, Uniform())
    assert not threshold.switched_off
    assert notes(trainer, trainer.lightning_module) == []


def test_a_substitution_without_dropout_is_switched_off():
    fdms = FDMS()
    set_up(Gossip(k="all"), fdms, Uniform(), topology="server")
    assert fdms.switched_off


# --- interruptions ----------------------------------------------------------------------------------------------------
def test_an_abandoned_round_leaves_no_trace_in_the_policies():
    selection = AFIND()
    _trainer, protocol = set_up(selection, AdaptiveThreshold(), Boltzmann())
    one_round(protocol)
    protocol.bank.boundary = protocol.bank.boundary._replace(callbacks=protocol.capture())
    remembered = selection.similarity.values
    round = protocol.begin()
    protocol.train(round)
    protocol.mix(round)  # and then the power fails
    assert not torch.equal(selection.similarity.values, remembered)
    protocol.bank.abandon()
    protocol.restore_callbacks()
    assert torch.equal(selection.similarity.values, remembered)


def test_a_policy_of_a_few_lines_works():
    class Nearest(Selection):
        """The neighbour whose model is the most like mine."""

        k = 1

        def on_compare(self, round):
            round.scores = -round.compare("trained", round.candidates).distances

    round, _ = go(Nearest(), Uniform())
    assert (round.selected.count == 1).all()


def test_a_dropout_must_say_how_it_draws():
    with pytest.raises(NotImplementedError, match=r"Dropout must implement draw\(round\)"):
        Dropout().draw(SimpleNamespace())


def allocated(work):
    """Bytes of the largest tensor that `work` makes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as watched:
        result = work()
    return result, max(event.cpu_memory_usage for event in watched.events())


def test_checking_for_nonfinite_models_copies_no_rows():
    rows = torch.ones(50, 400)
    finite, largest = allocated(lambda: all_finite(rows))
    assert finite
    assert largest < rows.nbytes / 50


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_single_nonfinite_entry_is_detected(wrong):
    rows = torch.ones(5, 4)
    rows[3, 2] = wrong
    assert not all_finite(rows)
    rows[1, 0] = -wrong
    assert not all_finite(rows)


def test_large_models_whose_sum_overflows_are_finite():
    assert all_finite(torch.full((5, 4), 3e38))
