"""Draws from the global generators are refused by name, if possible before training."""

import math
import random

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from threads import threads
from torch import nn
from torchmetrics import Metric

from dfl_lightning import callbacks as families
from dfl_lightning.callbacks import Monitor
from dfl_lightning.engines.calling.global_draws import refuse_global_draws
from dfl_lightning.models import MLP
from dfl_lightning.objectives import Plain
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.global_generators import changed, name_of, states

DRAWS = {
    "torch's global generator": lambda: torch.rand(1),
    "Python's random": random.random,
    "numpy.random": lambda: np.random.rand(),  # else a copy of a network would have a copy of the generator
}
every_generator = pytest.mark.parametrize("generator", DRAWS)
HOOKS = [
    *("on_dropout", "on_propose", "on_engine_progress", "on_trained", "on_compare", "on_threshold", "on_select"),
    *("on_substitute", "on_weigh", "on_mix", "on_round_end", "on_boundary"),
]


# --- the states -------------------------------------------------------------------------------------------------------
@every_generator
def test_a_draw_is_detected_and_named(generator):
    before = states()
    assert changed(before) == []
    DRAWS[generator]()
    assert changed(before) == [generator]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.shuffle([1, 2, 3]),
        lambda: random.choice([1, 2]),
        lambda: np.random.permutation(3),
        lambda: np.random.randn(),
        lambda: np.random.seed(5),
        lambda: torch.manual_seed(5),
        lambda: torch.randperm(3),
        lambda: nn.functional.dropout(torch.ones(3)),
        lambda: nn.Linear(2, 2),
    ],
)
def test_every_use_of_a_global_generator_is_detected(draw):
    before = states()
    draw()
    assert len(changed(before)) == 1


def test_private_generators_and_restored_states_are_not_detected():
    before = states()
    torch.rand(3, generator=torch.Generator().manual_seed(1))
    np.random.default_rng(1).random()
    random.Random(1).random()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.rand(3)
    assert changed(before) == []


def test_a_replaced_generator_of_numpy_is_watched():
    former = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(0))
    try:
        before = states()
        np.random.rand()
        assert changed(before) == ["numpy.random"]
    finally:
        np.random.set_bit_generator(former)


@pytest.mark.gpu
def test_a_draw_on_a_gpu_is_detected():
    torch.zeros(1, device="cuda")
    before = states()
    torch.rand(1, device="cuda")
    assert changed(before) == ["torch's global generators of GPUs"]


def test_functions_and_classes_are_named_by_import_path():
    assert name_of(nn.Linear(1, 1)) == "torch.nn.modules.linear.Linear"
    assert name_of(math.sqrt) == "math.sqrt"


# --- hooks ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_draws_is_refused_in_round_0(small_run, hook):
    run = small_run(3, [type("Watcher", (RoundCallback,), {hook: lambda *_: torch.rand(1)})()])
    said = rf"test_global_generators\.Watcher draws from torch's global generator in {hook}, .*round\.generator"
    with pytest.raises(UserError, match=said):
        run.fit()
    assert run.module.bank.boundary.round == (hook == "on_boundary")


@every_generator
def test_a_policy_that_draws_is_refused(small_run, generator):
    class Wild(families.Gossip):
        def on_select(self, round):
            if round.index == 1:
                DRAWS[generator]()
            super().on_select(round)

    run = small_run(3, policies=[Wild(2), families.Uniform()])
    with pytest.raises(UserError, match=rf"^round 2: .*Wild draws from {generator} in on_select"):
        run.fit()
    assert run.module.bank.boundary.round == 1


def test_a_selection_that_draws_while_it_assigns_is_refused(small_run):
    class Wild(families.IFCA):
        def assign(self, module, owners):
            random.random()
            return super().assign(module, owners)

    topology = {"generator": "server", "args": {"servers": 2}}
    run = small_run(1, policies=[Wild(), families.Uniform()], topology=topology, module={"init": "independent"})
    with pytest.raises(UserError, match=r"Wild draws from Python's random in assign"):
        run.fit()


def test_named_and_restored_draws_are_not_refused(small_run):
    class Tame(Monitor):
        def on_trained(self, round):
            torch.rand(2, generator=round.generator("mine"))
            np.random.default_rng(round.generator("mine").initial_seed()).random()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(round.index)
                torch.rand(2)

    assert small_run(2, [Tame()]).fit().module.bank.boundary.round == 2


def test_draws_before_the_rounds_are_not_refused(small_run):
    class Tame(Monitor):
        def __init__(self):
            self.number = random.random() + np.random.rand()

        def start(self, federation):
            torch.rand(2)

        def setup(self, trainer, pl_module, stage):
            torch.rand(2)

    assert small_run(1, [Tame()]).fit().module.bank.boundary.round == 1


def test_lightnings_own_hooks_are_not_watched(small_run):
    class Stock(L.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            torch.rand(2)

        def on_validation_end(self, trainer, pl_module):
            random.random()

    assert small_run(2, [Stock()]).fit().module.bank.boundary.round == 2


# --- before training --------------------------------------------------------------------------------------------------
class Noisy(nn.Module):
    """Classifies, and draws."""

    def __init__(self, draw, when=lambda self, x: True):
        super().__init__()
        self.flat, self.layer, self.draw, self.when = nn.Flatten(), nn.Linear(64, 10), draw, when

    def forward(self, x):
        if self.when(self, x):
            self.draw()
        return self.layer(self.flat(x))


def prepare(run):
    run.trainer.prepare(run.module, run.data)
    return run


@every_generator
@pytest.mark.parametrize(
    "when", [lambda net, x: True, lambda net, x: net.training, lambda net, x: not net.training, lambda net, x: x.any()]
)
def test_a_network_that_draws_is_refused_before_training(small_run, generator, when):
    if generator == "torch's global generator" and not when(nn.Module().eval(), torch.zeros(1)):
        when = lambda net, x: not net.training  # noqa: E731 - in training, torch's own generator is allowed
    run = small_run(1, module={"network": Noisy(DRAWS[generator], when)})
    with pytest.raises(UserError, match=rf"model.network Noisy draws random numbers from {generator}.*nn\.Dropout"):
        prepare(run)


@every_generator
def test_a_loss_that_draws_is_refused_before_training(small_run, generator):
    def mine(scores, labels):
        if labels.any():  # as real ones have
            DRAWS[generator]()
        return nn.functional.cross_entropy(scores, labels)

    with pytest.raises(UserError, match=f"^model.loss mine draws from {generator}"):
        prepare(small_run(1, module={"loss": mine}))


class Guess(Metric):
    """Draws when it is computed."""

    def __init__(self):
        super().__init__()
        self.add_state("seen", torch.tensor(0.0))

    def update(self, scores, labels):
        self.seen += len(labels)

    def compute(self):
        return self.seen * torch.rand(())


def test_a_metric_that_draws_is_refused_before_training(small_run):
    with pytest.raises(UserError, match=r"^model.metrics Guess draws from torch's global generator"):
        prepare(small_run(1, module={"metrics": [Guess()]}))


class PastItsGenerator:
    """Noise from a generator that is not the client's, as it is drawn or as it is applied."""

    def __init__(self, when):
        self.when = when

    def draw(self, size, generator):
        return (torch.rand(size, 1) if self.when == "draw" else torch.rand(size, 1, generator=generator)) / 100

    def apply(self, batch, draws):
        noise = torch.rand(1) if self.when == "apply" else 0
        return batch + draws.view(-1, 1, 1, 1) + noise


@pytest.mark.parametrize("when", ["draw", "apply", "never"])
def test_an_augmentation_that_draws_globally_is_refused_before_training(small_run, when):
    run = small_run(1)
    with pytest.MonkeyPatch.context() as patch:
        setup = type(run.data).setup

        def with_noise(self, stage=None):
            setup(self, stage)
            self.clients.augment = PastItsGenerator(when)

        patch.setattr(type(run.data), "setup", with_noise)
        if when == "never":
            prepare(run)
            return
        with pytest.raises(UserError, match=r"^augmentation .*PastItsGenerator draws from torch's global generator"):
            prepare(run)


@every_generator
def test_an_optimizer_that_draws_is_refused_before_training(small_run, generator):
    class Shaken(torch.optim.SGD):
        def step(self, closure=None):
            DRAWS[generator]()
            super().step(closure)

    run = small_run(1, module={"optimizer": lambda parameters: Shaken(parameters, lr=0.1), "lr_scheduler": None})
    with pytest.raises(UserError, match=f"^model.optimizer Shaken draws from {generator}"):
        prepare(run)


# --- in the engine ----------------------------------------------------------------------------------------------------
class Shaky(Plain):
    """Plain training with noise on the gradients."""

    def step(self, ctx):
        grads = ctx.model().grad(ctx.next_batch())
        ctx.model().update([g + 1e-6 * torch.randn_like(g) for g in grads])


class Writing(Plain):
    """Draws when the weights are known."""

    def before_mixing(self, round):
        np.random.rand()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("number", [1, 2])
def test_an_objective_that_draws_is_refused_in_the_first_round(small_run, engine, number):
    with threads(number):
        run = small_run(2, module={"objective": Shaky()}, engine=engine, cohorts=2)
        said = r"^round 1: local training draws from torch's global generator, .*\(objective .*Shaky\)"
        with pytest.raises(UserError, match=said):
            run.fit()
    assert run.module.bank.boundary.round == 0


def test_an_objective_that_draws_before_mixing_is_refused(small_run):
    with pytest.raises(UserError, match=r"^round 1: .*Writing draws from numpy\.random in before_mixing"):
        small_run(1, module={"objective": Writing()}).fit()


def test_a_later_draw_is_refused_when_it_happens(small_run):
    class Late(nn.CrossEntropyLoss):
        drawing = False

        def forward(self, scores, labels):
            if Late.drawing:
                random.random()
            return super().forward(scores, labels)

    class Arm(Monitor):
        def on_propose(self, round):
            Late.drawing = round.index == 1

    said = r"^round 2: local training draws from Python's random.*\(model.loss .*Late\)"
    with pytest.raises(UserError, match=said):
        small_run(2, [Arm()], module={"loss": Late()}).fit()


def test_a_draw_in_evaluations_only_is_refused(small_run):
    class Late(Noisy):
        drawing = False

    network = Late(DRAWS["Python's random"], lambda net, x: Late.drawing and not net.training)

    class Arm(Monitor):
        def on_mix(self, round):
            Late.drawing = True

    policies = [families.Gossip(2), families.Uniform(), Arm()]
    run = small_run(1, policies=policies, module={"network": network}, engine="loop")
    with pytest.raises(UserError, match=r"^an evaluation draws from Python's random.*\(model.network .*Late\)"):
        run.fit()


def test_a_shipped_network_with_a_users_layer_is_named(small_run):
    run = prepare(small_run(1))
    engine = run.module.engine
    assert said_of_a_draw(engine).endswith(
        "(model.network dfl_lightning.models.mlp.MLP); draw nothing there, except by dropout layers of torch.nn"
    )
    run.module.network.add_module("more", Noisy(random.random))
    assert "(model.network dfl_lightning.models.mlp.MLP)" in said_of_a_draw(engine)
    engine.config.metrics["guess"] = Guess()
    assert f"MLP or model.metrics {name_of(Guess)})" in said_of_a_draw(engine)


def said_of_a_draw(engine):
    with pytest.raises(UserError) as error, refuse_global_draws(engine.config, engine.data, "x"):
        random.random()
    return str(error.value)


def test_shipped_networks_of_random_first_parameters_pass(small_run):
    run = small_run(1, module={"network": MLP(hidden=[4, 4]), "init": "independent"})
    before = states()
    prepare(run)
    assert changed(before) == []
    assert run.module.is_set_up
