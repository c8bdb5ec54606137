"""A selection of the literature, FedFomo (Zhang et al., ICLR 2021), written as a user would, against plain modules."""

import copy

import pytest
import torch
from tester import properties
from tester.scenes import CLUSTERS, FEDERATION, ISOLATED, ROUNDS, UP, start
from tester.shipped import Listed

from dfl_lightning import LinkMemory, Links
from dfl_lightning import callbacks as cb
from dfl_lightning.utils.errors import UserError

CLIENTS, K = len(CLUSTERS), 2


class FedFomo(cb.Selection):
    """Models count by how much better they do on my validation data than mine did, per distance from it (eq. 3).

    The best so far by the sum of these weights are asked, or with probability `epsilon` some at random.
    """

    supports_servers, scores_are_weights, state = False, True, ("history",)

    def __init__(self, k: int = K, epsilon: float = 0.3) -> None:
        self.k, self.epsilon = k, epsilon

    def start(self, federation):
        self.history = LinkMemory.empty(federation.num_nodes)

    def on_propose(self, round):
        known, itself = round.available, Links.loops(round.clients_only)
        explores = round.draw_uniform(itself, "explores") < self.epsilon
        ties = 1e-12 * round.draw_uniform(known, "ties")
        best = known.top(self.history.read(known, default=0.0) + ties, self.limits(round))
        drawn = known.within(round.draw_links(known, self.limits(round), "explored"))
        round.candidates = known.keep(torch.where(explores[known.receivers], drawn, best))

    def on_compare(self, round):
        itself = Links.loops(round.clients_only & round.active)
        before = itself.sum(round.loss_of(itself, "models", "val"))
        round.own_scores = itself.sum(self.weights(round, itself, before))
        round.scores = self.weights(round, round.candidates, before)
        self.history.write(round.candidates, self.history.read(round.candidates, 0.0) + round.scores)

    def weights(self, round, links, before):
        gain = before[links.receivers] - round.loss_of(links, split="val")
        return gain.clamp(min=0) / (round.compare("trained", links, own="models").distances + 1e-5)

    def on_select(self, round):
        round.selected = round.candidates.keep(round.scores > 0)


def listed(epsilon):
    return Listed("FedFomo", lambda: FedFomo(epsilon=epsilon), company=(cb.ScoreWeighted,))


# --- by hand ----------------------------------------------------------------------------------------------------------
class Sent(cb.Outgoing):
    """Half of each update."""

    def send(self, updates, senders):
        return updates / 2


def loss_of(run, row, owner):
    x, y = run.data.batch(run.data.val[owner], torch.float64)
    module = copy.deepcopy(run.module.network).double()
    torch.nn.utils.vector_to_parameters(row.clone(), module.parameters())
    return torch.nn.functional.cross_entropy(module(x), y).detach()


def mixed_by_hand(run, before, trained, up, candidates, history, halved):
    """Compute all clients' new models, number by number, from those before and after training; extend the history."""
    models = trained.clone()
    sent = (before + trained) / 2 if halved else trained
    for i in [i for i in up if i != ISOLATED]:
        reach = sorted({(i + step) % ISOLATED for step in (-2, -1, 1, 2)} & set(up))
        asked = torch.nonzero(candidates[i]).flatten().tolist()
        assert len(asked) == min(K, len(reach))
        assert set(asked) <= set(reach)
        left = [history[i][j] for j in reach if j not in asked]
        assert max(left, default=0.0) <= min((history[i][j] for j in asked), default=0.0) + 1e-9
        received = {i: trained[i], **{j: sent[j] for j in asked}}
        old = loss_of(run, before[i], i)
        weight = {
            j: float((old - loss_of(run, row, i)).clamp(min=0) / (torch.linalg.vector_norm(row - before[i]) + 1e-5))
            for j, row in received.items()
        }
        for j in asked:
            history[i][j] += weight[j]
        total = sum(weight.values())
        if total:
            models[i] = sum(weight[j] / total * row for j, row in received.items())
    return models


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("halved", [False, True])
def test_each_round_is_that_of_the_paper(engine, halved):
    run = start(listed(0.0), "clients", also=(Sent,) if halved else (), engine=engine)
    history = [[0.0] * CLIENTS for _ in FEDERATION]
    chosen = 0
    for number in range(ROUNDS):
        before = run.rows("models").clone()
        run.go()
        seen = run.rounds[-1]
        up = [i for i in FEDERATION if UP[number][i] == "1"]
        if not up:
            assert torch.equal(run.rows("models"), before)
            continue
        expected = mixed_by_hand(run, before, seen.trained, up, seen.candidates, history, halved)
        torch.testing.assert_close(run.rows("models"), expected, rtol=1e-9, atol=1e-11)
        chosen += int(seen.selected.sum())
    assert chosen


@pytest.mark.parametrize(
    "holds",
    [
        properties.draws_by_name_only,
        properties.selects_reachable_clients,
        properties.isolated_client_only_trains_locally,
        properties.skips_rounds_without_active_clients,
        properties.lets_one_client_train_alone,
        properties.goes_on_from_a_file,
        properties.does_not_see_cohorts,
        properties.does_not_see_ids,
    ],
    ids=lambda holds: holds.__name__,
)
def test_users_selection_has_the_properties_of_every_policy(holds):
    holds(listed(0.5), "clients")


def test_users_selection_is_refused_under_a_server():
    properties.refuses_where_it_cannot_work(listed(0.5), "server")


class OwnModels(cb.Gossip):
    """Compares clients as if each received the models of the others."""

    def on_compare(self, round):
        links = Links.loops(round.clients_only)
        round.compare("trained", links, own="models")


def test_under_a_server_clients_cannot_compare_others_with_themselves():
    run = start(Listed("own models", lambda: OwnModels(k="all")), "server")
    with pytest.raises(UserError, match=r"round 1: under a server no client compares others with its own 'models'"):
        run.go()
