"""Files of a run folder on its rounds: dropouts, substitutes, comparisons, links, commands."""

import csv

import numpy as np
import pytest
import torch
from matrices import seen_as_matrices

from dfl_lightning import callbacks as families
from dfl_lightning.checkpoints.io import rounds_in
from dfl_lightning.cli.command import run as command
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.runs.by_round import entries
from dfl_lightning.runs.by_round.entries import Comparisons
from dfl_lightning.runs.reading import read_run


class Witness(RoundCallback):
    """Keeps copies of what every round was."""

    def __init__(self):
        self.rounds = []

    def on_round_end(self, round):
        matrices = seen_as_matrices(round)
        seen = {name: matrices.get(name) for name in ("similarity", "substitute", "selected")}
        seen |= {"dropped": round.dropped, "threshold": round.threshold, "models": round.ledger.models.mask}
        self.rounds.append({name: None if value is None else value.clone() for name, value in seen.items()})


def pairs(columns, round, *names):
    here = columns["round"] == round
    return set(zip(*(columns[name][here].tolist() for name in names), strict=True))


def friends():
    return [families.Gossip("all"), families.Uniform(), families.FDMS(), families.Bernoulli(0.4)]


# --- dropouts and substitutes
def test_dropouts_are_the_clients_that_were_down_in_every_round(small_run):
    witness = Witness()
    run = small_run(6, callbacks=[witness], check_val_every_n_epoch=2).fit()
    kept = read_run(run.folder).dropouts
    assert sum(int(seen["dropped"].sum()) for seen in witness.rounds) > 3
    for r, seen in enumerate(witness.rounds):
        assert pairs(kept, r, "client") == {(c,) for c in torch.nonzero(seen["dropped"]).squeeze(1).tolist()}
    down = 6 - read_run(run.folder).metrics["active"]
    assert np.bincount(kept["round"], minlength=6).tolist() == down.tolist()


def test_run_without_dropouts_writes_neither_file(small_run):
    run = small_run(1, policies=[families.Gossip(2), families.Uniform()]).fit()
    assert not {"dropouts.npz", "substitutes.npz", "comparisons.npz", "commands.csv"} & {
        file.name for file in run.folder.iterdir()
    }
    assert read_run(run.folder).dropouts == read_run(run.folder).substitutes == {}


@pytest.mark.parametrize("topology", ["server", "complete"])
def test_substitutes_name_the_row_mixed_for_each_dropped_client(small_run, topology):
    witness = Witness()
    run = small_run(5, policies=friends(), callbacks=[witness], topology=topology, data={"test_fraction": 0.25}).fit()
    kept, found = read_run(run.folder).substitutes, 0
    for r, seen in enumerate(witness.rounds):
        expected = set()
        for i in range(len(seen["selected"])):
            for j in range(6):
                if seen["selected"][i, j] and seen["dropped"][j]:
                    expected.add((i, j, int(seen["substitute"][i, j])))
        assert pairs(kept, r, "receiver", "client", "substitute") == expected
        found += len(expected)
    assert found > 5


# --- comparisons
def test_comparisons_are_the_similarities_and_thresholds_of_the_evaluated_rounds(small_run):
    witness = Witness()
    run = small_run(6, callbacks=[witness], check_val_every_n_epoch=2).fit()
    kept = read_run(run.folder).comparisons
    assert kept["rounds"].tolist() == [1, 3, 5]
    for at, r in enumerate(kept["rounds"]):
        seen = witness.rounds[r]
        np.testing.assert_array_equal(kept["similarity"][at], seen["similarity"].numpy().astype(np.float32))
        np.testing.assert_array_equal(kept["threshold"][at], seen["threshold"].numpy().astype(np.float32))


def test_a_substitution_says_how_alike_it_finds_the_clients(small_run):
    run = small_run(4, policies=friends(), topology="server", data={"test_fraction": 0.25}).fit()
    kept, policy = read_run(run.folder).comparisons, run.trainer.policy(families.Substitution)
    expected = policy.scores.masked_fill(policy.counts == 0, torch.nan).numpy().astype(np.float32)
    np.testing.assert_array_equal(kept["similarity"][-1][:6, :6], expected)
    assert np.isnan(kept["similarity"][-1][6]).all()


def test_comparisons_are_left_out_on_request_and_for_many_clients(small_run, monkeypatch, tmp_path):
    run = small_run(2, keep_comparisons=False).fit()
    assert read_run(run.folder).comparisons == {}
    monkeypatch.setattr("dfl_lightning.runs.by_round.recorded.MOST_CLIENTS", 5)
    assert read_run(small_run(2, root=tmp_path / "large").fit().folder).comparisons == {}


def test_comparisons_are_thinned_and_end_the_same_after_a_resume(monkeypatch):
    monkeypatch.setattr(entries, "MOST_ROUNDS", 4)

    def add(table, numbers):
        for number in numbers:
            table.add(number, 3, np.full((2, 2), number, dtype=np.float64), None)

    whole, part = Comparisons(), Comparisons()
    for number in range(40):
        add(whole, [number])
        assert len(whole.rounds) <= 4
        assert max(whole.rounds) >= 3 * number - 40  # and they reach to the end
    add(part, range(29))
    part.rounds = {r: entry for r, entry in part.rounds.items() if r < 3 * 17}  # resumed from an earlier checkpoint
    add(part, range(17, 40))
    assert part.before()["rounds"].tolist() == whole.before()["rounds"].tolist() == [2, 50, 98]
    np.testing.assert_array_equal(part.before()["similarity"], whole.before()["similarity"])
    monkeypatch.setattr(entries, "MOST_BYTES", 40)  # room for two matrices of 2 x 2
    small = Comparisons()
    add(small, range(20))
    assert len(small.rounds) <= 2


def test_a_resumed_run_keeps_what_an_uninterrupted_one_does(small_run, tmp_path):
    whole = small_run(6, root=tmp_path / "whole").fit()
    small_run(3, root=tmp_path / "part").fit()
    (folder,) = (tmp_path / "part" / "run").iterdir()
    resumed = small_run(6, root=tmp_path / "part").fit(folder)
    assert resumed.folder == folder
    a, b = read_run(whole.folder), read_run(folder)
    for table in ("dropouts", "comparisons", "graphs"):
        ours, theirs = getattr(a, table), getattr(b, table)
        assert len(ours) == len(theirs) > 1
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name])


def test_rounds_that_are_cut_off_move_away(small_run):
    folder = small_run(6, checkpoint_every=2).fit().folder
    before = read_run(folder).dropouts
    assert (before["round"] >= rounds_in(folder / "checkpoints" / "previous.ckpt")).any()
    small_run(6).fit(folder / "checkpoints" / "previous.ckpt")
    aside = next((folder / "superseded").iterdir())
    with np.load(aside / "dropouts.npz") as kept:
        np.testing.assert_array_equal(kept["client"], before["client"])
    np.testing.assert_array_equal(read_run(folder).dropouts["client"], before["client"])


# --- links
def test_downloaded_server_models_are_not_probes(small_run):
    policies = [families.Gossip("all"), families.Uniform()]
    run = small_run(2, policies=policies, topology="server", data={"test_fraction": 0.25}).fit()
    graphs = read_run(run.folder).graphs
    assert not graphs["probed"].any()
    assert set(graphs["receiver"].tolist()) == {6}  # only the server receives from others


def test_models_of_several_servers_that_are_only_compared_are_probes(small_run):
    witness = Witness()
    servers = {"topology": {"generator": "server", "args": {"servers": 2}}, "module": {"init": "independent"}}
    policies = [families.IFCA(), families.Uniform()]
    run = small_run(2, policies=policies, callbacks=[witness], data={"test_fraction": 0.25}, **servers).fit()
    graphs = read_run(run.folder).graphs
    looked = pairs({k: v[graphs["probed"]] for k, v in graphs.items()}, 1, "receiver", "sender")
    fetched = {(i, j) for i, j in torch.nonzero(witness.rounds[1]["models"]).tolist() if i < 6}
    assert len(fetched) == 12  # both servers' models
    assert len(looked) == 6  # less the one that each client trains
    assert looked < fetched


# --- commands
def test_commands_are_kept_as_they_were_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--config", "gossip", "--data.num_clients", "4", "--model.local_epochs=1", "--trainer.max_rounds=1"]
    assert command("fit", words) == 0
    (folder,) = (tmp_path / "runs" / "gossip").iterdir()
    first = f"dfl-fit {' '.join(words)}"
    assert read_run(folder).commands == [first]
    again = ["--ckpt_path", str(folder), "--trainer.max_rounds", "2"]
    assert command("fit", again) == 0
    assert command("fit", again) == 0  # finished: it changes nothing
    with open(folder / "commands.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["round", "command"], ["0", first], ["1", f"dfl-fit {' '.join(again)}"]]
    assert command("fit", ["--ckpt_path", str(folder), "--fork", "--trainer.max_rounds", "3"]) == 0
    fork = max((tmp_path / "runs" / "gossip").iterdir())
    assert [line.count("--fork") for line in read_run(fork).commands] == [1]
