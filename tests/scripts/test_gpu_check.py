"""The GPU check on the pretended device: every stage makes its table, and a stage that fails costs no other."""

import json

import pytest
import torch
from benchmarks.tables import Table
from pretended import DEVICE, everything_on

from dfl_lightning.engines.stacked import engine as stacked_engine

pytestmark = pytest.mark.cpu_bits


class Repeating:
    """A recorder that calls the step instead of replaying it."""

    def record(self, step):
        step()
        return step


@pytest.fixture(scope="module")
def check(load):
    return load("gpu_check")


@pytest.fixture(scope="module")
def scope(load):
    return load("gpu.scope").Scope(str(DEVICE), clients=4, images=16, small=True, recorder=Repeating)


@pytest.mark.parametrize(
    "name",
    [
        *("losses", "streams", "rounds", "memory"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("same", "steps", "tasks")),
    ],
)
def test_stage_makes_its_table_on_the_pretended_device(check, scope, name, monkeypatch):
    monkeypatch.setattr(stacked_engine, "StepTimer", lambda *_: lambda: 1.0)  # CUDA's events are not there
    monkeypatch.setattr(stacked_engine, "EvaluationTimer", lambda *_: lambda way, samples: 1.0)
    with everything_on(DEVICE):
        table = check.STAGES[name].measure(scope)
    assert table.rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert len(table.numbers) == len(table.rows)
    json.dumps(table.numbers)


def test_counted_operations_are_those_by_hand(load):
    losses, federations = load("gpu.losses"), load("benchmarks.federations")
    mlp = next(setting for setting in federations.SETTINGS if setting.name == "MLP")
    assert losses.forward_operations(mlp) == 2 * (784 * 200 + 200 * 200 + 200 * 10)


def test_one_by_one_takes_plain_sgd_steps(load):
    streams, federations = load("gpu.streams"), load("benchmarks.federations")
    mlp = next(setting for setting in federations.SETTINGS if setting.name == "MLP").resized(1, 4, 4)
    worker = streams._Worker(mlp, "cpu")
    network = federations.built(mlp)
    optimizer = torch.optim.SGD(network.parameters(), lr=federations.LEARNING_RATE)
    worker.inputs.normal_(generator=torch.Generator().manual_seed(0))
    torch.nn.functional.cross_entropy(network(worker.inputs), worker.labels).backward()
    optimizer.step()
    worker.replay()
    for own, expected in zip(worker._parameters, network.parameters(), strict=True):
        torch.testing.assert_close(own, expected)


def test_failed_stage_is_named_and_others_are_written(check, tmp_path, capsys):
    made = Table("Made", ["a"], [["1"]])
    outcomes = {"same": (made, ""), "losses": (None, "not finished within 60 s"), "steps": (made, "")}
    assert check.run_stages(list(outcomes), 100, tmp_path, lambda name, limit: outcomes[name]) == 1
    assert "losses: not finished within 60 s" in capsys.readouterr().out
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert list(content["tables"]) == ["same", "steps"]
    assert content["failed"] == {"losses": "not finished within 60 s"}
    assert "| 1 |" in (tmp_path / "gpu.md").read_text()


def test_stages_beyond_the_budget_are_left_out_and_named(check, capsys):
    def never(name, limit):
        raise AssertionError

    assert check.run_stages(["steps"], 0.5, None, never) == 1
    assert "steps: not begun: the budget of 0 s is used up (--only steps runs it alone)" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_sentence_says_so(check, capsys):
    assert check.main([]) == 2
    assert capsys.readouterr().err == "gpu_check: torch sees no GPU with CUDA here; run it on a machine that has one\n"
