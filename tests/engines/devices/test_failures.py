"""A GPU that fails in the middle of a run: one sentence, and the rounds before are not lost."""

import pytest
import torch
from pretended import DEVICE, Broken, everything_on
from pretended.broken import ILLEGAL

from dfl_lightning import DFLTrainer, build
from dfl_lightning.bank.card import gpu_failures
from dfl_lightning.callbacks import Gossip, Monitor, Outgoing, Uniform
from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.utils.errors import UserError

ROUNDS, STEPS = 4, 8  # of a client in a round
SMALL = {"module": {"batch_size": 6, "local_epochs": 2}, "data": {"num_clients": 4}}
SENTENCE = "the GPU failed (CUDA error: an illegal memory access was encountered); "


class Replays:
    """A recorder for the pretended device, whose n-th replay fails; otherwise they call the step.

    Attributes:
        count: replays so far.
    """

    def __init__(self, n=0, fail=None):
        self._n, self._fail, self.count = n, fail, 0

    def record(self, step):
        def replay():
            self.count += 1
            if self.count == self._n:
                self._fail()
            step()

        return replay


class AtEvaluation(Monitor):
    """Lets something fail before the evaluation of a round."""

    def __init__(self, round, fail):
        self._round, self._fail = round, fail

    def on_validation_start(self, trainer, pl_module):
        if pl_module.bank.boundary.round == self._round:
            self._fail()


@pytest.fixture
def recorded(small_run, monkeypatch):
    """A run whose steps are recorded, on the device: the run, and what it says where it ends too early."""
    make_engine = build.make_engine

    def fit(recorder, callbacks=(), broken=None):
        def make(*args):
            engine = make_engine(*args)
            engine.all_at_once(recorder)
            return engine

        with monkeypatch.context() as patch, everything_on(DEVICE), broken or Broken():
            patch.setattr(build, "make_engine", make)
            run = small_run(ROUNDS, callbacks, checkpoint_every=2, **SMALL)
            try:
                run.fit()
            except UserError as refused:
                return run, str(refused)
        return run, ""

    return fit


def saved(run):
    """Rounds of the last checkpoint, and its models."""
    state = read_checkpoint(run.folder / "checkpoints" / "last.ckpt")["state_dict"]
    return int(state["bank.progress"][0]), state["bank.rows.models"]


def goes_on(small_run, run):
    """A run that has failed is resumed, and ends as one that nothing has happened to; both on the CPU."""
    again = small_run(ROUNDS, **SMALL).fit(run.folder / "checkpoints" / "last.ckpt")
    torch.testing.assert_close(again.rows, small_run(ROUNDS, **SMALL).fit().rows, rtol=1e-4, atol=1e-6)


def test_a_failed_replay_loses_its_round_only(recorded, small_run):
    def fail():
        raise RuntimeError(ILLEGAL)

    run, said = recorded(Replays(3 * STEPS + 2, fail))
    assert said.startswith(f"{SENTENCE}3 complete rounds are saved; continue with dfl-fit --ckpt_path {run.folder}; ")
    assert saved(run)[0] == 3
    goes_on(small_run, run)


@pytest.mark.parametrize("where", ["replay", pytest.param("evaluation", marks=pytest.mark.slow)])
def test_a_permanently_failing_gpu_leaves_the_last_checkpoint_unchanged(recorded, small_run, where):
    """The fourth round is lost with it: nothing can be read from there any more."""
    broken = Broken()

    def fail():
        broken.now = True

    recorder = Replays(3 * STEPS + 2, fail) if where == "replay" else Replays()
    callbacks = [AtEvaluation(3, fail)] if where == "evaluation" else []
    run, said = recorded(recorder, callbacks, broken)
    assert said.startswith(f"{SENTENCE}2 complete rounds are saved; continue with dfl-fit --ckpt_path {run.folder}; ")
    assert "kernel errors" not in said
    assert saved(run)[0] == 2
    assert {file.name for file in (run.folder / "checkpoints").iterdir()} == {"last.ckpt"}
    goes_on(small_run, run)


def test_a_failure_in_the_first_round_leaves_nothing(recorded, tmp_path):
    broken = Broken()
    _, said = recorded(Replays(1, lambda: setattr(broken, "now", True)), broken=broken)
    assert said == f"{SENTENCE}nothing of the run is saved; CUDA_LAUNCH_BLOCKING=1 shows which operation fails"
    assert not list(tmp_path.glob("run/*"))


def test_running_out_of_memory_in_a_replay_is_reported(recorded):
    def fail():
        raise RuntimeError("CUDA error: out of memory")

    run, said = recorded(Replays(STEPS + 2, fail))
    assert said == (
        "the GPU ran out of memory with 1 cohort of up to 4 clients (CUDA error: out of memory); "
        "use smaller ones: --trainer.cohorts 2"
    )
    assert saved(run)[0] == 1


def test_other_errors_are_passed_on():
    with pytest.raises(RuntimeError, match="a bug"), gpu_failures():
        raise RuntimeError("a bug")


def test_a_torch_that_cannot_record_steps_is_named(monkeypatch):
    monkeypatch.delattr(torch.cuda, "MemPool")
    sentence = (
        r"trainer.cuda_graphs=true needs torch.cuda.MemPool, which torch .* does not have; update torch, or leave"
    )
    with everything_on(torch.device("cuda", 0)), pytest.raises(UserError, match=sentence):
        DFLTrainer(accelerator="cpu", cuda_graphs=True, logger=False)


class Infinite(Outgoing):
    """Client 2 sends nonsense."""

    def send(self, updates, senders):
        return updates / (senders.ids != 2)[:, None].to(updates.device)


class Spoiling(Uniform):
    """Receivers from the third on get no number."""

    def on_mix(self, round):
        round.bank.rows("trained")[2:].fill_(torch.nan)


@pytest.mark.parametrize(
    ("policies", "sentence"),
    [
        ([Uniform, Infinite], "outgoing Infinite: what client 2 sends is not finite"),
        ([Spoiling], "Spoiling mixed a model that is not finite, for receiver 2"),
    ],
)
def test_nonfinite_messages_and_models_are_reported_with_their_policy(small_run, policies, sentence):
    with everything_on(DEVICE), pytest.raises(UserError, match=sentence):
        small_run(1, policies=[Gossip(k=2), *(policy() for policy in policies)]).fit()
