"""A run from Python has a config that repeats it, or that names what no text can make."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.settings import settings_section
from dfl_lightning.bench.report.settings.differences import differences
from dfl_lightning.bench.report.writing import write_report
from dfl_lightning.cli.command import run
from dfl_lightning.utils.code.constructor_arguments import arguments_of
from tests.helpers.small_run import SmallRun

RATE = functools.partial(torch.optim.SGD, lr=0.1)


class Users(cb.Gossip):
    def __init__(self, extra, *, k=2, **options):
        super().__init__(k=k, **options)
        self.extra = extra


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def fit(k, **module):
        settings = {"optimizer": RATE, "lr_scheduler": None, **module}
        policies = [cb.Gossip(k=k), cb.Uniform()]
        return SmallRun(tmp_path_factory.mktemp("runs"), 2, policies=policies, module=settings).fit()

    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return {"one": fit(1), "three": fit(3), "plain": fit(1, network=plain), "again": fit(1, network=plain)}


def test_users_class_records_its_arguments():
    assert arguments_of(Users(5, within=None)) == {"extra": 5, "k": 2, "within": None}
    assert arguments_of(cb.Uniform()) == {"server_step": 1.0}
    assert arguments_of(nn.Linear(2, 2)) is None


def test_config_repeats_a_run_from_python(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = runs["three"]
    config = read_run(first.folder).config
    assert config["selection"]["init_args"]["k"] == 3
    assert config["model"]["optimizer"]["init_args"]["lr"] == 0.1
    assert run("fit", [f"--config={first.folder}/config.yaml", f"--trainer.default_root_dir={tmp_path}/again"]) == 0
    folder = next((tmp_path / "again").rglob("metrics.csv")).parent
    mine, theirs = read_run(first.folder), read_run(folder)
    for name in ("train_loss", "test_acc", "test_loss", "bytes_received"):
        assert np.array_equal(mine.metrics[name], theirs.metrics[name], equal_nan=True)
    assert np.array_equal(mine.clients["test_loss"], theirs.clients["test_loss"])


def test_runs_of_other_settings_are_two_methods(runs):
    methods = find_methods([read_run(runs[name].folder) for name in ("one", "three")])
    assert len(methods) == 2
    assert differences(methods) == {"selection.k": ["1", "3"]}


def test_unknown_arguments_are_never_merged(runs):
    methods = find_methods([read_run(runs[name].folder) for name in ("plain", "again")])
    assert len(methods) == 2
    assert len({method.name for method in methods}) == 2


def test_a_page_says_which_runs_their_config_repeats(runs, tmp_path):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    page = write_report([runs[name].folder for name in ("plain", "again")], to=tmp_path / "page.html").read_text()
    assert "(repeats it)" not in page
    assert (
        page.count("from Python, with objects that no config makes") == 4
    )  # next to the buttons of both, and their runs
    assert "(repeats it)" in write_report([runs["one"].folder], to=tmp_path / "page.html").read_text()


@pytest.mark.parametrize("names", [("plain", "again"), ("one", "three")])
def test_settings_are_called_equal_only_if_all_are_known(runs, names):
    methods = find_methods([read_run(runs[name].folder) for name in names])
    said = settings_section(methods)
    assert "all settings are the same" not in said
    assert ("all known settings are the same" in said) == (not differences(methods))


def test_config_with_unwritable_values_is_refused_by_name(runs, capsys):
    assert run("fit", [f"--config={runs['plain'].folder}/config.yaml"]) == 2
    assert "cannot make model.network (Sequential" in capsys.readouterr().err


@pytest.fixture
def fit(tmp_path):
    def fit(policies, **options):
        settings = {"optimizer": RATE, "lr_scheduler": None}
        return SmallRun(tmp_path, 1, policies=policies, module=settings, **options)

    return fit


def test_attributes_assigned_after_construction_are_in_the_config(fit):
    policy = cb.Gossip(k=1)
    policy.k = 3
    assigned = fit([policy, cb.Uniform()])
    assigned.module.local_epochs = 2
    assigned.fit()
    config = read_run(assigned.folder).config
    assert config["selection"]["init_args"]["k"] == 3
    assert config["model"]["local_epochs"] == 2
    assert "unknown" not in config


class Renamed(cb.Gossip):
    def __init__(self, neighbours=2):
        super().__init__(k=neighbours)


def test_an_assigned_attribute_that_no_argument_sets_is_unknown(fit):
    policy = Renamed()
    policy.k = 3
    config = read_run(fit([policy, cb.Uniform()]).fit().folder).config
    assert config["unknown"]["selection"].endswith("assigned: k = 3")


def test_second_fit_records_its_number_of_rounds_and_same_settings(fit):
    run = fit([cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()]).fit()
    before = read_run(run.folder).config
    run.trainer.fit_loop.max_epochs = 2
    run.fit()
    after = read_run(run.folder).config
    assert (before["trainer"].pop("max_rounds"), after["trainer"].pop("max_rounds")) == (1, 2)
    assert after == before
