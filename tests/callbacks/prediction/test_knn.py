"""kNN-Per whole, against plain modules and loops written from the paper."""

import math
from dataclasses import replace

import pytest
import torch
from plain_clients import UP, combined, judged, samples
from torchmetrics.classification import MulticlassCalibrationError

from dfl_lightning.callbacks import DPFL, KNN, FedeRiCo, Gossip, SampleWeighted, ScoreWeighted, Trace, Uniform
from dfl_lightning.data import FromDataset
from dfl_lightning.evaluation import reported_models
from dfl_lightning.utils.errors import UserError

ENGINES = pytest.mark.parametrize("engine", ["loop", "stacked"])


def softmax(scores):
    shares = [math.exp(score - max(scores)) for score in scores]
    return [share / sum(shares) for share in shares]


def voted(model, stored, x, k, scale, kernel):
    """Count the votes for the classes of each sample, one after the other."""
    with torch.no_grad():
        memory, queries = model[:2](stored[0]).tolist(), model[:2](x).tolist()
    found = []
    for query in queries:
        distances = [math.dist(query, feature) for feature in memory]
        nearest = sorted(range(len(distances)), key=lambda place: (distances[place], place))[:k]
        votes = [0.0] * 3
        for place in nearest:
            d = distances[place]
            exponent = d**2 / (len(query) * scale) if kernel == "squared" else d / scale
            votes[int(stored[1][place])] += math.exp(-exponent)
        found.append([vote / sum(votes) for vote in votes])
    return found


def predicted(plain, model, client, split, weight, k=10, scale=1.0, kernel="squared"):
    x = plain.parts[split][client][0]
    with torch.no_grad():
        network = [softmax(scores) for scores in model(x).tolist()]
    votes = voted(model, plain.parts["train"][client], x, k, scale, kernel)
    return [
        [weight * v + (1 - weight) * p for v, p in zip(*rows, strict=True)] for rows in zip(votes, network, strict=True)
    ]


def check(run, plain, models, weight=0.5, **options):
    """Check the run's losses and accuracies against the predictions of plain clients."""
    found = run.module.evaluate()
    for client, model in enumerate(models):
        own = weight if isinstance(weight, float) else chosen(plain, model, client, **options)
        for split in ("val", "test"):
            probabilities = predicted(plain, model, client, split, own, **options)
            loss, accuracy = judged(probabilities, plain.parts[split][client][1])
            assert found[f"{split}_loss"][client].item() == pytest.approx(loss, rel=1e-9, abs=1e-9)
            assert found[f"{split}_acc"][client].item() == pytest.approx(accuracy, abs=1e-12)
    return found


def chosen(plain, model, client, **options):
    """Choose the weight with most right answers on validation data, then the lowest loss, then the lowest weight."""

    def quality(weight):
        probabilities = predicted(plain, model, client, "val", weight, **options)
        labels = plain.parts["val"][client][1]
        right = judged([[max(p, 1e-300) for p in row] for row in probabilities], labels)[1]
        ruled_out = any(row[y] == 0 for row, y in zip(probabilities, labels.tolist(), strict=True))
        return round(-right, 9), math.inf if ruled_out else round(judged(probabilities, labels)[0], 12), weight

    return min((step / 10 for step in range(11)), key=quality)


OPTIONS = {
    "as shipped": {},
    "the paper's kernel": {"kernel": "euclidean"},
    "few, by scale": {"k": 3, "scale": 0.05, "weight": 0.8},
    "more than there are": {"k": 100, "weight": 0.3},
}


@ENGINES
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_predictions_combine_fedavg_and_neighbours_votes(plain_run, engine, options):
    """The paper's method: one global model by averages over the clients that are active, and votes on each client."""
    policies = [Gossip(k="all"), SampleWeighted(), Trace("up.txt"), KNN(**options)]
    run, plain = plain_run(*policies, topology="server", engine=engine)
    server = plain.first
    for line in UP:
        up = [client for client, there in enumerate(line) if there == "1"]
        sizes = [len(plain.parts["train"][client][1]) for client in up]
        trained = [plain.trained(server, client) for client in up]
        server = combined(trained, [size / sum(sizes) for size in sizes])
        run.go()
        check(run, plain, [server] * 5, **options)


@ENGINES
def test_knn_works_with_gossip_and_validated_weights(plain_run, engine):
    run, plain = plain_run(Gossip(k=2), Uniform(), Trace("up.txt"), KNN(weight="validation"), engine=engine)
    models = [plain.first] * 5
    for line in UP:
        trained = [
            plain.trained(model, i) if there == "1" else model
            for i, (model, there) in enumerate(zip(models, line, strict=True))
        ]
        weights = run.go().rounds[-1].weights
        models = [
            combined(trained, weights[i].tolist()) if there == "1" else trained[i] for i, there in enumerate(line)
        ]
        check(run, plain, models, weight="validation")


@ENGINES
def test_features_are_those_of_the_model_after_fine_tuning(plain_run, engine):
    run, plain = plain_run(Gossip(k=0), Uniform(), KNN(), engine=engine, finetune_epochs=2)
    models = [plain.trained(plain.first, client) for client in range(5)]
    run.go()
    check(run, plain, [plain.trained(model, client) for client, model in enumerate(models)])


@ENGINES
def test_personal_heads_and_bodies_are_the_clients_own(plain_run, engine):
    run, plain = plain_run(Gossip(k="all"), SampleWeighted(), KNN(), engine=engine, topology="server", shared=["0.*"])
    run.go(2)
    rows = run.bank.materialise(reported_models(run.module)).cpu()
    models = []
    for row in rows:
        own = combined([plain.first], [1.0])
        torch.nn.utils.vector_to_parameters(row, own.parameters())
        models.append(own)
    assert not torch.equal(models[0][2].weight, models[1][2].weight)
    assert torch.equal(models[0][0].weight, models[1][0].weight)
    check(run, plain, models)


def test_weights_0_and_1_use_only_network_or_votes(plain_run):
    run, _ = plain_run(Gossip(k=0), Uniform(), KNN(weight=0.0))
    alone = plain_run(Gossip(k=0), Uniform())[0].go(2).module.evaluate()
    found = run.go(2).module.evaluate()
    for name, values in alone.items():
        torch.testing.assert_close(found[name], values, rtol=1e-9, atol=1e-9)
    run, _ = plain_run(Gossip(k=0), Uniform(), KNN(weight=1.0, k=1))
    losses = run.go(2).module.evaluate()["test_loss"]
    assert ((losses == 0) | losses.isinf()).all()  # a vote of one sample is right, or rules the right answer out


class Lacking(FromDataset):
    """Client 1 has nothing to train on, client 2 nothing to be tested on."""

    @property
    def clients(self):
        data, none = super().clients, torch.empty(0, dtype=torch.long)
        train, test = list(data.train), list(data.test)
        train[1], test[2] = none, none
        return replace(data, train=tuple(train), test=tuple(test))


@ENGINES
def test_a_client_without_training_samples_has_the_network_alone(plain_run, engine):
    data = samples(kind=Lacking)
    found = {}
    for weight in (0.0, 0.5):
        run, _ = plain_run(Gossip(k="all"), Uniform(), KNN(weight=weight), engine=engine, data=data)
        found[weight] = run.go(2).module.evaluate()["test_loss"]
    assert found[0.0][1] == found[0.5][1]
    assert found[0.0][0] != found[0.5][0]
    assert found[0.5][2].isnan()


class Seen(MulticlassCalibrationError):
    """Keeps what it is given."""

    given: list = []

    def update(self, preds, target):
        self.given.append(preds.cpu())
        super().update(preds, target)


@ENGINES
def test_metrics_are_given_probabilities(plain_run, engine):
    """Each once: torchmetrics apply a softmax to what is outside of [0, 1]."""
    run, plain = plain_run(Gossip(k=0), Uniform(), KNN(weight=0.3), engine=engine, metrics=[Seen(num_classes=3)])
    Seen.given.clear()
    run.go()
    found = run.module.evaluate()
    for given in Seen.given[:5]:
        assert ((given >= 0) & (given <= 1)).all()
        torch.testing.assert_close(given.sum(1), torch.ones(len(given), dtype=torch.float64))
    model = plain.trained(plain.first, 0)
    probabilities = torch.tensor(predicted(plain, model, 0, "test", 0.3))
    metric = MulticlassCalibrationError(num_classes=3)
    metric.update(probabilities, plain.parts["test"][0][1])
    assert found["test_seen"][0] == pytest.approx(metric.compute().item(), abs=1e-6)


def test_policies_evaluate_the_network_without_neighbours(plain_run):
    """A prediction is for what is reported: it changes no round."""
    for make in (lambda: (FedeRiCo(k=2), ScoreWeighted()), lambda: (DPFL(budget=2), SampleWeighted())):
        with_votes, without = plain_run(*make(), KNN())[0].go(3), plain_run(*make())[0].go(3)
        assert torch.equal(with_votes.models, without.models)
        for one, other in zip(with_votes.rounds, without.rounds, strict=True):
            assert one.metrics == other.metrics


# --- what is refused


def test_a_choice_by_validation_needs_validation_data(plain_run):
    with pytest.raises(UserError, match=r"client 0 has none; set data\.val_fraction, or give a number"):
        plain_run(Gossip(), Uniform(), KNN(weight="validation"), data=samples(val_fraction=0.0))


@ENGINES
def test_a_network_without_a_linear_head_is_refused(plain_run, start, engine):
    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(5, 3))

        def forward(self, x):
            return x @ self.weight

    with pytest.raises(UserError, match=r"prediction KNN wants the input of the layer 'head', which .* does not have"):
        start(Gossip(), Uniform(), KNN(), network=Sums(), trainer={"engine": engine})


@pytest.mark.parametrize(
    "loss",
    [torch.nn.CrossEntropyLoss(label_smoothing=0.1), torch.nn.functional.multi_margin_loss],
    ids=["smoothed", "margin"],
)
def test_another_loss_than_the_cross_entropy_is_refused(plain_run, loss):
    with pytest.raises(UserError, match="prediction KNN gives probabilities, whose loss is the plain cross-entropy"):
        plain_run(Gossip(), Uniform(), KNN(), loss=loss)


def test_the_cross_entropy_may_be_a_function(plain_run):
    one = plain_run(Gossip(k=0), Uniform(), KNN(), loss=torch.nn.functional.cross_entropy)[0].go().module.evaluate()
    other = plain_run(Gossip(k=0), Uniform(), KNN())[0].go().module.evaluate()
    for name, values in one.items():
        torch.testing.assert_close(values, other[name], rtol=1e-12, atol=1e-12)
