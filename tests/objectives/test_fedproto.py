"""FedProto over whole rounds with clients that drop out, against plain modules; what it costs, and what it refuses."""

import logistic
import numpy as np
import pytest
import torch
from logistic import GRAPH, RATE
from tapes import TapeRecorder
from torch import nn
from torch.nn.functional import cross_entropy

from dfl_lightning import callbacks as cb
from dfl_lightning.objectives import FedProto, Plain
from dfl_lightning.utils.errors import UserError

CLASSES, WIDTH = 3, 4
HEAD = slice(5 * WIDTH + WIDTH, 5 * WIDTH + WIDTH + CLASSES * WIDTH)
"""Columns of the last layer's weight."""


def network(*between):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(5, WIDTH), *between, nn.Tanh(), nn.Linear(WIDTH, CLASSES))


def start(rule, weighting="samples", *others, **settings):
    policies = [cb.Gossip(k="all"), cb.PrototypeAverage(weighting), *others]
    return logistic.start(*policies, objective=rule, **{"network": network(), **settings})


def module(row):
    made = network().double()
    nn.utils.vector_to_parameters(row.clone(), made.parameters())
    return made


def own_prototypes(made, x, y):
    """Mean features and numbers of samples, by class."""
    features = made[:3](x).detach()
    return {c: (features[y == c].mean(0), int((y == c).sum())) for c in y.unique().tolist()}


@pytest.mark.parametrize(
    ("engine", "weighting"),
    [("loop", "samples"), ("loop", "equal"), ("stacked", "samples"), ("stacked", "equal"), ("recorded", "samples")],
)
def test_fedproto_agrees_with_plain_modules_under_dropout(engine, weighting, monkeypatch):
    monkeypatch.setattr("dfl_lightning.engines.stacked.gpu.cuda_graphs.FEWEST_STEPS", 1)
    kind, recorder = "loop" if engine == "loop" else "stacked", TapeRecorder()
    tolerance = 1e-7 if engine == "recorded" else 1e-9  # recorded steps have their learning rate in float32
    run, was_down = start(FedProto(0.7), weighting, cb.Bernoulli(0.4), engine=kind), 0
    if engine == "recorded":
        run.module.engine.all_at_once(recorder)
    models = [module(row) for row in run.models]
    received = [None] * 6
    for t in range(5):
        round = run.go(1).rounds[-1]
        up = [i for i in range(6) if round.participants[i]]
        was_down += 6 - len(up)
        own = {}
        for i in up:
            taken = [tuple(map(torch.from_numpy, pair)) for pair in logistic.batches(run, i, t)]
            for x, y in taken:
                z = models[i][:3](x)
                loss = cross_entropy(models[i][3:](z), y)
                if received[i] is not None:
                    apart = [(z[b] - received[i][int(y[b])]).square().sum() for b in range(len(y))]
                    loss = loss + 0.7 * sum(apart) / len(y) / WIDTH
                grads = torch.autograd.grad(loss, list(models[i].parameters()))
                with torch.no_grad():
                    for p, g in zip(models[i].parameters(), grads, strict=True):
                        p -= RATE * g
            x, y = (torch.from_numpy(part) for part in logistic.batch(run, run.data.train[i]))
            own[i] = own_prototypes(models[i], x, y)
        size = 0
        for i in up:
            near = [i, *(j for j in GRAPH[i] if j in own)]
            size += sum(4 * (WIDTH + 1) * len(own[j]) for j in near[1:])
            received[i] = {}
            for c in range(CLASSES):
                found = [own[j][c] for j in near if c in own[j]]
                if found:
                    weights = [n if weighting == "samples" else 1 for _, n in found]
                    total = sum(w * mean for w, (mean, _) in zip(weights, found, strict=True))
                    received[i][c] = total / sum(weights)
        rows = torch.stack([nn.utils.parameters_to_vector(made.parameters()).detach() for made in models])
        torch.testing.assert_close(run.models, rows, rtol=0, atol=tolerance)
        kept = run.rows("prototypes")[:, HEAD].view(6, CLASSES, WIDTH)
        for i in (i for i in range(6) if received[i] is not None):
            for c, prototype in received[i].items():
                torch.testing.assert_close(kept[i, c], prototype, rtol=0, atol=tolerance)
        assert round.metrics["models_received"] == 0
        assert round.metrics["bytes_received"] == pytest.approx(size / 6)
    assert was_down
    if engine == "recorded":
        both = {name for name, _ in run.module.engine.recordings._of}
        assert both == {"the run's own", "sums of features"}
        assert recorder.replayed > recorder.recorded


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_without_the_distance_fedproto_is_local_training(engine):
    settings = {
        "engine": engine,
        "network": network(nn.BatchNorm1d(WIDTH)),
        "batch_size": 3,
        "sizes": [6, 3, 5, 2, 8, 6],
    }
    alone = logistic.start(cb.Gossip(k=0), cb.Uniform(), objective=Plain(), **settings).go(3)
    run = start(FedProto(0.0), **settings).go(3)
    torch.testing.assert_close(run.models, alone.models, rtol=0, atol=1e-12)
    for mine, other in zip(run.rounds, alone.rounds, strict=True):
        torch.testing.assert_close(mine.losses, other.losses, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_server_averages_and_clients_keep_their_models(engine):
    """Plain modules; the server's messages of a round go to those that train in it."""
    data = {"topology": "server", "sizes": [9, 6, 6, 3, 6, 9], "val_fraction": 1 / 3}
    run = start(FedProto(0.7), "samples", cb.Bernoulli(0.4), cb.NearestPrototype(), engine=engine, **data)
    models, server, was_down = [module(row) for row in run.models[:6]], {}, 0
    for t in range(5):
        round = run.go(1).rounds[-1]
        up = [i for i in range(6) if round.participants[i]]
        was_down += 6 - len(up)
        sums, counts, size = {}, {}, 4 * WIDTH * len(server) * len(up)
        for i in up:
            for x, y in [tuple(map(torch.from_numpy, pair)) for pair in logistic.batches(run, i, t)]:
                z = models[i][:3](x)
                known = [(z[b] - server[int(c)]).square().sum() for b, c in enumerate(y) if int(c) in server]
                loss = cross_entropy(models[i][3:](z), y) + 0.7 * sum(known) / len(y) / WIDTH
                grads = torch.autograd.grad(loss, list(models[i].parameters()))
                with torch.no_grad():
                    for p, g in zip(models[i].parameters(), grads, strict=True):
                        p -= RATE * g
            x, y = (torch.from_numpy(part) for part in logistic.batch(run, run.data.train[i]))
            own = own_prototypes(models[i], x, y)
            size += 4 * (WIDTH + 1) * len(own)
            for c, (mean, n) in own.items():
                sums[c], counts[c] = sums.get(c, 0) + n * mean, counts.get(c, 0) + n
        server |= {c: total / counts[c] for c, total in sums.items()}
        rows = torch.stack([nn.utils.parameters_to_vector(made.parameters()).detach() for made in models])
        torch.testing.assert_close(run.models[:6], rows, rtol=0, atol=1e-9)
        assert round.metrics["models_received"] == 0
        assert round.metrics["bytes_received"] == pytest.approx(size / 6)
    assert was_down
    assert not run.module.federation.has_global_model
    found = run.module.evaluate()
    for i, made in enumerate(models):
        x, y = (torch.from_numpy(part) for part in logistic.batch(run, run.data.val[i]))
        apart = [[float((z - server[c]).square().mean()) for c in range(CLASSES)] for z in made[:3](x).detach()]
        probabilities = torch.tensor(apart, dtype=torch.float64).neg().softmax(1)
        right = [min(range(CLASSES), key=row.__getitem__) == int(c) for row, c in zip(apart, y, strict=True)]
        assert found["val_acc"][i].item() == pytest.approx(sum(right) / len(right))
        loss = -probabilities.log()[range(len(y)), y].mean()
        assert found["val_loss"][i].item() == pytest.approx(float(loss), abs=1e-9)


def test_a_server_costs_at_most_two_prototype_sets_per_client():
    served = start(FedProto(), topology="server").go(3).rounds[-1].metrics
    complete = start(FedProto(), topology="complete").go(3).rounds[-1].metrics
    assert served["bytes_received"] <= 4 * CLASSES * (2 * WIDTH + 1)
    assert complete["bytes_received"] > 2 * served["bytes_received"]


def test_weights_are_mean_shares_of_the_classes():
    run = start(FedProto())
    round = run.go(1).rounds[-1]
    data = run.data
    counts = np.array([np.bincount(data.labels[own].numpy(), minlength=CLASSES) for own in data.train])
    near = np.eye(6) + np.array([[GRAPH.has_edge(i, j) for j in range(6)] for i in range(6)])
    for i in range(6):
        held = (near[i] @ counts) > 0
        shares = (near[i][:, None] * counts)[:, held] / (near[i] @ counts)[held]
        np.testing.assert_allclose(round.weights[i], shares.mean(1), atol=1e-12)


class Backwards(nn.Module):
    """Its layers are defined in the other order."""

    def __init__(self):
        super().__init__()
        self.second, self.first = nn.Linear(3, 3), nn.Linear(5, 3)

    def forward(self, x):
        return self.second(self.first(x.flatten(1)).tanh())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedProto(-1.0), r"objective.lam=-1.0; the weight of FedProto's term must be 0 or more"),
        (lambda: cb.PrototypeAverage("all"), r"aggregation.weighting=all; it is samples or equal"),
        (
            lambda: logistic.start(cb.Gossip(k="all"), cb.Uniform(), objective=FedProto()),
            r"objective FedProto exchanges prototypes, which only aggregation PrototypeAverage mixes; add",
        ),
        (lambda: start(Plain()), r"PrototypeAverage mixes prototypes, and objective Plain has none; use --objective"),
        (
            lambda: start(
                FedProto(), network=nn.Sequential(nn.Unflatten(-1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten())
            ),
            r"objective FedProto needs a network that ends with torch.nn.Linear, and it has no linear layer",
        ),
        (
            lambda: start(FedProto(), network=nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.GLU())),
            r"compares inputs of a last linear layer with an output for each of the 3 classes, and the last matrix of "
            r"Sequential, '1.weight', belongs to none",
        ),
        (
            lambda: start(FedProto(), network=Backwards()).go(1),
            r"keeps prototypes in the weight of the network's last layer, 'first', and the last linear layer of a "
            r"forward pass is 'second'",
        ),
        (
            lambda: start(FedProto(), "samples", cb.Stale(), cb.Bernoulli(0.2)),
            r"sends prototypes and no models, which substitution Stale is for; use --substitution null",
        ),
        (
            lambda: logistic.start(cb.Gossip(k="all"), cb.Uniform(), cb.NearestPrototype(), objective=Plain()),
            r"NearestPrototype compares features with prototypes, and objective Plain has none; use --config fedproto",
        ),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
