"""A run whose numbers depend on its number of rounds is not continued to another one."""

import pytest
import torch

from dfl_lightning import callbacks as cb
from dfl_lightning.objectives import DisPFL
from dfl_lightning.utils.errors import UserError


class Late(cb.Aggregation):
    """Reads the number of rounds in its third round for the first time."""

    def on_weigh(self, round):
        share = 1 / round.federation.num_rounds if round.index == 2 else 0.5
        round.weights = torch.full((len(round.voters),), share, dtype=torch.float64)
        round.weights /= round.voters.sum(round.weights)[round.voters.receivers]


def dispfl(small_run, rounds, **options):
    policies = [cb.Gossip(k="all"), cb.MaskedAverage()]
    return small_run(rounds=rounds, policies=policies, module={"objective": DisPFL()}, **options)


@pytest.fixture
def continued(small_run):
    """Fit two rounds, then continue them to four."""

    def continued(make):
        first = make(2).fit()
        return make(4).fit(first.folder)

    return continued


def test_scheduled_pruning_cannot_continue_to_another_number_of_rounds(small_run, continued):
    with pytest.raises(UserError, match="DisPFL computes with the number of rounds, which was 2 and is 4 now"):
        continued(lambda rounds: dispfl(small_run, rounds))


def test_a_refused_run_can_start_anew_or_keep_its_rounds(small_run):
    two, four = dispfl(small_run, 2).fit(), dispfl(small_run, 4)
    four.fit()
    assert four.module.bank.boundary.round == 4
    assert dispfl(small_run, 2).fit(two.folder).module.bank.boundary.round == 2  # the other remedy


def test_a_second_fit_to_more_rounds_is_refused_too(small_run):
    run = dispfl(small_run, 2).fit()
    run.trainer.fit_loop.max_epochs = 4
    with pytest.raises(UserError, match="a second fit: DisPFL computes with the number of rounds"):
        run.fit()


@pytest.mark.parametrize("aggregation", [cb.BALANCE, Late])
def test_a_policy_that_reads_the_number_of_rounds_is_recorded(small_run, continued, aggregation):
    with pytest.raises(UserError, match=f"{aggregation.__name__} computes with the number of rounds"):
        continued(lambda rounds: small_run(rounds=rounds, policies=[cb.Gossip(k=2), aggregation()]))


def test_elimination_of_candidates_is_recorded_as_a_reader(small_run):
    policies = [cb.Bernoulli(0.3), cb.Gossip(k="all"), cb.Uniform(), cb.FDMS(theta_scale=0.25)]
    run = small_run(rounds=2, policies=policies, topology="server")
    run.fit()
    assert run.module.federation.horizon.readers == {"FDMS"}


def test_other_policies_continue_and_forks_are_always_allowed(small_run, continued):
    plain = continued(lambda rounds: small_run(rounds=rounds, policies=[cb.Gossip(k=2), cb.Uniform()]))
    assert plain.module.federation.horizon.readers == set()
    first = dispfl(small_run, 2).fit()
    assert dispfl(small_run, 3).fit(first.folder, fork=True).folder != first.folder
