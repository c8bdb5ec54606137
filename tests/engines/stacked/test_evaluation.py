"""Scores of many models on many clients' samples, against one plain module after the other."""

import functools
from types import SimpleNamespace

import pytest
import torch
import torchmetrics
from hypothesis import given
from hypothesis import strategies as st
from threads import threads
from torch import nn

from dfl_lightning.bank.references import References, Term
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import engine as stacked_engine
from dfl_lightning.engines.stacked import evaluation as scoring
from dfl_lightning.engines.stacked.evaluation import Scorer, shared_models

CLIENTS = 7
SIZES = (9, 4, 14, 3, 11, 6, 30)


def plain(naive, f, row, indices, loss=nn.functional.cross_entropy):
    """Loss, accuracy and scores of a plain module."""
    module = naive.module(f.network, row).eval()
    x, y = naive.inputs(f.data, indices, f.dtype)
    with torch.no_grad():
        outputs = module(x)
    return float(loss(outputs, y)), float((outputs.argmax(1) == y).double().mean()), outputs, y


def all_pairs(rows=CLIENTS, owners=CLIENTS):
    return torch.cartesian_prod(torch.arange(rows), torch.arange(owners)).unbind(1)


WAYS = [(1, "models"), (3, "models"), (50, "models"), (3, "owners"), (50, "owners")]


def group_by(monkeypatch, way):
    """Let all jobs share their samples, or of none."""
    activations = {"owners": 1e9, "models": 0}[way]
    init = scoring.Scorer.__init__

    def made(self, context, _):
        init(self, context, 1)
        self._activations, self.length = activations, lambda *_: 10**6

    monkeypatch.setattr(scoring.Scorer, "__init__", made)


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]} side by side, by {way[1]}")
def width(request, monkeypatch):
    """Few samples at a time, and so many models; grouped by the model that is read, or by the owner."""
    width, way = request.param
    group_by(monkeypatch, way)
    init = scoring.Scorer.__init__

    def made(self, context, activations):
        init(self, context, activations)
        self.width, self.length = width, lambda *_: 4

    monkeypatch.setattr(scoring.Scorer, "__init__", made)
    return width


# --- grouping ---------------------------------------------------------------------------------------------------------
def test_jobs_that_read_a_row_share_a_model():
    jobs, sizes = torch.arange(10, 16), torch.tensor([3, 5, 0, 2, 4, 1])
    found = shared_models(jobs, torch.tensor([7, 8, 7, 7, -1, -1]), sizes, lambda jobs: jobs)
    assert [job.tolist() for job in found.jobs.split(found.counts.tolist())] == [[10, 13], [11], [14], [15]]
    assert found.models.tolist() == [10, 11, 14, 15]
    assert found.totals.tolist() == [5, 5, 4, 1]
    assert found.sizes.tolist() == [3, 2, 5, 4, 1]
    assert len(found) == 15


def test_models_are_evaluated_in_small_groups():
    models = shared_models(torch.arange(6), torch.tensor([1, 2, 1, 3, 2, 0]), torch.full((6,), 2), lambda jobs: jobs)
    assert [few.jobs.tolist() for few in models.split(3)] == [[0, 2, 1, 4, 3], [5]]
    assert [few.totals.tolist() for few in models.split(3)] == [[4, 4, 2], [2]]


@pytest.mark.parametrize(("way", "times"), [("models", 1), ("owners", CLIENTS)])
def test_models_are_staged_once_or_once_per_owner(federation, monkeypatch, way, times):
    group_by(monkeypatch, way)
    f = federation(sizes=SIZES)
    read = []
    reader = f.bank.reader
    monkeypatch.setattr(f.bank, "reader", lambda r: read.append(r.terms[0].which.tolist()) or reader(r))
    rows, owners = all_pairs()
    f.engine.evaluate(References.rows("models", rows, owners=owners), "test")
    assert sorted(row for several in read for row in several) == sorted([*range(CLIENTS)] * times)


def test_groups_are_formed_only_if_sharing_samples_pays(federation):
    scorer = federation(sizes=SIZES).engine._scorer
    scorer.width, scorer._activations = 3, 5
    few, enough = len(scorer._context.layout.all) // 5 - 1, 30
    found = scorer.shared_samples([4, 0, 7, 2], enough)
    assert [jobs.tolist() for jobs in found] == [[4, 0], [7, 2]]
    assert scorer.shared_samples([4, 0, 7, 2], few) == scorer.shared_samples([4], enough) == []  # staging costs more
    scorer.width = 1
    assert scorer.shared_samples([4, 0], enough) == []


@given(st.integers(2, 300), st.integers(2, 40), st.data())
def test_dividing_some_of_the_groups_again_gives_equal_groups(jobs, width, data):
    scorer = SimpleNamespace(width=width, _activations=1, _context=SimpleNamespace(layout=SimpleNamespace(width=1)))
    shared_samples = Scorer.shared_samples(scorer, list(range(jobs)), 1)
    first = data.draw(st.integers(0, len(shared_samples) - 1))
    some = shared_samples[first : data.draw(st.integers(first + 1, len(shared_samples)))]
    again = Scorer.shared_samples(scorer, torch.cat(some).tolist(), 1)
    assert [c.tolist() for c in again] == [c.tolist() for c in some]


def test_an_owners_images_are_prepared_once_for_several_models(federation, monkeypatch):
    group_by(monkeypatch, "owners")
    f = federation(sizes=SIZES)
    shapes = []
    batch = f.data.batch
    monkeypatch.setattr(
        f.data, "batch", lambda indices, **options: shapes.append(indices.shape) or batch(indices, **options)
    )
    rows, owners = all_pairs()
    f.engine.evaluate(References.rows("models", rows, owners=owners), "train")
    assert sorted(shapes) == sorted((1, size) for size in SIZES)


# --- right ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["mlp", "batchnorm", "dropout"])
def test_every_model_is_scored_on_every_clients_data(federation, naive, width, kind):
    f = federation(kind, sizes=SIZES)
    rows, owners = all_pairs()
    shuffled = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    rows, owners = rows[shuffled], owners[shuffled]
    found = f.engine.evaluate(References.rows("models", rows, owners=owners), "train")
    for job in range(len(rows)):
        row = f.bank.rows("models")[rows[job]]
        loss, accuracy, *_ = plain(naive, f, row, f.data.train[owners[job]])
        assert float(found.losses[job]) == pytest.approx(loss, rel=1e-10)
        assert float(found.metrics["acc"][job]) == pytest.approx(accuracy, rel=1e-12)


def test_evaluation_uses_the_owners_personal_columns(federation, naive, width):
    f = federation(sizes=SIZES, shared=["0.*"])
    f.engine.train(References.rows("models", torch.arange(CLIENTS)), f.training())
    rows, owners = all_pairs()
    for personal in ("trained", "models"):
        found = f.engine.evaluate(References.rows("trained", rows, owners=owners, personal=personal), "val")
        for job, (j, i) in enumerate(zip(rows.tolist(), owners.tolist(), strict=True)):
            row = f.bank.rows("trained")[j].clone()
            row[35:] = f.bank.rows(personal)[i, 35:]
            assert float(found.losses[job]) == pytest.approx(plain(naive, f, row, f.data.val[i])[0], rel=1e-10)


def test_weighted_references_are_put_together_for_each_job(federation, naive, width):
    f = federation("batchnorm", sizes=SIZES, sets=["initial"])
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(9, CLIENTS, generator=generator, dtype=torch.float64)
    weights /= weights.sum(1, keepdim=True)
    owners = torch.randint(0, CLIENTS, (9,), generator=generator)
    terms = (Term("models", 0.9 * weights), Term("initial", 0.1 * weights.flip(0)))
    found = f.engine.evaluate(References(terms, owners), "test")
    for job, owner in enumerate(owners.tolist()):
        row = 0.9 * weights[job] @ f.bank.rows("models") + 0.1 * weights[8 - job] @ f.bank.rows("initial")
        loss, accuracy, *_ = plain(naive, f, row, f.data.test[owner])
        assert float(found.losses[job]) == pytest.approx(loss, rel=1e-9)
        assert float(found.metrics["acc"][job]) == pytest.approx(accuracy)


@pytest.mark.parametrize("piece", [1, 4, 11, 100])
def test_the_global_test_set_is_weighed_together_from_its_pieces(federation, naive, monkeypatch, piece):
    monkeypatch.setattr(stacked_engine, "GLOBAL_PIECE", piece)
    f = federation(sizes=SIZES, servers=1)
    rows = torch.tensor([CLIENTS, 2, 0, CLIENTS, 5])
    owners = torch.tensor([-1, -1, 0, 3, -1])
    found = f.engine.evaluate(References.rows("models", rows, owners=owners), "test")
    for job in range(5):
        owner = int(owners[job])
        indices = f.data.global_test if owner < 0 else f.data.test[owner]
        loss, accuracy, *_ = plain(naive, f, f.bank.rows("models")[rows[job]], indices)
        assert float(found.losses[job]) == pytest.approx(loss, rel=1e-10)
        assert float(found.metrics["acc"][job]) == pytest.approx(accuracy, rel=1e-12)


METRICS = {
    "f1": torchmetrics.F1Score("multiclass", num_classes=3, average="macro"),
    "calibration": torchmetrics.CalibrationError("multiclass", num_classes=3),
}


def test_metrics_receive_all_samples_of_a_job_together(federation, naive, width, monkeypatch):
    """Neither pieces of the global test set nor batches of samples show in a metric that is no mean over samples."""
    monkeypatch.setattr(stacked_engine, "GLOBAL_PIECE", 4)
    monkeypatch.setattr(scoring, "EVALUATION_BATCH", 5)
    f = federation(sizes=SIZES, metrics=METRICS)
    rows, owners = torch.tensor([0, 0, 1, 6, 2]), torch.tensor([-1, 0, 0, 6, 4])
    found = f.engine.evaluate(References.rows("models", rows, owners=owners), "train")
    assert set(found.metrics) == {"acc", "f1", "calibration"}
    for job in range(5):
        owner = int(owners[job])
        indices = f.data.global_test if owner < 0 else f.data.train[owner]
        loss, accuracy, outputs, y = plain(naive, f, f.bank.rows("models")[rows[job]], indices)
        assert float(found.losses[job]) == pytest.approx(loss, rel=1e-10)
        assert float(found.metrics["acc"][job]) == pytest.approx(accuracy, rel=1e-12)
        for name, metric in METRICS.items():
            assert float(found.metrics[name][job]) == pytest.approx(float(metric.clone()(outputs, y)), abs=1e-6)


def unsteady(scores, labels):
    """A loss that is no mean over samples."""
    return nn.functional.nll_loss(scores.log_softmax(1), labels) * scores.std()


LOSSES = {
    "smoothing": nn.CrossEntropyLoss(label_smoothing=0.2),
    "weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)),
    "margins": nn.MultiMarginLoss(),
    "unsteady": unsteady,
}


@pytest.mark.parametrize("name", LOSSES)
def test_another_loss_sees_each_jobs_own_samples_at_once(federation, naive, width, name):
    f = federation(sizes=SIZES, loss=LOSSES[name])
    rows, owners = all_pairs(3)
    found = f.engine.evaluate(References.rows("models", rows, owners=owners), "train")
    for job, (j, i) in enumerate(zip(rows.tolist(), owners.tolist(), strict=True)):
        loss, accuracy, *_ = plain(naive, f, f.bank.rows("models")[j], f.data.train[i], LOSSES[name])
        assert float(found.losses[job]) == pytest.approx(loss, rel=1e-10)
        assert float(found.metrics["acc"][job]) == pytest.approx(accuracy, rel=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"metrics": METRICS}, {"loss": LOSSES["margins"]}], ids=["plain", "f1", "loss"]
)
def test_clients_without_samples_have_no_scores(federation, make_data, options):
    data = make_data(SIZES)
    data.val = tuple(samples[:0] if i in (1, 4) else samples for i, samples in enumerate(data.val))
    f = federation(data=data, **options)
    rows, owners = all_pairs()
    found = f.engine.evaluate(References.rows("models", rows, owners=owners), "val")
    for values in (found.losses, *found.metrics.values()):
        assert values.isnan().tolist() == [i in (1, 4) for i in owners.tolist()]
    data.val = tuple(samples[:0] for samples in data.val)
    nothing = f.engine.evaluate(References.rows("models", rows, owners=owners), "val")
    assert nothing.losses.isnan().all()
    data.global_test = data.global_test[:0]
    whole = f.engine.evaluate(References.rows("models", rows[:1], owners=torch.tensor([-1])), "test")
    assert whole.losses.isnan().all()


def test_no_jobs_give_no_scores(federation):
    f = federation()
    none = torch.zeros(0, dtype=torch.long)
    found = f.engine.evaluate(References.rows("models", none), "test")
    assert len(found.losses) == len(found.metrics["acc"]) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_models_and_images_affect_only_their_own_scores(federation, make_data, width, bad):
    data = make_data(SIZES)
    clean = federation(data=data)
    rows, owners = all_pairs()
    references = References.rows("models", rows, owners=owners)
    expected = clean.engine.evaluate(references, "test").losses
    spoilt = make_data(SIZES)
    spoilt.images[spoilt.test[2][1]] = bad
    f = federation(data=spoilt)
    f.bank.boundary.rows["models"][5] = bad
    found = f.engine.evaluate(references, "test").losses
    mine = (rows == 5) | (owners == 2)
    assert not found[mine].isfinite().any()
    assert torch.equal(found[~mine], expected[~mine])


def test_both_engines_give_the_same_scores(federation):
    options = {"sizes": SIZES, "servers": 1, "sets": ["initial"], "metrics": METRICS, "shared": ["0.*", "1.*", "5.*"]}
    found = []
    for engine in (None, LoopEngine):
        f = federation("batchnorm", **options, **({} if engine is None else {"engine": engine}))
        rows, owners = all_pairs(CLIENTS + 1)
        found.append(f.engine.evaluate(References.rows("initial", rows, owners=owners), "test"))
    torch.testing.assert_close(found[0].losses, found[1].losses, rtol=1e-10, atol=1e-10)
    for name, values in found[0].metrics.items():
        torch.testing.assert_close(values, found[1].metrics[name], rtol=1e-6, atol=1e-6)


def test_images_may_be_integers(federation, naive, make_data):
    data = make_data(SIZES)
    data.images = (data.images * 30).clamp(-100, 100).abs().to(torch.uint8)
    f = federation(data=data, optimizer=functools.partial(torch.optim.SGD, lr=1.0))
    found = f.engine.evaluate(References.rows("models", torch.arange(CLIENTS)), "train")
    for i in range(CLIENTS):
        loss = plain(naive, f, f.bank.rows("models")[i], data.train[i])[0]
        assert float(found.losses[i]) == pytest.approx(loss, rel=1e-10)


@pytest.mark.parametrize("way", ["models", "owners"])
def test_no_bit_depends_on_the_number_of_threads(federation, monkeypatch, way):
    group_by(monkeypatch, way)
    found = []
    rows, owners = all_pairs()
    for count in (1, 2, 3):
        with threads(count):
            f = federation("batchnorm", sizes=SIZES, dtype=torch.float32)
            found.append(f.engine.evaluate(References.rows("models", rows, owners=owners), "train").losses)
    assert all(torch.equal(losses, found[0]) for losses in found)


def test_both_groupings_give_the_same_scores(federation, monkeypatch):
    rows, owners = all_pairs()
    found = []
    for way in ("models", "owners"):
        with monkeypatch.context() as patch:
            group_by(patch, way)
            f = federation("batchnorm", sizes=SIZES, metrics=METRICS)
            found.append(f.engine.evaluate(References.rows("models", rows, owners=owners), "train"))
    torch.testing.assert_close(found[0].losses, found[1].losses, rtol=1e-10, atol=1e-12)
    for name, values in found[0].metrics.items():
        torch.testing.assert_close(values, found[1].metrics[name], rtol=1e-6, atol=1e-6)


def test_pieces_of_samples_are_joined_by_model():
    totals, length = torch.tensor([[5], [4], [1]]), 2
    numbered = torch.arange(15).view(3, 5)  # of each model and sample
    stretches = [numbered[: int((totals > start).sum()), start : start + length] for start in range(0, 5, length)]
    expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert scoring._in_order(stretches, totals, length).tolist() == expected
    assert scoring._in_order([numbered], totals, 5).tolist() == expected
