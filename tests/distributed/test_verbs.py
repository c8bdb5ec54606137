"""The verbs of a bank that is shared out among processes, against one that is whole, in the same process."""

import contextlib
import itertools
from unittest import mock

import banks
import pytest
import torch
import torch.distributed as dist
from pairs import compare_pairs

from dfl_lightning.bank import mixing
from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.comparing import grouped_similarity, similarity, sparse_similarity
from dfl_lightning.bank.references import References, Term
from dfl_lightning.distributed.communicator import FailedElsewhere, LostProcess, Ranks, StoppedElsewhere, owners_of
from dfl_lightning.engines import engine as bank_engine
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.functional import pairs_received
from dfl_lightning.links import Links
from dfl_lightning.objectives import Objective
from dfl_lightning.utils.errors import UserError

PIECES = [
    *(
        (similarity, "MAX_WIDTH", 50),
        (sparse_similarity, "LEAST_WIDTH", 50),
        (sparse_similarity, "MAX_WIDTH", 50),
        (mixing, "BLOCK_BYTES", 1),
    ),
    *((mixing, "EXCHANGE_BYTES", 1), (bank_engine, "COMPOSED_AT_ONCE", 5), (bank_engine, "REMOTE_BYTES", 1)),
]
SIZES = (9, 4, 14, 7, 5, 12, 3, 8, 6, 10, 4)


def moved_to_second_set(groups, m):
    """Take the rows of every third client from a second set of rows."""
    return Links.of(groups.receivers, groups.senders + m * (groups.senders % 3 == 0), m, 2 * m)


def federations(engine, count, **config):
    """Two of the same: one whole, one shared out."""
    config = {"sizes": SIZES, "dtype": torch.float32, "sets": ("other",), "cohorts": 5, **config}
    whole, shared = (banks.make_federation(engine=engine, **config) for _ in range(2))
    rank = dist.get_rank() if count > 1 else 0
    owner = owners_of(shared.engine.cohorts, whole.bank.num_nodes, count)
    ranks = Ranks(owner, rank, count)
    rows = {name: rows[ranks.own] for name, rows in whole.bank.boundary.rows.items()}
    models = rows.pop("models")
    bank = Bank(shared.layout, models, shared.m, rows, ranks)
    shared.engine.attach(bank)
    shared.bank = bank
    return whole, shared


def equal(a, b):
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def weights(rows, columns, seed, share=1.0):
    g = torch.Generator().manual_seed(seed)
    w = torch.rand(rows, columns, generator=g, dtype=torch.float64)
    return w * (torch.rand(rows, columns, generator=g) < share)


def verbs(count, engine_name, kind):
    """Every verb once, as rounds use them; what has moved is returned."""
    with contextlib.ExitStack() as stack:
        if kind == "wide":  # many strips of columns, many exchanges, many waves
            for module, name, value in PIECES:
                stack.enter_context(mock.patch.object(module, name, value))
        return every_verb(count, engine_name, kind)


def every_verb(count, engine_name, kind):
    torch.manual_seed(1)  # the same networks in all processes
    engine = {"loop": LoopEngine, "stacked": StackedEngine}[engine_name]
    config = {
        "mlp": {},
        "personal": {"shared": ("2.*",)},
        "servers": {"servers": 2},
        "batchnorm": {"kind": "batchnorm"},
        "wide": {"network": torch.nn.Sequential(torch.nn.Linear(6, 90), torch.nn.Tanh(), torch.nn.Linear(90, 3))},
    }[kind]
    whole, shared = federations(engine, count, **config)
    m, n, own = whole.m, whole.bank.num_nodes, shared.bank.ranks.own
    assert 0 < len(own) < n or count == 1
    all_clients = torch.arange(m)
    starts = m + all_clients % 2 if kind == "servers" else all_clients
    references = References((Term("models", starts),), all_clients)
    results = [f.engine.train(references.take(all_clients[1:]), f.training()) for f in (whole, shared)]
    for a, b in zip(*((r.losses, r.samples, r.finite) for r in results), strict=True):
        equal(a, b)
    equal(whole.bank.rows("trained")[own], shared.bank.rows("trained"))
    moved = {"train": shared.bank.ranks.moved}

    receivers, senders = torch.nonzero(torch.ones(m, m) - torch.eye(m), as_tuple=True)
    crosswise = References.rows("trained", senders, receivers)
    mixtures = References(
        (Term("trained", weights(50, n, 1, 0.4) / 4), Term("other", weights(50, n, 2) / 10)), torch.arange(50) % m
    )
    for jobs in (
        crosswise,
        mixtures,
        References.rows("models", all_clients),
        crosswise.take(torch.tensor([], dtype=torch.long)),
    ):
        before = shared.bank.ranks.moved
        for split in ("train", "val"):
            a, b = (f.engine.evaluate(jobs, split) for f in (whole, shared))
            equal(a.losses, b.losses)
            equal(a.metrics["acc"], b.metrics["acc"])
        moved.setdefault("cross-evaluation", shared.bank.ranks.moved - before)
    if kind == "servers":
        a, b = (
            f.engine.evaluate(References.rows("models", torch.tensor([m + 1]), torch.tensor([-1])), "test")
            for f in (whole, shared)
        )
        equal(a.losses, b.losses)

    gradients = [f.engine.gradients(references, f.training()) for f in (whole, shared)]
    equal(gradients[0][own], gradients[1])
    pairs = weights(m, m, 3, 0.7) > 0
    ways = (
        *({}, {"centre": True}, {"relative_to": "start"}, {"relative_to": "other", "centre": True}),
        *({"own": "models"}, {"own": "other", "relative_to": "start", "centre": True}),
    )
    for few, options in itertools.product((similarity.FEW, 1.0), ways):
        with mock.patch.object(similarity, "FEW", few):  # one Gram matrix, or pair by pair
            a, b = (compare_pairs(f.bank, "trained", pairs, **options) for f in (whole, shared))
        equal(a.cosines, b.cosines)
        equal(a.distances, b.distances)
    a, b = (
        compare_pairs(f.bank, g, pairs[:, :4].any(1)[None] & pairs)
        for f, g in zip((whole, shared), gradients, strict=True)
    )
    equal(a.cosines, b.cosines)

    groups = Links.of(*torch.nonzero(weights(m, m, 6, 0.6), as_tuple=True), m)
    for sets, names in ((["trained"], groups), (["trained", "other"], moved_to_second_set(groups, m))):
        with mock.patch.object(similarity, "FEW", 1.0), mock.patch.object(grouped_similarity, "MOST_ENTRIES", 10**9):
            a, b = (f.bank.distances_in_groups(sets, pairs_received(names), names) for f in (whole, shared))
        assert len(a) > 10
        equal(a, b)

    for f in (whole, shared):
        f.bank.scratch("aside", torch.float64)
        f.bank.scratch("rehearsed")
        f.bank.mix(
            [(weights(n, n, 4, 0.1), "trained"), (weights(n, n, 5, 0.1), "other")],
            "aside",
            torch.ones(n, dtype=torch.bool),
        )
        f.engine.rehearse(references, f.training(purpose="again"), "rehearsed")
    for name in ("aside", "rehearsed"):
        equal(whole.bank.rows(name)[own], shared.bank.rows(name))
    which = torch.tensor([7, 2, 3])
    equal(*(f.bank.squared_lengths("aside", which) for f in (whole, shared)))

    some = torch.tensor([8, 1, 5, 2])
    for f in (whole, shared):
        f.bank.mix([(weights(4, n, 6, 0.2), "trained"), (weights(4, n, 7, 0.2), "models")], "other", some)
        f.bank.mix([(weights(n - 2, n, 8, 1 if kind == "mlp" else 0.2), "trained")], "models", torch.arange(2, n))
    for name, rows in whole.bank.next_rows().items():
        equal(rows[own], shared.bank.next_rows()[name])
    gathered = shared.bank.ranks.gather_rows(shared.bank.next_rows()["models"])
    if gathered is not None:
        equal(gathered, whole.bank.next_rows()["models"])
    return moved


KINDS = ("mlp", "personal", "servers", "batchnorm", "wide")


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        *(("stacked", "personal"), ("stacked", "servers"), ("loop", "mlp")),
        *(pytest.param("stacked", kind, marks=pytest.mark.slow) for kind in ("mlp", "batchnorm", "wide")),
        *(pytest.param("loop", kind, marks=pytest.mark.slow) for kind in KINDS[1:]),
    ],
)
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)])
def test_every_verb_gives_the_bits_of_one_process(on_ranks, count, engine, kind):
    for moved in on_ranks(count, verbs, count, engine, kind):
        if kind != "servers":  # clients start from their own models
            assert moved["train"] == 0
        if kind == "mlp" and engine == "loop":  # models are tried where they are
            assert moved["cross-evaluation"] == 0
        if kind == "personal":  # now they are completed by the owner's own part
            assert moved["cross-evaluation"] > 0


class TwoModels(Objective):
    """Trains a row of another row set in addition to the model, and keeps it near the model."""

    stackable = True
    row_sets = {"other": "models"}

    def step(self, ctx):
        batch, model, other = ctx.next_batch(), ctx.model(), ctx.model("other")
        model.update(model.grad(batch))
        near = zip(other.grad(batch), other.params, model.params, strict=True)
        other.update([g + 0.1 * (o - p) for g, o, p in near])


def two_models(count, engine_name):
    """Two rounds of training two models a client."""
    engine = {"loop": LoopEngine, "stacked": StackedEngine}[engine_name]
    whole, shared = federations(engine, count, objective=TwoModels())
    own = shared.bank.ranks.own
    for each in (whole, shared):
        before = each.bank.rows("other").clone()
        for _ in range(2):
            each.engine.train(References.rows("models", torch.arange(each.m)), each.training())
            each.bank.commit(each.bank.boundary._replace(rows=each.bank.next_rows()))
        assert not torch.equal(each.bank.rows("other"), before)
    for name in ("models", "other"):
        equal(shared.bank.rows(name), whole.bank.rows(name)[own])


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_rules_with_two_models_give_the_bits_of_one_process(on_ranks, engine):
    on_ranks(3, two_models, 3, engine)


def few_neighbours(count):
    """Bytes that a mixing moves to this process, and the rows that its clients select elsewhere."""
    _, shared = federations(LoopEngine, count)
    ranks, m = shared.bank.ranks, shared.m
    shared.engine.train(References.rows("models", torch.arange(m)), shared.training())
    ring = torch.eye(m, dtype=torch.float64) / 2 + torch.eye(m, dtype=torch.float64).roll(1, 1) / 2
    before = ranks.moved
    shared.bank.mix([(ring, "trained")], "models", torch.arange(m))
    needed = {(int(i) + 1) % m for i in ranks.own} - set(ranks.own.tolist())
    return ranks.moved - before, len(needed) * 4 * shared.layout.width


def test_mixing_moves_the_selected_rows_only(on_ranks):
    for moved, needed in on_ranks(3, few_neighbours, 3):
        ids = 3 * 8 * 3  # who asks for which rows
        assert needed <= moved <= needed + ids


def failing(count, how):
    """One process fails in a verb; what the others get, and whether all can still do something together."""
    _, shared = federations(LoopEngine, count)
    ranks = shared.bank.ranks

    class Stop(BaseException):
        signum = 15

    def trouble():
        if ranks.rank == 1 and how == "error":
            raise ValueError("a number that is none")
        if ranks.rank == 1 and how == "signal":
            raise Stop

    shared.engine.between_cohorts = trouble
    try:
        shared.engine.train(References.rows("models", torch.arange(shared.m)), shared.training())
    except (ValueError, Stop) as error:
        caught = type(error).__name__, str(error)
    except (FailedElsewhere, StoppedElsewhere) as error:
        caught = type(error).__name__, str(error)
    return caught, ranks.stopped_together, ranks.total(1)


def test_an_error_in_one_process_is_raised_in_all(on_ranks):
    found = on_ranks(3, failing, 3, "error")
    assert [caught[0] for caught, _, _ in found] == ["FailedElsewhere", "ValueError", "FailedElsewhere"]
    sentence = found[0][0][1]
    assert sentence.startswith("process 1 of the run: ")
    assert sentence.endswith(", in trouble: ValueError: a number that is none")
    assert all(together and total == 3 for _, together, total in found)


def test_a_signal_to_one_process_stops_all(on_ranks):
    found = on_ranks(3, failing, 3, "signal")
    assert [caught[0] for caught, _, _ in found] == ["StoppedElsewhere", "Stop", "StoppedElsewhere"]
    assert all(together and total == 3 for _, together, total in found)


def agreeing(count, rank_asked):
    ranks = Ranks(torch.arange(6) % count, dist.get_rank(), count)
    ranks.agree(None)
    ranks.same("round", 7)
    assert ranks.least(5 - dist.get_rank()) == 6 - count
    try:
        ranks.same("round", dist.get_rank())
    except UserError as error:
        said = str(error)
    try:
        ranks.agree(15 if ranks.rank == rank_asked else None)
    except StoppedElsewhere as stop:
        return said, stop.signum


def test_processes_agree_on_a_stop_and_detect_differences(on_ranks):
    for said, signum in on_ranks(2, agreeing, 2, 1):
        assert said == "the processes of the run start at different places (round [0, 1]); start them alike"
        assert signum == 15


def deserted(count):
    ranks = Ranks(torch.arange(6) % count, dist.get_rank(), count)
    if ranks.rank == 1:
        return "left"
    with pytest.raises(LostProcess, match="another process of the run has ended"):
        ranks.total(1)
    with pytest.raises(LostProcess), ranks.together():
        raise LostProcess("gone")
    assert ranks.apart
    with pytest.raises(LostProcess):
        ranks.total(1)
    return "noticed"


def test_a_process_that_is_gone_is_noticed_at_once(on_ranks):
    assert on_ranks(2, deserted, 2) == ["noticed", "left"]


def test_more_processes_than_cohorts_are_refused():
    cohorts = [torch.tensor([0, 2]), torch.tensor([1])]
    assert owners_of(cohorts, 5, 2).tolist() == [0, 1, 0, 0, 1]
    with pytest.raises(
        UserError, match=r"3 processes for 2 cohorts .* use 2 processes at most, or --trainer.cohorts 3"
    ):
        owners_of(cohorts, 5, 3)
