"""Clients' models leave a run as plain state dicts."""

import functools
import os

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning import DFLModule, DFLTrainer, UserError
from dfl_lightning import callbacks as cb
from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.cli import command as cli
from dfl_lightning.cli.exports.export import export
from dfl_lightning.cli.exports.export_command import main
from dfl_lightning.data import Digits, FromDataset
from dfl_lightning.data.partitions import RotatedClusters
from dfl_lightning.models import MLP
from dfl_lightning.models.fitting import fit_to_data
from dfl_lightning.objectives import Ditto, FedProto

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
]
SHAPE = (3, 2, 2)


class Net(nn.Module):
    """With everything that a state dict can hold: buffers of numbers, a count, a module used twice."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("table", torch.arange(6))
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x):
        return self.head(self.body(x) * self.scale)


def run_of(root, topology="complete", selection=None, val_fraction=0.0, aggregation=None, **options):
    x = torch.randn(80, *SHAPE, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(x, (x.flatten(1) @ torch.ones(12, 3).cumsum(1)).argmax(1))
    data = FromDataset(dataset, num_clients=4, val_fraction=val_fraction)
    policies = [selection or cb.Gossip(k="all" if topology == "server" else 2), aggregation or cb.Uniform()]
    trainer = DFLTrainer(
        max_rounds=2,
        topology=topology,
        callbacks=policies,
        default_root_dir=root,
        accelerator="cpu",
        enable_progress_bar=False,
    )
    torch.manual_seed(0)
    settings = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "batch_size": 8, "local_epochs": 1, **options}
    module = DFLModule(Net(), **settings)
    trainer.fit(module, datamodule=data)
    return trainer, module


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("server"), topology="server", shared=["body.*", "scale"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Finish a run whose reported models are not its last ones."""
    dpfl = cb.DPFL(budget=2, initial_epochs=1)
    trainer, module = run_of(tmp_path_factory.mktemp("kept"), selection=dpfl, val_fraction=0.2)
    rows = module.bank.boundary.rows
    assert not torch.equal(rows["best"], rows["models"])
    return trainer, module


@pytest.fixture(scope="module")
def personal(tmp_path_factory):
    """Finish a run whose reported models never reach the server."""
    return run_of(tmp_path_factory.mktemp("personal"), topology="server", objective=Ditto(0.5))


@pytest.fixture(scope="module")
def without_server_model(tmp_path_factory):
    """Finish a run whose server has no model."""
    root, options = (
        tmp_path_factory.mktemp("prototypes"),
        {"objective": FedProto(), "aggregation": cb.PrototypeAverage()},
    )
    return run_of(root, topology="server", **options)


def loaded(file):
    network = Net()
    network.load_state_dict(load_file(file), strict=True)
    return network.eval()


@pytest.mark.parametrize("made", ["clients", "server", "kept", "personal", "without_server_model"])
def test_an_exported_model_scores_what_the_run_reported(request, made, tmp_path):
    trainer, module = request.getfixturevalue(made)
    files = export(trainer.run.path, to=tmp_path / "out")
    assert [file.name for file in files] == [f"client_{i}.safetensors" for i in range(4)]
    data, reported = module.federation.data, module.evaluate()
    for client, file in enumerate(files):
        x, y = data.batch(data.test[client])
        with torch.no_grad():
            scores = loaded(file)(x)
        assert float((scores.argmax(1) == y).double().mean()) == float(reported["test_acc"][client])
        assert float(nn.functional.cross_entropy(scores, y)) == pytest.approx(
            float(reported["test_loss"][client]), rel=1e-6
        )
    assert np.array_equal(trainer.run.clients["test_acc"][-1], reported["test_acc"].numpy())


def test_counts_and_tables_keep_their_types_and_shapes(clients, tmp_path):
    trainer, _ = clients
    (file,) = export(trainer.run.path, clients=[2], to=tmp_path)
    state, plain = load_file(file), Net().state_dict()
    assert {name: (v.dtype, v.shape) for name, v in state.items()} == {n: (v.dtype, v.shape) for n, v in plain.items()}
    assert state["table"].tolist() == list(range(6))
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"client": "2", "network": "Net"}


def test_files_lie_in_the_run_folder_unless_told_otherwise(clients):
    trainer, _ = clients
    path = trainer.run.path
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    (file,) = export(path, clients=[1])
    assert file == path / "export" / "client_1.safetensors"
    assert {f: f.read_bytes() for f in before} == before
    (same,) = export(path / "checkpoints" / "last.ckpt", clients=[1])
    assert same == file


def test_the_command_says_how_many_went_where(clients, tmp_path, capsys):
    trainer, _ = clients
    main([str(trainer.run.path), "--client", "0", "3", "--out", str(tmp_path / "out")])
    assert capsys.readouterr().out == f"2 models in {tmp_path / 'out'}\n"
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["client_0.safetensors", "client_3.safetensors"]
    main([str(trainer.run.path), "--all", "--out", str(tmp_path / "all")])
    assert capsys.readouterr().out == f"4 models in {tmp_path / 'all'}\n"
    assert main([str(trainer.run.path), "--client", "1", "--out", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out == f"1 model in {tmp_path / 'one'}\n"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "the following arguments are required: run; dfl-export --help shows what it takes"),
        (["RUN", "--client", "x"], "argument --client: invalid int value: 'x'; dfl-export --help shows what it takes"),
        (
            ["RUN", "--client", "1", "--all"],
            "argument --all: not allowed with argument --client; dfl-export --help shows what it takes",
        ),
        (["RUN", "--client", "4"], "RUN: client 4 does not exist; the run has clients 0 to 3"),
        (["RUN", "--client", "-1"], "RUN: client -1 does not exist; the run has clients 0 to 3"),
        (["nowhere"], "nowhere: no checkpoints/last.ckpt in there; give a run folder or a checkpoint"),
        (["TORN"], "TORN: not a whole checkpoint"),
        (["RUN", "--out", "TORN/below"], "TORN/below: cannot be written (Not a directory); choose another with --out"),
    ],
)
def test_a_mistake_is_answered_by_one_sentence(clients, tmp_path, capsys, words, answer):
    torn = tmp_path / "torn.ckpt"
    torn.write_text("half a")
    names = {"RUN": str(clients[0].run.path), "TORN": str(torn)}

    def filled(text):
        for name, path in names.items():
            text = text.replace(name, path)
        return text

    try:
        code = main([filled(word) for word in words])
    except SystemExit as left:  # the parser's way
        code = left.code
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith(filled(f"dfl-export: {answer}"))


CONFIG = """
trainer: {max_rounds: 2, accelerator: cpu, enable_progress_bar: false}
model:
  network: {class_path: MLP, init_args: {hidden: [8]}}
  local_epochs: 1
  batch_size: 16
  finetune_epochs: 2
  optimizer: {class_path: SGD, init_args: {lr: 0.1, momentum: 0.9}}
  lr_scheduler: {class_path: StepLR, init_args: {step_size: 1, gamma: 0.5}}
data: {class_path: Digits, init_args: {num_clients: 6, samples_per_client: 40, partition: RotatedClusters}}
topology: TOPOLOGY
selection: {class_path: Gossip, init_args: {k: 3}}
aggregation: Uniform
"""


@pytest.mark.parametrize("topology", ["complete", "server"])
def test_a_fine_tuned_model_scores_what_the_run_reported(tmp_path, monkeypatch, capsys, topology):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    (tmp_path / "small.yaml").write_text(CONFIG.replace("TOPOLOGY", topology))
    assert cli.run("fit", ["--config", "small.yaml", "--seed_everything", "3"]) == 0
    (run,) = tmp_path.glob("runs/small/*")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    capsys.readouterr()

    assert main([str(run), "--out", "plain"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "6 models in plain",
        "as they are before fine-tuning; the run's scores are of the models after it, which --finetuned writes",
    ]
    state = torch.get_rng_state()
    assert main([str(run), "--out", "tuned", "--finetuned"]) == 0
    assert capsys.readouterr().out == "6 models in tuned\n"
    assert torch.equal(torch.get_rng_state(), state)
    assert os.environ["PL_GLOBAL_SEED"] == "7"
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before

    data = Digits(num_clients=6, samples_per_client=40, partition=RotatedClusters(), seed=3)
    data.setup("test")
    with np.load(run / "clients.npz") as arrays:
        reported = {name: arrays[name][-1] for name in arrays.files}
    for client in range(6):
        network = MLP(hidden=[8])
        fit_to_data(network, data.clients, nn.CrossEntropyLoss(), {}, 0)
        x, y = data.clients.batch(data.clients.test[client])
        network.load_state_dict(load_file(f"tuned/client_{client}.safetensors"), strict=True)
        with torch.no_grad():
            scores = network.eval()(x)
        assert float((scores.argmax(1) == y).double().mean()) == reported["test_acc"][client]
        assert float(nn.functional.cross_entropy(scores, y)) == pytest.approx(reported["test_loss"][client], rel=1e-6)
        network.load_state_dict(load_file(f"plain/client_{client}.safetensors"), strict=True)
        with torch.no_grad():
            assert not torch.equal(network.eval()(x), scores)


def test_run_without_fine_tuning_or_config_exports_no_tuned_models(clients, tmp_path, capsys):
    path = clients[0].run.path
    assert main([str(path), "--finetuned"]) == 2
    assert "does not fine-tune models (model.finetune_epochs is 0); leave out --finetuned" in capsys.readouterr().err
    trainer, _ = run_of(tmp_path, finetune_epochs=1)
    assert main([str(trainer.run.path), "--finetuned"]) == 2
    assert "is of a run from Python and cannot make model.network (Net(" in capsys.readouterr().err
    (trainer.run.path / "config.yaml").unlink()
    assert main([str(trainer.run.path), "--finetuned"]) == 2
    assert "fine-tuning needs the run's config.yaml" in capsys.readouterr().err
    (file,) = export(trainer.run.path, clients=[0])
    assert file.name == "client_0.safetensors"


def test_errors_are_exceptions_in_python_and_with_debug(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="give a run folder"):
        export(tmp_path)
    monkeypatch.setenv("DFL_DEBUG", "1")
    with pytest.raises(UserError, match="give a run folder"):
        main([str(tmp_path)])


def test_a_checkpoint_says_which_network_it_is_of(clients):
    about = read_checkpoint(clients[0].run.path / "checkpoints" / "last.ckpt")["dfl_lightning"]
    assert about["network"]["name"] == "Net"
    network = about["network"]
    assert {*network["parameters"], *network.get("base", {"tensors": ()})["tensors"]} == set(Net().state_dict())


def test_it_says_that_accuracies_are_of_a_prediction(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--data.num_clients=4", "--data.samples_per_client=30", "--model.network.hidden=[4]"]
    progress = ["--trainer.max_rounds=1", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    words += ["--model.finetune_epochs=0"]
    assert cli.run("fit", ["--config=knn_per", *words, *progress]) == 0
    (run,) = tmp_path.glob("runs/*/*")
    capsys.readouterr()
    assert main([str(run)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == ("they are the networks alone; the run's scores are of its prediction KNN, which is not in them")
