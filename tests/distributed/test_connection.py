"""Inside a run, torch.distributed looks as it does in a run of one process, whatever of a user's asks it."""

import re

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dfl_lightning.distributed import connection
from dfl_lightning.distributed.strategy import ClientStrategy

MINE = '''
import torch
import torch.distributed as dist
from lightning.pytorch import Callback
from torch import nn
from torchmetrics import Metric, MinMaxMetric
from torchmetrics.classification import MulticlassF1Score

from dfl_lightning import callbacks, data


class Nested(Metric):
    """Metrics in a list, of which one is a wrapper."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.parts = [MulticlassF1Score(10, average="macro"), MinMaxMetric(MulticlassF1Score(10))]
        self.add_state("seen", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, scores, labels):
        self.seen += len(labels)
        for part in self.parts:
            part.update(scores, labels)

    def compute(self):
        first, second = (part.compute() for part in self.parts)
        for part in self.parts:
            part.reset()
        return self.seen + first + second["raw"]


class Fussy(Metric):
    """Fails, or has no value, for clients without samples of some class."""

    def __init__(self):
        super().__init__()
        self.add_state("counts", torch.zeros(10), dist_reduce_fx="sum")

    def update(self, scores, labels):
        self.counts += torch.bincount(labels, minlength=10)

    def is_undefined(self):
        return self.counts[1] == 0

    def compute(self):
        if not self.counts[3]:
            raise ValueError(f"no three among {int(self.counts.sum())} samples")
        return self.counts[1] / self.counts[3]


class Synchronised(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
        self[2] = nn.SyncBatchNorm(8)


class Talkative(data.Digits):
    """Waits for the others in one process only."""

    def load(self):
        if dist.is_initialized() and dist.get_rank() == 1:
            dist.barrier()
        return super().load()


class Adding(callbacks.Monitor):
    """Adds up, over processes too, what all of them know."""

    def on_round_end(self, round):
        metric = MulticlassF1Score(2, average="micro")
        metric.update(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]))
        metric.compute()
        round.log("seen", float(metric.tp.sum() + metric.fp.sum()))


class Logging(Callback):
    """Logs a sum over processes, and something in one of them only."""

    def on_train_epoch_end(self, trainer, module):
        module.log("sum", 1.0, sync_dist=True, reduce_fx="sum")
        if trainer.global_rank == 1:
            module.log("alone", 1.0, sync_dist=True)
'''
SMALL = ["--config", "gossip", "--data.samples_per_client", "16", "--trainer.max_rounds", "2"]
F1 = ["--model.metrics", "[{class_path: MulticlassF1Score, init_args: {num_classes: 10, average: macro}}]"]


@pytest.fixture
def same(runs, tmp_path):
    """A run is the same in one process and in two; returns what it has left."""

    def same(*words):
        for count in (1, 2):
            folder = tmp_path / str(count)
            folder.mkdir()
            (folder / "mine.py").write_text(MINE)
            runs.fit(count, folder, [*SMALL, *words])
        found = [runs.contents(tmp_path / str(count)) for count in (1, 2)]
        runs.same(*found)
        return found[1]

    return same


@pytest.mark.parametrize(
    ("engine", "clients"),
    [
        *(("stacked", "9"), ("loop", "8")),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("stacked", "8"), ("loop", "9"))),
    ],
)
def test_metrics_are_each_clients_own(same, engine, clients):
    _, arrays, _ = same("--engine", engine, "--data.num_clients", clients, "--trainer.cohorts", "3", *F1)
    assert len(set(arrays["clients.npz"]["test_f1_score"][-1])) > 1


def test_undefined_numbers_are_the_same_in_two_processes(runs, tmp_path):
    said, found = [], []
    words = ["--data.num_clients", "9", "--trainer.cohorts", "3", "--model.metrics", "[mine.Fussy, auroc]"]
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "mine.py").write_text(MINE)
        said.append(runs.said(count, folder, [*SMALL, *words]))
        found.append(runs.contents(folder))
    runs.same(*found)
    named = [
        re.findall(r"the metric fussy fails for client ([\d, ]+) \((no three among \d+ samples)\)", one) for one in said
    ]
    assert named[0]
    assert named[0] == named[1]
    rows, arrays, _ = found[0]
    counts = [int(row["test_fussy_undefined"]) for row in rows]
    assert counts == np.isnan(arrays["clients.npz"]["test_fussy"]).sum(1).tolist()
    assert counts[-1] > 0


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--model.metrics", "[mine.Nested]", "--engine", "loop"], marks=pytest.mark.slow),
        ["--model.metrics", "[mine.Nested]"],
        ["--model.network", "mine.Synchronised"],
        ["--data", "mine.Talkative"],
        ["--monitors", "mine.Adding"],
        ["--trainer.callbacks", "mine.Logging"],
    ],
    ids=["metrics in a metric, loop", "metrics in a metric", "SyncBatchNorm", "data set", "monitor", "callback"],
)
def test_metrics_and_callbacks_cause_no_exchange_between_processes(same, words):
    same("--data.num_clients", "9", "--trainer.cohorts", "3", *words)


def looking():
    """Look for a process group before, during and after a connection; return the answers of all processes."""
    there = [dist.is_initialized()]
    with connection.connected():
        connection.hide()
        there.append(dist.is_initialized())
        with connection.exchange():
            number = torch.tensor([dist.get_rank() + 1])
            dist.all_reduce(number)
        there.append(dist.is_initialized())
        assert connection.is_connected()
    return [*there, dist.is_initialized()], int(number)


def test_the_connection_is_there_before_and_after_a_run(on_ranks):
    assert on_ranks(2, looking) == [([True, False, False, True], 3)] * 2


class OfTwo(ClientStrategy):
    """The strategy of two connected processes, without Lightning's environment."""

    world_size, root_device = 2, torch.device("cpu")

    def set_world_ranks(self):
        pass


def deciding():
    """Decisions of the processes 0 and 1 of two."""
    strategy = OfTwo(parallel_devices=[torch.device("cpu")] * 2)
    mine = dist.get_rank() == 1
    return [strategy.reduce_boolean_decision(mine, all=every) for every in (True, False)]


def test_processes_decide_together(on_ranks):
    assert on_ranks(2, deciding) == [[False, True]] * 2


def losing():
    """Return the types of the errors after a lost connection and after another error inside an exchange."""
    connection.hide(patience=0.0)
    found = []
    for error in (RuntimeError("Connection closed by peer"), RuntimeError("CUDA error: out of memory")):
        try:
            with connection.exchange():
                raise error
        except RuntimeError as caught:
            found.append(type(caught).__name__)
        except connection.LostProcess as caught:
            found.append(type(caught).__name__)
    connection.show()
    return found


def test_lost_connections_are_overdue_and_other_errors_are_passed_on(on_ranks):
    assert on_ranks(2, losing) == [["Overdue", "RuntimeError"]] * 2
