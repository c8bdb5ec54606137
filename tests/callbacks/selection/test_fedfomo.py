"""FedFomo and its average against plain modules and the paper's equations, with clients that drop out."""

import copy
from functools import partial

import pytest
import torch
from tester.scenes import CLUSTERS, FEDERATION, ISOLATED, ROUNDS, UP, start
from tester.shipped import Listed

from dfl_lightning import callbacks as cb
from dfl_lightning.functional import affinity_step, epsilon_greedy
from dfl_lightning.links import Links
from dfl_lightning.utils.errors import UserError

K, CLIENTS = 2, len(CLUSTERS)


class Halved(cb.Outgoing):
    """Half of each update."""

    def send(self, updates, senders):
        return updates / 2


def listed(selection, *also):
    return Listed("fedfomo", selection, company=(cb.FirstOrder, *also))


def loss_of(run, row, owner):
    x, y = run.data.batch(run.data.val[owner], torch.float64)
    module = copy.deepcopy(run.module.network).double()
    torch.nn.utils.vector_to_parameters(row.clone(), module.parameters())
    return float(torch.nn.functional.cross_entropy(module(x), y).detach())


def value_of(run, w0, model, owner):
    """Compute equation 4 without the cut at 0."""
    distance = float(torch.linalg.vector_norm(model - w0))
    return (loss_of(run, w0, owner) - loss_of(run, model, owner)) / distance if distance else 0.0


def by_hand(run, before, w, values):
    """Compute equation 3, the new model of a client, from (model, value) pairs."""
    positive = [(model, value) for model, value in zip(w, values, strict=True) if value > 0]
    total = sum(value for _, value in positive)
    return before + sum(value / total * (model - before) for model, value in positive) if positive else before


def reach(i, up):
    return [] if i == ISOLATED else sorted({(i + s) % ISOLATED for s in (-2, -1, 1, 2)} & set(up))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("halved", [False, True])
def test_each_round_is_that_of_the_paper(engine, halved):
    run = start(listed(partial(cb.FedFomo, K, 0.0), *([Halved] if halved else [])), "clients", engine=engine)
    affinity = torch.zeros(CLIENTS, CLIENTS, dtype=torch.float64)
    unchanged = changed = 0
    for number in range(ROUNDS):
        before = run.models.clone()
        run.go()
        seen, up = run.rounds[-1], [i for i in FEDERATION if UP[number][i] == "1"]
        if not up:
            assert torch.equal(run.models, before)
            continue
        for i in FEDERATION:
            if i not in up:
                assert torch.equal(run.models[i], before[i])
                continue
            asked = torch.nonzero(seen.candidates[i]).flatten().tolist()
            near = reach(i, up)
            assert len(asked) == min(K, len(near))
            left = [float(affinity[i, j]) for j in near if j not in asked]
            assert max(left, default=-9e9) <= min((float(affinity[i, j]) for j in asked), default=9e9) + 1e-9
            received = [(before[j] + seen.trained[j]) / 2 if halved else seen.trained[j] for j in asked]
            models = [*received, seen.trained[i]]
            values = [value_of(run, before[i], model, i) for model in models]
            total = abs(sum(values)) if asked else 0.0
            for j, value in zip(asked, values, strict=False):
                affinity[i, j] += value / max(total, 1e-9)
            expected = by_hand(run, before[i], models, values) if asked else seen.trained[i]
            unchanged += bool(torch.equal(expected, before[i]))
            changed += bool(asked) and not torch.equal(expected, before[i])
            torch.testing.assert_close(run.models[i], expected, rtol=0, atol=1e-9)
    assert changed
    assert unchanged  # in some round no candidate is better, as the toy problem is small


def asked_in(run, number):
    return run.rounds[number].candidates


def test_epsilon_falls_to_0_and_explores_before():
    """With the decay as large as epsilon, rounds after the first one do as with epsilon 0 from the same affinities."""
    curious = start(listed(partial(cb.FedFomo, 1, 1.0, 1.0)), "clients").go(1)
    saved = curious.state()
    greedy = start(listed(partial(cb.FedFomo, 1, 0.0)), "clients").take_up(saved)
    for run in (greedy, curious):
        run.go(1)
    assert torch.equal(asked_in(greedy, 0), asked_in(curious, 1))
    always = start(listed(partial(cb.FedFomo, 1, 1.0, 0.0)), "clients").go(ROUNDS)
    never = start(listed(partial(cb.FedFomo, 1, 0.0, 0.0)), "clients").go(ROUNDS)
    assert any(not torch.equal(asked_in(always, r), asked_in(never, r)) for r in range(ROUNDS))


def test_each_of_the_models_is_random_with_probability_epsilon():
    """Two choices of nine senders, each random with probability 1/2: shares of the chosen sets, by hand."""
    receivers, g = 20_000, torch.Generator().manual_seed(0)
    links = Links.of(torch.arange(receivers).repeat_interleave(9), torch.arange(9).repeat(receivers), receivers)
    preferred = (9.0 - torch.arange(9)).repeat(receivers)
    explores = [torch.rand(receivers, generator=g) < 0.5 for _ in range(2)]
    drawn = torch.rand(len(links), generator=g)
    chosen = epsilon_greedy(preferred, drawn, explores, links, torch.full((receivers,), 2)).view(receivers, 9)
    assert (chosen.sum(1) == 2).all()
    # the best is left out if both choices explore and neither meets it
    assert abs(float((~chosen[:, 0]).double().mean()) - 1 / 4 * 8 / 9 * 7 / 8) < 0.01
    # the two best are chosen if neither choice explores, or only the second, or only the first, or both
    expected = 1 / 4 * (1 + 1 / 8 + 2 / 9 + 2 / (9 * 8))
    assert abs(float((chosen[:, 0] & chosen[:, 1]).double().mean()) - expected) < 0.012


def test_affinity_is_signed_and_divided_by_the_absolute_sum():
    links = Links.from_mask(torch.tensor([[True, True, True], [True, True, False]]))
    found = affinity_step(torch.tensor([0.2, -0.5, 0.1, torch.inf, -0.0]), links)
    torch.testing.assert_close(found, torch.tensor([1.0, -2.5, 0.5, 0.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("substitution", [cb.FDMS, cb.Stale, partial(cb.Stale, "model")])
def test_average_works_with_any_selection_and_with_substitutes(substitution):
    """Rows that stand in for clients are judged as the models that they are to the receiver."""
    listed = Listed("first order", cb.FirstOrder, company=(partial(cb.Gossip, k="all"), substitution))
    run, compared = start(listed, "clients"), 0
    for number in range(ROUNDS):
        before, stale = run.models.clone(), None
        run.go()
        seen, up = run.rounds[-1], [i for i in FEDERATION if UP[number][i] == "1"]
        if not up:
            continue
        stale = seen.sets.get("stale")
        relative = bool(seen.substitute_rows) and seen.substitute_rows[0].relative
        for i in up:
            models, values = [], []
            for row in torch.nonzero(seen.votes[i]).flatten().tolist():
                model = seen.trained[row] if row < CLIENTS else stale[row - CLIENTS] + (before[i] if relative else 0)
                compared += row >= CLIENTS
                models.append(model)
                values.append(value_of(run, before[i], model, i) * float(seen.votes[i, row]))
            others = [row for row in torch.nonzero(seen.votes[i]).flatten().tolist() if row != i]
            expected = by_hand(run, before[i], models, values) if others else seen.trained[i]
            torch.testing.assert_close(run.models[i], expected, rtol=0, atol=1e-9)
    assert compared or substitution is cb.FDMS


def test_no_model_is_evaluated_twice():
    """The average takes the selection's numbers: a model that is fetched is evaluated once."""
    run = start(listed(partial(cb.FedFomo, K, 0.0)), "clients")
    calls = []
    run.module.engine.evaluate, evaluate = (
        lambda references, split: (calls.append(len(references)), evaluate(references, split))[1],
        run.module.engine.evaluate,
    )
    run.go()
    asked = int(run.rounds[0].candidates.sum())
    receivers = int(run.rounds[0].candidates.any(1).sum())
    assert sum(calls) == asked + 2 * receivers  # and each one's own model, before and after its training
    assert run.rounds[0].metrics["models_received"] == asked / CLIENTS


@pytest.mark.parametrize(
    ("policies", "who"),
    [((cb.FedFomo(2), cb.Uniform()), "selection FedFomo"), ((cb.Gossip(2), cb.FirstOrder()), "aggregation FirstOrder")],
)
def test_validation_data_are_needed(request, policies, who):
    with pytest.raises(UserError, match=rf"{who} evaluates models on validation data, and client 0 has none; set"):
        request.getfixturevalue("start")(*policies)
