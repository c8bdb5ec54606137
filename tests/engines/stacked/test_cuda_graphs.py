"""Recorded steps against the same steps run one by one: the same numbers, whatever changes between two replays."""

import functools
import math
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from game.networks import weighed
from networks import Idle
from tapes import Tape, TapeRecorder
from threads import threads
from torch import nn
from turns import in_turn

from dfl_lightning.bank.references import References
from dfl_lightning.data.augment import EachSample
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked.gpu.autotune import StepTimer
from dfl_lightning.engines.stacked.gpu.cuda_graphs import FEWEST_STEPS, CudaGraphs, StaticBatches, buckets_of, obstacle
from dfl_lightning.objectives import Duration, Objective, Phase, Plain
from dfl_lightning.tasks import Classification

SIZES = (40, 9, 33, 3, 28, 40, 14, 1)  # with batches of 4: 10, 3, 9, 1, 7, 10, 4 and 1 steps an epoch
LR = 0.0625  # a number that float32 and float64 both have, as recorded learning rates are float32

SGD = functools.partial(torch.optim.SGD, lr=77.0)
OPTIMIZERS = {
    "sgd": SGD,
    "momentum": functools.partial(SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, lr=77.0),
    "adamw": functools.partial(torch.optim.AdamW, lr=77.0, weight_decay=0.1),
}


@pytest.fixture
def tape_recorder():
    """Records steps on a CPU."""
    return TapeRecorder()


class Pull(Objective):
    """Two batches a step, towards the start of the round and another row set."""

    stackable = recordable = True
    row_sets = {"other": "zeros"}

    def step(self, ctx):
        first, second = ctx.next_batch(), ctx.next_batch()
        halfway = [p - 0.1 * g for p, g in zip(ctx.model().params, ctx.model().grad(first), strict=True)]
        grads = ctx.model().grad(second, at=halfway)
        pulled = zip(grads, ctx.model().params, ctx.model().start, ctx.rows("other"), strict=True)
        ctx.model().update([g + 0.3 * (p - s) + 0.2 * (p - o) for g, p, s, o in pulled])


def rounds(
    federation,
    recorder=None,
    absent=((), (0, 3), (1, 5, 7)),
    lrs=(LR, LR / 2, LR / 4),
    epochs=2,
    device="cpu",
    **options,
):
    """Rows and losses of some rounds; in each, some clients do not take part."""
    f = federation(**{"sizes": SIZES, **options})
    if device != "cpu":
        f.bank.apply_to_rows(lambda rows: rows.to(device))
        f.engine = StackedEngine(f.engine.config, f.layout, f.data.to(device))
        f.engine.attach(f.bank)
    engine = f.engine
    engine.all_at_once(recorder)
    results = []
    for number, (away, lr) in enumerate(zip(absent, lrs, strict=True)):
        owners = torch.tensor([i for i in range(f.m) if i not in away])
        trained = f.engine.train(References.rows("models", owners), f.training(epochs, round=number, lr=lr))
        rows = f.bank.rows("trained").clone()
        results += [rows.clone().cpu(), trained.losses, trained.samples]
        f.bank.commit(f.bank.boundary._replace(round=number + 1, rows={**f.bank.boundary.rows, "models": rows}))
    return engine, results


def same(found, expected, tolerance=1e-10):
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.fixture
def engine():
    """Only the stacked one records."""
    return StackedEngine


WEIGHED = weighed(Classification, lambda labels: labels % 3)()
"""Samples of the first class count for nothing."""

CASES = {
    **{name: {"optimizer": optimizer} for name, optimizer in OPTIMIZERS.items()},
    "clipped": {"optimizer": OPTIMIZERS["momentum"], "clip_norm": 0.3, "clip_value": 0.05},
    "an idle layer": {"optimizer": OPTIMIZERS["adamw"], "network": nn.Sequential(nn.Linear(6, 3), Idle())},
    "two phases": {"optimizer": OPTIMIZERS["momentum"], "shared": ("0.*",)},
    "convolutions": {"kind": "batchnorm", "sizes": (40, 12, 32, 4, 28, 40, 16, 8)},
    "unequal batches meet": {"kind": "batchnorm", "sizes": (42, 11, 35, 6, 38, 39, 14, 8)},
    "a first step of fewer than a bucket": {"absent": ((1, 5, 7), (), (0,))},
    "a loss of one's own": {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
    "samples that count unequally": {"task": WEIGHED, "loss": WEIGHED.mean_loss(), "clip_norm": 0.3},
    "several batches": {"objective": Pull(), "sets": ("other",), "optimizer": OPTIMIZERS["adam"]},
}


@pytest.mark.parametrize("case", CASES)
def test_replayed_steps_give_the_numbers_of_ordinary_ones(federation, tape_recorder, case):
    engine, found = rounds(federation, tape_recorder, **CASES[case])
    same(found, rounds(federation, **CASES[case])[1])
    assert engine.details["graphs"] == "recorded"
    assert tape_recorder.replayed > 3 * tape_recorder.recorded > 3


def test_unequal_batches_with_batch_norms_are_replayed(federation, tape_recorder):
    """With recordings of their own, so that those of whole batches stay as short as they are."""
    sizes = (42, 11, 35, 6, 38, 39, 14, 8)
    options = {"kind": "batchnorm", "sizes": sizes, "absent": ((),), "lrs": (LR,)}
    engine, found = rounds(federation, tape_recorder, **options)
    same(found, rounds(federation, **options)[1])
    assert tape_recorder.replayed == 2 * 11 - 1  # all steps but the first
    recorded = {key for recording in engine.recordings._of.values() for key in recording._replays}
    assert {padded for _, padded in recorded} == {False, True}


def test_a_bucket_is_recorded_once_and_serves_all_rounds(federation, tape_recorder):
    engine, _ = rounds(federation, tape_recorder, absent=((), ()), lrs=(LR, LR))
    steps = 2 * 10  # of the longest client
    assert tape_recorder.replayed == 2 * steps - 1  # without the very first, which shows what a step is
    assert tape_recorder.recorded <= len(buckets_of(len(SIZES)))
    assert len({row.data_ptr() for row in engine.recordings.staging("models").parameters()}) == 4


def test_finished_clients_keep_their_rows_in_replays(federation, tape_recorder):
    """The clients between those who work and the bucket's size go through every replay."""
    _, found = rounds(federation, tape_recorder, absent=((),), lrs=(LR,), sizes=(4, 40, 40, 40))
    _, expected = rounds(federation, absent=((),), lrs=(LR,), sizes=(4, 40, 40, 40))
    same([found[0][0]], [expected[0][0]], tolerance=0)
    assert buckets_of(4) == [1, 2, 3, 4]
    _, found = rounds(federation, tape_recorder, absent=((),), lrs=(LR,), sizes=(4, 8, *[40] * 6))
    same(found, rounds(federation, absent=((),), lrs=(LR,), sizes=(4, 8, *[40] * 6))[1])


def test_a_diverged_model_does_not_change_others_in_later_rounds(federation, tape_recorder):
    """In the memory that lies still, the last place holds what is left of a client who is away in the next round."""
    data = federation(sizes=SIZES).data
    data.images[data.train[7]] = float("inf")
    options = {"absent": ((), (7,)), "lrs": (LR, LR), "data": data}
    engine, found = rounds(federation, tape_recorder, **options)
    same(found, rounds(federation, **options)[1])
    assert not engine.recordings.staging("models").parameters()[0].isfinite().all()
    assert found[3].isfinite().all()
    assert (found[3][:7] != found[0][:7]).any(1).all()


def test_short_phases_and_foreign_objectives_are_not_recorded(federation, tape_recorder):
    sizes = (4 * FEWEST_STEPS - 4, 5)
    options = {"absent": ((),), "lrs": (LR,), "epochs": 1}
    rounds(federation, tape_recorder, sizes=sizes, **options)
    assert tape_recorder.recorded == 0
    rounds(federation, tape_recorder, sizes=(4 * FEWEST_STEPS, 5), **options)
    assert tape_recorder.recorded > 0
    f = federation(sizes=SIZES, objective=Pull(), sets=("other",))
    f.engine.all_at_once(tape_recorder)
    before = tape_recorder.recorded
    foreign = Training("local", 0, Pull().phases(f.layout, Duration(2), 0), ({"lr": LR},))
    f.engine.train(References.rows("models", torch.arange(f.m)), foreign)
    assert tape_recorder.recorded == before


@pytest.mark.parametrize("options", [{}, {"objective": Pull(), "sets": ("other",)}], ids=["plain", "another objective"])
def test_fine_tuning_is_recorded_once_for_all_evaluations(federation, tape_recorder, options):
    """It comes with a fresh object every time; a run that is plain itself has the steps already."""

    def judged(recorder):
        f = federation(sizes=SIZES, optimizer=OPTIMIZERS["momentum"], **options)
        f.engine.all_at_once(recorder)
        all_clients, found = References.rows("models", torch.arange(f.m)), []
        for number in range(3):
            f.engine.train(all_clients, f.training(2, round=number, lr=LR))
            rows = f.bank.rows("trained").clone()
            tuned = Training("finetune", number, (Phase(Plain(), Duration(2), f.layout.all),), ({"lr": LR / 2},))
            f.engine.train(all_clients, tuned)
            found += [rows, f.bank.rows("trained").clone()]
            counts.append(tape_recorder.recorded)
        return found

    counts = []
    same(judged(tape_recorder), judged(None))
    assert 0 < counts[0] <= counts[1] == counts[2]  # the very first step is none, which one bucket may have had alone
    assert counts[0] <= len(buckets_of(len(SIZES))) * (1 + bool(options))


@pytest.mark.parametrize(
    ("optimizer", "eager"),
    [
        ("sgd", 1),
        ("momentum", 1),
        ("adam", 1),
        (functools.partial(SGD, momentum=0.9, dampening=0.5), 3),  # its first gradient is not dampened
        (functools.partial(torch.optim.Adagrad, lr=77.0, initial_accumulator_value=0.5), 3),
    ],
)
def test_optimizers_with_zero_states_start_with_a_replay(federation, tape_recorder, optimizer, eager):
    """An ordinary step in addition to the recorded ones would hold its activations twice."""
    options = {"optimizer": OPTIMIZERS.get(optimizer, optimizer) if isinstance(optimizer, str) else optimizer}
    _, found = rounds(federation, tape_recorder, absent=((), (1, 5), ()), **options)
    assert tape_recorder.replayed == 3 * 20 - eager
    same(found, rounds(federation, absent=((), (1, 5), ()), **options)[1])


class Failing(TapeRecorder):
    """Fails at its n-th recording, in the middle of a step."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def record(self, step):
        self.left -= 1
        if not self.left:
            step()
            step()
            raise RuntimeError("operation not permitted when stream is capturing\na long story")
        return super().record(step)


QUICK = [("momentum", 1), ("adam", 2), ("several batches", 4), ("two phases", 2), ("unequal batches meet", 1)]


@pytest.mark.parametrize(
    ("case", "n"),
    [
        pytest.param(case, n, marks=[] if (case, n) in QUICK else pytest.mark.slow)
        for n in (1, 2, 4)
        for case in ("momentum", "adam", "several batches", "two phases", "unequal batches meet")
    ],
)
def test_a_recording_that_fails_leaves_the_numbers_as_they_are(federation, case, n):
    recorder = Failing(n)
    with pytest.warns(UserWarning, match="from now on steps are not recorded: a step cannot"):
        engine, found = rounds(federation, recorder, **CASES[case])
    same(found, rounds(federation, **CASES[case])[1])
    assert recorder.recorded == n - 1
    assert engine.recordings is None
    assert engine.details["graphs"].startswith("not recorded: a step cannot be recorded (operation not permitted")
    assert "a long story" not in engine.details["graphs"]


class Breaking(TapeRecorder):
    """Its n-th replay fails in the middle of a step, as a GPU does."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def record(self, step):
        step()
        tape, half = Tape(), Tape()
        with tape:
            step()
        half.operations = tape.operations[: len(tape.operations) // 2]

        def replay():
            self.left -= 1
            (tape if self.left else half).replay()
            if not self.left:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

        return replay


@pytest.mark.parametrize(
    ("case", "n"), in_turn(["momentum", "adam", "several batches", "unequal batches meet"], [1, 9])
)
def test_a_replay_that_fails_leaves_nothing_behind(federation, case, n):
    """Neither in the models nor in the memory that lies still: the round can be done again."""
    options = {"sizes": SIZES, **CASES[case]}
    f, plain = federation(**options), federation(**options)
    f.engine.all_at_once(Breaking(n))
    all_clients, before = References.rows("models", torch.arange(f.m)), f.bank.rows("models").clone()
    with pytest.raises(RuntimeError, match="illegal memory"):
        f.engine.train(all_clients, f.training(2, lr=LR))
    assert torch.equal(f.bank.rows("models"), before)
    with pytest.raises(KeyError):
        f.bank.rows("trained")
    found, expected = (side.engine.train(all_clients, side.training(2, lr=LR)) for side in (f, plain))
    same([found.losses, f.bank.rows("trained")], [expected.losses, plain.bank.rows("trained")])
    assert f.engine.recordings is not None


def test_a_recording_follows_options_that_a_schedule_changes(federation, tape_recorder):
    """The schedule's options are unknown before a run without a last round."""
    all_clients = References.rows("models", torch.arange(len(SIZES)))
    rounds = [({"lr": LR},), ({"lr": LR, "momentum": 0.5},), ({"lr": LR},), ({"lr": LR, "momentum": 0.1},)]
    found = {}
    for recorder in (None, tape_recorder):
        f = federation(sizes=SIZES, optimizer=functools.partial(SGD, momentum=0.9))
        f.engine.all_at_once(recorder)
        found[recorder] = []
        for number, groups in enumerate(rounds):
            f.engine.train(all_clients, f.training(2, round=number, groups=groups))
            found[recorder].append(f.bank.rows("trained").clone())
    assert tape_recorder.recorded > 0
    same(found[tape_recorder], found[None])


def test_parameter_groups_keep_separate_rates_in_a_recording(federation, tape_recorder):
    def factory(parameters):
        few = [p for p in parameters if p.ndim <= 1]
        return SGD([{"params": [p for p in parameters if p.ndim > 1]}, {"params": few}], momentum=0.9)

    all_clients = References.rows("models", torch.arange(len(SIZES)))
    found = {}
    for recorder in (None, tape_recorder):
        f = federation(sizes=SIZES, optimizer=factory)
        f.engine.all_at_once(recorder)
        found[recorder] = []
        for number, rates in enumerate([(LR, LR / 4), (LR / 2, LR), (LR / 4, LR / 8)]):
            f.engine.train(all_clients, f.training(2, round=number, groups=tuple({"lr": rate} for rate in rates)))
            found[recorder].append(f.bank.rows("trained").clone())
    assert tape_recorder.recorded > 0
    same(found[tape_recorder], found[None])


def test_gradients_do_not_write_into_recorded_memory(federation, tape_recorder):
    f = federation(sizes=SIZES)
    f.engine.all_at_once(tape_recorder)
    all_clients = References.rows("models", torch.arange(f.m))
    found = f.engine.gradients(all_clients, f.training())
    plain = federation(sizes=SIZES)
    same([found], [plain.engine.gradients(all_clients, plain.training())])
    assert not f.engine.recordings.staging("models").parameters()[0].any()


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, "rmsprop"])
def test_replayed_steps_give_the_same_numbers_on_a_gpu(federation, case):
    options = CASES.get(case, {"optimizer": functools.partial(torch.optim.RMSprop, lr=77.0, momentum=0.5)})
    engine, found = rounds(federation, CudaGraphs(), device="cuda", **options)
    assert engine.details["graphs"] == "recorded"
    assert engine.recordings._of
    same(found, rounds(federation, **options)[1], tolerance=1e-8)


class Asking(Pull):
    """Reads a number on the CPU in every step."""

    def step(self, ctx):
        float(ctx.model().params[0].sum())
        super().step(ctx)


@pytest.mark.gpu
def test_a_synchronising_step_runs_unrecorded_on_a_gpu(federation):
    options = {"sets": ("other",), "optimizer": OPTIMIZERS["momentum"]}
    with pytest.warns(UserWarning, match="from now on steps are not recorded"):
        engine, found = rounds(federation, CudaGraphs(), device="cuda", objective=Asking(), **options)
    assert engine.details["graphs"].startswith("not recorded: a step cannot be recorded")
    same(found, rounds(federation, objective=Pull(), **options)[1], tolerance=1e-8)


@pytest.mark.gpu
def test_recorded_passes_are_timed_on_a_gpu(federation, monkeypatch):
    f = federation(kind="batchnorm", sizes=(9, 4))
    engine = StackedEngine(f.engine.config, f.layout, f.data.to("cuda"))
    recorder, recorded = CudaGraphs(), []
    record = recorder.record
    monkeypatch.setattr(recorder, "record", lambda step: recorded.append(record(step)) or recorded[-1])
    assert 0 < StepTimer(engine._context, 2, recorder)() < math.inf  # which would be: no memory
    assert len(recorded) == 1


# --- what is not recorded ---------------------------------------------------------------------------------------------
class Unready(Plain):
    recordable = False


class OfItsOwn(Plain):
    """Recordable, but another object may have other steps."""


class Delegating(Plain):
    def phases(self, layout, duration, round):
        return (Phase(OfItsOwn(), duration, layout.all),)


class Picture(nn.Module):
    """An answer for each of five places."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(1, 3, 2)

    def forward(self, x):
        return self.layer(x.unsqueeze(1))


REASONS = {
    "objective Unready": {"objective": Unready()},
    "leaves steps to another": {"objective": Delegating()},
    "schedule changes betas and momentum, which": {"scheduled": ("betas", "momentum")},
    "optimizer": {"optimizer": functools.partial(torch.optim.RMSprop, lr=77.0)},  # on a GPU it can be
}


@pytest.mark.parametrize("reason", REASONS)
def test_unrecordable_steps_run_unrecorded_with_a_reason(federation, tape_recorder, reason):
    engine, found = rounds(federation, tape_recorder, **REASONS[reason])
    assert engine.details["graphs"].startswith("not recorded: ")
    assert reason in engine.details["graphs"]
    assert tape_recorder.recorded == 0
    same(found, rounds(federation, **REASONS[reason])[1], tolerance=0)


def test_several_answers_per_sample_prevent_recording(federation, monkeypatch):
    monkeypatch.setattr(
        "dfl_lightning.engines.trials.trial.try_loss", lambda *_: False
    )  # for one answer there is one label
    f = federation(network=Picture(), sizes=(6, 6), batch_size=2)
    assert "several targets for each sample" in obstacle(f.engine._context, f.data.images[:2])


def test_an_augmentation_on_the_cpu_prevents_recording(federation, make_data):
    data = make_data((6, 6))
    data.augment = EachSample(torch.neg)
    f = federation(data=data, batch_size=2)
    assert obstacle(f.engine._context, data.images[:2]).startswith("data.augment is a function of one sample")


def test_few_buckets_cover_all_clients():
    for clients in (*range(1, 40), 100, 1000, 12345):
        buckets = buckets_of(clients)
        assert len(buckets) <= 8
        assert buckets == sorted(set(buckets))
        assert buckets[-1] == clients


def test_a_recording_that_fails_leaves_the_capturing_stream(monkeypatch):
    """torch stays on it, and every later operation would be part of a broken recording."""
    present, done = [None], []

    class Stream:
        def wait_stream(self, other):
            done.append("waits")

    @contextmanager
    def on(stream):
        before, present[0] = present[0], stream
        yield
        present[0] = before  # not where something is raised, as in torch.cuda.graph

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "MemPool", lambda: SimpleNamespace(id=(0, 7)))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: present[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: present.__setitem__(0, stream))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("given back"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda pool: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool, stream: on({(0, 7): stream}[pool]))  # a pool's name
    ordinary = present[0] = Stream()
    graphs, streams, calls = CudaGraphs(), [], [0]

    def step():
        streams.append(present[0])
        calls[0] += 1
        if calls[0] == 4:
            raise RuntimeError("operation not permitted when stream is capturing")

    graphs.record(step)
    with pytest.raises(RuntimeError, match="capturing"):
        graphs.record(step)
    assert present[0] is ordinary
    assert set(streams) == {graphs._side}  # one stream for all
    assert done.count("given back") == 2


class Interrupted(Pull):
    """Cannot be recorded, which shows between the two batches of a step."""

    failures = 1

    def step(self, ctx):
        if isinstance(ctx._source, StaticBatches) and self.failures:
            self.failures -= 1
            ctx.next_batch()
            raise RuntimeError("a number is asked for")
        super().step(ctx)


def test_a_failed_recording_restarts_the_step(federation, tape_recorder):
    options = {"sets": ("other",), "optimizer": OPTIMIZERS["momentum"]}
    with pytest.warns(UserWarning, match="a number is asked for"):
        _, found = rounds(federation, tape_recorder, objective=Interrupted(), **options)
    same(found, rounds(federation, objective=Pull(), **options)[1])


def test_cohorts_that_share_recorded_memory_train_one_after_the_other(federation, tape_recorder):
    f = federation(sizes=SIZES, cohorts=2)
    with threads(2):
        assert len(f.engine.cohorts) == f.engine.threads == 2
        f.engine.all_at_once(tape_recorder)
        assert len(f.engine.cohorts) == 2
        assert f.engine.threads == 1
