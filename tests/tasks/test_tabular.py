"""Tables with columns of categories: numbered by training rows, embedded as by hand, trained as by a plain loop."""

import numpy as np
import pytest
import torch
from banks import SEED, _data, _module, _row, make_federation
from torch import nn
from torch.nn import functional as F

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks, data, models
from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.tasks import Regression
from dfl_lightning.terminal.banner import notes

SIZES, CATEGORIES = (5, 1, 9, 4), (4, 3)


def rows():
    """Clients of unequal size; two columns of categories, 0 among them, and two of numbers."""
    found = _data(SIZES, (4,))
    g = torch.Generator().manual_seed(4)
    codes = [torch.randint(0, count, (len(found.images),), generator=g) for count in CATEGORIES]
    found.images[:, :2] = torch.stack(codes, 1).double()
    found.scale, found.shift = torch.tensor(1.0), torch.tensor(0.0)
    found.labels = torch.randn(len(found.images), 1, generator=g, dtype=torch.float64)
    found.num_classes, found.categories = 0, CATEGORIES
    return found


def by_hand(w, x):
    """The network row by row: looked up, put together, two linear layers."""
    found = []
    for row in x:
        tables = (w[f"features.columns.embeddings.{i}.weight"] for i in range(2))
        looked_up = [table[int(code)] for table, code in zip(tables, row[:2], strict=True)]
        found.append(torch.cat([*looked_up, row[2:]]))
    y = torch.stack(found) @ w["features.fc1.weight"].T + w["features.fc1.bias"]
    return F.relu(y) @ w["head.weight"].T + w["head.bias"]


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_embedded_categories_agree_with_a_plain_loop(engine):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = models.Tabular([5], 3, list(CATEGORIES), input_shape=(4,), num_classes=1).double()
    task, clients = Regression(), rows()
    x = clients.images[:6]
    assert torch.allclose(network(x), by_hand(dict(network.named_parameters()), x), atol=1e-12)
    f = make_federation(network=network, data=clients, engine=engine, loss=task.mean_loss(), task=task, clip_norm=0.5)
    training = f.training()
    f.engine.train(References.rows("models", torch.arange(4)), training)
    for client in range(4):
        model = _module(f.network, f.bank.rows("models")[client])
        w, untrained = dict(model.named_parameters()), [p[0].clone() for p in model.parameters()][:2]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        draws, samples = training.draws(SEED), f.data.train[client]
        for epoch in range(2):
            for part in samples[draws.orders_of(client, epoch, 1, len(samples))[0]].split(4):
                x, y = f.data.batch(part, dtype=torch.float64)
                optimizer.zero_grad()
                (by_hand(w, x) - y).square().mean().backward()
                for table in list(w.values())[:2]:
                    table.grad[0] = 0  # an unknown category
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        assert all(torch.equal(a, p[0]) for a, p in zip(untrained, list(model.parameters())[:2], strict=True))
        assert torch.allclose(f.bank.rows("trained")[client], _row(model, torch.float64), rtol=0, atol=1e-9)


def test_categories_outside_the_training_samples_are_unknown(tmp_path):
    towns = ["Ulm", "", "Bonn", "Ulm", "Kiel", "Bonn", "Ulm", "Bonn"]
    lines = [f"{town},{age},{'n' if age % 2 else 's'},{age * 2}" for age, town in enumerate(towns)]
    (tmp_path / "t.csv").write_text("town,age,shop,price\n" + "\n".join(lines) + "\n")
    options = {"target": "price", "client": "shop", "categories": ["town"], "num_clients": 2, "test_fraction": 0.5}
    table = data.Vectors(str(tmp_path / "t.csv"), **options)
    table.setup()
    assert table.source.categories == table.clients.categories == (4,)
    numbers = {"": 0, "Bonn": 1, "Kiel": 2, "Ulm": 3}
    assert table.source.images[:, 0].tolist() == [numbers[town] for town in towns]
    trained = np.concatenate(table.client_split.train)
    known = {towns[row] for row in trained}
    assert set(towns) - known  # at least one town is only tested
    assert table.clients.images[:, 0].tolist() == [numbers[t] if t in known else 0 for t in towns]
    ages = table.source.images[trained, 1]
    wanted = (table.source.images[:, 1] - ages.mean()) / ages.std(correction=0)
    assert torch.allclose(table.clients.images[:, 1].double(), wanted, atol=1e-6)


def test_flights_are_learned_with_the_categories_of_the_data(tmp_path):
    airlines = data.Vectors(table="flights", num_clients=16)
    airlines.setup()
    assert airlines.client_split.writers.tolist()[:3] == ["9E", "AA", "AS"]
    assert len(airlines.source.labels) == 5971
    module = DFLModule(models.Tabular([8], 2), batch_size=16)
    options = {"default_root_dir": tmp_path, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = DFLTrainer(max_rounds=3, callbacks=[callbacks.Gossip(k=2), callbacks.Uniform()], **options)
    trainer.fit(module, datamodule=data.Vectors(table="flights", num_clients=6, partition=data.IID()))
    assert [len(e.weight) for e in module.network.features.columns.embeddings] == [4, 94, 13]
    rmse = trainer.run.metrics["test_rmse"]
    assert rmse[-1] < min(rmse[0], 80)  # minutes; their deviation is above 100
    assert trainer.run.summary["engine"]["name"] == "stacked"


@pytest.mark.parametrize(("network", "said"), [(models.MLP([4]), True), (models.Tabular([4]), False)])
def test_a_note_names_networks_that_treat_categories_as_quantities(network, said):
    trainer = DFLTrainer(max_rounds=1, logger=False, enable_progress_bar=False, accelerator="cpu")
    trainer.prepare(DFLModule(network), data.Vectors(table="flights", num_clients=4, partition=data.IID()))
    wanted = (
        "the data have 3 columns of categories, whose numbers MLP takes for quantities; --model.network Tabular embeds "
        "them"
    )
    assert (wanted in notes(trainer, trainer.lightning_module)) == said


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: models.Tabular(embedding=0),
            r"Tabular: hidden=\[64\], embedding=0, categories=None; each must be 1 or more",
        ),
        (lambda: models.Tabular(categories=[2, 2]).build((1,), 1), "rows with 2 columns of categories, .* has 1;"),
        (
            lambda: models.Tabular().build((1, 8, 8), 10),
            "needs rows with 0 columns of categories, .* has 1x8x8; choose",
        ),
        (lambda: models.Tabular(categories=[2]).read_categories((3,)), r"categories=\[2\], but the data has \[3\]"),
    ],
)
def test_unusable_tables_are_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
