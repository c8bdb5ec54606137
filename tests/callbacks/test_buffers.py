"""Buffers are averaged and nothing else, whatever is sent, stored or extrapolated: by every policy, of any kind."""

import dataclasses

import pytest
import torch
from tester.scenes import ROUNDS, SIZES, start
from tester.shipped import LISTED, Listed, all_neighbours
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.base import mixed_terms
from dfl_lightning.round.record import SubstituteRows

ROUNDING = 1e-12
CLIENTS = len(SIZES)


class Normed(nn.Sequential):
    """A batch norm that forgets quickly."""

    def __init__(self):
        super().__init__(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=0.7), nn.ReLU(), nn.Linear(4, 3))


class Odd(nn.Module):
    """A counter that starts at 1, a share between 0.2 and 0.8, and an integer: the network is of no use without."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        self.register_buffer("seen", torch.ones(()))
        self.register_buffer("share", torch.full((4,), 0.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        x = self.first(x)
        if self.training:
            with torch.no_grad():
                self.seen += x.shape[0]
                self.share.lerp_(0.2 + 0.6 * (x > 0).to(x.dtype).mean(0), 0.7)
                self.calls += 1
        return self.last(torch.relu(x) / (self.share - 0.19).sqrt() / (0.8 + self.seen).log())


NETWORKS = {"batch norm": Normed, "odd": Odd}


# --- policies as a user might write them
class Overshooting(cb.Uniform):
    """Goes further than the average of the others."""

    def on_weigh(self, round):
        super().on_weigh(round)
        own = round.voters.receivers == round.voters.senders
        others = round.voters.sum(round.weights * ~own)[round.voters.receivers]
        round.weights = torch.where(own, 1 - 1.7 * others, 1.7 * round.weights)


class ServerMomentum(cb.Uniform):
    """The server moves along a running sum of what rounds changed (FedAvgM)."""

    row_sets = {"velocity": "zeros"}

    def on_mix(self, round):
        where = round.receivers & round.voters.any(round.weights != 0)
        index = torch.nonzero(where).squeeze(1)
        own = Weights.of_rows(index, round.num_nodes)
        change = [*mixed_terms(round, round.weights, where), (-own, "models")]
        round.mix([(own.scaled(torch.full((len(index),), 0.9)), "velocity"), *change], into="velocity", where=where)
        round.mix([(own, "models"), (own, "velocity")], into="models", where=where)


class Twice(cb.Substitution):
    """Replaces a dropped client by twice its last update."""

    row_sets = {"twice": "zeros"}

    def on_trained(self, round):
        who = torch.nonzero(round.participants).squeeze(1)
        own, starts = (Weights.of_rows(ids, round.num_nodes, 2.0) for ids in (who, round.federation.server_of(who)))
        round.mix([(own, "sent"), (-starts, "models")], into="twice", where=who)

    def on_substitute(self, round):
        round.substitute_rows.append(SubstituteRows("twice", relative=True))
        down = round.dropped[round.selected.senders.clamp(max=round.num_clients - 1)]
        down &= round.selected.senders < round.num_clients
        round.substitute[down] = round.num_nodes + round.selected.senders[down]


class Backwards(cb.Outgoing):
    """Writes what is sent without `send`."""

    def on_outgoing(self, round):
        who = torch.nonzero(round.participants).squeeze(1)
        sent = round.bank.change_sent(who)
        sent[who] = -3 * sent[who]


WRITTEN = [
    Listed("overshooting", Overshooting, places=("clients",)),
    Listed("momentum of the server", ServerMomentum, places=("server",)),
    Listed("twice", Twice, places=("clients", "server")),
    Listed("twice, overshooting", Twice, (Overshooting,), places=("clients",)),
    Listed("backwards", Backwards, places=("clients", "server")),
]
STEPS = [
    Listed(f"a step of {eta:g}", lambda eta=eta: cb.Uniform(server_step=eta), places=("server",))
    for eta in (0.1, 1.5, 3.0)
]
SEVERAL = [
    Listed("stale, step of 2", cb.Stale, (lambda: cb.Uniform(server_step=2.0),), places=("server",)),
    Listed("stale, trimmed", cb.Stale, (lambda: cb.TrimmedMean(0.2),), places=("clients", "server")),
    Listed("stale, by losses", cb.Stale, (cb.Boltzmann,)),
    Listed("stale, most left out", cb.Stale, (lambda: cb.TopK(0.01),), places=("clients", "server")),
    Listed("most left out", lambda: cb.TopK(0.01), places=("clients", "server")),
    Listed("clipped", lambda: cb.GaussianNoise(clip=0.01, sigma=2.0), places=("clients", "server")),
    Listed("attack", lambda: cb.SignFlip(fraction=0.6, scale=5.0), places=("clients", "server")),
]
WHO = [
    (listed, place)
    for listed in (*LISTED["outgoing"], *LISTED["substitution"], *LISTED["aggregation"], *STEPS, *SEVERAL, *WRITTEN)
    if not listed.mixes_itself  # tests of their own say what these make of buffers
    for place in listed.places
]


def is_slow(listed, place, other):
    """Return True for a policy's other network, and for what a shipped policy does elsewhere or with other options."""
    shipped = any(listed in family for family in LISTED.values())
    return other or (shipped and ("," in listed.name or place != listed.places[0]))


CASES = [
    pytest.param(
        *who,
        network,
        id=f"{who[0].name} ({who[1]}), {network}",
        marks=[pytest.mark.slow] * is_slow(*who, turn % 2 != n),
    )
    for turn, who in enumerate(WHO)
    for n, network in enumerate(NETWORKS)
]
"""Networks take turns."""


def go(listed, place, network, engine="loop", **settings):
    """Yield the rounds of a run one by one."""
    torch.manual_seed(0)  # of the network
    listed = dataclasses.replace(listed, settings={**listed.settings, "network": NETWORKS[network](), **settings})
    run = start(listed, place, engine=engine)
    for _ in range(ROUNDS):
        yield run, run.go().rounds[-1]


class Range:
    """The least and the greatest number that each buffer has had in any network."""

    def __init__(self, rows, columns):
        self.columns = columns
        self.low = self.high = None
        self.widen(rows)

    def widen(self, rows):
        rows = self._of(rows)
        low, high = rows.amin(0), rows.amax(0)
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)

    def has(self, rows):
        rows = self._of(rows)
        return bool(((rows >= self.low - ROUNDING) & (rows <= self.high + ROUNDING)).all())

    def _of(self, rows):
        return torch.cat([rows[:, start:stop] for start, stop in self.columns.ranges], dim=1)


@pytest.mark.parametrize(("listed", "place", "network"), CASES)
def test_buffers_stay_in_the_range_of_trained_ones(listed, place, network):
    possible, moved = None, 0.0
    for run, seen in go(listed, place, network, "auto"):
        layout = run.module.federation.layout
        assert layout.shared_buffers.ranges
        if seen.trained is None:  # no client was active
            continue
        if possible is None:
            possible = Range(seen.before, layout.shared_buffers)
        possible.widen(seen.trained)
        moved = max(moved, float((possible.high - possible.low).max()))
        for name in run.bank.boundary.rows:
            assert possible.has(run.rows(name)), name
    found = run.module.evaluate()
    known = run.data.sizes("val") > 0
    assert found["val_loss"][known].isfinite().all()
    assert found["val_acc"][known].isfinite().all()
    assert moved > 0.1
    assert run.module.engine.name == ("stacked" if network == "batch norm" else "loop")  # the odd one cannot be stacked


@pytest.mark.parametrize("eta", [0.1, 1.0, 1.5])
def test_server_step_applies_to_parameters_but_not_buffers(eta):
    listed = Listed("step", lambda: cb.Uniform(server_step=eta), (all_neighbours,), places=("server",))
    for run, seen in go(listed, "server", "batch norm"):
        if seen.trained is None:
            continue
        (start, stop), up = run.module.federation.layout.shared_buffers.ranges[0], seen.participants
        average = seen.trained[:CLIENTS][up].mean(0)
        expected = seen.before[CLIENTS] + eta * (average - seen.before[CLIENTS])
        torch.testing.assert_close(seen.after[CLIENTS, :start], expected[:start], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(seen.after[CLIENTS, start:stop], average[start:stop], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("place", ["clients", "server"])
@pytest.mark.parametrize("stored", ["update", "model"])
def test_last_sent_buffers_replace_those_of_dropped_clients(place, stored):
    listed = Listed("stale", lambda: cb.Stale(stored), (all_neighbours,), places=(place,))
    last = {}
    for run, seen in go(listed, place, "batch norm"):
        if seen.trained is None:
            continue
        (start, stop), up = run.module.federation.layout.shared_buffers.ranges[0], seen.participants
        last |= {i: seen.trained[i, start:stop] for i in range(CLIENTS) if up[i]}
        receivers = torch.nonzero(seen.receivers & (seen.weights != 0).any(1)).flatten().tolist()
        for i in receivers:
            mixed = [j for j in range(CLIENTS) if seen.selected[i, j] or j == i]
            rows = [last[j] for j in mixed if j in last]  # a client that has never sent: the mean of the active
            unknown = [j for j in mixed if j not in last]
            present = [last[j] for j in mixed if up[j] and j != i]
            rows += [torch.stack(present).mean(0)] * len(unknown) if present else []
            torch.testing.assert_close(seen.after[i, start:stop], torch.stack(rows).mean(0), rtol=1e-9, atol=1e-12)


def test_sent_models_have_the_trained_buffers():
    several = Listed("all", lambda: cb.GaussianNoise(0.5, 1.0), (lambda: cb.TopK(0.1), lambda: cb.SignFlip(1.0)))
    seen = []

    class Look(cb.Policy):
        def on_trained(self, round):
            layout, sent, trained = round.bank.layout, round.bank.rows("sent"), round.bank.rows("trained")
            (start, stop), up = layout.shared_buffers.ranges[0], round.participants
            assert torch.equal(sent[:, start:stop], trained[:, start:stop])
            assert not (sent[:CLIENTS] == trained[:CLIENTS])[up][:, :start].all()
            seen.append(round.index)

    for _ in go(dataclasses.replace(several, company=(*several.company, Look)), "clients", "batch norm"):
        pass
    assert seen == [0, 1, 3, 4]
