import functools
import json
import math

import numpy as np
import pytest
import torch
from game.parts import Network, Toy
from game.play import Case, Game

from dfl_lightning import callbacks as cb
from dfl_lightning import trainer_callbacks
from dfl_lightning.bench.report import over_seeds
from dfl_lightning.evaluation import reported_models
from dfl_lightning.module import DFLModule
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.runs.reading import read_run
from dfl_lightning.runs.summary import final_table
from dfl_lightning.terminal.per_client import per_client_table
from dfl_lightning.trainer import DFLTrainer
from dfl_lightning.utils.errors import UserError


class Huge(RoundCallback):
    """After the training, client 1's model is so large that its scores overflow; it is made of numbers all the same."""

    def on_trained(self, round):
        round.bank.rows("trained")[1] = 1e30


BY_LOSS = {
    "pens": ["uniform"],
    "panm, losses": ["uniform"],
    "dpfl": ["uniform"],
    "dpfl, always among all": ["by samples"],
    "dpfl as printed": ["uniform"],
    "federico": ["by scores"],
    "all neighbours": ["boltzmann", "boltzmann of own losses"],
    "afind": ["boltzmann"],
}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(("selection", "aggregation"), [(s, a) for s, found in BY_LOSS.items() for a in found])
def test_policies_with_losses_do_not_mix_nonfinite_models(selection, aggregation, engine):
    sizes = [5, 4, 6, 3, 2, 4]
    case = Case(sizes, [2] * 6, [1] * 6, "complete", selection=selection, aggregation=aggregation, engine=engine)
    game = Game(case, extra=[Huge()])
    for _ in range(2):  # PENS and PANM: of stage one
        round = game.protocol.begin()
        game.protocol.train(round)
        game.protocol.mix(round)
        game.protocol.commit(round)
        game.bank.boundary = game.bank.boundary._replace(closed=True)
        others = torch.arange(6) != 1
        weights = round.voters.dense(round.weights, 0.0)
        assert (weights[others, 1] == 0).all()
        assert (weights[others].sum(1) - 1).abs().max() < 1e-6
        assert game.models[others].abs().max() < 1e3
        rows = game.models.clone()
        rows[1] = rows[0]  # a client that trained from such a model would diverge and not be compared
        game.bank.boundary = game.bank.boundary._replace(rows={**game.bank.boundary.rows, "models": rows})


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_nonfinite_losses_are_infinite_and_reported_without_accuracy(engine, number):
    game = Game(Case([3, 3], [1, 1], [2, 0], "complete", engine=engine))
    game.models[0] = number
    game.module.federation.data.labels.zero_()  # the first NaN is what argmax takes for the largest number
    game.module.finetune_epochs = 0
    found = game.module.engine.evaluate(reported_models(game.module), "test")
    assert found.losses[0] == math.inf
    assert found.metrics["acc"][0] == 0
    with pytest.warns(
        UserWarning, match="^after 0 rounds: the loss of the model of client 0 is not finite on the val "
    ):
        results = game.module.evaluate()
    assert results["test_loss"].tolist()[0] == math.inf
    assert math.isnan(results["test_loss"][1])  # no data
    assert results["test_acc"].isnan().all()
    game.module.evaluate()  # says it once: warnings are errors


class HugeAfter(RoundCallback):
    """At the end of one round client 1 has a model that is too large for its scores."""

    def on_round_end(self, round):
        if round.index == 1:
            round.bank.next_rows()["models"][1] = 3e38


@pytest.mark.filterwarnings("ignore:round 3. training of client 1 diverged")
def test_tables_give_models_with_nonfinite_loss_no_accuracy(tmp_path, monkeypatch):
    real = trainer_callbacks.completed
    monkeypatch.setattr(trainer_callbacks, "completed", lambda own, *a, **k: real([*own, HugeAfter()], *a, **k))
    with pytest.warns(
        UserWarning, match="^after 2 rounds: the loss of the model of client 1 is not finite on the val "
    ):
        trainer = fit(tmp_path, Toy([4, 4, 4, 4], [1] * 4, [2, 2, 2, 0]))
    run = trainer.run
    assert run.clients["test_acc"][:, 1].tolist()[1:] == [pytest.approx(math.nan, nan_ok=True)] * 2
    assert np.isfinite(run.clients["test_acc"][:, [0, 2]]).all()
    assert np.isfinite(run.clients["test_acc"][0, 1])
    for name in ("test_acc", "test_acc_std", "test_acc_worst10"):
        assert np.isnan(run.metrics[name]).tolist() == [False, True, True], name
    assert run.metrics["test_loss"].tolist()[1:] == [math.inf] * 2
    accuracy = run.summary["test_accuracy"]
    assert [accuracy[name] for name in ("mean", "std", "worst10", "acc_last")] == [None] * 4
    assert accuracy["acc_best_round"] == pytest.approx(run.metrics["test_acc"][0])
    assert accuracy["not_finite"] == {"1": 2}
    lines = final_table(run.summary)
    assert any("test accuracy unknown: not every loss and accuracy of the last evaluation is" in line for line in lines)
    assert "the loss or accuracy on test data was not finite: client 1 in 2 evaluations" in lines
    (mean,) = (line for line in per_client_table(trainer.lightning_module) if line.startswith("mean"))
    assert mean.split()[-1] == "nan"
    read = read_run(run.path)
    assert math.isnan(over_seeds.last_score(read))
    assert math.isnan(over_seeds.worst_tenth(read))
    assert math.isnan(over_seeds.over_runs(over_seeds.last_score, [read]).mean)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_divergence_in_fine_tuning_reports_the_model_before_it(engine):
    topology = {"generator": "server"}
    game = Game(Case([4, 4, 4], [0] * 3, [3] * 3, topology, engine=engine, poisoned={3: {1: float("nan")}}))
    game.play(rounds=1)
    game.module.finetune_epochs = 0
    plain = game.module.evaluate()["test_loss"]
    game.module.finetune_epochs = 1
    game.module.federation.data.images[game.module.federation.data.train[1]] = float("nan")
    with pytest.warns(
        UserWarning, match=r"^after round 1: fine-tuning of client 1 diverged; it is judged without fine-tuning$"
    ):
        tuned = game.module.evaluate()["test_loss"]
    assert tuned[1] == plain[1]
    assert (tuned != plain).tolist() == [True, False, True]
    game.module.on_divergence = "stop"
    with pytest.raises(
        UserError, match=r"^after round 1: fine-tuning of client 1 diverged .*; lower model\.optimizer\.lr"
    ):
        game.module.evaluate()


def fit(folder, data, rounds=3, checkpoint=None, **module):
    """A run with all its files."""
    trainer = DFLTrainer(
        max_rounds=rounds,
        callbacks=[cb.Gossip(k="all"), cb.Uniform()],
        accelerator="cpu",
        enable_progress_bar=False,
        checkpoint_every=1,
        default_root_dir=folder,
    )
    optimizer = functools.partial(torch.optim.SGD, lr=0.1)
    model = DFLModule(Network(), local_epochs=1, batch_size=3, optimizer=optimizer, **module)
    data.save_split = lambda path: None  # nothing was split
    data.describe = lambda: "toy data"
    data.fingerprint = lambda: {}
    trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
    return trainer


class BreaksIn(RoundCallback):
    """A callback that makes a client's data NaN from one round on."""

    def __init__(self, first, client):
        self.first, self.client = first, client

    def on_dropout(self, round):
        if round.index >= self.first:
            round.federation.data.images[round.federation.data.train[self.client]] = math.nan


def breaking(monkeypatch, first, client):
    real = trainer_callbacks.completed
    monkeypatch.setattr(
        trainer_callbacks, "completed", lambda own, *a, **k: real([*own, BreaksIn(first, client)], *a, **k)
    )


def test_the_run_folder_lists_diverged_clients_by_round(tmp_path, monkeypatch, capsys):
    breaking(monkeypatch, 1, 2)
    with pytest.warns(UserWarning, match=r"^round 2: training of client 2 diverged; excluded from this round ") as said:
        trainer = fit(tmp_path, Toy([4, 4, 4], [1] * 3, [2] * 3))
    assert len(said) == 1
    run = trainer.run
    assert run.metrics["diverged"].tolist()[1:] == [1, 1]
    with np.load(run.path / "diverged.npz", allow_pickle=False) as arrays:
        assert {name: arrays[name].tolist() for name in arrays.files} == {"round": [1, 2], "client": [2, 2]}
    assert run.summary["diverged"] == {"2": 2}
    assert "training diverged: client 2 in 2 of 3 rounds" in final_table(run.summary)


def test_a_run_without_divergence_reports_none(tmp_path):
    trainer = fit(tmp_path, Toy([4, 4], [1] * 2, [2] * 2), rounds=1)
    assert trainer.run.summary["diverged"] == {}
    assert not (trainer.run.path / "diverged.npz").exists()
    assert not any("diverged" in line for line in final_table(trainer.run.summary))


def test_a_resumed_run_forgets_what_diverged_after_its_checkpoint(tmp_path, monkeypatch):
    breaking(monkeypatch, 0, 2)
    with pytest.warns(UserWarning, match="^round 1: training of client 2"):
        former = fit(tmp_path, Toy([4, 4, 4], [1] * 3, [2] * 3))
    previous = former.run.path / "checkpoints" / "previous.ckpt"
    with pytest.warns(UserWarning, match="^round 3: training of client 2"):
        later = fit(tmp_path, Toy([4, 4, 4], [1] * 3, [2] * 3), checkpoint=previous)
    assert later.run.path == former.run.path
    assert later.run.diverged["round"].tolist() == [0, 1, 2]
    (aside,) = (later.run.path / "superseded").iterdir()
    assert (aside / "diverged.npz").is_file()


def test_stopping_on_divergence_keeps_the_rounds_before(tmp_path, monkeypatch):
    breaking(monkeypatch, 2, 1)
    with pytest.raises(UserError, match=r"^round 3: training of client 1 diverged .*lower model\.optimizer\.lr"):
        fit(tmp_path, Toy([4, 4], [1] * 2, [2] * 2), on_divergence="stop")
    (folder,) = (tmp_path / "run").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["reason"].startswith("round 3: training of client 1 diverged")
    monkeypatch.undo()
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    healthy = Toy([4, 4], [1] * 2, [2] * 2)
    trainer = fit(tmp_path, healthy, checkpoint=folder / "checkpoints" / "last.ckpt", on_divergence="stop")
    assert trainer.run.path == folder
    assert trainer.run.metrics["round"].tolist() == [0, 1, 2]
    assert trainer.run.summary["status"] == "finished"
