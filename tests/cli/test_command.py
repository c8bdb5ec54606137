"""The commands: what people type, what they read, and what lies in the run folder afterwards."""

import csv
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from documented import OF_OTHER_PAGES, check_documented

from dfl_lightning.cli import command as cli
from dfl_lightning.cli.classes.registry import GROUPS, shipped_classes
from dfl_lightning.utils.storage.shipped_files import shipped

SMALL = [
    *["--trainer.max_rounds", "2", "--data.num_clients", "8", "--data.samples_per_client", "40"],
    *["--model.network.hidden", "[8]", "--model.local_epochs", "1", "--trainer.accelerator", "cpu"],
]


@pytest.fixture
def dfl(here, capsys):
    """Run a command in this process: its exit code, its lines, and the run folder that it made."""

    def _dfl(words, command="fit", small=True):
        before = set(here.glob("runs/*/*"))
        words = words.split() if isinstance(words, str) else words
        code = cli.run(command, [*words[:2], *(SMALL if small else []), *words[2:]])
        out, err = capsys.readouterr()
        made = sorted(set(here.glob("runs/*/*")) - before)
        return SimpleNamespace(code=code, out=out, err=err, run=made[-1] if made else None)

    return _dfl


def config_of(run):
    return yaml.safe_load((run / "config.yaml").read_text())


def rows_of(run, without=()):
    with open(run / "metrics.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k not in without} for row in csv.DictReader(file)]


def arrays_of(file):
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def same_bits(one, other):
    return one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)


# --- configs ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(OF_OTHER_PAGES))
def test_configs_of_other_pages_write_the_documented_files(dfl, name):
    """Those of methods are in tests/docs/test_methods_page.py."""
    own = {
        "text": "--trainer.max_rounds 2 --data.most 700 --model.network.width 8 --model.network.depth 1",
        "text_lstm": "--trainer.max_rounds 2 --data.most 700 --model.network.units 8 --model.network.depth 1",
        "forecast": "--trainer.max_rounds 2 --data.stride 4 --model.network.channels [4]",
    }
    words = f"--config {name} --data.num_clients 10 {own.get(name, '')}"
    done = dfl(words, small=name not in own)
    assert (done.code, done.err) == (0, "")
    assert done.run.parent.name == name
    check_documented(done.run, rounds=2, evaluations=2, clients=10)


@pytest.mark.parametrize("spelling", ["afind", "afind.yaml", "configs/afind.yaml"])
@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_shipped_config_is_found_by_name_in_an_empty_folder(dfl, spelling, form):
    done = dfl([*form.format("--config", spelling).split(), "--explain"], small=False)
    assert (done.code, done.err) == (0, "")
    assert "24 clients" in done.out


def test_a_file_of_the_folder_wins_over_a_shipped_name(dfl, here):
    (here / "afind").write_text("data: {class_path: Digits, init_args: {num_clients: 7}}\nmodel: {network: MLP}\n")
    assert "7 clients" in dfl("--config afind --explain", small=False).out


def test_later_config_overrides_an_earlier_one_and_names_the_run(dfl, here):
    (here / "mine.yaml").write_text("model: {batch_size: 9}\nthreshold: null\naggregation: Uniform\n")
    done = dfl("--config afind --config mine.yaml")
    config = config_of(done.run)
    assert config["model"]["batch_size"] == 9
    assert config["model"]["finetune_epochs"] == 1
    assert config["threshold"] is None
    assert config["aggregation"]["class_path"].endswith("Uniform")
    assert done.run.parent.name == "mine"


def test_no_config_at_all_is_gossip_with_uniform_weights(dfl):
    done = dfl("--data Digits --model.network MLP --trainer.max_rounds 1 --model.local_epochs 1", small=False)
    assert done.code == 0
    assert json.loads((done.run / "summary.json").read_text())["policies"] == ["Gossip", "Uniform"]
    assert done.run.parent.name == "run"


def test_print_config_gives_a_config_that_resolves_to_itself(dfl, here):
    first = dfl("--config afind --dropout Bernoulli --dropout.rate .3 --print_config")
    (here / "printed.yaml").write_text(first.out)
    second = dfl("--config printed.yaml --print_config", small=False)
    assert (first.code, second.code) == (0, 0)
    assert yaml.safe_load(second.out) == yaml.safe_load(first.out)
    assert not (here / "runs").exists()


def test_the_saved_config_repeats_the_run_bit_for_bit(dfl, here):
    first = dfl(
        "--config afind --dropout Bernoulli --dropout.rate .3 --data.val_fraction 0.2 --seed_everything 5 "
        "--model.optimizer Adam --monitors [FriendAccuracy]"
    )
    second = dfl(["--config", str(first.run / "config.yaml")], small=False)
    assert rows_of(second.run, ["seconds"]) == rows_of(first.run, ["seconds"])
    for name in ("clients.npz", "graphs.npz", "split.npz"):
        assert same_bits(arrays_of(first.run / name), arrays_of(second.run / name))
    assert config_of(second.run) == config_of(first.run)
    assert second.run.parent == first.run.parent, "a run's own config names the run as it was named"


def test_saved_keys_are_in_the_order_of_a_method_section(dfl):
    keys = list(config_of(dfl("--config afind").run))
    assert keys == [
        "seed_everything",
        "trainer",
        "model",
        "data",
        "topology",
        "clock",
        "dropout",
        "outgoing",
        "selection",
        "threshold",
        "substitution",
        "aggregation",
        "objective",
        "prediction",
        "monitors",
        "engine",
    ]


# --- swaps ------------------------------------------------------------------------------------------------------------
def resolved(dfl, words):
    done = dfl(f"{words} --print_config", small=False)
    assert done.code == 0, done.err
    return yaml.safe_load(done.out)


def test_options_swap_the_class_of_each_group(dfl):
    config = resolved(
        dfl,
        "--config afind --selection Gossip --selection.k 3 --data.partition Dirichlet --dropout Bernoulli "
        "--dropout.rate .3 --threshold null --substitution FDMS --aggregation SampleWeighted --model.network MLP",
    )
    assert config["selection"] == {
        "class_path": "dfl_lightning.callbacks.Gossip",
        "init_args": {"k": 3, "within": None, "redraw": True},
    }
    assert config["data"]["init_args"]["partition"] == {
        "class_path": "dfl_lightning.data.Dirichlet",
        "init_args": {"alpha": 0.1, "flavour": "equal_sizes", "min_size": None},
    }
    assert config["data"]["init_args"]["num_clients"] == 24
    assert config["dropout"]["init_args"]["rate"] == 0.3
    assert config["threshold"] is None


@pytest.mark.parametrize(
    ("words", "key", "option", "value"),
    [
        ("--config afind", "selection", "k", 5),  # AFIND's, not that of Gossip, which a round has by default
        ("--config afind --selection Gossip", "selection", "k", 10),
        ("--config afind --selection Gossip --selection.k 3", "selection", "k", 3),
        ("--config afind --selection.k 7 --selection Gossip", "selection", "k", 7),
        ("--config gossip --selection AFIND", "selection", "k", 5),  # the config says 5
        ("--config afind --selection=Gossip", "selection", "k", 10),
        ("--config afind --selection.class_path Gossip", "selection", "k", 10),
        ('--config afind --selection {"class_path":"Gossip"}', "selection", "k", 10),
        ("--config afind --selection dfl_lightning.callbacks.Gossip", "selection", "k", 10),
        ("--config small.yaml --data FashionMNIST", "data", "test_fraction", None),
        ("--config small.yaml --data FashionMNIST", "data", "num_clients", 6),
        ("--config small.yaml --config swap.yaml", "data", "test_fraction", None),
        ("--config small.yaml --model.optimizer AdamW", "model.optimizer", "weight_decay", 0.01),
        ("--config small.yaml --model.optimizer AdamW", "model.optimizer", "lr", 0.05),
    ],
)
def test_swapped_class_has_its_own_defaults_and_typed_options(dfl, here, words, key, option, value):
    (here / "small.yaml").write_text(
        "data: {class_path: Digits, init_args: {num_clients: 6}}\n"
        "model: {network: MLP, optimizer: {class_path: SGD, init_args: {lr: 0.05, momentum: 0.9}}}\n"
    )
    (here / "swap.yaml").write_text("data: FashionMNIST\n")
    config = resolved(dfl, words)
    for part in key.split("."):
        config = config[part]
    assert config["init_args"][option] == value


@pytest.mark.parametrize(
    ("words", "rate", "momentum"),
    [
        ("", 0.05, 0.9),
        ("--model.optimizer.momentum 0.7", 0.05, 0.7),
        ("--config options.yaml", 0.05, 0.5),
        ("--model.optimizer SGD", 0.001, 0.0),  # torch's own defaults, as in any config that names one
        ("--model.optimizer torch.optim.SGD", 0.001, 0.0),
        ("--model.optimizer.class_path SGD", 0.001, 0.0),
        ("--model.optimizer SGD --model.optimizer.momentum 0.7", 0.001, 0.7),
        ("--model.optimizer.momentum 0.7 --model.optimizer SGD", 0.001, 0.7),
        ("--config named.yaml", 0.001, 0.5),
        ("--config named.yaml --model.optimizer.lr 0.2", 0.2, 0.5),
        ("--config string.yaml", 0.001, 0.0),
        ('--model {"optimizer":"SGD"}', 0.001, 0.0),
        ("--model.optimizer Adam", 0.001, None),
        ("--model.optimizer here.Mine --model.optimizer.lr 0.2", 0.2, 0.3),
        ("--config dsgd", 0.05, 0.0),
    ],
)
def test_default_optimizer_has_its_options_only_if_none_is_named(dfl, here, words, rate, momentum):
    (here / "options.yaml").write_text("model: {network: MLP, optimizer: {init_args: {momentum: 0.5}}}\n")
    (here / "named.yaml").write_text("model: {optimizer: {class_path: SGD, init_args: {momentum: 0.5}}}\n")
    (here / "string.yaml").write_text("model: {optimizer: SGD}\n")
    (here / "here.py").write_text(
        "import torch\n\nclass Mine(torch.optim.SGD):\n    def __init__(self, params, lr, momentum=0.3):\n"
        "        super().__init__(params, lr=lr, momentum=momentum)\n"
    )
    options = resolved(dfl, f"--data Digits --model.network MLP {words}")["model"]["optimizer"]["init_args"]
    assert options["lr"] == rate
    assert options.get("momentum") == momentum


ABLATION = {
    "random neighbours, equal weights": (
        "--selection Gossip --selection.k 5 --threshold null --aggregation Uniform",
        ["Gossip", "Uniform"],
    ),
    "found neighbours, a fixed number": (
        "--selection.k 5 --threshold null --aggregation Uniform",
        ["AFIND", "Uniform"],
    ),
    "found neighbours, adaptive number": ("--aggregation Uniform", ["AFIND", "AdaptiveThreshold", "Uniform"]),
    "AFIND+": ("", ["AFIND", "AdaptiveThreshold", "Boltzmann"]),
}


@pytest.mark.parametrize("row", ABLATION)
def test_a_row_of_the_ablation_is_a_command_line(dfl, row):
    words, policies = ABLATION[row]
    done = dfl(f"--config afind {words}")
    assert done.code == 0
    assert json.loads((done.run / "summary.json").read_text())["policies"] == policies
    neighbours = [float(r["neighbours"]) for r in rows_of(done.run)]
    assert (neighbours == [5.0, 5.0]) == ("AdaptiveThreshold" not in policies)


def test_options_that_a_swap_drops_are_named_before_the_run(dfl):
    done = dfl("--config afind --selection Gossip --data.partition IID")
    notes = [line for line in done.out.splitlines() if line.startswith("note: ")]
    assert notes[0] == (
        "note: options of the config that the swapped classes do not have: selection.nu, data.partition.degrees"
    )


def test_shipped_config_on_a_table_names_what_it_drops(dfl):
    done = dfl("--config gossip --trainer.max_rounds 1 --data Vectors --data.num_clients 4")
    assert done.code == 0
    assert (
        "note: data Vectors takes the place of the config's Digits; dropped with it: partition, test_fraction; "
        "those of Vectors are given by --data.NAME"
    ) in done.out.splitlines()


def test_replaced_default_monitors_are_named_if_they_would_measure(dfl):
    note = (
        "note: the monitors NeighbourAccuracy and FriendAccuracy, which are on by default, are replaced; "
        "--monitors+=NAME adds one to them"
    )
    assert note in dfl("--config afind --monitors Fairness --explain").out.splitlines()
    for words in ("--monitors+=Fairness", "--monitors []", "--monitors Fairness --data.partition IID"):
        done = dfl(f"--config afind {words} --explain")
        assert (done.code, "monitors" in done.out) == (0, False), done.err


def test_threshold_without_effect_is_ignored_and_named(dfl):
    done = dfl("--config afind --selection Gossip")
    assert (
        "note: AdaptiveThreshold has no effect in this run and is ignored: no policy reads what it writes" in done.out
    )
    assert "AdaptiveThreshold" not in done.out.splitlines()[0]
    assert "has no effect" not in dfl("--config afind").out


def test_stock_callbacks_and_loggers_work_under_trainer(dfl, here):
    done = dfl(
        "--config afind --trainer.callbacks+=LearningRateMonitor --trainer.logger CSVLogger "
        "--trainer.logger.save_dir logs --model.lr_scheduler StepLR --model.lr_scheduler.step_size 1"
    )
    assert (done.code, done.err) == (0, "")
    (file,) = here.glob("logs/**/metrics.csv")
    with open(file, newline="") as text:
        rates = [float(row["lr-SGD"]) for row in csv.DictReader(text) if row["lr-SGD"]]
    assert rates == pytest.approx([0.05, 0.005])


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        ("--config afind", {"neighbour_precision", "neighbour_recall"}),
        ("--config afind --monitors []", set()),
        ("--config afind --monitors NeighbourAccuracy", {"neighbour_precision", "neighbour_recall"}),
        ("--config afind --monitors [FriendAccuracy]", set()),
        ("--config afind --monitors+=Fairness", {"neighbour_precision", "neighbour_recall"}),
        ("--config fdms --data.num_clients 10", {"friend_accuracy"}),
        ("--config fdms --data.num_clients 10 --monitors+=FriendAccuracy", {"friend_accuracy"}),
        ("--config fdms --data.num_clients 10 --monitors [NeighbourAccuracy]", set()),
    ],
)
def test_monitors_say_what_else_is_measured(dfl, words, columns):
    done = dfl(words)
    assert done.code == 0, done.err
    known = {"neighbour_precision", "neighbour_recall", "friend_accuracy"}
    assert {name for row in rows_of(done.run) for name in row if row[name]} & known == columns


def test_fdms_runs_with_every_option(dfl):
    words = (
        "--config fdms --data.num_clients 10 --trainer.max_rounds 4 --substitution.theta_scale 0.05 "
        "--dropout Markov --dropout.rate .4 --dropout.outage 2 --dropout.full_first_round true "
        "--objective FedProx --objective.mu 0.2 --monitors+=SubstitutionError"
    )
    done = dfl(words)
    assert (done.code, done.err) == (0, "")
    config, rows = config_of(done.run), rows_of(done.run)
    assert config["objective"]["init_args"] == {"mu": 0.2, "personal_epochs": None}
    assert config["dropout"]["init_args"] == {"rate": 0.4, "outage": 2.0, "full_first_round": True}
    assert config["substitution"]["init_args"] == {"theta_scale": 0.05, "beta": None, "similarity": "cosine"}
    assert rows[0]["similarities"] == "45"
    assert float(rows[0]["substitution_error"]) == 0
    assert any(float(row["substitution_error"]) > 0 for row in rows[1:] if row["substitution_error"])
    theta = [float(row["theta"]) for row in rows]
    assert theta == sorted(theta, reverse=True)
    again = dfl(["--config", str(done.run / "config.yaml")], small=False)
    assert rows_of(again.run, ["seconds"]) == rows_of(done.run, ["seconds"])


def test_fdms_runs_without_a_server(dfl):
    done = dfl("--config fdms --data.num_clients 10 --topology ring --aggregation Uniform")
    assert (done.code, done.err) == (0, "")
    assert {"similarities", "friend_accuracy"} <= set(rows_of(done.run)[1])


def test_dropout_rate_may_be_given_by_client(dfl):
    done = dfl(["--config", "afind", "--dropout", "Bernoulli", "--dropout.rate", "[0, 0, 0, 0, 0, 1, 1, 1]"])
    assert (done.code, done.err) == (0, "")
    assert [row["active"] for row in rows_of(done.run)] == ["5", "5"]


# --- what is printed --------------------------------------------------------------------------------------------------
def test_explain_says_what_would_run_and_leaves_nothing(dfl, here):
    done = dfl("--config afind --explain")
    assert done.code == 0
    for part in (
        "8 clients",
        "complete graph: 8 nodes",
        "engine: stacked, ",
        "2 cohorts of 4 clients",
        "rounds: 2, evaluated 2 times",
        "1 epoch",
    ):
        assert part in done.out
    assert done.out.splitlines()[-1] == "nothing was trained"
    assert list(here.iterdir()) == []


def test_explain_says_how_many_are_in_reach_over_the_rounds(dfl):
    said = dfl("--config afind --topology ring_then_complete --trainer.max_rounds 20 --explain").out
    assert "ring_then_complete graph: 8 nodes, cycle for 10 rounds (8 links, degree 2, connected" in said
    assert "neighbours in reach: 4.5 on average, 2 to 7 in a round; a model is" in said  # half the rounds 2, half 7


def test_explain_counts_what_the_run_then_does(dfl):
    said = dfl("--config afind --data.num_clients 5 --model.batch_size 7 --data.partition IID --explain").out
    # 30 training samples a client, 5 clients: 5 batches each of at most 7
    assert "local work of a round: 1 epoch, 25 optimizer steps, 150 samples over all clients" in said


def test_list_shows_everything_that_has_a_name(dfl):
    done = dfl(["--list"], small=False)
    for kind in ("configs", "topologies"):
        for name in shipped(kind):
            assert f"  {name} " in done.out
    for group in GROUPS:
        assert f"{group}:" in done.out.splitlines()
        for name in shipped_classes(group):
            assert f"  {name} " in done.out, "a name and its sentence are apart"
    assert all(line.split(maxsplit=1)[1:] for line in done.out.splitlines() if line.startswith("  "))


@pytest.mark.parametrize("command", ["fit", "validate", "test"])
@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--config", "afind", "--help"]])
def test_help_fits_a_screen(dfl, command, words):
    done = dfl(words, command, small=False)
    lines = done.out.splitlines()
    assert done.code == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    for key in ("trainer", "model", "data", "topology", "monitors", *GROUPS):
        assert "." in key or f"--{key} " in done.out


def test_help_all_has_every_option(dfl):
    done = dfl(["--help_all"], small=False)
    assert done.code == 0
    for option in ("--trainer.max_rounds", "--trainer.gradient_clip_val", "--model.finetune_epochs", "--ckpt_path"):
        assert option in done.out


# --- seeds ------------------------------------------------------------------------------------------------------------
def test_a_seed_gives_the_same_bits_and_another_seed_others(dfl):
    words = "--config afind --data.partition Dirichlet --dropout Bernoulli --seed_everything"
    one, same, other = (dfl(f"{words} {seed}").run for seed in (1, 1, 2))
    assert rows_of(one, ["seconds"]) == rows_of(same, ["seconds"])
    assert same_bits(arrays_of(one / "split.npz"), arrays_of(same / "split.npz"))
    assert rows_of(one, ["seconds"]) != rows_of(other, ["seconds"])
    assert not same_bits(arrays_of(one / "split.npz"), arrays_of(other / "split.npz"))


def test_the_data_seed_fixes_the_split_apart_from_training(dfl):
    words = "--config afind --data.partition Dirichlet --data.seed 9 --seed_everything"
    one, other = (dfl(f"{words} {seed}").run for seed in (1, 2))
    assert same_bits(arrays_of(one / "split.npz"), arrays_of(other / "split.npz"))
    assert rows_of(one)[0]["train_loss"] != rows_of(other)[0]["train_loss"]


def test_a_split_file_repeats_the_split(dfl):
    one = dfl("--config afind --seed_everything 3").run
    other = dfl(["--config", "afind", "--seed_everything", "4", "--data.split", str(one / "split.npz")]).run
    first, second = arrays_of(one / "split.npz"), arrays_of(other / "split.npz")
    assert all(np.array_equal(first[k], second[k]) for k in first if k.endswith(("indices", "offsets", "clusters")))


# --- a data set with files --------------------------------------------------------------------------------------------
def test_the_readme_swap_to_cifar10_reaches_its_first_round(dfl):
    root = os.environ.get("DFL_DATA_ROOT")
    if root is None or not (Path(root) / "cifar-10-batches-py").is_dir():
        pytest.skip("DFL_DATA_ROOT names no folder with CIFAR-10's files")
    done = dfl(
        "--config afind --data CIFAR10 --data.partition Dirichlet --selection Gossip --selection.k 10 "
        "--trainer.max_rounds 1 --model.finetune_epochs 0"
    )
    assert (done.code, done.err) == (0, "")
    assert "CIFAR10, Dirichlet" in done.out
    assert len(rows_of(done.run)) == 1


# --- a user's own classes ---------------------------------------------------------------------------------------------
OWN = '''
import torch
from torch import nn
from torchmetrics import Metric
from dfl_lightning.callbacks import Monitor, Selection
from dfl_lightning.objectives import Objective, Phase


class Nearest(Selection):
    """The clients with the nearest numbers."""

    def __init__(self, k: int = 2):
        self.k = k

    def on_compare(self, round):
        round.scores = 1 / (1 + (round.candidates.receivers - round.candidates.senders).abs().double())


class Decayed(Objective):
    """Plain steps towards smaller parameters."""

    def __init__(self, decay: float = 0.1):
        self.decay = decay

    def step(self, ctx):
        grads = ctx.model().grad(ctx.next_batch())
        ctx.model().update([g + self.decay * p for g, p in zip(grads, ctx.model().params)])


class Net(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.body, self.head = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Pairs(torch.utils.data.Dataset):
    def __init__(self, length: int = 60):
        self.x = torch.randn(length, 3, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.x[index].sum() > 0)


class Share(Metric):
    """Share of the first class among the predictions."""

    def __init__(self):
        super().__init__()
        self.add_state("first", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("seen", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, scores, labels):
        self.first += (scores.argmax(-1) == 0).sum()
        self.seen += labels.numel()

    def compute(self):
        return self.first / self.seen


class Loudest(Monitor):
    def on_round_end(self, round):
        round.log("loudest", float(round.losses.max()))
'''

OWN_CONFIG = """
trainer: {max_rounds: 2, accelerator: cpu}
model:
  network: {class_path: own_parts.Net, init_args: {width: 5}}
  local_epochs: 1
  batch_size: 4
  optimizer: {class_path: SGD, init_args: {lr: 0.1}}
  metrics: [own_parts.Share]
data: {class_path: FromDataset, init_args: {dataset: {class_path: own_parts.Pairs}, num_clients: 6}}
selection: {class_path: own_parts.Nearest, init_args: {k: 3}}
aggregation: Uniform
objective: {class_path: own_parts.Decayed}
monitors: [own_parts.Loudest]
"""


def test_classes_in_the_working_folder_work_by_import_path(dfl, here, monkeypatch):
    (here / "own_parts.py").write_text(OWN)
    (here / "own.yaml").write_text(OWN_CONFIG)
    done = dfl("--config own.yaml", small=False)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Nearest + Uniform · 6 clients · Net (32 parameters each) · Pairs, IID")
    rows = rows_of(done.run)
    assert {row["neighbours"] for row in rows} == {"3"}
    assert all(float(row["loudest"]) >= float(row["train_loss"]) for row in rows)
    arrays = arrays_of(done.run / "clients.npz")
    assert ((arrays["test_share"] >= 0) & (arrays["test_share"] <= 1)).all()
    graphs = arrays_of(done.run / "graphs.npz")
    senders = graphs["sender"][(graphs["round"] == 1) & (graphs["receiver"] == 0) & graphs["selected"]]
    assert sorted(senders.tolist()) == [1, 2, 3]

    again = dfl(["--config", str(done.run / "config.yaml")], small=False)
    assert rows_of(again.run, ["seconds"]) == rows_of(done.run, ["seconds"])
    plain = dfl("--config own.yaml --objective Plain", small=False)
    assert rows_of(plain.run)[1]["train_loss"] != rows[1]["train_loss"]


# --- a user's own class that ends the program -------------------------------------------------------------------------
EXITS = {
    "in a hook": "    def on_compare(self, round):\n        sys.exit()\n",
    "with 0": "    def on_compare(self, round):\n        sys.exit(0)\n",
    "with words": "    def on_compare(self, round):\n        sys.exit('so there')\n",
    "while it is made": "    def __init__(self):\n        sys.exit()\n",
    "while it is checked": "    def start(self, federation):\n        sys.exit()\n",
    "while it is imported": "sys.exit()\n",
    "by a parser of its own": "import argparse\nargparse.ArgumentParser().parse_args(['--help'])\n",
    "at the end": "    def on_train_end(self, trainer, module):\n        sys.exit()\n",
}


@pytest.mark.parametrize("where", EXITS)
def test_an_exit_in_a_users_class_is_its_mistake(dfl, here, monkeypatch, where):
    head = "import sys\nfrom dfl_lightning.callbacks import Gossip\n\nclass Leaving(Gossip):\n    k = 2\n"
    (here / "leaving.py").write_text(head + EXITS[where])
    done = dfl("--config gossip --selection leaving.Leaving")
    lines = (head + EXITS[where]).splitlines()
    (number,) = (n for n, line in enumerate(lines, start=1) if "sys.exit" in line or "parse_args" in line)
    assert done.code == 2
    assert f"dfl-fit: leaving.py, line {number}, in " in done.err
    assert "sys.exit(" in done.err
    assert "trainer.should_stop = True" in done.err
    assert done.err.count("\n") == 1
    assert list(here.glob("runs/*/*")) == ([done.run] if where == "at the end" else [])


def test_an_exit_in_another_thread_is_found_too(dfl, here, monkeypatch):
    (here / "leaving.py").write_text(
        "import sys\nfrom dfl_lightning.objectives import Plain\n\nclass Leaving(Plain):\n"
        "    def step(self, ctx):\n        sys.exit(0)\n"
    )
    done = dfl("--config gossip --objective leaving.Leaving --trainer.cohorts 2")
    assert done.code == 2
    assert "leaving.py, line 6, in step: sys.exit(0)" in done.err


@pytest.mark.parametrize("words", [["--help"], ["--selection.help", "Gossip"], ["--config", "afind", "--print_config"]])
def test_exit_of_the_parser_is_not_a_mistake(dfl, words):
    done = dfl(words, small=False)
    assert (done.code, done.err) == (0, "")


def test_should_stop_ends_a_run_after_the_round(dfl, here, monkeypatch):
    (here / "ending.py").write_text(
        "from dfl_lightning.callbacks import Monitor\n\nclass Ending(Monitor):\n"
        "    def on_train_epoch_start(self, trainer, module):\n        trainer.should_stop = True\n"
    )
    done = dfl("--config gossip --monitors [ending.Ending]")
    assert done.code == 0, done.err
    assert len(rows_of(done.run)) == 1


def test_error_outside_the_working_folder_is_located(dfl, tmp_path_factory, monkeypatch):
    room = tmp_path_factory.mktemp("elsewhere")
    (room / "broken_parts.py").write_text(
        "from dfl_lightning.callbacks import Gossip\n\nclass Broken(Gossip):\n    k = 2\n"
        "    def on_compare(self, round):\n        return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(str(room))
    done = dfl("--config gossip --selection broken_parts.Broken")
    assert done.code == 2
    assert f"{room / 'broken_parts.py'}, line 6, in on_compare: ZeroDivisionError" in done.err


# --- one parser for all commands of a process ------------------------------------------------------------------------
def test_one_parser_prints_several_configs_independently(dfl, monkeypatch):
    made, make = [], cli.LightningCLI.setup_parser
    monkeypatch.setattr(cli.DFLCLI, "_made", {})
    monkeypatch.setattr(cli.LightningCLI, "setup_parser", lambda *args: made.append(args) or make(*args))
    first = dfl("--config gossip --selection.k 3 --print_config", small=False)
    dfl("--config afind --model.local_epochs 2 --print_config=skip_null", small=False)
    assert dfl("--config gossip --selection.k 3 --print_config", small=False).out == first.out
    assert "selection:" in first.out
    assert len(made) == 1
    with monkeypatch.context() as patch:
        patch.setattr(cli.LightningArgumentParser, "dump", lambda *args, **options: 1 / 0)
        failed = dfl("--config gossip --selection.k 3 --print_config", small=False)
    assert (failed.code, failed.out) == (2, "")
    explained = dfl("--config gossip --explain", small=False)
    assert explained.code == 0
    assert "selection:" not in explained.out


# --- groups that take several classes ---------------------------------------------------------------------------------
def outgoing(dfl, words):
    found = resolved(dfl, words)["outgoing"]
    specs = found if isinstance(found, list) else [] if found is None else [found]
    return [(spec["class_path"].rpartition(".")[2], spec["init_args"]) for spec in specs]


def test_outgoing_is_one_class_or_a_list(dfl, tmp_path):
    noise, some = {"clip": 1.0, "sigma": 1.0}, {"share": 0.01}
    assert outgoing(dfl, "--config gossip") == []
    assert outgoing(dfl, "--config gossip --outgoing GaussianNoise") == [("GaussianNoise", noise)]
    words = "--config gossip --outgoing [TopK,GaussianNoise] --outgoing.clip 2"
    assert outgoing(dfl, words) == [("TopK", some), ("GaussianNoise", {**noise, "clip": 2.0})]
    (tmp_path / "mine.yaml").write_text("outgoing:\n- class_path: TopK\n  init_args: {share: 0.2}\n- GaussianNoise\n")
    assert outgoing(dfl, "--config mine.yaml") == [("TopK", {"share": 0.2}), ("GaussianNoise", noise)]
    assert outgoing(dfl, "--config mine.yaml --outgoing TopK") == [("TopK", some)]
    assert outgoing(dfl, "--config mine.yaml --outgoing null") == []


def test_outgoing_lists_refuse_classes_and_options_of_other_families(dfl):
    for words, sentence in {
        "--outgoing Gossip": "outgoing 'Gossip' is a selection; outgoing policies are: ALittleIsEnough, CHOCO, ",
        "--outgoing [TopK,Gossip]": "outgoing 'Gossip' is a selection",
        "--selection TopK": "selection 'TopK' is an outgoing policy",
        "--outgoing TopK --outgoing.clip 1": "outgoing TopK has no option 'clip'; did you mean",
        "--outgoing.clip 1": "--outgoing.clip: no outgoing is chosen; name one with --outgoing",
    }.items():
        done = dfl(f"--config gossip {words} --print_config", small=False)
        assert done.code == 2
        assert sentence in done.err


def test_outgoing_policies_keep_their_order_and_must_match_on_resume(dfl):
    words = "--dropout Bernoulli --outgoing [TopK,SignFlip] --outgoing.fraction 0.4 --trainer.max_rounds 1"
    done = dfl(f"--config gossip {words}")
    assert "Bernoulli + TopK + SignFlip + Gossip + Uniform" in done.out
    assert json.loads((done.run / "summary.json").read_text())["policies"][:3] == ["Bernoulli", "TopK", "SignFlip"]
    assert [spec["class_path"].rpartition(".")[2] for spec in config_of(done.run)["outgoing"]] == ["TopK", "SignFlip"]
    refused = dfl(f"--ckpt_path {done.run} --trainer.max_rounds 2 --outgoing TopK", small=False)
    assert refused.code == 2
    assert "--fork starts a new run from it" in refused.err
    assert dfl(f"--ckpt_path {done.run} --trainer.max_rounds 2", small=False).code == 0


def test_run_from_before_an_option_existed_is_resumed(dfl):
    done = dfl("--config gossip --trainer.max_rounds 1")
    [file] = Path(done.run).glob("checkpoints/last.ckpt")
    checkpoint = torch.load(file, weights_only=True)
    assert checkpoint["dfl_lightning"]["config"]["model"].pop("batch_growth") is None
    torch.save(checkpoint, file)
    refused = dfl(f"--ckpt_path {done.run} --trainer.max_rounds 2 --model.batch_growth 2", small=False)
    assert "batch_growth is None in the checkpoint and 2 in this run; --fork starts" in refused.err
    refused = dfl(f"--ckpt_path {done.run} --trainer.max_rounds 2 --model.local_epochs 9", small=False)
    assert re.search(r"model\.local_epochs is \d in the checkpoint and 9 in this run; --fork starts", refused.err)
    assert dfl(f"--ckpt_path {done.run} --trainer.max_rounds 2", small=False).code == 0
