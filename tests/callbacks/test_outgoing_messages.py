"""Clients see of others only what these have sent, and of themselves what they have trained."""

import functools

import numpy as np
import pytest
import torch
from pairs import as_matrices
from tester.scenes import CLUSTERS, ROUNDS, picture, start
from tester.shipped import LISTED, Listed, aggregations_that_average, where_they_work

from dfl_lightning import callbacks as cb
from dfl_lightning.bank.references import References, Term
from dfl_lightning.links import Links
from dfl_lightning.objectives import GradientTracking
from dfl_lightning.utils.errors import UserError

SECRETIVE = 3
CLIENTS = len(CLUSTERS)
OF_RECEIVERS = (
    "candidates",
    "similarity",
    "scores",
    "own_scores",
    "selected",
    "substitute",
    "votes",
    "weights",
    "threshold",
)
OWN_SETS = ("models", "reported", "best", "correction")  # a row is its client's own; `stale` is what others remember
TRACKING = Listed("gradient tracking", cb.Metropolis, settings={"objective": GradientTracking()})


class Canary(cb.Outgoing):
    """Updates that have nothing to do with what was trained, the same ones in each round."""

    def send(self, updates, senders):
        wave = torch.arange(updates.shape[1], dtype=updates.dtype)
        return 0.1 * torch.sin(wave * (1 + senders.ids[:, None])).to(updates.device)


class Meddler(cb.Policy):
    """Changes the trained model of one client after the training."""

    def __init__(self, size=1.0):
        self.size = size

    def on_outgoing(self, round):
        shared = round.bank.layout.shared.mask(round.bank.layout.width)
        wave = torch.cos(torch.arange(round.bank.layout.width).double() * (3 + round.index))
        round.bank.rows("trained")[SECRETIVE, shared] += self.size * wave[shared].to(round.bank.device)


def go(listed, place, *also):
    """Run all rounds; the caller may reset the secretive client's rows after each of them."""
    run = start(listed, place, also=(*also, Canary))
    for _ in range(ROUNDS):
        yield run, picture(run.go())


def is_slow(parameters):
    """Return True for variants, whose names have a comma, and further places; AFIND's variants send other proxies."""
    listed, place = parameters.values
    return ("," in listed.name and not listed.name.startswith("afind")) or place != listed.places[0]


def policies():
    """List all policies that read models, at each place where they work; gradients are refused (see below)."""
    found = [*where_they_work("selection", "threshold", "substitution"), *aggregations_that_average()]
    found = [
        p for p in found if not any(name in p.id for name in ("first batch", "as printed (clients)", "standardised"))
    ]
    found = [p for p in found if cb.Outgoing not in p.values[0].refuses]
    found += [p for p in where_they_work("selection") if p.values[0].name in ("dpfl as printed", "panm as printed")]
    found = [pytest.param(*p.values, id=p.id, marks=[pytest.mark.slow] * is_slow(p)) for p in found]
    return [*found, pytest.param(TRACKING, "clients", id="objective: gradient tracking (clients)")]


@pytest.mark.parametrize(("listed", "place"), policies())
def test_others_see_only_messages_of_a_client(listed, place):
    noticed = False
    pairs = zip(go(listed, place), go(listed, place, Meddler), strict=True)
    for (plain, expected), (changed, seen) in pairs:
        for name in [
            name for name in expected if name.startswith(("rows.", "ledger.m", "ledger.p", "round.", "state."))
        ]:
            one, other = expected[name], seen[name]
            if not isinstance(one, torch.Tensor):
                continue
            if name.startswith(("ledger.", "state.")) or name.partition(".")[2] in (*OF_RECEIVERS, *OWN_SETS):
                one, other = without_the_secretive(one), without_the_secretive(other)
            torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True, msg=f"{expected['index']}, {name}")
        noticed |= not torch.equal(expected["rows.models"][SECRETIVE], seen["rows.models"][SECRETIVE])
        for name in OWN_SETS:
            if name in changed.bank.boundary.rows:
                changed.bank.boundary.rows[name][SECRETIVE] = plain.bank.boundary.rows[name][SECRETIVE]
    assert noticed


def without_the_secretive(tensor):
    """Select the rows of all other receivers."""
    if not tensor.ndim or len(tensor) < CLIENTS:
        return tensor
    kept = torch.ones(len(tensor), dtype=torch.bool)
    kept[SECRETIVE] = False
    return tensor[kept]


def test_corrections_of_gradient_tracking_sum_to_zero_whatever_is_sent():
    for _, seen in go(TRACKING, "clients"):
        corrections = seen["rows.correction"]
        torch.testing.assert_close(corrections.sum(0), torch.zeros_like(corrections[0]), rtol=0, atol=1e-12)
    assert corrections.abs().max() > 1e-3


class Naive(cb.Monitor):
    """Remembers what was sent."""

    def on_trained(self, round):
        self.sent = round.bank.rows("sent").cpu().clone()


@pytest.mark.parametrize(
    ("listed", "place"),
    [
        pytest.param(*p.values, id=p.id, marks=[pytest.mark.slow] * ("," in p.values[0].name))
        for p in aggregations_that_average()
        if cb.Outgoing not in p.values[0].refuses
    ],
)
def test_a_receiver_averages_its_own_model_and_what_others_sent(listed, place):
    monitor, after = Naive(), None
    for _, seen in go(listed, place, lambda: monitor):
        before, after = after, seen["rows.models"]
        if "round.weights" not in seen:
            continue
        for i, weights in enumerate(seen["round.weights"]):
            if listed.keeps_former and seen["round.votes"][i].any() and not weights.any():
                assert before is None or torch.equal(after[i], before[i])
                continue
            expected = seen["trained"][i]
            if weights.any():
                rows = [seen["trained"][j] if i == j else monitor.sent[j] for j in range(len(weights))]
                if listed.of_columns is None:
                    expected = sum(w * row for w, row in zip(weights.tolist(), rows, strict=True))
                else:
                    received = torch.stack([row for w, row in zip(weights.tolist(), rows, strict=True) if w])
                    expected = torch.from_numpy(np.asarray(listed.of_columns(received.numpy())))
            torch.testing.assert_close(seen["rows.models"][i], expected, rtol=1e-9, atol=1e-9)
    assert not torch.equal(monitor.sent, seen["trained"])


# --- the verbs --------------------------------------------------------------------------------------------------------
class Verbs(cb.Gossip):
    """Keeps the results of each verb, and the rows that they were computed from."""

    def on_compare(self, round):
        bank, n = round.bank, round.num_nodes
        self.trained, self.sent = (bank.rows(name).cpu().clone() for name in ("trained", "sent"))
        self.models = bank.rows("models").cpu().clone()
        links = round.candidates.union(Links.loops(torch.ones(n, dtype=torch.bool)))
        self.pairs, self.up = links.mask, round.active.clone()
        self.losses = links.dense(round.loss_of(links))
        self.found = {
            (origin, centre, own): as_matrices(
                round.compare("trained", links, relative_to=origin, centre=centre, own=own), self.pairs
            )
            for origin in (None, "start", "models")
            for centre in (False, True)
            for own in (None, "models")
        }
        halves = torch.full((n, n), 1 / n, dtype=torch.float64)
        owners = torch.arange(round.num_clients)
        mean = References((Term("trained", halves[owners]),), owners, "trained")
        both = References((Term("trained", owners), Term("trained", owners.flip(0))), owners, "trained")
        self.mean, self.both = round.evaluate(mean).losses, round.evaluate(both).losses
        self.gradients = round.gradients(mean)
        self.gradient = round.gradients(References.rows("trained", torch.tensor([1]), torch.tensor([0])))


@pytest.fixture
def verbs():
    policy = Verbs(k=2)
    run = start(Listed("verbs", lambda: policy), "clients", also=(Canary,)).go()
    return policy, run


def loss_of(run, row, owner):
    """Compute by plain torch the loss of a row, which may require a gradient."""
    x, y = run.data.batch(run.data.train[owner], torch.float64)
    parts = row.split([entry.stop - entry.start for entry in run.module.federation.layout.entries])
    parameters = {e.name: p.view(e.shape) for e, p in zip(run.module.federation.layout.entries, parts, strict=True)}
    return torch.nn.functional.cross_entropy(torch.func.functional_call(run.module.network, parameters, x), y)


def seen_by(policy, i, j):
    return policy.trained[i] if i == j else policy.sent[j]


def test_evaluations_use_own_models_and_sent_models_of_others(verbs):
    policy, run = verbs
    for i, j in torch.nonzero(policy.pairs).tolist():
        if not policy.up[j]:  # its model cannot be had
            assert policy.losses[i, j].isnan()
            continue
        assert float(policy.losses[i, j]) == pytest.approx(float(loss_of(run, seen_by(policy, i, j), i)), rel=1e-9)
    n = len(policy.pairs)
    for i in range(n):
        mean = sum(seen_by(policy, i, j) for j in range(n)) / n
        assert float(policy.mean[i]) == pytest.approx(float(loss_of(run, mean, i)), rel=1e-9)
        both = policy.trained[i] + seen_by(policy, i, n - 1 - i)
        assert float(policy.both[i]) == pytest.approx(float(loss_of(run, both, i)), rel=1e-9)


def test_gradients_are_at_received_models(verbs):
    policy, run = verbs
    row = policy.sent[1].clone().requires_grad_()
    loss_of(run, row, 0).backward()
    torch.testing.assert_close(policy.gradient[0].cpu(), row.grad, rtol=1e-9, atol=1e-12)
    n = len(policy.pairs)
    for i in range(n):
        row = (sum(seen_by(policy, i, j) for j in range(n)) / n).requires_grad_()
        loss_of(run, row, i).backward()
        torch.testing.assert_close(policy.gradients[i].cpu(), row.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("own", [None, "models"])
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("origin", [None, "start", "models"])
def test_comparisons_use_own_rows_and_sent_rows_of_others(verbs, origin, centre, own):
    policy, _ = verbs
    found = policy.found[origin, centre, own]
    base = torch.zeros_like(policy.models) if origin is None else policy.models
    down = (policy.trained == policy.models).all(1)
    for i, j in torch.nonzero(policy.pairs).tolist():
        mine = policy.trained[i] if own is None else policy.models[i]
        first, second = mine - base[i], seen_by(policy, i, j) - base[j]
        distance = torch.linalg.vector_norm(first - second)
        if centre:
            seen = [seen_by(policy, i, k) - base[k] for k in torch.nonzero(policy.pairs[i]).flatten().tolist()]
            seen += [first] if own else []  # without, it is what the link to itself leads to
            middle = torch.stack(seen).mean(0)
            first, second = first - middle, second - middle
        cosine = torch.nn.functional.cosine_similarity(first, second, dim=0, eps=1e-30)
        if down[i] or down[j]:
            continue
        assert float(found.distances[i, j]) == pytest.approx(float(distance), rel=1e-6, abs=1e-9)
        lonely = centre and int(policy.pairs[i].sum()) == 1
        assert lonely or float(found.cosines[i, j]) == pytest.approx(float(cosine), abs=1e-8)


# --- what no policy has passed ----------------------------------------------------------------------------------------
class EarlierModels(cb.Gossip):
    """Evaluates others' models of before the training."""

    def on_compare(self, round):
        round.loss_of(round.candidates, "models")


class EarlierDistances(cb.Gossip):
    """Compares them."""

    def on_compare(self, round):
        round.compare("models", round.candidates)


class Gradients(cb.Gossip):
    """Compares gradients."""

    def on_compare(self, round):
        owners = torch.nonzero(round.participants).squeeze(1)
        round.compare(round.gradients(References.rows("models", owners)), round.candidates)


class EarlierMixes(cb.Uniform):
    """Averages models of before the training."""

    def on_mix(self, round):
        weights = round.voters.dense(round.weights, 0.0)[round.receivers]
        round.mix([(weights, "models")], into="models", where=round.receivers)


class EarlierStarts(cb.Gossip):
    """Trains a neighbour's model."""

    def on_propose(self, round):
        owners = round.jobs.owners
        round.jobs = References((Term("models", owners.roll(1)),), owners)


@pytest.mark.parametrize("policy", [EarlierModels, EarlierDistances, Gradients, EarlierMixes, EarlierStarts])
def test_reading_rows_that_bypass_outgoing_policies_is_refused(policy):
    listed = Listed("reads it", policy)
    start(listed, "clients").go()
    with pytest.raises(UserError, match=r"round 1: a policy .* which no Outgoing policy has passed"):
        start(listed, "clients", also=(Canary,)).go()


def test_gradients_as_proxies_are_refused_before_anything_is_trained():
    with pytest.raises(
        UserError, match=r"selection\.proxy=grad_batch sends gradients, which no Outgoing policy changes"
    ):
        start(Listed("gradients", functools.partial(cb.AFIND, proxy="grad_batch")), "clients", also=(Canary,))


def test_policies_with_every_way_of_reading_are_listed():
    tried = {type(listed.make()) for family in ("selection", "substitution") for listed in LISTED[family]}
    assert {cb.AFIND, cb.DPFL, cb.FDMS, cb.FedeRiCo, cb.Gossip, cb.IFCA, cb.PANM, cb.PENS, cb.Stale} <= tried
