"""An allocation that fails, wherever it is: the right numbers or one sentence, and nothing half-written."""

import functools
import shutil
from contextlib import suppress

import banks
import numpy as np
import pytest
import torch
from pairs import compare_pairs
from pretended import DEVICE, Scarce, everything_on
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning.bank.references import References
from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.utils.errors import UserError, is_out_of_memory

REMEDIES = ("--trainer.cohorts", "model.batch_size", "data.num_clients")


# --- an engine that is made -------------------------------------------------------------------------------------------
MORE = (("batchnorm", "auto"), ("mlp", "loop"))
STARTS = [("mlp", "auto"), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]


@pytest.mark.parametrize(("kind", "choice"), STARTS)
def test_a_trial_without_memory_says_nothing_about_the_network(kind, choice):
    """Else a moment's shortage would be called a mistake of the user's, or make clients train one after the other."""
    there = banks.make_federation(kind, engine=lambda config, layout, data: None)
    config, data = banks.make_federation(kind).engine.config, there.data.to(DEVICE)

    def start(n=0):
        with Scarce(n) as memory:
            engine = make_engine(choice, config, there.layout, data)
        return (engine.name, engine.reason, engine.details, [len(cohort) for cohort in engine.cohorts]), memory

    chosen, memory = start()
    assert len(memory.places) > 20
    for place, (n, _) in memory.places.items():
        try:
            found, _ = start(n)
        except (torch.OutOfMemoryError, UserError) as error:
            found = chosen if is_out_of_memory(error) else error
        assert found == chosen, place


def test_the_message_of_an_allocator_is_passed_on(federation, monkeypatch):
    """Errors of CUDA's libraries have no type of their own."""

    def fails(*_):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    monkeypatch.setattr(StackedNetwork, "__call__", fails)
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        federation(engine=functools.partial(make_engine, "auto"))


# --- a verb that fails ------------------------------------------------------------------------------------------------
def verbs(f):
    """Every verb once; what it finds."""
    bank, engine, m = f.bank, f.engine, f.m
    all_clients = References.rows("models", torch.arange(m))
    bank.abandon()
    yield engine.gradients(all_clients, f.training())
    trained = engine.train(all_clients, f.training(epochs=1))
    yield from (trained.losses, trained.samples, bank.rows("trained").clone())
    receivers, senders = torch.nonzero(torch.ones(m, m), as_tuple=True)
    scores = engine.evaluate(References.rows("trained", senders, receivers), "val")
    yield from (scores.losses, *scores.metrics.values())
    pairs = torch.ones(m, m, dtype=torch.bool)
    for options in ({}, {"relative_to": "start", "centre": True}, {"relative_to": "other"}):
        compared = compare_pairs(bank, "trained", pairs, **options)
        yield from (compared.cosines, compared.distances)
    yield bank.squared_lengths("trained", torch.arange(m))
    bank.scratch("aside", torch.float64)
    for into in ("aside", "other", "models"):
        bank.mix([(torch.full((m, m), 1 / m), "trained")], into, torch.arange(m))
        yield bank.next_rows()["models"].clone() if into == "models" else bank.rows(into).clone()


@pytest.mark.parametrize("kind", [StackedEngine, pytest.param(LoopEngine, marks=pytest.mark.slow)])
def test_a_failed_verb_leaves_the_boundary_and_can_be_repeated(kind):
    """Each try fails a little later, so the verbs before the failure must give equal results again."""
    f = banks.make_federation(engine=kind, device=DEVICE, sets=("other",))
    with Scarce() as memory:
        expected = [value.cpu() for value in verbs(f)]
    assert len(memory.places) > 60
    before = {name: rows.cpu() for name, rows in f.bank.boundary.rows.items()}
    for n, place in [*sorted((n, place) for place, (n, _) in memory.places.items()), (10**9, "nowhere")]:
        found = []
        with suppress(UserError, torch.OutOfMemoryError), Scarce(n):
            found += verbs(f)
        assert all(torch.equal(f.bank.boundary.rows[name].cpu(), rows) for name, rows in before.items()), place
        assert all(torch.equal(mine.cpu(), its) for mine, its in zip(found, expected, strict=False)), place
    assert len(found) == len(expected)


# --- a run that fails -------------------------------------------------------------------------------------------------
def network():
    torch.manual_seed(0)  # the same first models in all runs
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 10))


RUNS = {
    "afind": lambda: {"module": {"network": network(), "finetune_epochs": 1}},
    "fdms": lambda: {
        "module": {"network": network()},
        "policies": [cb.Gossip(k="all"), cb.SampleWeighted(), cb.Bernoulli(0.4), cb.FDMS()],
        "topology": "server",
    },
    "loop": lambda: {"module": {"network": network()}, "engine": "loop"},
}


class Resumed:
    """The second round of a run on the device, from a checkpoint of the first one, as often as is wanted.

    Attributes:
        first: the checkpoint's models.
        second: the models after the second round.
        memory: the allocations of the second round.
    """

    def __init__(self, small_run, root, case):
        self._small_run, self._root, self._case = small_run, root, case
        self._saved = small_run(1, root=root / "saved", **RUNS[case]()).fit().folder
        self.first = read_checkpoint(self._saved / "checkpoints" / "last.ckpt")["state_dict"]["bank.rows.models"]
        _, self.second, self.memory = self.go_on(self.copy())

    def copy(self):
        shutil.rmtree(self._root / "copy", ignore_errors=True)
        return shutil.copytree(self._saved, self._root / "copy" / "run" / "now")

    def go_on(self, folder, n=0, for_good=False):
        """Resume the run; return the sentence of an early end, the models, and the allocations."""
        run = self._small_run(2, root=self._root / "copy", **RUNS[self._case]())
        said = ""
        with everything_on(DEVICE), Scarce(n, for_good) as memory:
            try:
                run.fit(folder / "checkpoints" / "last.ckpt")
            except UserError as refused:
                said = str(refused)
        return said, run.rows.cpu() if run.module.is_set_up else None, memory

    def fail(self, n, for_good, where):
        """Fail at the n-th allocation, and look at what is left; whether the run has gone on."""
        folder = self.copy()
        said, rows, _ = self.go_on(folder, n, for_good)
        saved = read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]
        rounds = int(saved["bank.progress"][0])
        close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-7, msg=where)
        close(saved["bank.rows.models"], {1: self.first, 2: self.second}[rounds])
        if not said:
            assert rounds == 2, where
            close(rows, self.second)
            return folder, True
        assert "emory" in said, f"{where}: {said}"
        assert "A long story" not in said, f"{where}: {said}"
        assert any(remedy in said for remedy in REMEDIES), f"{where}: {said}"
        return folder, False


@pytest.fixture
def resumed(small_run, tmp_path):
    return functools.partial(Resumed, small_run, tmp_path)


STAGES = ("StackedEngine.train_cohort", "Bank.apply_to_rows", "mix_rows", "DFLModule.evaluate")


@pytest.mark.parametrize("stages", [STAGES[:1], pytest.param(STAGES[1:], marks=pytest.mark.slow)])
def test_a_failed_run_resumes_from_what_it_saved(resumed, stages):
    run = resumed("afind")
    for stage in stages:
        n = max(last for way, (_, last) in run.memory.ways.items() if any(line.endswith(stage) for line in way))
        folder, done = run.fail(n, False, stage)
        assert not done, stage
        said, rows, _ = run.go_on(folder)
        assert not said, stage
        torch.testing.assert_close(rows, run.second, rtol=1e-5, atol=1e-7)
        assert len(np.genfromtxt(folder / "metrics.csv", delimiter=",", skip_header=1)) == 2, stage


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_a_run_survives_or_reports_a_single_memory_shortage(resumed, case):
    """On every way that leads to an allocation."""
    run = resumed(case)
    assert len(run.memory.ways) > 100
    for way, (first, _) in run.memory.ways.items():
        run.fail(first, False, " < ".join(way))


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_a_run_reports_a_lasting_memory_shortage(resumed, case):
    """At every place that allocates: what is done about the error, saving the run included, has no memory either."""
    run = resumed(case)
    for place, (first, _) in run.memory.places.items():
        run.fail(first, True, place)
