"""The record of a round: what it offers the hooks, and how it counts messages."""

from types import SimpleNamespace

import pytest
import torch

from dfl_lightning.bank.comparing.similarity import Comparison
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.references import References, Term
from dfl_lightning.links import Links
from dfl_lightning.round.callback import RoundCallback, call_round_hook
from dfl_lightning.round.ledger import Ledger
from dfl_lightning.round.record import Round, SubstituteRows


class FakeBank:
    """Does nothing, and remembers with what it was asked."""

    layout = SimpleNamespace(shared_parameters=Columns([(0, 7)]))
    changes_messages = False
    boundary, hook = SimpleNamespace(round=0), None

    def written_in_place(self):
        return None

    def compare(self, rows, links, *args):
        return Comparison(torch.zeros(len(links)), torch.zeros(len(links)))

    def evaluate(self, references, split):
        losses = torch.arange(len(references), dtype=torch.float64)
        return SimpleNamespace(losses=losses)

    def gradients(self, references, training):
        return None

    def mix(self, terms, into, where, columns):
        self.mixed = where


@pytest.fixture
def make_round():
    def _make(clients=3, servers=0, common=True, **fields):
        nodes = clients + servers
        all_nodes = torch.ones(nodes, dtype=torch.bool)
        links = Links.empty(nodes)
        federation = SimpleNamespace(
            local=SimpleNamespace(batch_size_in=lambda round: 4),
            num_clients=clients,
            num_nodes=nodes,
            num_servers=servers,
            bank=FakeBank(),
            engine=FakeBank(),
            seed=0,
            common_start=common,
            policies=(),
        )
        defaults = {
            "index": 4,
            "federation": federation,
            "reachable": links,
            "active": all_nodes,
            "available": links,
            "receivers": all_nodes,
            "jobs": References.rows("models", torch.arange(clients)),
            "candidates": links,
            "phases": (),
            "hyperparameters": ({"lr": 0.1},),
        }
        return Round(**{**defaults, **fields})

    return _make


def entries(links):
    return list(zip(links.receivers.tolist(), links.senders.tolist(), strict=True))


def over(*pairs, nodes=3):
    """A list of links, receiver and sender each."""
    receivers, senders = torch.tensor(pairs).T
    return Links.of(receivers, senders, nodes)


# --- the ledger -------------------------------------------------------------------------------------------------------
def test_other_clients_models_cost_once_and_own_ones_nothing():
    ledger = Ledger(3)
    for _ in range(2):
        ledger.fetch(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 1]))
    assert entries(ledger.models) == [(1, 2), (2, 1)]
    assert not entries(ledger.mixed)
    ledger.fetch(torch.tensor([1]), torch.tensor([2]), mixed=True)
    assert entries(ledger.models) == [(1, 2), (2, 1)]
    assert entries(ledger.mixed) == [(1, 2)]


def test_parts_are_counted_by_kind_and_not_as_models():
    ledger = Ledger(3)
    for _ in range(2):
        ledger.fetch_part("layer", 5, over((0, 1), (1, 1), (1, 2)))
    ledger.fetch_part("update", 5, over((0, 1)))
    ledger.fetch_part("layer", 7, over((0, 2)))
    found = {part: entries(pairs) for part, pairs in ledger.parts.items()}
    assert found == {("layer", 5): [(0, 1), (1, 2)], ("update", 5): [(0, 1)], ("layer", 7): [(0, 2)]}
    assert entries(ledger.proxies) == [(0, 1), (0, 2), (1, 2)]
    assert not entries(ledger.models)
    assert not entries(ledger.mixed)


def test_held_models_are_free_and_forgotten_ones_cost_again():
    ledger = Ledger(4)
    me = torch.zeros(2, dtype=torch.long)
    ledger.fetch(me, torch.tensor([1, 2]))
    ledger.fetch(me, torch.tensor([2, 3]))
    assert ledger.held.tolist() == [3, 0, 0, 0]
    assert not ledger.again.any()
    ledger.forget(torch.tensor([0]))
    ledger.fetch(me, torch.tensor([3, 3]))  # in one message
    assert entries(ledger.models) == [(0, 1), (0, 2), (0, 3)]
    assert ledger.again.tolist() == [0, 0, 1]
    assert entries(ledger.kept) == [(0, 3)]
    assert ledger.held.tolist() == [3, 0, 0, 0]  # the most at once


def test_terms_of_a_sum_are_mixed_without_another_fetch():
    ledger = Ledger(3)
    ledger.fetch(torch.tensor([0, 0]), torch.tensor([1, 2]))
    ledger.forget(torch.tensor([0]))
    ledger.sum_up(torch.tensor([0]), over((0, 1)))
    ledger.fetch(torch.tensor([0, 0]), torch.tensor([1, 2]), mixed=True)
    assert entries(ledger.mixed) == [(0, 1), (0, 2)]
    assert ledger.again.tolist() == [0, 1]
    ledger.fetch(torch.tensor([0]), torch.tensor([1]))
    assert ledger.again.tolist() == [1, 1]  # to be looked at by itself it must be there


def test_each_row_of_a_reference_is_charged_to_its_owner(make_round):
    round = make_round()
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    round.charge(References((Term("trained", weights),), torch.tensor([0, 1])))
    assert entries(round.ledger.models) == [(0, 1), (1, 2)]


def test_a_policys_own_rows_and_the_global_test_are_free(make_round):
    round = make_round()
    round.charge(References.rows("stale", torch.tensor([1, 2]), torch.tensor([0, 0])))
    round.charge(References.rows("models", torch.tensor([1]), torch.tensor([-1])))
    assert not entries(round.ledger.models)


def test_gradients_at_anothers_model_cost_that_model(make_round):
    round = make_round()
    round.gradients(References.rows("models", torch.tensor([2]), torch.tensor([0])))
    assert entries(round.ledger.models) == [(0, 2)]


def received(round):
    """Pairs that fetched a model, and those that got a part, by its numbers."""
    parts = [(size, entries(pairs)) for (_, size), pairs in round.ledger.parts.items()]
    return entries(round.ledger.models), parts


PAIRS = over((0, 0), (0, 1), (1, 2))
ASKED = [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("rows", "columns", "relative_to", "common", "models", "parts"),
    [
        ("trained", None, None, True, ASKED, []),
        ("models", None, None, False, ASKED, []),
        ("trained", None, "initial", True, ASKED, []),  # less what all nodes know
        ("trained", None, "initial", False, [], [(7, ASKED)]),  # the sender's own first model
        ("trained", None, "start", True, [], [(7, ASKED)]),  # what its round began with was mixed by the sender
        ("stale", None, None, True, [], [(7, ASKED)]),
        (torch.zeros(3, 7), None, None, True, [], [(7, ASKED)]),  # gradients are no models
        ("trained", Columns([(2, 5)]), None, True, [], [(3, ASKED)]),
        ("trained", Columns([(2, 5)]), "initial", False, [], [(3, ASKED)]),
    ],
)
def test_comparing_costs_what_the_receiver_needs(rows, columns, relative_to, common, models, parts, make_round):
    round = make_round(common=common)
    round.compare(rows, PAIRS, columns, relative_to)
    assert received(round) == (models, parts)


def test_each_kind_of_comparison_costs_one_message(make_round):
    round = make_round()
    for _ in range(2):
        round.compare("trained", PAIRS)
        round.compare("trained", PAIRS, relative_to="start")
        round.compare("trained", PAIRS, Columns([(0, 2)]), "start")
    assert received(round) == (ASKED, [(7, ASKED), (2, ASKED)])


def test_a_server_compares_received_models_for_free(make_round):
    round = make_round(servers=1)
    found = round.compare("trained", over((0, 1), (1, 0), (1, 2), nodes=4))
    assert not entries(round.ledger.models)
    assert found.cosines.shape == (3,)


def test_mixing_is_charged_to_the_rows_that_are_written(make_round):
    round = make_round()
    weights = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    round.mix([(weights, "trained")], into="models", where=torch.tensor([True, False, True]))
    assert round.bank.mixed.tolist() == [0, 2]
    assert entries(round.ledger.mixed) == [(0, 2), (2, 1)]


@pytest.mark.parametrize("name", ["models", "trained"])
def test_models_before_and_after_the_training_cost_alike(name, make_round):
    round = make_round()
    round.mix([(torch.eye(3).flip(0), name)], into="models", where=torch.ones(3, dtype=torch.bool))
    assert entries(round.ledger.models) == [(0, 2), (2, 0)]


def test_storing_a_model_costs_no_message(make_round):
    round = make_round()
    round.mix([(torch.eye(3).flip(0), "trained")], into="best", where=torch.ones(3, dtype=torch.bool))
    assert not entries(round.ledger.models)


# --- helpers ----------------------------------------------------------------------------------------------------------
def test_losses_are_aligned_with_their_links(make_round):
    round = make_round()
    links = over((0, 1), (1, 0), (1, 2))
    assert round.loss_of(links).tolist() == [0, 1, 2]
    assert entries(round.ledger.models) == entries(links)


def test_participants_trained_and_did_not_diverge(make_round):
    jobs = References.rows("models", torch.tensor([0, 2]))
    active = torch.tensor([True, True, False, True])
    round = make_round(servers=1, jobs=jobs, active=active)
    assert round.participants.tolist() == [True, False, False]
    assert round.dropped.tolist() == [False, False, True]


def test_draws_are_named_by_round_and_purpose(make_round):
    def draw(round, *words):
        return torch.rand(3, generator=round.generator(*words))

    assert torch.equal(draw(make_round(), "coin", 1), draw(make_round(), "coin", 1))
    for other in (draw(make_round(index=5), "coin", 1), draw(make_round(), "dice", 1), draw(make_round(), "coin", 2)):
        assert not torch.equal(draw(make_round(), "coin", 1), other)


def test_the_rows_that_votes_index_are_found_block_by_block(make_round):
    round = make_round(
        servers=1, substitute_rows=[SubstituteRows("stale", relative=True), SubstituteRows("kept", relative=False)]
    )
    receivers = torch.tensor([0, 0])
    own = round.references(receivers, torch.tensor([1, 2]))
    assert [(term.rows, term.which.tolist()) for term in own.terms] == [("trained", [1, 2])]
    stale = round.references(receivers, torch.tensor([5, 6]))
    assert [(term.rows, term.which.tolist()) for term in stale.terms] == [("stale", [1, 2]), ("models", [0, 0])]
    kept = round.references(receivers, torch.tensor([7, 9]))
    assert [(term.rows, term.which.tolist()) for term in kept.terms] == [("kept", [0, 2])]
    assert all(references.personal == "trained" for references in (own, stale, kept))


def test_only_overridden_hooks_of_active_policies_are_called():
    called = []

    class Loud(RoundCallback):
        def on_trained(self, round):
            called.append((self.name, torch.is_grad_enabled()))

    class Quiet(RoundCallback):
        pass

    names = []

    class Profiler:
        def profile(self, name):
            names.append(name)
            return torch.no_grad()

    on, off = Loud(), Loud()
    on.name, off.name, off.switched_off = "on", "off", True
    trainer = SimpleNamespace(
        callbacks=[on, off, Quiet()], profiler=Profiler(), lightning_module=SimpleNamespace(bank=FakeBank())
    )
    call_round_hook(trainer, "on_trained", None)
    assert called == [("on", False)]
    assert len(names) == 1
    assert names[0].endswith(".on_trained")
