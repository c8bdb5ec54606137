"""Settings that can hardly have been meant are named in the banner; those of every day are not."""

import networkx as nx
import pytest

from dfl_lightning import callbacks as cb
from dfl_lightning.report.banner import notes


@pytest.fixture
def said(small_run):
    """The banner's notes on a small run that is set up."""

    def said(*policies, rounds=6, **options):
        run = small_run(rounds, policies=policies or None, **options)
        run.trainer.prepare(run.module, run.data)
        assert notes(run.trainer, run.module) == notes(run.trainer, run.module)
        return notes(run.trainer, run.module)

    return said


def without_stages(found):
    return [note for note in found if not note.startswith(("PENS stays", "PANM matches"))]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (cb.Gossip(k=6), ["selection.k is 6, but no client has more than 5 neighbours"]),
        (cb.Gossip(k=5), []),
        (cb.Gossip(k="all"), []),
        (cb.PENS(k=3, sampled=7, top=2), ["selection.sampled is 7, but no client has more than 5 neighbours"]),
        (cb.PANM(k=9, l=2), ["selection.k is 9, but no client has more than 5 neighbours"]),
        (cb.PANM(k=2, l=8), ["selection.l is 8, but no client has more than 5 neighbours"]),
        (cb.DPFL(budget=10), ["selection.budget is 10, but no client has more than 5 neighbours"]),
        (cb.DPFL(budget="all"), []),
        (cb.AFIND(k=7), ["selection.k is 7, but no client has more than 5 neighbours"]),
    ],
)
def test_more_neighbours_than_there_are(said, selection, expected):
    assert without_stages(said(selection, cb.SampleWeighted())) == expected


def test_what_is_counted_is_who_can_be_heard(said):
    ring = nx.cycle_graph(6)
    gossip = [cb.Gossip(k=3), cb.Uniform()]
    assert said(*gossip, topology=ring) == ["selection.k is 3, but no client has more than 2 neighbours"]
    assert said(cb.Gossip(k=2), cb.Uniform(), topology=ring) == []
    assert said(cb.Gossip(k=7), cb.Uniform(), topology="server") == ["selection.k is 7, but the server has 6 clients"]
    assert said(cb.Gossip(k=6), cb.Uniform(), topology="server") == []
    nx.set_node_attributes(ring, 1, "budget")
    assert said(*gossip, topology=ring) == [], "a budget comes first"


def test_a_number_that_nobody_reads_is_not_mentioned(said):
    assert said(cb.AFIND(k=50), cb.AdaptiveThreshold(), cb.Uniform()) == []


def test_nothing_trained_and_nothing_evaluated(said):
    assert said(rounds=0) == ["trainer.max_rounds is 0: there are no rounds, nothing is trained"]
    assert said(module={"local_epochs": 0}) == ["model.local_epochs is 0: clients do not train, models are only mixed"]
    never = (
        "trainer.check_val_every_n_epoch is 7 and there are 6 rounds: no round is evaluated, accuracies stay unknown"
    )
    assert said(check_val_every_n_epoch=7) == [never]
    assert said(check_val_every_n_epoch=6) == []
    assert said(check_val_every_n_epoch=7, limit_val_batches=0) == []
    assert said(rounds=-1, check_val_every_n_epoch=7) == []
