import pytest
import torch

from dfl_lightning.callbacks import Gossip, Markov, Uniform
from dfl_lightning.utils.errors import UserError


def outages(up):
    """Collect the lengths of outages that began and ended within the rounds, over all clients."""
    lengths = []
    for column in up.T.tolist():
        runs, since = [], None
        for t, is_up in enumerate(column):
            if not is_up and since is None:
                since = t
            elif is_up and since is not None:
                runs.append((since, t - since))
                since = None
        lengths += [length for begun, length in runs if begun > 0]
    return torch.tensor(lengths, dtype=torch.float64)


@pytest.mark.parametrize(("rate", "outage"), [(0.3, 4.0), (0.5, 2.0), (0.75, 10.0), (0.5, 1.0)])
def test_rate_and_length_of_outages_are_as_set(rate, outage, draws):
    rounds, clients = 1500, 12
    up = draws(Markov(rate, outage), rounds, clients)
    keeps = 1 - 1 / outage - rate / (1 - rate) / outage  # the chain's second eigenvalue: how long it remembers
    deviation = (rate * (1 - rate) * (1 + keeps) / (1 - keeps) / rounds / clients) ** 0.5
    assert abs((~up).double().mean() - rate) < 4 * deviation + 1e-9
    lengths = outages(up)
    assert abs(lengths.mean() - outage) < 4 * (outage * (outage - 1) / len(lengths)) ** 0.5 + 1e-9


def test_the_next_state_depends_on_this_one_only(draws):
    rate, outage = 0.4, 3.0
    up = draws(Markov(rate, outage), 2000, 10)
    before, now, then = up[:-2], up[1:-1], up[2:]
    fails, recovers = rate / (1 - rate) / outage, 1 / outage
    for earlier in (True, False):
        for state, comes_up in ((True, 1 - fails), (False, recovers)):
            seen = then[(before == earlier) & (now == state)].double()
            assert abs(seen.mean() - comes_up) < 4 * (comes_up * (1 - comes_up) / len(seen)) ** 0.5


def test_the_first_round_is_as_any_other(draws):
    down = ~draws(Markov(0.3, 20.0), 1, 2000)
    assert abs(down.double().mean() - 0.3) < 4 * (0.21 / 2000) ** 0.5


def test_an_outage_without_memory_is_bernoulli(draws):
    down = (~draws(Markov(0.5, 2.0), 2000, 4)).double()
    correlations = torch.corrcoef(torch.cat([down[1:], down[:-1]], 1).T)
    assert (correlations - torch.eye(8)).abs().max() < 4 / 2000**0.5


def test_each_client_may_have_a_rate_of_its_own(draws):
    rates = [0.0, 0.2, 0.6, 1.0]
    up = draws(Markov(rates, 3.0), 3000, 4)
    assert up[:, 0].all()
    assert not up[:, 3].any()
    assert ((~up).double().mean(0) - torch.tensor(rates)).abs().max() < 0.06


def test_chain_does_not_depend_on_the_number_of_clients(draws):
    assert torch.equal(draws(Markov(), 30, 5), draws(Markov(), 30, 12)[:, :5])


def test_chain_advances_through_skipped_rounds(draws):
    whole, late = draws(Markov(), 40, 6), draws(Markov(), 40, 6, first=25)
    assert torch.equal(whole[25:], late)


def test_a_round_that_is_drawn_again_comes_out_the_same(draws):
    dropout = Markov()
    whole = draws(dropout, 20, 6)
    assert torch.equal(draws(dropout, 20, 6, first=19)[0], whole[19])
    assert torch.equal(draws(dropout, 12, 6, first=8), whole[8:12])


def test_chain_resumes_from_a_file_without_redrawing(draws, through_a_file, monkeypatch):
    dropout, later = Markov(), Markov()
    whole = draws(Markov(), 60, 6)
    draws(dropout, 50, 6)
    later.load_state_dict(through_a_file(dropout.state_dict()))
    drawn = []
    coins = Markov._coins
    monkeypatch.setattr(Markov, "_coins", lambda self, round, index: drawn.append(index) or coins(self, round, index))
    assert torch.equal(draws(later, 60, 6, first=50), whole[50:])
    assert drawn == list(range(50, 60))


def test_impossible_rates_are_refused_with_possible_ones(draws):
    with pytest.raises(UserError, match=r"dropout.rate=0.8 .* lower it to 0.75 or raise dropout.outage to 4$"):
        Markov([0.1, 0.8], 3.0)
    assert draws(Markov(0.75, 3.0), 50, 4).any()


def test_rates_0_and_1_are_certain_in_a_run(start):
    run = start(Gossip(k=2), Uniform(), Markov([0.0, 0.5, 0.5, 0.5, 0.5, 1.0], 2.0)).go(6)
    assert all(round.active[0] and not round.active[5] for round in run.rounds)
    assert any(round.dropped[1:5].any() for round in run.rounds)
