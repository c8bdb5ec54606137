"""A run is the same, bit for bit, in any number of processes."""

import pytest

TINY_CNN = """
import torch
from torch import nn


class TinyCNN(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
        )
"""
CNN = ["--model.network", "tiny.TinyCNN"]
SMALL = ["--data.num_clients", "24", "--data.samples_per_client", "16", "--trainer.max_rounds", "3"]
FIVE = ["--trainer.cohorts", "5"]
SPARSE = ["--topology", "{generator: partial, args: {fraction: 0.3}, seed: 1}"]


def check(runs, tmp_path, counts, words):
    found = {}
    for count in counts:
        folder = tmp_path / str(count)
        folder.mkdir(exist_ok=True)
        (folder / "tiny.py").write_text(TINY_CNN)
        runs.fit(count, folder, words)
        found[count] = runs.contents(folder)
    for count in counts[1:]:
        runs.same(found[counts[0]], found[count], f"{count} processes")
    return found[counts[0]]


QUICK = ("fdms", "cnn", (1, 3))
SYSTEMS = [
    pytest.param(config, network, (1, 2, 3, 5), marks=pytest.mark.slow)
    for config in ("afind", "fdms", "panm_loss", "panm_grad", "dpfl")
    for network in ("mlp", "cnn")
]


@pytest.mark.parametrize(("config", "network", "counts"), [QUICK, *SYSTEMS])
def test_systems_of_the_papers_do_not_depend_on_processes(runs, tmp_path, config, network, counts):
    cnn, sparse = CNN if network == "cnn" else [], SPARSE if config == "dpfl" else []
    rows, _, checkpoint = check(runs, tmp_path, counts, ["--config", config, *SMALL, *cnn, *FIVE, *sparse])
    assert len(rows) == 3
    models = checkpoint["state_dict"]["bank.rows.models"]
    assert len(models[:24].unique(dim=0)) > 1
    for count in counts[1:]:
        [moved] = (tmp_path / str(count)).glob("runs/*/*/processes.csv")
        head, *lines = moved.read_text().splitlines()
        assert head == "round,bytes_received,bytes_moved"
        assert [int(line.split(",")[0]) for line in lines] == [0, 1, 2]
        assert all(int(line.split(",")[2]) > 0 for line in lines)
        received = [float(row["bytes_received"]) * 24 for row in rows]
        assert [int(line.split(",")[1]) for line in lines] == pytest.approx(received)
    assert not list((tmp_path / "1").glob("runs/*/*/processes.csv"))


OTHERS = {
    "afind, as printed": ["--config", "afind_literal"],
    "afind, distances of gradients at the receivers, on a sparse graph": [
        *("--config", "afind", "--selection.proxy", "grad_at_receiver", "--selection.similarity", "distance", *SPARSE),
        *("--aggregation.contribution", "printed", "--model.shared", "[features.*]"),
    ],
    "afind, activations": ["--config", "afind", "--selection.proxy", "activations"],
    "afind, drawn by gradients with noise": [
        *("--config", "afind", "--threshold", "null", "--selection.choose", "sampled", "--selection.k", "4"),
        *("--selection.proxy", "grad_at_receiver", "--selection.proxy_noise", "1.0"),
    ],
    "afind, as printed, over rounds, on validation data": [
        *("--config", "afind_literal", "--threshold.normalise", "true", "--aggregation.smooth", "rounds"),
        *("--aggregation.split", "val", "--data.val_fraction", "0.2"),
    ],
    "panm, as printed": ["--config", "panm_literal"],
    "gossip": ["--config", "gossip"],
    "numbers of each client": [
        *("--config", "gossip", "--model.per_client.lr", f"[{', '.join(['0.1', '0.02', 'null'] * 8)}]"),
        *("--model.per_client.local_epochs", f"[{', '.join('1203' * 6)}]"),
    ],
    "growing batches": ["--config", "gossip", "--model.batch_size", "3", "--model.batch_growth", "4"],
    "all neighbours": ["--config", "gossip", "--selection.k", "all"],
    "dsgd": ["--config", "dsgd"],
    "asynchronous gossip": ["--config", "async_gossip", "--dropout", "Bernoulli"],
    "asynchronous gossip, pushed": [
        *("--config", "async_gossip", "--dropout", "Bernoulli", "--clock.waits", "false", "--clock.latency", "0.003")
    ],
    "AFIND+ on published models": ["--config", "async_afind", "--dropout", "Bernoulli"],
    "AD-PSGD": ["--config", "adpsgd", "--dropout", "Bernoulli"],
    "FedBuff": ["--config", "fedbuff", "--dropout", "Bernoulli"],
    "gradient tracking": ["--config", "gradient_tracking"],
    "QG-DSGDm": ["--config", "qg_dsgdm"],
    "DFedSAM, several mixing steps": ["--config", "dfedsam", "--aggregation.steps", "2"],
    "MOON": ["--config", "moon"],
    "FedProto": ["--config", "fedproto", "--dropout", "Bernoulli"],
    "one-peer graphs": ["--config", "one_peer"],
    "CHOCO": ["--config", "choco"],
    "CHOCO, quantized": ["--config", "choco", "--outgoing.share", "null", "--outgoing.bits", "8"],
    "base graph": ["--config", "base_graph", "--dropout", "Bernoulli"],
    "Epidemic Learning": ["--config", "epidemic", "--topology", "el_oracle", "--dropout", "Bernoulli"],
    "pens": ["--config", "pens"],
    "federico": ["--config", "federico"],
    "federico whole": ["--config", "federico_em"],
    "Ditto": ["--config", "ditto"],
    "APFL": ["--config", "apfl"],
    "Per-FedAvg": ["--config", "per_fedavg"],
    "FedRep": ["--config", "fedrep"],
    "Dis-PFL": ["--config", "dispfl", "--dropout", "Bernoulli"],
    "PACFL": ["--config", "pacfl"],
    "pFedGraph": ["--config", "pfedgraph", "--dropout", "Bernoulli"],
    "FedFomo": ["--config", "fedfomo"],
    "D2": ["--config", "d2"],
    "push-sum": ["--config", "push_sum", "--dropout", "Bernoulli"],
    "kNN-Per": ["--config", "knn_per", "--data.val_fraction", "0.2", "--prediction.weight", "validation"],
    "kNN-Per, fine-tuned heads": [
        *("--config", "gossip", "--prediction", "KNN", "--model.shared", "[features.*]", "--model.finetune_epochs", "1")
    ],
    "ifca": ["--config", "ifca"],
    "fedavg": ["--config", "fedavg", "--monitors+=ConsensusDistance", "--monitors+=MergedModel"],
    "fedavg with fine-tuning": ["--config", "fedavg_ft"],
    "fedprox": ["--config", "fedavg", "--objective", "FedProx"],
    "stale": ["--config", "fdms", "--substitution", "Stale", "--monitors+=SubstitutionError"],
    "friends on a server": ["--config", "fdms", "--monitors+=SubstitutionError"],
    "friends among friends": ["--config", "fdms", "--topology", "small_world", "--monitors+=SubstitutionError"],
    "Markov": ["--config", "fdms", "--dropout", "Markov"],
    "personal heads": [
        *("--config", "afind", "--model.shared", "[features.*]"),
        *("--monitors+=ConsensusDistance", "--monitors+=MergedModel"),
    ],
    "personal heads, by losses": ["--config", "panm_loss", "--model.shared", "[features.*]"],
    "fine-tuned heads": ["--config", "pens", "--model.shared", "[features.*]", "--model.finetune_epochs", "1"],
    "failing links": ["--config", "dpfl", "--topology", "failing_links"],
    "one by one": ["--config", "afind", "--engine", "loop", "--model.optimizer", "Adam"],
    "float64": ["--config", "afind", "--trainer.precision", "64-true"],
}


@pytest.mark.slow
@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
def test_all_other_callbacks_give_equal_results_in_3_processes(runs, tmp_path, words):
    check(runs, tmp_path, (1, 3), [*words, *SMALL, *FIVE])


COMERS = """
import networkx as nx
from dfl_lightning.topology import MovingTopology


class Comers(MovingTopology):
    def graph(self, round, clients, random):
        there = [client for client in range(clients) if client % 4 <= round + 1]
        return nx.gnp_random_graph(clients, 0.4, seed=int(random.integers(1000))).subgraph(there)
"""


@pytest.mark.slow
def test_graphs_of_a_users_class_agree_in_2_processes(runs, tmp_path):
    """Also with clients that join late, whose neighbours are in the other process."""
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
        (tmp_path / str(count) / "comers.py").write_text(COMERS)
    topology = ["--topology", "{class_path: comers.Comers, join: neighbours, seed: 3}"]
    words = ["--config", "gossip", *SMALL, *topology, "--trainer.cohorts", "2", "--model.local_epochs", "1"]
    rows, _, _ = check(runs, tmp_path, (1, 2), words)
    assert [float(row["active"]) for row in rows] == [12, 18, 24]
    assert [float(row["proxies_received"]) > 0 for row in rows] == [False, True, True]


def test_every_shipped_config_is_tested_in_several_processes(request):
    """Here, at least in the slow tests: a new one is a case above."""
    shipped = {file.stem for file in (request.config.rootpath / "configs").glob("*.yaml")}
    ran = {parameter.values[0] for parameter in SYSTEMS} | {
        words[words.index("--config") + 1] for words in OTHERS.values()
    }
    assert shipped - ran - set(TASKS) == set()


TASKS = {
    "regression": ["--data.num_clients", "5", "--model.network.hidden", "[4]"],
    "multilabel": ["--data.num_clients", "5", "--data.samples_per_client", "40", "--selection.stage_one", "1"],
    "tabular": ["--data.num_clients", "5", "--data.samples_per_client", "40"],
    "text": ["--data.num_clients", "5", "--data.most", "300", "--model.network.width", "8"],
    "text_lstm": ["--data.num_clients", "5", "--data.most", "300", "--model.network.units", "8"],
    **{
        config: ["--data.num_clients", "5", "--data.most", "300", "--model.network.base.width", "8"]
        for config in ("lora_gossip", "ffa_lora", "fedsa_lora", "adf_lora")
    },
    "forecast": [
        *("--data.num_clients", "6", "--data.stride", "6", "--data.val_fraction", "0.2"),
        *("--model.network.channels", "[4]"),
    ],
}


QUICK_TASKS = ("multilabel", "tabular", "text", "adf_lora")


@pytest.mark.parametrize("counts", [(1, 2), pytest.param((1, 3), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "config", [pytest.param(config, marks=[pytest.mark.slow] * (config not in QUICK_TASKS)) for config in TASKS]
)
def test_all_tasks_are_the_same_in_several_processes(runs, tmp_path, config, counts):
    words = ["--trainer.max_rounds", "2", "--trainer.precision", "64-true", "--trainer.cohorts", "3"]
    rows, _, _ = check(runs, tmp_path, counts, ["--config", config, *TASKS[config], *words])
    assert float(rows[1]["test_loss"]) < float(rows[0]["test_loss"])


def test_optimizer_states_do_not_depend_on_processes(runs, tmp_path):
    adam = ["--model.optimizer", "Adam", "--model.optimizer.lr", "0.01", "--model.keep_optimizer", "true"]
    words = ["--config", "gossip", "--dropout", "Bernoulli", *SMALL, *FIVE, *adam]
    _, _, checkpoint = check(runs, tmp_path, (1, 2), words)
    state = checkpoint["state_dict"]
    assert state["bank.rows.optimizer.exp_avg"].any(1).sum() > 12
    assert len(state["bank.numbers._optimizer.models.step.0"].unique()) > 1  # some have been down
    folder = tmp_path / "2 then 1"
    folder.mkdir()
    first = runs.fit(2, folder, [*words, "--trainer.max_rounds", "1"])
    runs.fit(1, folder, [*words, "--ckpt_path", str(first.relative_to(folder) / "checkpoints" / "last.ckpt")])
    runs.same(state, runs.contents(folder)[2]["state_dict"])


def test_a_frozen_base_does_not_depend_on_processes(runs, tmp_path):
    network = ["--model.network", "networks.FrozenBody", "--model.network.hidden", "[16]"]
    words = ["--config", "gossip", *SMALL, *FIVE, *network]
    _, _, checkpoint = check(runs, tmp_path, (1, 2), words)
    state = checkpoint["state_dict"]
    assert state["bank.rows.models"].shape[1] == 16 * 10 + 10
    assert [name for name in state if "base" in name] == [
        "bank.base.features.fc1.weight",
        "bank.base.features.fc1.bias",
    ]


OUTGOING = ["--outgoing", "[TopK, GaussianNoise, SignFlip]", "--outgoing.fraction", "0.3"]


COUNTS = pytest.mark.parametrize("counts", [(1, 3), pytest.param((1, 2), marks=pytest.mark.slow)], ids=str)


@COUNTS
@pytest.mark.parametrize("config", ["afind", pytest.param("fdms", marks=pytest.mark.slow)])
def test_messages_do_not_depend_on_processes(runs, tmp_path, config, counts):
    _, _, checkpoint = check(runs, tmp_path, counts, ["--config", config, *SMALL, *FIVE, *OUTGOING])
    assert checkpoint["state_dict"]["bank.rows.residual"].any()


@pytest.mark.parametrize(("saved_by", "count"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_kept_messages_resume_with_any_number_of_processes(runs, tmp_path, saved_by, count):
    words = ["--config", "afind", *SMALL, *FIVE, *OUTGOING]
    whole = check(runs, tmp_path, (1,), words)
    folder = tmp_path / f"{saved_by} then {count}"
    folder.mkdir()
    first = runs.fit(saved_by, folder, [*words, "--trainer.max_rounds", "1"])
    last = first.relative_to(folder) / "checkpoints" / "last.ckpt"
    runs.fit(count, folder, [*words, "--ckpt_path", str(last)])
    found = runs.contents(folder)
    runs.same(whole[0], found[0])
    runs.same(whole[2]["state_dict"], found[2]["state_dict"])


@COUNTS
@pytest.mark.parametrize("config", ["gossip", pytest.param("fedavg", marks=pytest.mark.slow)])
def test_columnwise_reductions_do_not_depend_on_processes(runs, tmp_path, config, counts):
    attack = ["--outgoing", "SignFlip", "--outgoing.fraction", "0.2"]
    robust = ["--aggregation", "TrimmedMean", "--aggregation.trim", "0.2"]
    check(runs, tmp_path, counts, ["--config", config, *SMALL, *FIVE, *attack, *robust])
