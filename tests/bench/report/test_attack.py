"""Runs under attack: means are over honest clients, adversaries stand apart, and the attack is named."""

import numpy as np
import pytest
import torch

from dfl_lightning import callbacks as cb
from dfl_lightning import read_run
from dfl_lightning.bench.report.attack import attack_of, under_attack
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.over_seeds import last_score, worst_tenth
from dfl_lightning.callbacks.base import honest_clients
from dfl_lightning.data.partitions import IID, FlippedLabels
from dfl_lightning.runs.summary import final_table


@pytest.fixture(scope="module", params=["messages", "colluding", "labels", "both"])
def attacked(request, read_only_run):
    """Return a run of six clients under attack, its adversaries, and the attack's name."""
    flipped = {"data": {"partition": FlippedLabels(fraction=0.34, base=IID())}}
    policies, options, by = {
        "messages": ([cb.SignFlip(clients=[1, 4])], {}, ["SignFlip"]),
        "colluding": ([cb.ALittleIsEnough(clients=[0, 5])], {}, ["ALittleIsEnough"]),
        "labels": ([], flipped, ["falsified labels"]),
        "both": ([cb.NoiseAttack(clients=[3])], flipped, ["NoiseAttack", "falsified labels"]),
    }[request.param]
    run = read_only_run(2, callbacks=[*policies, cb.Fairness()], **options).fit()
    labels = run.module.federation.data.adversaries
    who = np.zeros(6, dtype=bool) if labels is None else labels.numpy().copy()
    who[{"messages": [1, 4], "colluding": [0, 5], "both": [3]}.get(request.param, [])] = True
    return run, who, by


def test_every_mean_is_over_honest_clients(attacked):
    run, who, by = attacked
    assert 0 < who.sum() < 6
    scores, metrics = run.trainer.run.clients["test_acc"], run.trainer.run.metrics
    expected, adversaries = scores[:, ~who].mean(1), scores[:, who].mean(1)
    assert metrics["test_acc"] == pytest.approx(expected, rel=1e-12)
    assert metrics["test_acc_std"] == pytest.approx(scores[:, ~who].std(1), rel=1e-12)
    assert metrics["test_acc_worst10"] == pytest.approx(scores[:, ~who].min(1), rel=1e-12)
    assert metrics["test_acc_variance"] == pytest.approx(scores[:, ~who].var(1), rel=1e-9)
    assert metrics["test_acc_adversaries"] == pytest.approx(adversaries, rel=1e-12)
    assert metrics["test_loss"] == pytest.approx(run.trainer.run.clients["test_loss"][:, ~who].mean(1), rel=1e-12)
    assert float(run.trainer.callback_metrics["test_acc"]) == pytest.approx(expected[-1], rel=1e-12)
    summary = run.trainer.run.summary
    numbers = summary["test_accuracy"]
    assert [numbers[name] for name in ("acc_last", "mean")] == pytest.approx([expected[-1]] * 2, rel=1e-12)
    assert numbers["acc_best_round"] == pytest.approx(expected.max(), rel=1e-12)
    assert numbers["acc_best_per_client"] == pytest.approx(scores[:, ~who].max(0).mean(), rel=1e-12)
    assert numbers["adversaries"]["mean"] == pytest.approx(adversaries[-1], rel=1e-12)
    assert summary["attack"] == {"by": by, "clients": np.flatnonzero(who).tolist()}


def test_a_page_reads_the_same_means_and_names_the_attack(attacked):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    from dfl_lightning.bench.report.page.assemble import page

    run, who, by = attacked
    folder = read_run(run.folder)
    last = run.trainer.run.clients["test_acc"][-1]
    assert last_score(folder) == pytest.approx(last[~who].mean(), rel=1e-12)
    assert worst_tenth(folder) == pytest.approx(last[~who].min(), rel=1e-12)
    words = f"{' and '.join(by)}, {who.sum()} of 6 clients"
    assert attack_of(folder) == words
    theirs = f"{100 * last[who].mean():.1f}"
    (line,) = [line for line in final_table(run.trainer.run.summary) if line.startswith("under attack")]
    assert line == f"under attack ({words}): scores are over the honest clients; adversaries have {theirs} %"
    if by != ["SignFlip"]:
        return  # one page of them is enough
    text = page(find_methods([folder]))
    lead = text[text.index("<h1>") : text.index("<section")]
    assert f"under attack ({words})</h1>" in lead
    assert f"Under attack ({words}), honest clients: " in lead
    assert "<th scope='row'>adversaries of " in text
    assert f"</th><td><b>{theirs}</b></td>" in text


def test_a_run_without_adversaries_is_over_all_clients(small_run):
    run = small_run(1).fit()
    assert honest_clients(run.module.federation) is None
    assert "attack" not in run.trainer.run.summary
    assert "test_acc_adversaries" not in run.trainer.run.metrics


def test_means_are_over_all_clients_if_none_is_honest(small_run):
    run = small_run(1, callbacks=[cb.SignFlip(fraction=1.0)]).fit()
    folder, last = read_run(run.folder), run.trainer.run.clients["test_acc"][-1]
    assert run.trainer.run.summary["test_accuracy"]["mean"] == pytest.approx(last.mean(), rel=1e-12)
    assert last_score(folder) == pytest.approx(last.mean(), rel=1e-12)
    assert final_table(run.trainer.run.summary)[-1].endswith("(SignFlip, 6 of 6 clients): no client is honest")


def test_infinite_loss_of_an_adversary_does_not_change_the_mean():
    from dfl_lightning.runs.summary import _of_score
    from dfl_lightning.utils.score import Score

    clients = {
        "rounds": np.array([0]),
        "test_loss": np.array([[0.5, np.inf, 0.5]]),
        "test_acc": np.array([[0.75, np.nan, 0.25]]),
    }
    found = _of_score(Score(), {"global_test_acc": np.array([np.nan])}, clients, torch.tensor([True, False, True]))
    assert found["mean"] == 0.5
    assert np.isnan(found["adversaries"]["mean"])
    assert "not_finite" not in found


def test_methods_under_different_attacks_are_distinguished(tmp_path, make_run):
    marks = {"A": [1, 0, 0, 0], "B": None}
    runs = [
        make_run(tmp_path / name, [[0.5] * 4], adversaries=who, config={"selection": {"class_path": name}})
        for name, who in marks.items()
    ]
    found = under_attack(find_methods([read_run(folder) for folder in runs]))
    assert found == "attacks differ (A under falsified labels, 1 of 4 clients; B without one)"
