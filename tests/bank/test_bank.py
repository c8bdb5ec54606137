"""Row sets, mixing, comparing, and the boundary between rounds."""

import io
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from pairs import compare_pairs

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.mixing import block_width, mix_rows
from dfl_lightning.bank.references import References, Term

ALL = torch.ones(3, 3, dtype=torch.bool)


@pytest.fixture
def trained(federation):
    """Makes a federation whose clients have been trained."""

    def make(**options):
        f = federation(**options)
        f.engine.train(References.rows("models", torch.arange(f.m)), f.training())
        return f

    return make


@pytest.fixture(params=[False, True], ids=["one block", "many blocks"])
def blocks(request, monkeypatch):
    """Products over all columns at once, or over many blocks of them."""
    if request.param:
        for verb in ("mixing", "comparing.similarity"):
            monkeypatch.setattr(f"dfl_lightning.bank.{verb}.block_width", lambda rows, itemsize, memory: 7)


def snapshot(bank):
    return {name: rows.clone() for name, rows in bank.boundary.rows.items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def commit(bank):
    bank.commit(bank.boundary._replace(round=bank.boundary.round + 1, rows=bank.next_rows()))


# --- mixing -----------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("where", [torch.tensor([True, False, True]), torch.tensor([0, 2])], ids=["mask", "index"])
def test_named_rows_become_the_weighted_sum_and_all_others_stay(trained, where):
    f = trained(dtype=torch.float32, sets=["initial"])
    after, initial = f.bank.rows("trained").clone(), f.bank.rows("initial").clone()
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.6, 0.4]], dtype=torch.float64)
    own = torch.tensor([[0.1, 0.0, 0.0], [0.0, 0.0, -0.1]], dtype=torch.float64)
    f.bank.mix([(weights, "trained"), (own, "initial")], "models", where)
    mixed = f.bank.next_rows()["models"]
    assert torch.equal(mixed[1], after[1])
    expected = weights.numpy() @ after.double().numpy() + own.numpy() @ initial.double().numpy()
    np.testing.assert_allclose(mixed[[0, 2]].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_rows_are_written_in_the_given_order(trained):
    f = trained()
    after = f.bank.rows("trained").clone()
    f.bank.mix([(torch.eye(3, dtype=torch.float64)[[0, 1]], "trained")], "models", torch.tensor([2, 0]))
    assert torch.equal(f.bank.next_rows()["models"], after[[1, 1, 0]])


@pytest.mark.usefixtures("blocks")
def test_one_hot_weights_return_a_row_bit_for_bit(trained):
    f = trained(dtype=torch.float32)
    after = f.bank.rows("trained").clone()
    f.bank.mix([(torch.eye(3)[[1, 2, 0]].double(), "trained")], "models", torch.ones(3, dtype=torch.bool))
    assert torch.equal(f.bank.next_rows()["models"], after[[1, 2, 0]])


@pytest.mark.parametrize("columns", [Columns([(3, 5), (20, 41)]), Columns([])], ids=["some", "none"])
@pytest.mark.usefixtures("blocks")
def test_columns_that_are_not_named_stay(trained, columns):
    f = trained()
    after = f.bank.rows("trained").clone()
    f.bank.mix([(torch.full((3, 3), 1 / 3), "trained")], "models", torch.arange(3), columns)
    mixed, named = f.bank.next_rows()["models"], torch.zeros(f.layout.width, dtype=torch.bool)
    for start, stop in columns.ranges:
        named[start:stop] = True
    assert torch.equal(mixed[:, ~named], after[:, ~named])
    torch.testing.assert_close(mixed[:, named], after[:, named].mean(0).expand(3, -1), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("memory", [0, 40_000])
def test_a_mix_in_place_over_blocks_equals_the_whole_product(monkeypatch, memory):
    monkeypatch.setattr("dfl_lightning.bank.mixing.BLOCK_BYTES", memory)
    g = torch.Generator().manual_seed(0)
    rows, weights = torch.randn(6, 3001, generator=g), torch.rand(6, 6, generator=g).softmax(1)
    assert block_width(6, 4, memory) < 3001
    expected = weights.double() @ rows.double()
    mix_rows([(weights, rows)], rows, torch.arange(6), Columns([(0, 3001)]))
    torch.testing.assert_close(rows.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_block_of_columns_fits_the_memory():
    assert block_width(100, 4, 2**20) * 100 * 4 <= 2**20
    assert block_width(10**6, 4, 2**20) == 64
    assert block_width(0, 4, 2**20) > 0


# --- personal columns -------------------------------------------------------------------------------------------------
def test_personal_columns_are_never_mixed_and_never_leave_their_owner(federation):
    f = federation("batchnorm", shared=["0.*", "1.*"], servers=1, sets=["memory"])
    personal = f.layout.personal.mask(f.layout.width)
    for rows in f.bank.boundary.rows.values():
        for i in range(4):
            rows[i, personal] = 10.0 ** (4 * i)  # any share of another's mark would show
    marks = f.bank.rows("models")[:, personal].clone()
    f.engine.train(References.rows("models", torch.arange(3)), f.training(epochs=0))

    weights = torch.full((3, 4), 0.25)
    foreign = References((Term("trained", weights),), torch.tensor([2, 0, 1]), "trained")
    from_the_server = References((Term("models", torch.full((3,), 3)),), torch.tensor([2, 0, 1]))
    for references in (foreign, from_the_server, References.rows("trained", torch.tensor([0, 1, 2]), foreign.owners)):
        assert torch.equal(f.bank.materialise(references)[:, personal], marks[[2, 0, 1]])
        pieces = [f.bank.materialise(references, at, at + 5) for at in range(0, f.layout.width, 5)]
        assert torch.equal(torch.cat(pieces, 1)[:, : f.layout.width], f.bank.materialise(references))

    f.bank.mix([(weights, "trained")], "memory", torch.arange(3))
    f.bank.mix([(torch.full((4, 4), 0.25), "trained")], "models", torch.arange(4))
    assert torch.equal(f.bank.next_rows()["models"][:, personal], marks)
    assert torch.equal(f.bank.next_rows()["memory"][:, personal], marks)
    commit(f.bank)
    assert torch.equal(f.bank.rows("models")[:, personal], marks)


def test_another_clients_model_is_scored_with_the_owners_personal_parameters(federation):
    f = federation(shared=["0.*"])
    rows = f.bank.boundary.rows["models"]
    rows[1:, 35:] = float("nan")  # heads that would spoil every score they took part in
    everyone = torch.tensor([0, 1, 2])
    scores = f.engine.evaluate(References.rows("models", everyone, owners=torch.zeros(3, dtype=torch.long)), "val")
    assert scores.losses.isfinite().all()
    averaged = References((Term("models", torch.full((1, 3), 1 / 3)),), torch.tensor([0]))
    assert f.engine.evaluate(averaged, "val").losses.isfinite().all()


def test_integer_buffers_are_not_mixed_when_everything_is_shared(trained):
    f = trained(kind="batchnorm")
    before = f.bank.rows("trained")[:, -1].clone()
    assert len(set(before.tolist())) > 1
    f.bank.mix([(torch.full((3, 3), 1 / 3), "trained")], "models", torch.arange(3))
    assert torch.equal(f.bank.next_rows()["models"][:, -1], before)


# --- rounds -----------------------------------------------------------------------------------------------------------
def test_the_boundary_is_not_written_before_the_commit(federation):
    f = federation(sets=["memory"])
    before = snapshot(f.bank)
    f.engine.train(References.rows("models", torch.arange(3)), f.training())
    f.bank.mix([(torch.eye(3), "trained")], "memory", torch.arange(3))
    f.bank.mix([(torch.full((2, 3), 1 / 3), "memory")], "memory", torch.tensor([0, 2]))
    f.bank.mix([(torch.full((3, 3), 1 / 3), "trained")], "models", torch.arange(3))
    assert same(snapshot(f.bank), before)
    coming = {name: rows.clone() for name, rows in f.bank.next_rows().items()}
    assert not any(torch.equal(coming[name], before[name]) for name in before)
    commit(f.bank)
    assert same(snapshot(f.bank), coming)


def test_former_rows_stay_until_the_next_training(federation):
    f = federation()
    former, before = f.bank.boundary, snapshot(f.bank)
    everyone = References.rows("models", torch.arange(3))
    f.engine.train(everyone, f.training())
    commit(f.bank)
    assert torch.equal(former.rows["models"], before["models"])
    now = snapshot(f.bank)
    f.engine.train(everyone, f.training(round=4))
    assert f.bank.rows("trained") is former.rows["models"]  # its buffer is written again
    assert same(snapshot(f.bank), now)
    commit(f.bank)
    commit(f.bank)  # a round in which no client trained
    now = snapshot(f.bank)
    f.engine.train(everyone, f.training(round=6))
    assert same(snapshot(f.bank), now)


def test_an_abandoned_round_leaves_nothing(federation):
    f, undisturbed = federation(sets=["memory"]), federation(sets=["memory"])
    everyone = References.rows("models", torch.arange(3))
    before = snapshot(f.bank)
    f.engine.train(everyone, f.training(purpose="finetune"))
    f.bank.mix([(torch.eye(3), "trained")], "memory", torch.arange(3))
    f.bank.mix([(torch.full((3, 3), 1 / 3), "trained")], "models", torch.arange(3))
    f.bank.abandon()
    assert same(dict(f.bank.next_rows()), before)
    with pytest.raises(KeyError, match="trained"):
        f.bank.rows("trained")
    for each in (f, undisturbed):
        each.engine.train(everyone, f.training())
        commit(each.bank)
    assert same(snapshot(f.bank), snapshot(undisturbed.bank))


def test_trained_rows_are_gone_once_they_are_mixed_into_models(trained):
    f = trained(sets=["memory"])
    f.bank.mix([(torch.eye(3), "trained")], "memory", torch.arange(3))
    f.bank.rows("trained")
    f.bank.mix([(torch.eye(3), "trained")], "models", torch.arange(3))
    with pytest.raises(KeyError, match="until its mixing"):
        f.bank.rows("trained")
    with pytest.raises(KeyError, match="until its mixing"):
        f.bank.mix([(torch.eye(3), "models")], "models", torch.arange(3))


def test_rows_are_read_as_written_in_this_round(trained):
    f = trained(sets=["memory"])
    f.bank.mix([(torch.eye(3), "trained")], "memory", torch.tensor([0, 1, 2]))
    assert torch.equal(f.bank.rows("memory"), f.bank.rows("trained"))
    with pytest.raises(KeyError):
        f.bank.rows("unheard of")


# --- saving -----------------------------------------------------------------------------------------------------------
def test_a_scratch_set_lasts_one_round(trained):
    f = trained()
    rows = f.bank.rows("trained").clone()
    f.bank.scratch("sums")
    assert not f.bank.rows("sums").any()
    all_clients, ones = torch.ones(3, dtype=torch.bool), torch.ones(3, 3, dtype=torch.float64)
    f.bank.mix([(ones, "trained")], "sums", all_clients)
    f.bank.mix([(torch.eye(3, dtype=torch.float64), "sums"), (ones, "trained")], "sums", all_clients)
    torch.testing.assert_close(f.bank.rows("sums"), 2 * rows.sum(0).expand(3, -1))
    assert torch.equal(f.bank.rows("trained"), rows)
    assert not {"sums", "rows.sums"} & {*f.bank.next_rows(), *f.bank.state_dict()}
    commit(f.bank)
    with pytest.raises(KeyError, match="sums"):
        f.bank.rows("sums")


def test_a_scratch_set_begins_anew_where_it_is_made_again(trained):
    f = trained()
    f.bank.scratch("sums")
    f.bank.mix([(torch.eye(3, dtype=torch.float64), "trained")], "sums", torch.ones(3, dtype=torch.bool))
    f.bank.scratch("sums")
    assert not f.bank.rows("sums").any()


@pytest.mark.parametrize("used", [[], [1], [0, 2], [0, 1, 2]])
def test_a_reference_with_few_weights_is_the_whole_weighted_sum(trained, used):
    f = trained()
    weights = torch.zeros(2, 3, dtype=torch.float64)
    weights[:, used] = torch.rand(2, len(used), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reference = References((Term("trained", weights),), torch.tensor([0, 1]), "trained")
    torch.testing.assert_close(f.bank.materialise(reference), weights @ f.bank.rows("trained"))


def test_columns_are_read_into_memory_of_their_own(trained):
    f = trained()
    before = f.bank.rows("trained").clone()
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.3, 0.7]], dtype=torch.float64)
    plain, combined = Term("trained", torch.tensor([2, 1])), Term("trained", weights)
    for terms in ((plain,), (combined,), (plain, combined), (plain, plain)):
        references = References(terms, torch.tensor([0, 1]), "trained")
        whole = f.bank.materialise(references)
        read = f.bank.reader(references)
        edges = [0, 7, 8, f.layout.width]
        pieces = [read(start, stop) for start, stop in pairwise(edges)]
        assert torch.equal(torch.cat(pieces, 1), whole)
        for piece in pieces:
            piece.fill_(-1)
        assert torch.equal(f.bank.rows("trained"), before)


def test_a_saved_bank_comes_back_bit_for_bit(federation):
    f = federation("batchnorm", sets=["memory"], dtype=torch.float32)
    f.engine.train(References.rows("models", torch.arange(3)), f.training())
    f.bank.mix([(torch.eye(3)[[1, 2, 0]], "trained")], "memory", torch.arange(3))
    commit(f.bank)
    evaluation = {"val_loss": torch.tensor([0.1, float("nan"), 1 / 3], dtype=torch.float64)}
    f.bank.boundary = f.bank.boundary._replace(evaluation=evaluation, closed=False)
    file = io.BytesIO()
    torch.save(f.bank.state_dict(), file)
    file.seek(0)
    other = federation("batchnorm", sets=["memory"], dtype=torch.float32)
    other.engine.train(References.rows("models", torch.arange(3)), f.training())  # a round in progress is forgotten
    other.bank.load_state_dict(torch.load(file, weights_only=True), {"train_loss": 0.5})
    boundary = other.bank.boundary
    assert (boundary.round, boundary.closed, boundary.metrics) == (1, False, {"train_loss": 0.5})
    assert same(snapshot(other.bank), snapshot(f.bank))
    assert torch.equal(boundary.evaluation["val_loss"].isnan(), evaluation["val_loss"].isnan())
    assert torch.equal(boundary.evaluation["val_loss"][::2], evaluation["val_loss"][::2])
    for each in (f, other):
        each.engine.train(References.rows("models", torch.arange(3)), f.training(round=7))
    assert torch.equal(f.bank.rows("trained"), other.bank.rows("trained"))


def test_loaded_rows_do_not_share_memory_with_the_state(federation):
    f = federation()
    state = f.bank.state_dict()
    other = federation()
    other.bank.load_state_dict(state, {})
    assert other.bank.rows("models").data_ptr() != f.bank.rows("models").data_ptr()


def test_rows_can_be_moved(federation):
    f = federation(sets=["memory"])
    f.bank.apply_to_rows(lambda rows: rows.float())
    assert {rows.dtype for rows in f.bank.boundary.rows.values()} == {torch.float32}


# --- comparing --------------------------------------------------------------------------------------------------------
def naive_comparison(vectors, pairs, centre=False):
    """Cosines and distances pair by pair, in float64."""
    vectors = vectors.double().numpy()
    m = len(vectors)
    cosines, distances = np.full((m, m), np.nan), np.full((m, m), np.nan)
    for i in range(m):
        seen = [j for j in range(m) if pairs[i, j] or j == i]
        origin = np.mean([vectors[j] for j in seen], axis=0) if centre else np.zeros(vectors.shape[1])
        for j in range(m):
            if pairs[i, j]:
                a, b = vectors[i] - origin, vectors[j] - origin
                lengths = np.linalg.norm(a) * np.linalg.norm(b)
                cosines[i, j] = a @ b / lengths if lengths > 0 else 0.0
                distances[i, j] = np.linalg.norm(vectors[i] - vectors[j])
    return torch.tensor(cosines), torch.tensor(distances)


def matches(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found.cosines, expected[0], rtol=0, atol=tolerance, equal_nan=True)
    torch.testing.assert_close(found.distances, expected[1], rtol=tolerance, atol=tolerance, equal_nan=True)


PAIRS = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def scattered(request, federation):
    """Four clients and a server whose rows are far apart, the third client not trained."""
    f = federation("batchnorm", sizes=(6, 7, 8, 9), servers=1, sets=["initial"], dtype=request.param)
    g = torch.Generator().manual_seed(4)
    for rows in f.bank.boundary.rows.values():
        rows[:, f.layout.parameters.mask(f.layout.width)] = torch.randn(
            5, f.layout.num_parameters, generator=g, dtype=request.param
        )
    server = References((Term("models", torch.full((3,), 4)),), torch.tensor([3, 0, 1]))
    f.engine.train(server, f.training(lr=0.2))
    return f


@pytest.mark.usefixtures("blocks")
def test_comparisons_equal_the_sums_written_out(scattered):
    """All ways to compare the same rows."""
    bank, layout = scattered.bank, scattered.layout
    some = Columns([(3, 9), (30, 60)])
    for relative_to, columns, centre in product((None, "start", "initial"), (None, some), (False, True)):
        vectors = bank.rows("trained")[:4].clone()
        if relative_to == "start":
            vectors -= bank.rows("models")[4]
            vectors[2] = 0  # it did not train
        elif relative_to is not None:
            vectors -= bank.rows(relative_to)[:4]
        wanted = list(range(layout.num_parameters)) if columns is None else [*range(3, 9), *range(30, 60)]
        found = compare_pairs(bank, "trained", PAIRS, columns, relative_to, centre)
        matches(found, naive_comparison(vectors[:, wanted], PAIRS, centre))
        assert torch.equal(found.cosines.isnan(), ~PAIRS)
        assert torch.equal(found.distances.isnan(), ~PAIRS)


def test_updates_are_relative_to_each_start_with_its_personal_columns(federation, naive):
    f = federation(shared=["0.*"], servers=1)
    f.engine.train(References((Term("models", torch.full((3,), 3)),), torch.arange(3)), f.training())
    starts = f.bank.rows("models")[:3].clone()
    starts[:, :35] = f.bank.rows("models")[3, :35]
    moved = f.bank.rows("trained")[:3] - starts
    matches(compare_pairs(f.bank, "trained", ALL, relative_to="start"), naive_comparison(moved[:, :35], ALL))
    found = compare_pairs(f.bank, "trained", ALL, f.layout.all, relative_to="start")
    matches(found, naive_comparison(moved, ALL))


def test_a_matrix_can_be_compared_like_a_row_set(federation):
    f = federation(servers=1)
    gradients = f.engine.gradients(References.rows("models", torch.arange(3)), f.training(gradients=True))
    matches(compare_pairs(f.bank, gradients, ALL), naive_comparison(gradients[:3], ALL))


def test_comparing_no_columns_compares_nothing(federation):
    f = federation()
    found = compare_pairs(f.bank, "models", ALL, Columns([]))
    assert not found.cosines.any()
    assert not found.distances.any()


@pytest.mark.usefixtures("blocks")
def test_a_large_common_part_costs_no_accuracy_after_centring(federation):
    f = federation(sizes=(4,) * 4, dtype=torch.float32)
    g = torch.Generator().manual_seed(6)
    small = torch.randn(4, f.layout.width, generator=g)
    common = 1000 + 10 * torch.rand(f.layout.width, generator=g)
    rows = f.bank.boundary.rows["models"]
    rows.copy_(small + common)
    found = compare_pairs(f.bank, "models", PAIRS, centre=True)
    matches(found, naive_comparison(rows, PAIRS, centre=True), tolerance=1e-5)
    assert found.cosines[2].abs().min() < 0.99


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_nonfinite_vector_affects_only_receivers_that_compare_with_it(federation, poison):
    f = federation(sizes=(4,) * 4, dtype=torch.float32)
    vectors = f.bank.rows("models").clone()
    vectors[3, 5] = poison
    pairs = torch.ones(4, 4, dtype=torch.bool)
    pairs[:2, 3] = False
    found = compare_pairs(f.bank, vectors, pairs, centre=True).cosines
    expected = naive_comparison(vectors[:3], pairs[:3, :3], centre=True)[0]
    torch.testing.assert_close(found[:2, :3], expected[:2], rtol=0, atol=1e-6)
    assert found[2:].isnan().all()
