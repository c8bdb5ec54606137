"""Metrics of whole runs: a study of five hospitals by hand, loggers, errors of one client, and two processes."""

import csv
import re
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import yaml
from cells_here import in_this_process
from hospitals import write_patients
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from torchmetrics import Metric
from torchmetrics.classification import MulticlassRecall

from dfl_lightning import UserError, data, read_run
from dfl_lightning.bench.report.methods import as_methods
from dfl_lightning.bench.report.page.sentences.undefined import about_metrics
from dfl_lightning.bench.report.writing import write_report
from dfl_lightning.bench.study.command import main
from dfl_lightning.cli import command as cli

STUDY = """\
name: hospitals
base:
  trainer: {max_rounds: 3, accelerator: cpu, enable_progress_bar: false}
  model: {network: {class_path: MLP, init_args: {hidden: [3]}}, local_epochs: 2, metrics: [auroc, balanced_accuracy]}
  data:
    class_path: Vectors
    init_args: {file: patients.csv, target: readmitted, client: hospital, classes: true, num_clients: 5,
                val_fraction: 0.2, test_fraction: 0.3, dates: [admitted], date_format: "%d.%m.%Y", decimal: ",",
                missing: indicator, drop: ["column 1", ward]}
rows:
  Local: {selection: {class_path: Gossip, init_args: {k: 0}}}
  Gossip: {selection: {class_path: Gossip, init_args: {k: 2}}}
  AFIND+: {selection: AFIND, threshold: AdaptiveThreshold, aggregation: Boltzmann}
  DPFL: {selection: {class_path: DPFL, init_args: {budget: 2, initial_epochs: 2}}, aggregation: Uniform}
columns:
  hospitals: {}
seeds: [0]
number: {column: test_auroc}
"""


def write_hospitals(folder):
    """Four hospitals with both classes, which depend on two measurements, and one where no patient is ill."""
    rng = np.random.default_rng(0)
    rows = []
    for hospital in "ABCDE":
        for age, sugar, noise in rng.normal(size=(40, 3)):
            ill = "yes" if age + sugar + noise > 0 and hospital != "E" else "no"
            rows.append([hospital, round(age, 3), round(sugar, 3), ill])
    with open(folder / "hospitals.csv", "w", newline="") as file:
        csv.writer(file).writerows([["hospital", "age", "sugar", "ill"], *rows])


def by_hand(run, split):
    """AUROC and balanced accuracy of each client: two matrix products with its saved model, and scikit-learn."""
    options = yaml.safe_load(STUDY)["base"]["data"]["init_args"]
    table = data.Vectors(**options, split=str(run.path / "split.npz"))
    table.prepare_data()
    table.setup()
    state = torch.load(run.path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    rows = state.get("bank.rows.best", state["bank.rows.models"]).double().numpy()
    found = {"auroc": [], "balanced_accuracy": []}
    for client, row in enumerate(rows):
        x, y = (tensor.double().numpy() for tensor in table.clients.batch(getattr(table.clients, split)[client]))
        first, bias, second, last = np.split(row, [15, 18, 24])  # age, weight, date, and what was missing of the latter
        scores = np.maximum(x @ first.reshape(3, 5).T + bias, 0) @ second.reshape(2, 3).T + last
        found["auroc"].append(sk.roc_auc_score(y, scores[:, 1] - scores[:, 0]) if len(set(y)) > 1 else np.nan)
        right = scores.argmax(1) == y
        found["balanced_accuracy"].append(np.mean([right[y == kind].mean() for kind in set(y)]))
    return found


def test_a_study_of_hospitals_has_the_means_of_scikit_learn(tmp_path, monkeypatch, capsys):
    """The table is one as it comes out of a spreadsheet; see `tests/data/test_hospitals.py`."""
    monkeypatch.chdir(tmp_path)
    write_patients(tmp_path / "patients.csv")
    (tmp_path / "study.yaml").write_text(STUDY)
    with in_this_process():
        assert main(["run", "study.yaml"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["table", "study.yaml"]) == 0
    table = capsys.readouterr().out
    folders = [path.parent for path in tmp_path.rglob("summary.json")]
    assert len(folders) == 4
    means = set()
    for run in map(read_run, folders):
        for split in ("val", "test"):
            for name, values in by_hand(run, split).items():
                assert run.clients[f"{split}_{name}"][-1] == pytest.approx(values, abs=1e-6, nan_ok=True)
                assert run.metrics[f"{split}_{name}"][-1] == pytest.approx(np.nanmean(values), abs=1e-6)
                assert run.metrics[f"{split}_{name}_undefined"][-1] == np.isnan(values).sum()
        values = by_hand(run, "test")["auroc"]
        assert np.isnan(values).tolist() == [False] * 4 + [True]
        entry = run.summary["metrics"]["test_auroc"]
        assert (entry["undefined"], entry["clients"]) == (1, 5)
        assert [entry[name] for name in ("mean", "std", "worst10")] == pytest.approx(
            [np.nanmean(values), np.nanstd(values), np.nanmin(values)], abs=1e-6
        )
        means.add(f"{100 * np.nanmean(values):.2f}")
    assert all(mean in table for mean in means), (means, table)
    assert "test_auroc is undefined for 1 of 5 clients in all cells, and they are left out of its mean" in table
    said = about_metrics(as_methods(list(map(read_run, folders))))
    assert [sentence.partition(",")[0] for sentence in said[2:]] == ["Test AUROC", "Test balanced accuracy"]
    assert said[2].endswith("; 1 of 5 clients undefined, and left out.")
    shown = {float(number) for number in re.findall(r"([\d.]+) %", said[2])}
    assert sorted(shown) == pytest.approx(sorted(map(float, means)), abs=0.06)


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_hospitals(tmp_path)
    return data.Vectors(
        file="hospitals.csv", target="ill", client="hospital", classes=True, num_clients=5, test_fraction=0.3
    )


def test_a_run_says_what_is_undefined_before_and_after(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_hospitals(tmp_path)
    words = "--data Vectors --data.file hospitals.csv --data.target ill --data.client hospital --data.classes true"
    words += " --data.num_clients 5 --data.test_fraction 0.3 --model.network MLP --model.network.hidden [4]"
    words += " --trainer.max_rounds 1 --trainer.accelerator cpu --model.metrics [auroc]"
    assert cli.run("fit", words.split()) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    before, _, after = said.partition("round 1/1")
    assert "test_auroc is undefined for 1 of 5 clients (4): all samples are of one class, in their test data" in before
    assert "clients undefined" not in before
    assert ", 1 of 5 clients undefined" in after
    (folder,) = tmp_path.glob("runs/*/*")
    assert cli.run("test", ["--ckpt_path", str(folder)]) == 0, capsys.readouterr().err
    assert "test_auroc: 1 of 5 clients undefined" in capsys.readouterr().out


def test_loggers_get_the_means_the_counts_and_each_client(small_run, hospitals, tmp_path):
    logger = CSVLogger(tmp_path / "logs", name="mine")
    run = small_run(rounds=2, module={"metrics": ["auroc"]}, logger=logger, log_clients=True)
    run.data = hospitals
    run.fit()
    with open(tmp_path / "logs" / "mine" / "version_0" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for step, areas in enumerate(run.trainer.run.clients["test_auroc"]):
        found = {name: row[name] for row in rows if int(row["step"]) == step for name in row if row[name]}
        assert float(found["test_auroc"]) == pytest.approx(np.nanmean(areas), abs=1e-6)
        assert float(found["test_auroc_undefined"]) == 1
        own = [float(found.get(f"test_auroc/client_{client}", "nan")) for client in range(5)]
        assert own == pytest.approx(areas.tolist(), abs=1e-6, nan_ok=True)


def test_values_of_clients_need_a_logger(small_run):
    with pytest.raises(UserError, match=r"trainer.log_clients=true sends numbers to loggers, and there is none"):
        small_run(log_clients=True)


class Fussy(Metric):
    """The share of the ill, which it refuses to compute where no patient is ill."""

    def __init__(self):
        super().__init__()
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, scores, labels):
        self.labels.append(labels)

    def compute(self):
        labels = torch.cat(self.labels)
        if not labels.any():
            raise ValueError("no patient is ill.")
        return labels.double().mean()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_an_error_of_one_client_is_a_warning(small_run, hospitals, engine):
    run = small_run(rounds=2, module={"metrics": [Fussy(), MulticlassRecall(2)]}, engine=engine)
    run.data = hospitals
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run.fit()
    sentences = [str(w.message) for w in said if "metric" in str(w.message)]
    assert sentences == [
        "after 1 round: the metric fussy fails for client 4 (no patient is ill); it is NaN there, and left out of "
        "means (warned once per client; clients.npz has every evaluation)"
    ]
    assert "test_fussy is undefined for 1 of 5 clients (4): no patient is ill" in " ".join(run.trainer.remarks)
    test = [y.double() for y in (run.module.federation.data.labels[part] for part in run.module.federation.data.test)]
    shares = [float(y.mean()) if y.any() else np.nan for y in test]
    assert run.trainer.run.clients["test_fussy"][-1] == pytest.approx(shares, abs=1e-12, nan_ok=True)
    assert run.trainer.run.metrics["test_fussy"][-1] == pytest.approx(np.nanmean(shares), abs=1e-12)


@pytest.mark.slow
def test_the_page_names_the_mean_and_the_clients_left_out(small_run, hospitals):
    run = small_run(rounds=1, module={"metrics": ["auroc"]})
    run.data = hospitals
    run.fit()
    page = write_report([run.folder]).read_text()
    (shown,) = re.findall(
        r"Test AUROC, mean over clients: .* ([\d.]+) %; 1 of 5 clients undefined, and left out\.", page
    )
    areas = run.trainer.run.clients["test_auroc"][-1]
    assert float(shown) == pytest.approx(100 * np.nanmean(areas), abs=0.06)


def test_early_stopping_on_a_metric_needs_its_direction(small_run):
    stop = EarlyStopping("val_auroc", patience=5)
    with pytest.raises(
        UserError, match="EarlyStopping monitors val_auroc with mode min, but a higher val_auroc is better"
    ):
        small_run(rounds=1, module={"metrics": ["auroc"]}, callbacks=[stop]).fit()
