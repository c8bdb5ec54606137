"""Output of a run in the terminal: banner, progress, final table, the table of an evaluation."""

import functools
import io
import re

import numpy as np
import pytest
import torch
from rich.console import Console
from small_run import SmallRun

from dfl_lightning import callbacks as families
from dfl_lightning.objectives import FedRep
from dfl_lightning.runs.summary import describe_engine, final_table
from dfl_lightning.terminal import progress
from dfl_lightning.terminal.banner import banner
from dfl_lightning.terminal.explain import explain
from dfl_lightning.terminal.per_client import per_client_table
from dfl_lightning.utils.memory import size


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Finish a run of six clients that drop out at times, with validation and test data."""
    return make(tmp_path_factory.mktemp("run"))


def make(root, rounds=4, policies=None, test_fraction=0.25, **module):
    module = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "lr_scheduler": None, **module}
    monitors, data = [families.NeighbourAccuracy()], {"test_fraction": test_fraction}
    made = SmallRun(root, rounds, monitors, policies, module, data, defaults=True).fit()
    return made.trainer, made.module


def numbers(line):
    return [float(word.replace(",", "")) for word in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", line)]


# --- the final table --------------------------------------------------------------------------------------------------
def test_the_table_can_be_recomputed_from_the_files(run):
    trainer, _ = run
    metrics, clients = trainer.run.metrics, trainer.run.clients
    head, row, found = final_table(trainer.run.summary)
    assert head.split() == ["mean", "std", "worst", "10", "%", "neighbours", "received", "per", "client"]
    last = clients["test_acc"][-1]
    mean, std, worst, neighbours, amount, models, proxies = numbers(row)
    assert mean == pytest.approx(100 * last.mean(), abs=0.051)
    assert std == pytest.approx(100 * last.std(), abs=0.051)
    assert worst == pytest.approx(100 * np.sort(last)[0], abs=0.051)  # a tenth of six clients is one
    assert (mean, std, worst) == pytest.approx(
        [100 * metrics[f"test_acc{suffix}"][-1] for suffix in ("", "_std", "_worst10")], abs=0.051
    )
    assert neighbours == pytest.approx(np.nanmean(metrics["neighbours"]), abs=0.05)
    received = metrics["bytes_received"].sum()
    assert size(received) in row
    assert amount == pytest.approx(received / 1000, abs=0.05)
    assert models == round(metrics["models_received"].sum())
    assert proxies == round(metrics["proxies_received"].sum())
    precision, recall = metrics["neighbour_precision"], metrics["neighbour_recall"]
    assert numbers(found) == pytest.approx(
        [100 * precision[~np.isnan(precision)][-1], 100 * recall[~np.isnan(recall)][-1]], abs=0.051
    )


def test_table_heads_align_with_their_numbers(run):
    head, row, *_ = final_table(run[0].run.summary)
    for word in ("mean", "std", "worst 10 %", "neighbours"):
        end = head.index(word) + len(word)
        assert row[end - 1] in "0123456789%"
        assert row[end] == " "


def test_bytes_received_count_models_and_proxies(run):
    trainer, module = run
    metrics = trainer.run.metrics
    layer = 8 * 65  # the hidden layer with its bias
    expected = 4 * (
        metrics["models_received"] * module.federation.layout.num_parameters + metrics["proxies_received"] * layer
    )
    assert metrics["bytes_received"] == pytest.approx(expected)


def test_without_test_data_the_table_says_so(tmp_path):
    trainer, _ = make(tmp_path, rounds=1, test_fraction=0.0)
    (line, *_) = final_table(trainer.run.summary)
    assert line.startswith("test accuracy unknown: no round was evaluated on test data · received per client: ")
    assert final_table(make(tmp_path, rounds=0)[0].run.summary)[0].startswith("test accuracy unknown")


def test_table_does_not_call_a_tested_server_untested(run):
    of_server = {"global_last": 0.875, "global_mean_over_rounds": 0.8}
    first, second, *_ = final_table({**run[0].run.summary, "metrics": {}, "test_accuracy": of_server})
    assert first.startswith("test accuracy unknown: no client has test data · received per client: ")
    assert second.startswith("global model on the global test set: 87.5 % ")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 kB"),
        (1000, "1.0 kB"),
        (999_940, "999.9 kB"),
        (999_960, "1.0 MB"),
        (14_400_000, "14.4 MB"),
        (2.5e9, "2.5 GB"),
        (7.0e15, "7000.0 TB"),
    ],
)
def test_a_size_has_at_most_three_digits_before_the_point(number, text):
    assert size(number) == text


# --- the banner -------------------------------------------------------------------------------------------------------
def test_the_banner_says_what_runs(run):
    first, training, second = banner(*run)
    assert first == (
        "AFIND + AdaptiveThreshold + Boltzmann + Bernoulli · 6 clients · MLP (610 parameters each) · "
        "Digits, RotatedClusters{0,90}: 24 train / 6 validation / 10 test images a client"
    )
    assert training == "objective Plain · SGD (lr 0.1) · 1 epoch a round in batches of 16 · no fine-tuning"
    assert second.startswith("complete graph: 6 nodes, 15 links, connected, spectral gap 1.2 · engine: ")
    assert re.search(r"engine: stacked, \d+ threads?, 2 cohorts, [\d.]+ kB · seed 0$", second)


def test_banner_names_shared_parameters_and_ignored_policies(tmp_path):
    policies = [families.Gossip(k=2), families.AdaptiveThreshold(), families.Uniform()]
    trainer, module = make(tmp_path, rounds=1, policies=policies, shared=["features.*"])
    trainer.remarks.append("something that the user should know")
    first, _, _, *notes = banner(trainer, module)
    assert first.startswith("Gossip + Uniform · ")
    assert "610 parameters each, 520 shared" in first
    assert notes == [
        "note: something that the user should know",
        "note: AdaptiveThreshold has no effect in this run and is ignored: no policy reads what it writes",
    ]


def test_the_banner_names_training_beyond_the_local_work(small_run):
    module = {"objective": FedRep(head_epochs=3), "shared": ["features.*"], "finetune_epochs": 2}
    run = small_run(rounds=1, policies=[families.DPFL(budget=1), families.SampleWeighted()], module=module)
    run.trainer.prepare(run.module, run.data)
    _, training, _, of_selection, *_ = banner(run.trainer, run.module)
    assert training == (
        "objective FedRep · SGD (lr 0.1, momentum 0.9) with StepLR · 1 epoch a round (round 0: 3 epochs and 1 epoch) "
        "in batches of 16 · 2 epochs of fine-tuning"
    )
    assert of_selection == "DPFL: clients train for 10 epochs in round 0"


def test_explain_counts_the_work_of_a_round(small_run):
    run = small_run(rounds=6)
    lines = explain(run.trainer, run.module, run.data)
    steps = sum(-(-int(n) // 16) for n in run.data.clients.sizes("train"))
    assert f"local work of a round: 1 epoch, {steps} optimizer steps, 144 samples over all clients" in lines
    assert "rounds: 6, evaluated 6 times" in lines
    assert run.module.bank.boundary.round == 0


def test_what_the_engine_decided_is_reported(small_run, monkeypatch):
    run = small_run(rounds=1)
    explain(run.trainer, run.module, run.data)
    engine = run.module.engine
    assert not {"unfolded", "graphs"} & set(describe_engine(run.module))
    monkeypatch.setattr(run.trainer, "prepare", lambda module, data: None)  # which would make another engine
    engine.details = {"unfolded": ["features.0", "features.3"], "graphs": "not recorded: the augmentation draws here"}
    (line,) = (line for line in explain(run.trainer, run.module, run.data) if line.startswith("engine: "))
    assert "; unfolded: features.0, features.3; graphs: not recorded" in line
    assert describe_engine(run.module)["unfolded"] == ["features.0", "features.3"]
    assert "note: cuda_graphs: steps are not recorded: the augmentation draws here" in banner(run.trainer, run.module)
    engine.details = {"evaluation": "all samples of a client in one batch"}
    assert "note: evaluation takes all samples of a client in one batch" in banner(run.trainer, run.module)


FIELDS = r"\d:\d\d left · [\d.e-]+ s/round · val acc \d+\.\d % · test acc \d+\.\d % · neighbours \d\.\d"


# --- progress ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rounds", "said"), [(3, [1, 2, 3]), (25, [*range(2, 25, 2), 25])])
def test_without_a_terminal_there_are_about_ten_plain_lines(small_run, capsys, monkeypatch, rounds, said):
    monkeypatch.setattr(progress, "Console", lambda: Console(file=io.StringIO()))
    run = small_run(rounds=rounds, enable_progress_bar=True, policies=[families.Gossip(k=1), families.Uniform()])
    run.fit()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    assert [int(line.split()[1].split("/")[0]) for line in lines] == said
    assert all(re.fullmatch(rf"round \d+/\d+ · {FIELDS}", line) for line in lines)


def test_bar_shows_round_pace_accuracy_neighbours_and_cohorts(small_run, capsys, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda: Console(file=screen, force_terminal=True, width=200))
    run = small_run(rounds=3, enable_progress_bar=True)
    run.fit()
    shown = [
        line for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", screen.getvalue())) if line.strip()
    ]
    assert shown[0].startswith("Round 0/3 ━")
    assert any(re.search(r"Round 0/3 ━+ cohorts 1/\d", line) for line in shown), "the first round shows its cohorts"
    assert any(re.search(rf"Round 2/3 ━+.* {FIELDS}( · \d active)? · cohorts \d/\d", line) for line in shown)
    assert re.search(rf"Round 3/3 ━+ {FIELDS}", shown[-1])
    out = capsys.readouterr().out
    assert "round 1/3" not in out, "no plain lines next to the bar"
    assert f"run: {run.folder}" in out


def test_the_accuracy_shown_is_the_last_evaluations(small_run, capsys, monkeypatch):
    monkeypatch.setattr(progress, "Console", lambda: Console(file=io.StringIO()))
    run = small_run(rounds=3, enable_progress_bar=True).fit()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    shown = [re.search(r"test acc (\d+\.\d) %", line).group(1) for line in lines]
    assert shown == [f"{100 * value:.1f}" for value in run.trainer.run.metrics["test_acc"]]


def test_progress_lines_count_the_active_clients(small_run, capsys, monkeypatch):
    monkeypatch.setattr(progress, "Console", lambda: Console(file=io.StringIO()))
    policies = [families.Gossip(k=1), families.Uniform(), families.ExactCount(0.5)]
    small_run(rounds=2, enable_progress_bar=True, policies=policies).fit()
    assert capsys.readouterr().out.count(" · 3 active") == 2


def test_bar_restores_the_terminal_when_a_run_fails(small_run, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda: Console(file=screen, force_terminal=True, width=200))

    class Breaks(families.Monitor):
        def on_round_end(self, round):
            raise RuntimeError("oh")

    run = small_run(rounds=2, enable_progress_bar=True, callbacks=[Breaks()])
    with pytest.raises(RuntimeError, match="oh"):
        run.fit()
    written = screen.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l"), "the cursor is shown again"


# --- the table of an evaluation ---------------------------------------------------------------------------------------
def test_client_table_has_each_clients_numbers_and_a_summary(run):
    trainer, module = run
    clients = trainer.run.clients
    title, head, *rows = per_client_table(module)
    assert title == "after round 4"
    names = head.split()[1:]
    assert names == ["val_loss", "val_acc", "test_loss", "test_acc"]
    for client in range(6):
        assert numbers(rows[client]) == pytest.approx([client, *(clients[n][-1, client] for n in names)], abs=5e-5)
    assert numbers(rows[6]) == pytest.approx([clients[n][-1].mean() for n in names], abs=5e-5)
    assert numbers(rows[7]) == pytest.approx([clients[n][-1].std() for n in names], abs=5e-5)
    assert numbers(rows[8])[1] == pytest.approx(clients["test_acc"][-1].min(), abs=5e-5)


@pytest.mark.parametrize(("wide", "least"), [(200, 5), (80, 2), (20, 0)])
def test_narrow_terminal_keeps_bar_and_round_and_drops_last_items(small_run, monkeypatch, wide, least):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=wide, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda: console)
    small_run(rounds=12, enable_progress_bar=True, data={"val_fraction": 0.2}).fit()
    lines = [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]+", shown.getvalue())]
    lines = [line.rstrip() for line in lines if line.strip()]
    assert all(line.startswith("Round ") and len(line) <= wide for line in lines)
    (last,) = {line for line in lines if line.startswith("Round 12/12")} & {lines[-1]}
    assert "━" in last
    items = ["left", "s/round", "val acc", "test acc", "neighbours"]
    there = [item in last for item in items]
    assert there == sorted(there, reverse=True)
    assert sum(there) >= least
