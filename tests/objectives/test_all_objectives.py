"""Properties of every local rule: of the shipped ones, and of rules written as users would."""

import copy
import functools
import inspect

import pytest
import rules
import torch
from banks import _network, make_federation
from networks import Times
from tapes import TapeRecorder
from tester.rounds import Run, through_a_file, toy_data
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning import objectives
from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import CannotStack, StackedEngine
from dfl_lightning.models import MLP
from dfl_lightning.objectives import (
    APFL,
    D2,
    MOON,
    DFedSAM,
    Ditto,
    FedPer,
    FedProto,
    FedProx,
    FedRep,
    GradientTracking,
    Objective,
    PerFedAvg,
    PFedGraph,
    Plain,
    QGDSGDm,
)
from dfl_lightning.utils.randomness.global_generators import changed, states

SIZES = (9, 4, 14, 12, 5)
ROUNDING = 1e-9
LISTED = {
    "Plain": Plain,
    "FedProx": functools.partial(FedProx, mu=0.5),
    "GradientTracking": GradientTracking,
    "D2": D2,
    "Ditto": Ditto,
    "APFL": APFL,
    "APFL round": functools.partial(APFL, 0.25, "round"),
    "APFL fixed": functools.partial(APFL, 0.25, "never"),
    "PerFedAvg": functools.partial(PerFedAvg, 0.2),
    "PerFedAvg difference": functools.partial(PerFedAvg, 0.2, "difference"),
    "PerFedAvg hessian": functools.partial(PerFedAvg, 0.2, "hessian"),
    "FedRep": FedRep,
    "FedPer": FedPer,
    "PFedGraph": functools.partial(PFedGraph, 0.3),
    "QGDSGDm": QGDSGDm,
    "DFedSAM": functools.partial(DFedSAM, 0.05),
    "MOON": functools.partial(MOON, 0.7, 0.5),
    "FedProto": functools.partial(FedProto, 0.5),
    "QGDSGDm Nesterov": functools.partial(QGDSGDm, nesterov=True),
    **{name: getattr(rules, name) for name in ("NearPrototypes",)},
}
"""A rule by its name, and how to make it."""

PERSONAL = {"FedRep": (["0.*"], ["features.*"]), "FedPer": (["2.*"], ["head.*"])}
"""What is exchanged by a rule that wants personal parameters: of the small network, and of the run's."""

STACKED = [name for name in LISTED if LISTED[name]().stackable]
every_rule_in_either_engine = pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, StackedEngine) for name in STACKED),
        *(
            pytest.param(name, LoopEngine, marks=[pytest.mark.slow] * (name in STACKED and name != "Plain"))
            for name in LISTED
        ),
    ],
)
"""By the loop with `-m slow`: a test below compares the engines."""


def trained(f, owners, round=3):
    """All row sets and numbers after the local training of some clients, and what it says of them."""
    result = f.engine.train(References.rows("models", torch.tensor(owners)), f.training(lr=0.125, round=round))
    rows = {name: f.bank.rows("trained" if name == "models" else name).clone() for name in f.bank.boundary.rows}
    rows |= {name: f.bank.number(name).clone() for name in f.bank.boundary.numbers}
    f.bank.abandon()
    return rows, result


def federation(name, engine, **options):
    rule = LISTED[name]()
    shared = PERSONAL.get(name, (["*"],))[0]
    sets = tuple(rule.row_sets)
    return make_federation(objective=rule, engine=engine, sizes=SIZES, sets=sets, shared=shared, **options)


@functools.cache
def usual(name, engine):
    """Train all clients once; the other runs are compared with this one."""
    return trained(federation(name, engine), range(len(SIZES)))


def test_every_shipped_rule_is_listed():
    shipped = {
        n for n in objectives.__all__ if inspect.isclass(c := getattr(objectives, n)) and issubclass(c, Objective)
    }
    others = {
        "Objective",
        "DisPFL",
        "Alternating",
    }  # masks, adapters: tests/objectives/test_dispfl.py, test_alternating.py
    assert shipped - others <= set(LISTED)


def test_all_rules_but_exact_second_derivatives_are_stacked():
    assert set(LISTED) - set(STACKED) == {"PerFedAvg hessian"}
    with pytest.raises(CannotStack, match="PerFedAvg does not declare stackable = True"):
        federation("PerFedAvg hessian", StackedEngine)


@pytest.mark.parametrize("name", STACKED)
def test_engines_agree_with_steps_recorded_or_not(name, monkeypatch):
    rule = LISTED[name]()
    expected, said = usual(name, LoopEngine)
    monkeypatch.setattr("dfl_lightning.engines.stacked.gpu.cuda_graphs.FEWEST_STEPS", 1)
    for recorder in [None, TapeRecorder()] if rule.recordable else [None]:
        f = federation(name, StackedEngine)
        if recorder is not None:
            f.engine.all_at_once(recorder)
        rows, result = trained(f, range(len(SIZES)))
        assert rows.keys() == expected.keys()
        for set_, there in rows.items():
            torch.testing.assert_close(there, expected[set_], rtol=ROUNDING, atol=ROUNDING)
        torch.testing.assert_close(result.losses, said.losses, rtol=ROUNDING, atol=ROUNDING)
        assert torch.equal(result.samples, said.samples)
        assert recorder is None or recorder.replayed


@every_rule_in_either_engine
def test_a_clients_training_does_not_depend_on_other_clients(name, engine):
    """Training a client alone, or with clients that have other data and models, gives the same."""
    together, said = usual(name, engine)
    changed_data = federation(name, engine)
    others = [i for i in range(len(SIZES)) if i != 2]
    for i in others:
        changed_data.data.images[changed_data.data.train[i]] *= -3.0
        for rows in changed_data.bank.boundary.rows.values():
            rows[i] *= 0.5
    for rows, result, place in (
        (*trained(federation(name, engine), [2]), 0),
        (*trained(changed_data, range(len(SIZES))), 2),
    ):
        for set_, there in rows.items():
            torch.testing.assert_close(there[2], together[set_][2], rtol=ROUNDING, atol=ROUNDING)
        torch.testing.assert_close(result.losses[place], said.losses[2], rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize(
    ("name", "engine"),
    [(name, StackedEngine if turn % 2 and name in STACKED else LoopEngine) for turn, name in enumerate(LISTED)],
)
def test_a_parameter_may_be_a_single_number(name, engine):
    """It is trained as one of shape [1] is, its gradients clipped with the others'."""
    alone, in_line = (
        trained(federation(name, engine, network=nn.Sequential(*_network("mlp"), Times(shape)), clip_norm=0.1), [0, 1])
        for shape in ((), (1,))
    )
    for set_, there in in_line[0].items():
        torch.testing.assert_close(alone[0][set_], there, rtol=0, atol=0)


@every_rule_in_either_engine
def test_a_client_that_does_not_train_keeps_all_its_models(name, engine):
    f = federation(name, engine)
    before = {set_: rows.clone() for set_, rows in {**f.bank.boundary.rows, **f.bank.boundary.numbers}.items()}
    rows, _ = trained(f, [0, 3])
    for set_, there in rows.items():
        assert torch.equal(there[[1, 2, 4]], before[set_][[1, 2, 4]])
    after = {**f.bank.boundary.rows, **f.bank.boundary.numbers}
    assert all(torch.equal(after[set_], before[set_]) for set_ in before)  # a boundary is not written


@every_rule_in_either_engine
def test_a_diverged_client_keeps_its_models_and_affects_no_other(name, engine):
    others, _ = usual(name, engine)
    f = federation(name, engine)
    f.data.images[f.data.train[1]] = float("nan")
    both = {**f.bank.boundary.rows, **f.bank.boundary.numbers}
    before = {set_: rows[1].clone() for set_, rows in both.items()}
    rows, result = trained(f, range(len(SIZES)))
    assert result.finite.tolist() == [True, False, True, True, True]
    for set_, there in rows.items():
        assert torch.equal(there[1], before[set_])
        torch.testing.assert_close(there[[0, 2, 3, 4]], others[set_][[0, 2, 3, 4]], rtol=ROUNDING, atol=ROUNDING)


@every_rule_in_either_engine
def test_a_rule_uses_named_draws_and_is_repeatable(name, engine):
    first, _ = usual(name, engine)
    torch.rand(7)  # a draw from the global generator
    generators = states()
    again, _ = trained(federation(name, engine), range(len(SIZES)))
    assert not changed(generators)
    assert all(torch.equal(first[set_], again[set_]) for set_ in first)


def run(name, engine, rule=None):
    rule, shared = rule or LISTED[name](), PERSONAL.get(name, (None, None))[1]
    symmetric = isinstance(rule, (GradientTracking, D2))
    mixes = cb.PrototypeAverage() if isinstance(rule, FedProto) else cb.Metropolis() if symmetric else cb.Uniform()
    policies = [cb.Gossip(k="all" if symmetric else 2), mixes]
    model = {
        "network": MLP(hidden=[4]),
        "local_epochs": 2,
        "batch_size": 4,
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
        "objective": rule,
        "shared": shared,
    }
    return Run(
        policies,
        6,
        4,
        "complete",
        toy_data(sizes=[6, 3, 9, 5, 6, 8]),
        model,
        {"precision": "64-true", "engine": engine},
    )


@pytest.mark.parametrize("name", LISTED)
def test_a_run_resumes_with_the_same_bits(name):
    whole = run(name, "auto").go(2)
    saved = through_a_file(copy.deepcopy(whole.state()))
    whole.go(2)
    resumed = run(name, "auto").take_up(saved).go(2)
    for set_, rows in whole.bank.boundary.rows.items():
        assert torch.equal(rows, resumed.bank.boundary.rows[set_]), set_
    for number, values in whole.bank.boundary.numbers.items():
        assert torch.equal(values, resumed.bank.boundary.numbers[number]), number


@pytest.mark.parametrize("name", sorted(set(LISTED) - {*PERSONAL, "GradientTracking", "FedProto", "NearPrototypes"}))
def test_nothing_but_models_is_sent(name):
    metrics = run(name, "loop").go(2).rounds[-1].metrics
    assert metrics["models_received"] >= 2
    assert metrics["bytes_received"] == 4 * 39 * metrics["models_received"]


@pytest.mark.parametrize("rule", [QGDSGDm(0.0), DFedSAM(0.0), MOON(0.0), FedProx(0.0)])
def test_with_strength_zero_a_rule_is_plain_descent(rule):
    ours, plain = (run("Plain", "loop", made).go(3).models for made in (rule, None))
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


class Scribbler(Objective):
    """Uses the row that it reads as memory for a sum."""

    stackable = True
    row_sets = {"kept": "models"}

    def step(self, ctx):
        model = ctx.model()
        pulls = zip(ctx.rows("kept"), model.grad(ctx.next_batch()), strict=True)
        model.update([kept.mul_(0.1).add_(g) for kept, g in pulls])


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine], ids=["loop", "stacked"])
def test_writing_into_read_models_does_not_change_rows(engine):
    f = make_federation(objective=Scribbler(), engine=engine, sizes=SIZES, sets=("kept",))
    before = f.bank.rows("kept").clone()
    rows, _ = trained(f, range(len(SIZES)))
    assert torch.equal(rows["kept"], before)


def test_writing_into_read_models_agrees_in_both_engines():
    one, other = (
        trained(make_federation(objective=Scribbler(), engine=engine, sizes=SIZES, sets=("kept",)), [0, 1, 2])[0]
        for engine in (LoopEngine, StackedEngine)
    )
    torch.testing.assert_close(one["models"], other["models"], rtol=ROUNDING, atol=ROUNDING)


class Counting(Objective):
    """Counts samples by their weights; a number that has been read stays what it was."""

    stackable = True
    numbers = {"steps": 0.0, "shares": 0.0}

    def step(self, ctx):
        batch, model, before = ctx.next_batch(), ctx.model(), ctx.number("steps")
        ctx.set_number("steps", ctx.number("steps") + 1)
        ctx.set_number("shares", ctx.number("shares") + (batch.weights * (1 + 2 * before)[..., None]).sum(-1))
        model.update(model.grad(batch))


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine], ids=["loop", "stacked"])
def test_counts_and_weights_have_the_runs_precision(engine):
    rows, _ = trained(
        make_federation(objective=Counting(), engine=engine, sizes=SIZES, batch_size=3), range(len(SIZES))
    )
    steps = 2 * torch.tensor([-(-size // 3) for size in SIZES], dtype=torch.float64)
    assert torch.equal(rows["steps"], steps)
    torch.testing.assert_close(rows["shares"], steps.square(), rtol=1e-14, atol=0)  # 1 + 3 + 5 + …
