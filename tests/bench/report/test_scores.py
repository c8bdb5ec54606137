"""Name, direction and unit of a task's score in all outputs."""

import json
import re

import numpy as np
import pytest
import torch
from errors_task import rmse_of, with_misses
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from dfl_lightning import callbacks as cb
from dfl_lightning import read_run
from dfl_lightning.runs.summary import final_table
from dfl_lightning.runs.tables import COLUMNS, columns_of
from dfl_lightning.terminal.per_client import per_client_table
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score


@pytest.fixture(scope="module")
def run(read_only_run):
    return with_misses(read_only_run(3, [cb.Fairness()])).fit()


def test_columns_and_numbers_are_those_of_the_task(run):
    folder, header = read_run(run.folder), (run.folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[: len(COLUMNS)] == columns_of("rmse") == [name.replace("acc", "rmse") for name in COLUMNS]
    assert "acc" not in " ".join(header)
    assert {"test_mae", "val_mae", "test_rmse_variance", "val_rmse_worst10"} <= set(header)
    last, values = folder.clients["test_rmse"][-1], {n: float(v[-1]) for n, v in folder.metrics.items()}
    for client, row in enumerate(run.rows):
        network = run.module.network.double()
        parts = row.double().split([p.numel() for p in network.parameters()])
        state = {name: part.view(p.shape) for (name, p), part in zip(network.named_parameters(), parts, strict=True)}
        x, y = run.module.federation.data.batch(run.module.federation.data.test[client], dtype=torch.float64)
        with torch.no_grad():
            outputs = torch.func.functional_call(network, state, x)
        assert last[client] == pytest.approx(rmse_of(outputs.softmax(1), y), rel=1e-5)
    assert values["test_rmse"] == pytest.approx(last.mean())
    assert (values["test_rmse_worst10"], values["test_rmse_best10"]) == (last.max(), last.min())
    assert values["val_rmse_worst10"] == folder.clients["val_rmse"][-1].max()
    assert values["test_rmse_variance"] == pytest.approx(last.var())


def test_summary_names_the_task_and_takes_the_lowest_as_best(run):
    found, clients = json.loads((run.folder / "summary.json").read_text()), read_run(run.folder).clients
    assert found["task"] == {"name": "Misses", "score": "rmse", "higher_is_better": False, "percent": False}
    assert "test_accuracy" not in found
    rounds, numbers = clients["test_rmse"], found["test_score"]
    assert numbers["best_round"] == pytest.approx(rounds.mean(1).min())
    assert numbers["best_per_client"] == pytest.approx(rounds.min(0).mean())
    latest = len(rounds) - 1 - clients["val_rmse"][::-1].argmin(0)
    assert numbers["best_val"] == pytest.approx(rounds[latest, np.arange(6)].mean())
    assert (numbers["last"], numbers["worst10"]) == (pytest.approx(rounds[-1].mean()), rounds[-1].max())
    assert Score.read(found).numbers(found) == numbers


def test_terminal_names_the_score_without_percent(run, capsys):
    head, row, *_ = final_table(run.trainer.run.summary)
    mean = run.trainer.run.summary["test_score"]["mean"]
    assert row.split()[:3] == ["test", "RMSE", f"{mean:.2f}"]
    assert head.index("mean") + len("mean") == row.index(f"{mean:.2f}") + len(f"{mean:.2f}")
    assert f"test RMSE {mean:.2f})" in repr(run.trainer.run)
    worst = read_run(run.folder).clients["test_rmse"][-1].max()
    assert per_client_table(run.module)[-1] == f"worst 10 % of clients, test RMSE: {worst:.4f}"
    from dfl_lightning.terminal.progress import RoundProgress

    bar = RoundProgress()
    bar._first = 3
    parts = bar._about(run.trainer, run.module)
    assert f"test rmse {mean:.2f}" in parts
    assert not any("acc" in part for part in parts)


def test_summary_of_classes_names_the_task(small_run):
    summary = small_run(1).fit().trainer.run.summary
    assert summary["task"] == {"name": "Classification", "score": "acc", "higher_is_better": True, "percent": True}
    assert Score.read(summary) == Score()
    assert Score().numbers(summary)["best_round"] == summary["test_accuracy"]["acc_best_round"]


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_callbacks_that_would_keep_worse_models_are_refused(kind, small_run):
    with pytest.raises(UserError, match=f"{kind.__name__} monitors val_acc with mode min, but a higher val_acc is bet"):
        small_run(1, [kind(monitor="val_acc", mode="min")]).fit()
    with pytest.raises(UserError, match="monitors val_rmse with mode max, but a lower val_rmse is better; set its mod"):
        with_misses(small_run(1, [kind(monitor="val_rmse", mode="max")])).fit()
    with_misses(small_run(1, [kind(monitor="val_rmse", mode="min")])).fit()


# --- pages and charts -------------------------------------------------------------------------------------------------
RMSE = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}


def regression(make_run, folder, errors, seed=0, received=1e6, running=False):
    """Write the run folder of a regression by hand, from one of classes."""
    make_run(folder, errors, seed=seed, received=received)
    text = (folder / "metrics.csv").read_text().replace("test_acc", "test_rmse,test_rmse_worst10")
    lines = text.splitlines()
    rows = [row.split(",") for row in lines[1:]]
    worst = np.max(errors, axis=1)
    text = "\n".join([lines[0], *(",".join([*r[:3], str(w), *r[3:]]) for r, w in zip(rows, worst, strict=True)), ""])
    (folder / "metrics.csv").write_text(text)
    with np.load(folder / "clients.npz") as arrays:
        np.savez(folder / "clients.npz", rounds=arrays["rounds"], test_rmse=arrays["test_acc"])
    summary = json.loads((folder / "summary.json").read_text())
    summary["test_score"] = summary.pop("test_accuracy")
    (folder / "summary.json").write_text(json.dumps({**summary, "task": RMSE}))
    if running:
        (folder / "summary.json").unlink()
    return folder


def rows_of(chart):
    return [row for part in chart.to_dict()["datasets"].values() for row in part]


def test_the_page_ranks_by_the_lowest_and_says_no_percent(tmp_path, make_run):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    from dfl_lightning.bench.report.methods import find_methods
    from dfl_lightning.bench.report.page.contents.seeds import dots
    from dfl_lightning.bench.report.page.sections import figures
    from dfl_lightning.bench.report.page.sentences.verdict import lines, sentences
    from dfl_lightning.bench.report.page.tables import verdict_table

    rng, found = np.random.default_rng(0), []
    for name, level, bytes_ in (("A", 3.0, 1e6), ("Local", 5.0, 0.0), ("B", 4.0, 1e6)):
        for seed in range(3):
            errors = level + np.linspace(2, 0, 6)[:, None] + rng.normal(0, 0.01, (6, 10))
            found.append((name, regression(make_run, tmp_path / f"{name}{seed}", errors, seed, bytes_)))
    methods = find_methods([read_run(folder) for _, folder in found], [name for name, _ in found])
    assert [line.method.name for line in lines(methods)] == ["A", "B", "Local"]
    said = sentences(methods)
    assert said[0].startswith("A ends at test RMSE 3.00 ± 0.0")
    assert said[1].startswith("That is 2.0")
    assert "below training alone (simultaneous 95 % interval −2." in said[1]
    assert re.match(r"B is (0\.99|1\.0)", said[2])
    assert " higher (simultaneous 95 % interval +" in said[2]
    colours = {name: at for at, name in enumerate(["A", "Local", "B"])}
    table = verdict_table(lines(methods), colours, "", "", dots(methods))
    assert "test RMSE<small>last round</small>" in table
    text = " ".join([*said, table, *(f"{f.name} {f.title} {f.note} {json.dumps(f.spec)}" for f in figures(methods))])
    for word in ("accuracy", "acc,", "test_acc", "points above", "image"):
        assert word not in text, word
    charts = {figure.name: figure for figure in figures(methods)}
    assert {"learning-curves", "clients", "gain-over-local", "rmse-by-bytes", "bands-1"} <= set(charts)
    gains = [
        row["gain"] for row in rows_of(charts["gain-over-local"].chart) if row.get("method") == "A" and "number" in row
    ]
    assert min(gains) > 1.5  # a lower error is a gain
    first = [row["rmse"] for row in rows_of(charts["clients"].chart) if row.get("method") == "A" and "rank" in row]
    assert first == sorted(first)
    y = charts["learning-curves"].spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert y[0] == 2.5  # a round number below 3
    assert 6 < y[1] < 8
    assert max(row["worst tenth"] for row in rows_of(charts["bands-1"].chart)) > 4.9


def test_unfinished_run_takes_its_score_from_columns(tmp_path, make_run):
    from dfl_lightning.bench.report.methods import find_methods

    lasts = read_run(regression(make_run, tmp_path / "now", np.ones((2, 4)), running=True))
    assert (lasts.score.name, lasts.score.higher_is_better, lasts.score.percent) == ("rmse", False, False)
    classes = read_run(make_run(tmp_path / "classes", np.ones((2, 4))))
    assert classes.score == Score()
    assert sorted(method.task for method in find_methods([lasts, classes], ["A", "B"])) == [0, 1]


def test_bands_whose_first_rounds_are_cut_off_fill_their_chart(tmp_path, make_run):
    """Bands beyond the axis are clipped; otherwise they would be fitted into the chart, and the axis would shrink."""
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    import vl_convert

    from dfl_lightning.bench import report

    errors = np.linspace(1, 2, 40)[:, None] + np.linspace(0, 1, 10)
    errors[0] = 500.0
    chart = report.client_bands(read_run(regression(make_run, tmp_path / "run", errors))).to_dict()
    drawn = vl_convert.vegalite_to_svg(chart)
    heights = [float(number) for number in re.findall(r'class="background"[^>]*d="M[^"]*?v([\d.]+)', drawn)]
    assert max(heights) > 100
