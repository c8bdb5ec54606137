"""A GPU's memory: cohorts as few as fit, the choice of a run kept, and one sentence where it is not enough."""

import re
from contextlib import nullcontext

import pandas as pd
import pytest
import torch
from pretended import DEVICE, everything_on
from torch import nn

from dfl_lightning.bank import card
from dfl_lightning.bank.references import References
from dfl_lightning.distributed.communicator import owners_of
from dfl_lightning.engines.cohorts import cohorts_on_gpus
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked import engine as stacked_engine
from dfl_lightning.engines.stacked.evaluation import Scorer
from dfl_lightning.engines.stacked.gpu.autotune import StepTimer, choose_unfolded
from dfl_lightning.engines.stacked.gpu.budget import SHARE
from dfl_lightning.engines.stacked.gpu.evaluation_ways import MeasuredWays, PassTime, Way
from dfl_lightning.terminal.explain import explain
from dfl_lightning.utils.errors import UserError

SIZES = (9, 4, 14, 3, 11, 6, 30)


@pytest.fixture
def engine():
    """Only the stacked one is made for GPUs."""
    return StackedEngine


@pytest.fixture
def there(federation):
    """A federation on the device, with so many bytes free for a client's step, or so many bytes in all."""

    def make(clients=None, **options):
        options = {"sizes": SIZES, "engine": StackedEngine, "device": DEVICE, **options}
        if clients is not None:
            each = federation(**options).engine.budget.footprint.bytes()
            options["room"] = int(clients * each / SHARE) + 1
        return federation(**options)

    return make


# --- how many cohorts -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fitting", "cohorts", "widths"),
    [
        (None, None, [7]),
        (7, None, [7]),
        (6, None, [4, 3]),
        (3, None, [3, 2, 2]),
        (1, None, [1] * 7),
        (0.3, None, [1] * 7),
        (None, 2, [4, 3]),
        (3, 2, [3, 2, 2]),
        (None, 99, [1] * 7),
    ],
)
def test_cohorts_are_as_few_as_memory_and_options_allow(there, fitting, cohorts, widths):
    engine = there(fitting, cohorts=cohorts).engine
    assert [len(cohort) for cohort in engine.cohorts] == widths
    assert torch.cat(engine.cohorts).sort().values.tolist() == list(range(7))
    steps = [engine.steps[i] for cohort in engine.cohorts for i in cohort.tolist()]
    assert steps == sorted(steps, reverse=True)
    assert engine.cohort_bytes == widths[0] * engine.budget.footprint.bytes()


def test_cohorts_change_no_draw(there):
    found = []
    for fitting in (None, 3, 1):
        f = there(fitting, kind="dropout", sizes=SIZES)
        trained = f.engine.train(References.rows("models", torch.arange(f.m)), f.training())
        found.append((f.bank.rows("trained").cpu(), trained.losses))
    for rows, losses in found[1:]:
        torch.testing.assert_close(rows, found[0][0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(losses, found[0][1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_a_processs_clients_do_not_depend_on_cohorts(processes):
    steps = [5, 1, 3, 3, 8, 2, 2]
    owners = []
    for fewest in (None, 2, 4, 7, 20):
        for widest in (None, 4, 2, 1):
            cohorts = cohorts_on_gpus(steps, processes, widest, fewest)
            assert torch.cat(cohorts).sort().values.tolist() == list(range(7))
            assert len(cohorts) >= min(fewest or 1, processes * (7 // processes))
            owners.append(owners_of(cohorts, 9, processes).tolist())
    assert all(owner == owners[0] for owner in owners)


def test_an_evaluation_keeps_within_the_memory_and_the_largest_tensor(there, monkeypatch):
    scorer = there(kind="batchnorm").engine._scorer
    assert scorer.length(1) > 10**6
    scorer.keep_within(4 * 8 * scorer._activations * 100, {"0": 10**6})
    assert scorer.length(1) == 100
    assert scorer.length(7) == 14
    scorer._context.network.unfolded = frozenset({"0"})
    assert scorer.length(1) == 1
    scorer.keep_within(None, {"0": 2**28})
    assert scorer.length(1) == 1
    scorer._context.network.unfolded = frozenset()
    monkeypatch.setattr("dfl_lightning.engines.stacked.evaluation.LARGEST_TENSOR", 30 * scorer._activations)
    assert scorer.length(2) == 15


# --- what a run keeps -------------------------------------------------------------------------------------------------
def network():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 10))


class Watch:
    """A timer on which the first convolution is faster unfolded."""

    asked = 0

    def __init__(self, context, *_):
        self.network = context.network

    def __call__(self):
        Watch.asked += 1
        return 1.0 - 0.5 * (self.network.can_be_unfolded()[0] in self.network.unfolded)


@pytest.fixture
def watch(monkeypatch):
    """Counts how often something is timed."""
    monkeypatch.setattr(stacked_engine, "StepTimer", Watch)
    monkeypatch.setattr(Watch, "asked", 0)
    return Watch


@pytest.fixture
def free(monkeypatch):
    """Sets how much of the device's memory is free."""

    def let(amount):
        monkeypatch.setattr(card, "free_memory", lambda device: int(amount))

    return let


def convolutions(small_run, rounds=2, **options):
    return small_run(rounds, module={"network": network()}, **options)


def kinds(run):
    return len(run.module.engine.cohorts), run.module.engine.details.get("unfolded")


def test_a_resumed_run_keeps_its_cohorts_and_unfolded_layers(small_run, watch, free):
    with everything_on(DEVICE):
        free(1e9)
        first = convolutions(small_run, cohorts=2).fit()
        assert kinds(first) == (2, ["0"])
        assert watch.asked == 1 + 2  # as they are, and once for each convolution
        last = first.folder / "checkpoints" / "last.ckpt"
        second = convolutions(small_run, 3).fit(last)
        assert kinds(second) == (2, ["0"])
        second.trainer.fit_loop.max_epochs = 4
        second.fit()
        assert kinds(second) == (2, ["0"])
        evaluated = convolutions(small_run)
        evaluated.trainer.validate(evaluated.module, datamodule=evaluated.data, ckpt_path=last)
        assert kinds(evaluated) == (2, ["0"])
        assert watch.asked == 3


def test_a_resumed_run_makes_smaller_cohorts_if_memory_shrank(small_run, watch, free):
    with everything_on(DEVICE):
        free(1e9)
        first = convolutions(small_run, cohorts=2).fit()
        engine = first.module.engine
        rows = 2 * len(first.module.bank.boundary.rows) * 6 * engine.layout.width * 4
        free(rows + 1.5 * engine.budget.footprint.bytes() / SHARE)
        second = convolutions(small_run, 3).fit(first.folder / "checkpoints" / "last.ckpt")
    assert kinds(second) == (6, None)  # and has no room for patches
    torch.testing.assert_close(
        second.rows.cpu(), convolutions(small_run, 3, cohorts=2).fit().rows, rtol=1e-4, atol=1e-6
    )


def test_steps_are_not_timed_without_a_choice(small_run, watch, free):
    free(1e9)
    with everything_on(DEVICE):
        small_run(1).fit()  # a perceptron
        explained = convolutions(small_run)
        text = "\n".join(explain(explained.trainer, explained.module, explained.data))
        run = convolutions(small_run)
        run.trainer.validate(run.module, datamodule=run.data)
    assert watch.asked == 0
    assert re.search(
        r"GPU memory: \d+\.\d kB predicted for the widest cohort of 1\.0 GB that rows and data leave free", text
    )
    rows = explained.module.bank.boundary.rows
    assert explained.module.engine.config.room == 10**9 - 2 * sum(t.numel() * 4 for t in rows.values())


def test_models_that_do_not_fit_are_refused(small_run, free):
    free(10_000)
    with (
        everything_on(DEVICE),
        pytest.raises(UserError, match=r"the models of 6 nodes take 38\.0 kB, and the GPU has 10\.0 kB free"),
    ):
        convolutions(small_run).fit()


def test_cpu_checkpoints_do_not_store_engine_choices(small_run):
    run = convolutions(small_run).fit()
    about = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["dfl_lightning"]
    assert "engine" not in about


# --- evaluation and recorded steps ------------------------------------------------------------------------------------
@pytest.fixture
def one_by_one(monkeypatch):
    """A device that evaluates one model much faster than several; the widths of its passes."""
    monkeypatch.setattr(stacked_engine, "EvaluationTimer", lambda *_: lambda way, samples: float(way.width**3))
    widths, compute = [], Scorer._judged
    monkeypatch.setattr(
        Scorer, "_judged", lambda self, now, *args: widths.append(len(args[0])) or compute(self, now, *args)
    )
    return widths


def test_models_are_evaluated_one_by_one_where_that_is_faster(small_run, one_by_one, free):
    free(1e9)
    wide = convolutions(small_run).fit()
    assert max(one_by_one) > 1
    one_by_one.clear()
    with everything_on(DEVICE):
        run = convolutions(small_run).fit()
        assert set(one_by_one) == {1}
        before, after = (pd.read_csv(r.folder / "metrics.csv").test_loss.tolist() for r in (wide, run))
        assert after == pytest.approx(before, rel=1e-4)
        last = run.folder / "checkpoints" / "last.ckpt"
        one_by_one.clear()
        resumed = convolutions(small_run, 3).fit(last)
    assert set(one_by_one) == {1}
    assert resumed.module.engine.decisions == run.module.engine.decisions


def test_a_resumed_evaluation_leaves_out_ways_that_are_too_wide(there):
    engine = there(kind="batchnorm").engine
    width = engine._scorer.width
    times = [[width + 1, [], 1.0, 0.0], [1, [], 2.0, 0.0]]
    engine.restore_decisions({"cohorts": 1, "processes": 1, "unfolded": [], "evaluation": times})
    assert engine._scorer.way(torch.tensor([5, 5])) == Way(1)
    engine.restore_decisions({"cohorts": 1, "processes": 1, "unfolded": [], "evaluation": times[:1]})
    assert engine._scorer.way(torch.tensor([5, 5])) == Way(width)  # as without measurements


@pytest.mark.parametrize("unfolded", [set(), {"0"}])
def test_an_evaluation_unfolds_what_its_way_names(there, monkeypatch, unfolded):
    f = there(kind="batchnorm")
    calls, unfold = [], torch.nn.functional.unfold
    monkeypatch.setattr(torch.nn.functional, "unfold", lambda *args: calls.append(args) or unfold(*args))
    f.engine._context.network.unfolded = frozenset({"0"})  # That is the choice of training.
    f.engine._scorer.measured = MeasuredWays([Way(2, frozenset(unfolded))], [PassTime(1.0, 0.0)])
    f.engine.evaluate(References.rows("models", torch.arange(f.m)), "test")
    assert bool(calls) == bool(unfolded)


@pytest.mark.parametrize(("replay", "graphs"), [(0.5, "recorded"), (0.99, "not recorded: replays were not faster")])
def test_auto_records_steps_where_replays_are_faster(small_run, monkeypatch, free, replay, graphs):
    class Timer:
        """A plain pass takes one second."""

        def __init__(self, context, clients, recorder=None):
            self.seconds = 1.0 if recorder is None else replay

        def __call__(self):
            return self.seconds

    free(1e9)
    monkeypatch.setattr(stacked_engine, "StepTimer", Timer)
    monkeypatch.setattr(stacked_engine, "CudaGraphs", Record)
    with everything_on(DEVICE):
        run = small_run(2, cuda_graphs="auto").fit()
        last = run.folder / "checkpoints" / "last.ckpt"
        monkeypatch.setattr(stacked_engine, "StepTimer", None)  # A resumed run times nothing.
        resumed = small_run(3, cuda_graphs="auto").fit(last)
    for engine in (run.module.engine, resumed.module.engine):
        assert engine.details["graphs"] == graphs
        assert (engine.recordings is not None) == (graphs == "recorded")
        assert engine.decisions["recorded"] == (graphs == "recorded")
    torch.testing.assert_close(run.rows.cpu(), small_run(2).fit().rows, rtol=1e-4, atol=1e-6)


def test_auto_records_nothing_on_a_cpu(small_run):
    run = small_run(1, cuda_graphs="auto").fit()
    assert "graphs" not in run.module.engine.details


def test_auto_says_that_torch_cannot_record(small_run, monkeypatch, free):
    free(1e9)
    monkeypatch.delattr(torch.cuda, "MemPool")
    with everything_on(DEVICE):
        run = small_run(1, cuda_graphs="auto").fit()
    assert run.module.engine.details["graphs"] == f"not recorded: torch {torch.__version__} has no torch.cuda.MemPool"


# --- too little of it -------------------------------------------------------------------------------------------------
def test_a_pass_without_enough_memory_counts_as_slower(there, monkeypatch):
    engine = there(kind="batchnorm").engine
    given = []
    monkeypatch.setattr("dfl_lightning.engines.stacked.gpu.autotune.give_back", given.append)
    watch = StepTimer(engine._context, 7)

    def fails():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(watch, "_pass", fails)
    assert watch() == float("inf")
    assert given == [DEVICE]
    assert choose_unfolded(engine._context.network, watch) == frozenset()


def test_training_that_runs_out_of_memory_names_the_remedy(there, monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nA long story")

    for cohorts, remedy in ((None, "--trainer.cohorts 2"), (2, "--trainer.cohorts 4"), (7, "lower model.batch_size")):
        f = there(cohorts=cohorts)
        monkeypatch.setattr(f.engine, "train_cohort", fails)
        with pytest.raises(UserError) as refused:
            f.engine.train(References.rows("models", torch.arange(f.m)), f.training())
        assert str(refused.value).startswith("the GPU ran out of memory with ")
        assert remedy in str(refused.value)
        assert "A long story" not in str(refused.value)


def test_the_first_process_chooses_for_all(there, watch, monkeypatch):
    """Two processes run one after the other; the second receives the choice of the first."""
    told = []

    class Process:
        """The part of `Ranks` that `settle` uses."""

        count = 2

        def __init__(self, rank):
            self.rank = rank

        def together(self):
            return nullcontext()

        def from_rank(self, source, numbers):
            assert source == 0
            if self.rank == 0:
                told.append(numbers)
                return numbers
            return told.pop(0)

    times = iter(range(1, 100))
    monkeypatch.setattr(stacked_engine, "EvaluationTimer", lambda *_: lambda way, samples: float(next(times)))
    engines = [there(kind="batchnorm").engine for _ in range(2)]
    for rank, engine in enumerate(engines):
        engine.tune_to_device(Process(rank))
        assert watch.asked == 2  # in the first process only
        assert engine.decisions["unfolded"] == ["0"]
        assert engine._context.network.unfolded == {"0"}
    assert engines[0].decisions["evaluation"] == engines[1].decisions["evaluation"] != []
    assert engines[0]._scorer.measured == engines[1]._scorer.measured


class Record:
    """A recorder that calls the step once for each replay, or cannot."""

    def __init__(self, error=None):
        self.error, self.recorded = error, 0

    def record(self, step):
        self.recorded += 1
        if self.error is not None:
            raise self.error
        return step


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(None, 0.001), (RuntimeError("a number"), 0.001), (torch.OutOfMemoryError("too little"), float("inf"))],
)
def test_passes_are_timed_as_recorded_steps(there, monkeypatch, error, seconds):
    recorder = Record(error)
    watch = StepTimer(there(kind="batchnorm").engine._context, 7, recorder)
    monkeypatch.setattr("dfl_lightning.engines.stacked.gpu.autotune._seconds", lambda run: run() or 0.001)
    assert watch() == seconds
    assert recorder.recorded == 1


def test_the_loop_engine_suggests_no_smaller_cohorts(federation):
    sentence = federation(engine=LoopEngine).engine.out_of_memory(torch.OutOfMemoryError("too little"))
    assert "cohorts" not in sentence
    assert sentence.startswith("out of memory (too little); lower ")
