"""Numbers that differ between clients: learning rates, lengths of training, numbers of neighbours."""

import copy
import functools

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from plain_clients import network, samples
from tapes import TapeRecorder
from torch import nn

from dfl_lightning import DFLModule, DFLTrainer, UserError
from dfl_lightning import callbacks as cb
from dfl_lightning.callbacks.monitors.simulated_time import SimulatedTime
from dfl_lightning.objectives import APFL, GradientTracking, QGDSGDm
from dfl_lightning.protocol import RoundProtocol
from dfl_lightning.round.run.per_client import client_numbers

RATES, EPOCHS = (0.2, 0.05, 0.2, 0.01, 0.4), (1, 3, 1, 2, 0)
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
ADAM = functools.partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1)


def fit(root, per_client, policies=None, trainer=(), **module):
    """Train five clients in float64 with full batches."""
    L.seed_everything(0, verbose=False)
    options = {"max_rounds": 3, "precision": "64-true", "accelerator": "cpu", **dict(trainer)}
    run = DFLTrainer(
        callbacks=policies or [cb.Gossip(k="all"), cb.Uniform()],
        default_root_dir=root,
        enable_progress_bar=False,
        **options,
    )
    settings = {"optimizer": SGD, "local_epochs": 2, "batch_size": "full", **module}
    made = DFLModule(network(), per_client=per_client, **settings)
    run.fit(made, datamodule=samples())
    return made


def models_of(module):
    return module.bank.boundary.rows["models"].clone()


def plain(module, make, rates, epochs, schedule=lambda round: 1.0, rounds=3):
    """Train each client by an ordinary optimizer of torch, and average all models after each round."""
    data = module.federation.data
    states = [copy.deepcopy(network()).double() for _ in range(5)]
    for round in range(rounds):
        for client, model in enumerate(states):
            own = data.train[client]
            x, y = data.images[own].double() * data.scale + data.shift, data.labels[own]
            optimizer = make(model.parameters(), lr=rates[client] * schedule(round))
            for _ in range(epochs[client]):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        mean = [torch.stack(parts).mean(0) for parts in zip(*(m.parameters() for m in states), strict=True)]
        for model in states:
            for parameter, value in zip(model.parameters(), mean, strict=True):
                parameter.data = value.clone()
    return torch.cat([value.detach().reshape(-1) for value in mean])


@pytest.mark.parametrize(
    ("engine", "make"),
    [
        pytest.param("loop", SGD, id="loop, sgd"),
        pytest.param("stacked", ADAM, id="stacked, adamw"),
        pytest.param("loop", ADAM, id="loop, adamw", marks=pytest.mark.slow),
        pytest.param("stacked", SGD, id="stacked, sgd", marks=pytest.mark.slow),
    ],
)
def test_rates_and_epochs_are_those_of_a_plain_loop(engine, make, tmp_path):
    numbers = {"lr": list(RATES), "local_epochs": list(EPOCHS)}
    halved = {"lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)}
    module = fit(tmp_path, numbers, trainer={"engine": engine}, optimizer=make, **halved)
    expected = plain(module, make, RATES, EPOCHS, lambda round: 0.5**round)
    torch.testing.assert_close(models_of(module), expected.repeat(5, 1), rtol=1e-9, atol=1e-12)
    without = plain(module, make, (0.1,) * 5, (2,) * 5, lambda round: 0.5**round)
    assert (expected - without).abs().max() > 1e-3


@pytest.mark.parametrize(("engine", "kept"), [("stacked", True), pytest.param("loop", False, marks=pytest.mark.slow)])
def test_each_client_equals_a_run_with_its_numbers(engine, kept, tmp_path):
    alone = [cb.Gossip(k=0), cb.Uniform()]
    options = {"batch_size": 4, "keep_optimizer": kept, "trainer": {"engine": engine, "max_rounds": 2}}
    numbers = {"lr": [0.2, 0.05, None, 0.2, 0.05], "local_steps": [3, 7, 3, None, 3]}
    mixed = models_of(fit(tmp_path, numbers, copy.deepcopy(alone), local_steps=5, **options))
    for lr, steps, clients in ((0.05, 7, [1]), (0.1, 3, [2]), (0.2, 5, [3])):
        optimizer = functools.partial(SGD, lr=lr)
        options_of_all = {**options, "optimizer": optimizer, "local_steps": steps}
        rows = models_of(fit(tmp_path, None, copy.deepcopy(alone), **options_of_all))
        torch.testing.assert_close(mixed[clients], rows[clients], rtol=1e-12, atol=1e-14)


def test_equal_numbers_leave_all_bits_as_they_are(tmp_path):
    plainly = fit(tmp_path, None)
    same = fit(tmp_path, {"lr": [0.1] * 5, "local_epochs": [2] * 5})
    assert torch.equal(models_of(plainly), models_of(same))


def test_fine_tuning_has_each_clients_rate(tmp_path):
    tuned = fit(tmp_path, {"lr": list(RATES)}, finetune_epochs=1).bank.boundary.evaluation["val_loss"]
    module = fit(tmp_path, {"lr": list(RATES)})
    for client in (0, 3):
        x, y = (module.federation.data.images.double(), module.federation.data.labels)
        model = copy.deepcopy(network()).double()
        model.load_state_dict(module.federation.layout.state_dict(models_of(module)[client]))
        own, held_out = module.federation.data.train[client], module.federation.data.val[client]
        optimizer = SGD(model.parameters(), lr=RATES[client])
        nn.functional.cross_entropy(model(x[own]), y[own]).backward()
        optimizer.step()
        loss = nn.functional.cross_entropy(model(x[held_out]), y[held_out]).item()
        assert float(tuned[client]) == pytest.approx(loss, rel=1e-7)  # the state dict is of float32


def test_groups_keep_the_ratio_of_their_rates(tmp_path):
    def two_groups(parameters):
        first, second, *others = parameters
        return torch.optim.SGD([{"params": [first, second], "lr": 0.1}, {"params": others, "lr": 0.02}])

    def plainly(parameters, lr):
        first, *rest = two_groups(parameters).param_groups
        return torch.optim.SGD([{**first, "lr": lr}, *({**group, "lr": lr / 5} for group in rest)])

    module = fit(tmp_path, {"lr": list(RATES)}, optimizer=two_groups)
    expected = plain(module, plainly, RATES, (2,) * 5)
    torch.testing.assert_close(models_of(module), expected.repeat(5, 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_an_objective_reads_its_own_clients_rate(engine, tmp_path):
    apart = [cb.Gossip(k=0), cb.Uniform()]
    options = {"objective": APFL(), "trainer": {"engine": engine, "max_rounds": 2}}
    several = fit(tmp_path, {"lr": list(RATES)}, copy.deepcopy(apart), **options)
    alone = fit(tmp_path, {"lr": [RATES[3]] * 5}, copy.deepcopy(apart), **{**options, "objective": APFL()})
    mine, its = (module.bank.boundary.numbers["alpha"] for module in (several, alone))
    assert float(mine[3]) == pytest.approx(float(its[3]), rel=1e-12)
    assert float(mine[0]) != pytest.approx(float(its[0]), rel=1e-3)


# --- neighbours
def test_column_k_is_the_number_of_neighbours(tmp_path):
    for name in ("k", "budget"):
        module = fit(tmp_path, {name: [0, 1, 2, 3, None]}, [cb.Gossip(k=4), cb.Uniform()])
        graphs = module.trainer.run.graphs
        selected = graphs["selected"] & (graphs["round"] == 1)
        assert np.bincount(graphs["receiver"][selected], minlength=5).tolist() == [0, 1, 2, 3, 4]


def test_numbers_of_neighbours_that_change_nothing_are_refused(tmp_path):
    numbers = {"k": [1, 1, 1, 1, 1]}
    with pytest.raises(UserError, match="a column with numbers of neighbours changes nothing, as clients receive from"):
        fit(tmp_path, numbers, trainer={"topology": "server"})
    with pytest.raises(UserError, match="changes nothing, as selection AllNeighbours has none"):
        fit(tmp_path, numbers, [AllNeighbours(), cb.Uniform()])


class AllNeighbours(cb.Selection):
    """A selection without a number of neighbours."""

    def on_select(self, round):
        round.selected = round.candidates


# --- files
def table(tmp_path, text):
    file = tmp_path / "numbers.csv"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_file_gives_the_numbers_of_a_mapping(tmp_path):
    text = "client;k;lr;local_epochs\n4;2;;\n0; 1;0.2;1\n\n1;1;0.05;3\n3;1;0.01;2\n2;1;0.2;1\n"
    by_file = fit(tmp_path, table(tmp_path, "\ufeff" + text), [cb.Gossip(), cb.Uniform()])
    numbers = {"lr": [0.2, 0.05, 0.2, 0.01, None], "local_epochs": [1, 3, 1, 2, None], "k": [1, 1, 1, 1, 2]}
    by_mapping = fit(tmp_path, numbers, [cb.Gossip(), cb.Uniform()])
    assert torch.equal(models_of(by_file), models_of(by_mapping))


def test_clients_are_named_by_their_labels_in_the_topology(tmp_path):
    edges = [("north", "south"), ("south", "east"), ("east", "west"), ("west", "mid"), ("mid", "north")]
    (tmp_path / "ring.edgelist").write_text("\n".join(f"{a} {b}" for a, b in edges))
    trainer = {"topology": str(tmp_path / "ring.edgelist"), "max_rounds": 1}
    rows = "".join(f"{name},{rate}\n" for name, rate in zip(("mid", "east", "north"), (0.2, 0.3, 0.4), strict=True))
    module = fit(tmp_path, table(tmp_path, f"client,lr\n{rows}south,\nwest,\n"), trainer=trainer)
    labels = module.federation.topology.labels
    assert dict(zip(labels, module.federation.local.rates, strict=True)) == {
        **{"mid": 0.2, "east": 0.3, "north": 0.4, "south": 0.1, "west": 0.1}
    }


LINES = "0,.1\n1,.1\n2,.1\n3,.1\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the first line has no column 'client'; begin it with client,lr"),
        ("id,lr\n0,1\n", "the first line has no column 'client'"),
        (f"client,lr\n{LINES}", "has no line for client 4; there are 5 clients"),
        (f"client,lr\n{LINES}9,.1\n", "line 6: there is no client 9; clients are 0 to 4"),
        (f"client,lr\n{LINES}north,.1\n", "line 6: there is no client north; clients are 0 to 4"),
        (f"client,lr\n{LINES}3,.1\n", "line 6: client 3 has a line already"),
        (f"client,lr\n{LINES}4,fast\n", "client 4: lr is fast; it is a learning rate, 0 or more"),
        (f"client,lr\n{LINES}4,-1\n", "client 4: lr is -1; it is a learning rate, 0 or more"),
        (f"client,lr\n{LINES}4,inf\n", "client 4: lr is inf; it is a learning rate"),
        (f"client,local_epochs\n{LINES}4,1\n", "client 0: local_epochs is .1; it is a whole number of epochs"),
        (f"client,local_steps\n{LINES.replace('.1', '0')}4,1\n", "client 0: local_steps is 0; it is a whole number"),
        (f"client,k\n{LINES}4,1\n", "client 0: k is .1; it is a whole number of neighbours"),
        (f"client,local_epoch\n{LINES}4,1\n", "unknown column 'local_epoch'; did you mean 'local_epochs'"),
        (f"client,lr,lr\n{LINES}", "has the column 'lr' twice"),
        ("client,k,budget\n" + "".join(f"{i},1,1\n" for i in range(5)), "the columns k and budget, .* keep one"),
        (f"client,lr\n{LINES}4\n", "line 6 has 1 cells, and the first line has 2"),
        ("client\n0\n1\n2\n3\n4\n", "has no column with numbers; columns are lr, local_epochs"),
    ],
)
def test_a_bad_table_is_one_sentence(text, sentence, tmp_path):
    with pytest.raises(UserError, match=rf"model\.per_client .*numbers\.csv.*{sentence}"):
        client_numbers(table(tmp_path, text), 5, range(5))


@pytest.mark.parametrize(
    ("numbers", "sentence", "options"),
    [
        ("nowhere.csv", r"per_client nowhere\.csv cannot be read \(No such file", {}),
        ({"lr": [1, 2]}, r"model\.per_client: lr has 2 values, and there are 5 clients", {}),
        ({"lr": 0.1}, r"model\.per_client: lr has 0\.1, and there are 5 clients", {}),
        ({"client": [1] * 5}, "lists values in the order of the clients' ids; leave out client", {}),
        (
            {"local_epochs": [1] * 5},
            r"model\.local_steps counts batches; name the column local_steps",
            {"local_steps": 2},
        ),
        ({"lr": [1] * 5}, "model.optimizer the rate 0; set one above 0", {"optimizer": functools.partial(SGD, lr=0.0)}),
        ({"lr": [1] * 5}, "divides by one learning rate for all clients", {"objective": GradientTracking()}),
        ({"lr": [1] * 5}, "divides by one learning rate for all clients", {"objective": QGDSGDm()}),
        ({"local_epochs": [0, 1, 1, 1, 1]}, "needs local steps", {"objective": QGDSGDm()}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_numbers_that_cannot_be_used_are_refused(numbers, sentence, options, tmp_path):
    plain_sgd = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1)} if "objective" in options else {}
    with pytest.raises(UserError, match=sentence):
        fit(tmp_path, numbers, **{**plain_sgd, **options})


def test_a_policy_that_reads_one_rate_gets_a_sentence(tmp_path):
    class Reads(cb.Monitor):
        def on_round_end(self, round):
            round.log("rate", round.lr)

    with pytest.raises(UserError, match="computes with one learning rate for all clients; leave the column lr out"):
        fit(tmp_path, {"lr": [1.0] * 5}, [cb.Gossip(), cb.Uniform(), Reads()])


# --- around the rounds
def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    numbers = {"lr": list(RATES), "local_epochs": list(EPOCHS)}
    whole = fit(tmp_path, numbers, batch_size=4)
    half = fit(tmp_path, numbers, batch_size=4, trainer={"max_rounds": 1})
    for changed in ({**numbers, "lr": [0.3, *RATES[1:]]}, None):
        with pytest.raises(UserError, match=r"per_client.* in the checkpoint and .* in this run; --fork"):
            resume(half.trainer.run.path, changed)
    assert torch.equal(models_of(resume(half.trainer.run.path, numbers)), models_of(whole))


def resume(folder, numbers):
    L.seed_everything(0, verbose=False)
    trainer = DFLTrainer(
        max_rounds=3,
        precision="64-true",
        accelerator="cpu",
        callbacks=[cb.Gossip(k="all"), cb.Uniform()],
        enable_progress_bar=False,
    )
    module = DFLModule(network(), per_client=numbers, optimizer=SGD, local_epochs=2, batch_size=4)
    trainer.fit(module, datamodule=samples(), ckpt_path=folder)
    return module


def test_simulated_time_counts_each_clients_epochs(tmp_path):
    clock = SimulatedTime(speed=1.0, up=1e12, down=1e12)
    module = fit(tmp_path, {"local_epochs": list(EPOCHS)}, [cb.Gossip(k=0), cb.Uniform(), clock], {"max_rounds": 1})
    sizes = module.federation.data.sizes("train").tolist()
    slowest = max(size * epochs for size, epochs in zip(sizes, EPOCHS, strict=True))
    assert module.trainer.run.metrics["simulated_seconds"].tolist() == [pytest.approx(slowest)]


def test_asynchronous_clients_train_with_their_own_numbers(tmp_path):
    clock = [cb.Gossip(k=0), cb.Uniform(), cb.Asynchronous(speed=1.0, every=50.0)]
    numbers = {"lr": list(RATES), "local_epochs": [1, 3, 1, 2, 1]}
    module = fit(tmp_path, numbers, clock, {"max_rounds": 1})
    trained, sizes = clock[2].trainings.tolist(), module.federation.data.sizes("train").tolist()
    assert trained == [50 // (size * epochs) for size, epochs in zip(sizes, numbers["local_epochs"], strict=True)]
    data, client = module.federation.data, 3
    model, x, y = copy.deepcopy(network()).double(), data.images.double() * data.scale + data.shift, data.labels
    for _ in range(trained[client]):
        optimizer = SGD(model.parameters(), lr=RATES[client])
        for _ in range(numbers["local_epochs"][client]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[data.train[client]]), y[data.train[client]]).backward()
            optimizer.step()
    expected = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    torch.testing.assert_close(models_of(module)[client], expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(UserError, match=r"client 4 does not train \(model.per_client\)"):
        fit(tmp_path, {"local_epochs": list(EPOCHS)}, [cb.Gossip(), cb.Uniform(), cb.Asynchronous(speed=1.0)])


def test_a_policys_own_length_comes_first(tmp_path):
    options = {"trainer": {"max_rounds": 1}, "finetune_epochs": 0}
    dpfl = [cb.DPFL(budget=0, initial_epochs=2), cb.SampleWeighted(count="train")]
    own = fit(tmp_path, {"local_epochs": list(EPOCHS)}, copy.deepcopy(dpfl), **options)
    none = fit(tmp_path, None, copy.deepcopy(dpfl), **options)
    assert torch.equal(models_of(own), models_of(none))


def test_banner_and_explanation_say_what_differs(tmp_path):
    from dfl_lightning.terminal.banner import banner
    from dfl_lightning.terminal.explain import explain

    module = fit(tmp_path, {"lr": list(RATES), "local_epochs": list(EPOCHS)}, trainer={"max_rounds": 1})
    line = banner(module.trainer, module)[1]
    assert "lr 0.01 to 0.4 by client" in line
    assert "0 to 3 epochs a round by client" in line
    trainer = DFLTrainer(accelerator="cpu", enable_progress_bar=False)
    again = DFLModule(network(), per_client={"local_epochs": list(EPOCHS)}, batch_size="full")
    lines = explain(trainer, again, samples())
    sizes = again.federation.data.sizes("train").tolist()
    seen = sum(size * epochs for size, epochs in zip(sizes, EPOCHS, strict=True))
    [work] = [line for line in lines if line.startswith("local work of a round")]
    assert work.endswith(
        f"its own length for each client (model.per_client), 7 optimizer steps, {seen:,} samples over all clients"
    )


def test_recorded_steps_have_each_clients_rate(tmp_path):
    numbers = {"lr": list(RATES), "local_steps": [9, 12, 9, 9, 12]}
    plainly, recorded = (rounds_of(tmp_path, numbers, recorder) for recorder in (None, TapeRecorder()))
    torch.testing.assert_close(recorded, plainly, rtol=1e-6, atol=1e-7)  # a recording's rates are of float32


def rounds_of(root, numbers, recorder):
    """Run two rounds, and return the models; with a recorder, their steps are recorded and replayed."""
    L.seed_everything(0, verbose=False)
    policies = [cb.Gossip(k="all"), cb.Uniform()]
    options = {"precision": "64-true", "accelerator": "cpu", "engine": "stacked", "enable_progress_bar": False}
    trainer = DFLTrainer(max_rounds=2, callbacks=policies, default_root_dir=root, **options)
    sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)
    module = DFLModule(network(), per_client=numbers, optimizer=sgd, local_steps=9, batch_size=2)
    trainer.prepare(module, samples())
    if recorder is not None:
        module.engine.all_at_once(recorder)
    protocol = RoundProtocol(trainer)
    for _ in range(2):
        round = protocol.begin()
        protocol.train(round)
        protocol.mix(round)
        protocol.commit(round)
        module.bank.boundary = module.bank.boundary._replace(closed=True, callbacks=protocol.capture())
    assert recorder is None or recorder.replayed > 20
    return models_of(module)
