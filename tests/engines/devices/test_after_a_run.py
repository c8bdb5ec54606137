"""After a run Lightning takes a module back to the CPU; everything that can be asked of it still works, and alike."""

import pytest
import torch
from pairs import compare_pairs
from pretended import DEVICE, everything_on
from safetensors.torch import load_file

from dfl_lightning.bank.references import References
from dfl_lightning.cli.exports.export import export
from dfl_lightning.engines.jobs import Training

pytestmark = pytest.mark.cpu_bits  # one side of the comparison is the CPU


def evaluations(run):
    return [*run.module.evaluate().values()]


def scores(run):
    return [run.module.engine.evaluate(References.rows("models", torch.arange(6)), "test").losses]


def training(run):
    bank, engine, module = run.module.bank, run.module.engine, run.module
    how = Training("local", 7, module.parts.phases, module.hyperparameters)
    trained = engine.train(module.federation.start_of_training(torch.ones(6, dtype=torch.bool)), how)
    found = [trained.losses, bank.rows("trained").clone()]
    bank.abandon()
    return found


def rehearsal(run):
    bank, engine, module = run.module.bank, run.module.engine, run.module
    bank.scratch("tried")
    engine.rehearse(
        References.rows("models", torch.arange(6)), Training("local", 7, module.parts.phases, ({"lr": 0.1},)), "tried"
    )
    found = [bank.rows("tried").clone()]
    bank.abandon()
    return found


def gradients(run):
    bank, engine, module = run.module.bank, run.module.engine, run.module
    pairs = ~torch.eye(6, dtype=torch.bool)
    found = engine.gradients(
        References.rows("models", torch.arange(6)), Training("local", 7, module.parts.phases, ({"lr": 0.1},))
    )
    compared = compare_pairs(bank, found, pairs, relative_to="models")
    return [found, compared.cosines, compared.distances]


def comparisons(run):
    compared = compare_pairs(run.module.bank, "models", ~torch.eye(6, dtype=torch.bool), centre=True)
    return [compared.cosines, compared.distances]


def mixtures(run):
    bank = run.module.bank
    bank.scratch("sums")
    bank.mix([(torch.full((6, 6), 1 / 6), "models")], "sums", torch.arange(6))
    found = [bank.rows("sums").clone(), bank.squared_lengths("models", torch.arange(6))]
    bank.abandon()
    return found


def test_tables(run):
    return [
        torch.tensor(list(row.values())) for row in run.trainer.test(run.module, datamodule=run.data, verbose=False)
    ]


def validation_tables(run):
    tables = run.trainer.validate(run.module, datamodule=run.data, verbose=False)
    return [torch.tensor(list(row.values())) for row in tables]


VERBS = [evaluations, scores, training, rehearsal, gradients, comparisons, mixtures, test_tables, validation_tables]
test_tables.__test__ = False


def everything(run):
    """Return the result of each verb, each called directly after Lightning has moved the module to the CPU."""
    found = {}
    for verb in VERBS:
        run.module.cpu()
        found[verb.__name__] = [value.cpu() for value in verb(run)]
    return found


@pytest.mark.parametrize("inside", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["inside", "elsewhere"])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_all_verbs_work_after_a_fit(small_run, engine, inside):
    options = {"precision": "64-true", "rounds": 2, "engine": engine, "module": {"finetune_epochs": 1}}
    here = everything(small_run(**options).fit())
    run = small_run(**options)
    with everything_on(DEVICE):
        run.fit()
        assert run.rows.device.type == "cpu"
        there = everything(run) if inside else None
    there = everything(run) if there is None else there
    for name, values in here.items():
        for mine, its in zip(values, there[name], strict=True):
            torch.testing.assert_close(
                its, mine, rtol=1e-10, atol=1e-12, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )


OTHER = {"here": None, "there": DEVICE}


def on(device):
    return everything_on(device) if device is not None else everything_on(torch.device("cpu"))


QUICK = [("here", "there", "full"), ("there", "here", "sharded")]
WAYS = [
    (first, second, kind)
    for first, second in (("here", "there"), ("there", "here"), ("there", "there"))
    for kind in ("full", "sharded")
]


@pytest.mark.parametrize(
    ("first", "second", "checkpoints"),
    [pytest.param(*way, marks=[] if way in QUICK else pytest.mark.slow) for way in WAYS],
)
def test_a_checkpoint_of_one_device_is_resumed_on_another(small_run, tmp_path, first, second, checkpoints):
    options = {"precision": "64-true", "checkpoints": checkpoints, "checkpoint_every": 1, "run_name": "resumed"}
    whole = small_run(rounds=4, **options, root=tmp_path / "whole").fit()
    with on(OTHER[first]):
        begun = small_run(rounds=2, **options).fit()
    with on(OTHER[second]):
        resumed = small_run(rounds=4, **options).fit(begun.folder)
        its = evaluations(resumed)
    for name, rows in whole.module.bank.boundary.rows.items():
        torch.testing.assert_close(resumed.module.bank.boundary.rows[name].cpu(), rows, rtol=1e-10, atol=1e-12)
    for mine, other in zip(evaluations(whole), its, strict=True):
        torch.testing.assert_close(other, mine, rtol=1e-10, atol=1e-12, equal_nan=True)
    with on(OTHER[first]):  # and evaluated where it was begun
        again = small_run(rounds=4, **options)
        tables = again.trainer.test(again.module, datamodule=again.data, ckpt_path=resumed.folder, verbose=False)
    assert tables[0]["test_loss"] == pytest.approx(float(whole.module.evaluate()["test_loss"].mean()), rel=1e-10)


@pytest.mark.parametrize("checkpoints", ["full", "sharded"])
def test_models_of_another_device_are_exported_alike(small_run, tmp_path, checkpoints):
    files = []
    for device in (None, DEVICE):
        with on(device):
            run = small_run(rounds=1, precision="64-true", checkpoints=checkpoints, run_name=str(device)).fit()
        files.append([load_file(file) for file in export(run.folder, to=tmp_path / f"models {device}")])
    for mine, its in zip(*files, strict=True):
        for name, tensor in mine.items():
            torch.testing.assert_close(its[name], tensor, rtol=1e-6, atol=1e-7)


def test_a_fitted_run_continues_on_another_device(small_run):
    here = small_run(rounds=4, precision="64-true").fit()
    moved = small_run(rounds=2, precision="64-true")
    with everything_on(DEVICE):
        moved.fit()
    longer = small_run(rounds=4, precision="64-true")
    longer.trainer.fit(moved.module, datamodule=moved.data)
    torch.testing.assert_close(moved.rows, here.rows, rtol=1e-10, atol=1e-12)
