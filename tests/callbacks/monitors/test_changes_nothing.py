"""A monitor can read everything and change nothing; policies write what is theirs, in the hooks that write it."""

import functools
import re

import numpy as np
import pytest
import torch
from turns import in_turn

from dfl_lightning import callbacks as cb
from dfl_lightning.bank.references import References, Weights
from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.engines.jobs import Training
from dfl_lightning.links import LinkMemory
from dfl_lightning.objectives import Plain
from dfl_lightning.round.record import SubstituteRows
from dfl_lightning.utils.errors import UserError

CLIENTS = 6
HOOKS = [
    *("on_dropout", "on_propose", "on_outgoing", "on_trained", "on_compare", "on_threshold", "on_select"),
    *("on_substitute", "on_weigh", "on_mix", "on_round_end"),
]


def doing(family, hook, body, **attributes):
    """Make an object of a user's class whose hook runs the body."""

    def method(self, *args):
        body(*args)

    return type("Mine", (family,), {hook: method, **attributes})()


def policies():
    return [Remembering(k=2), cb.Uniform()]


class Remembering(cb.Gossip):
    """Leaves a memory of links for others to read, as a substitution does."""

    def on_select(self, round):
        super().on_select(round)
        round.likeness = LinkMemory.empty(round.num_nodes)
        round.likeness.write(round.selected, torch.zeros(len(round.selected)))


@pytest.fixture(scope="module")
def good(read_only_run):
    """Return the models after a number of rounds in which nothing is written."""
    return functools.cache(lambda rounds: read_only_run(rounds, policies=policies()).fit().rows)


@pytest.fixture
def refused(small_run, good):
    """Return the one sentence that ends a run with this callback; its checkpoint has the models of complete rounds."""

    def go(callback, rounds=2):
        run = small_run(4, [callback], policies(), checkpoint_every=1)
        with pytest.raises(UserError) as caught:
            run.fit()
        saved = read_checkpoint(run.folder / "checkpoints" / "last.ckpt")["state_dict"]
        assert int(saved["bank.progress"][0]) == rounds
        assert torch.equal(saved["bank.rows.models"], good(rounds))
        return str(caught.value)

    return go


def everything(name="trained"):
    return torch.full((CLIENTS, CLIENTS), 1 / CLIENTS), name


def mix(round, name):
    round.mix([everything()], into=name, where=torch.arange(CLIENTS))


def train(round):
    training = Training("local", round.index, round.phases, round.hyperparameters)
    round.federation.engine.train(round.jobs, training)


def rehearse(round):
    training = Training("local", round.index, round.phases, round.hyperparameters)
    round.federation.engine.rehearse(round.jobs, training, into="models")


WRITES = {
    "next_of": ("on_round_end", lambda r: r.bank.next_of("models"), r"row set 'models' \(bank.next_of\('models'\)\)"),
    "mix": ("on_trained", lambda r: mix(r, "models"), r"row set 'models' \(mix\(..., into='models'\)\)"),
    "mix of the bank": (
        "on_mix",
        lambda r: r.bank.mix([everything()], "models", torch.arange(CLIENTS)),
        r"row set 'models' \(mix\(..., into='models'\)\)",
    ),
    "reduce": ("on_weigh", lambda r: r.reduce(r.votes, lambda x: x.mean(1)), r"'models' \(reduce\(..., into='models'"),
    "sent": ("on_outgoing", lambda r: r.bank.change_sent(torch.arange(2)), r"'sent' \(bank.change_sent\(nodes\)\)"),
    "train": ("on_trained", train, r"'trained' \(engine.train\(...\)\)"),
    "rehearse": ("on_trained", rehearse, r"'models' \(engine.rehearse\(..., into='models'\)\)"),
    "boundary": (
        "on_trained",
        lambda r: r.bank.boundary.rows["models"].zero_(),
        "the rows 'models' of before the round",
    ),
    "a selection": ("on_select", lambda r: setattr(r, "selected", r.selected.keep(r.selected.senders > 1)), r"round\."),
    "weights": ("on_weigh", lambda r: r.weights.fill_(0), r"changes round\.weights"),
    "a view": ("on_threshold", lambda r: r.active[1:3].logical_not_(), r"changes round\.active"),
    "a list": ("on_substitute", lambda r: r.substitute_rows.append(SubstituteRows("x", False)), r"changes round\.sub"),
    "learning rate": ("on_propose", lambda r: r.hyperparameters[0].update(lr=9.0), r"changes round\.hyperparameters"),
    "labels": ("on_dropout", lambda r: r.data.labels.zero_(), r"changes round\.data\.labels"),
    "ends": ("on_weigh", lambda r: r.selected.senders.zero_(), r"changes round\.selected"),
    "memory": ("on_mix", lambda r: r.likeness.write(r.selected, r.selected.uniform(1)), r"changes round\.likeness"),
}


def in_the_third_round(body):
    def then(round):
        if round.index == 2:
            body(round)

    return then


@pytest.mark.parametrize(("hook", "body", "sentence"), WRITES.values(), ids=WRITES)
def test_monitor_that_writes_ends_the_run_and_is_named(refused, hook, body, sentence):
    said = refused(doing(cb.Monitor, hook, in_the_third_round(body)))
    assert re.match(rf"round 3: {__name__}.Mine .*{sentence}.* in {hook}; a monitor measures a round and changes", said)


def test_monitor_that_writes_at_a_boundary_ends_the_run(refused):
    def writes(trainer, module):
        if module.bank.boundary.round == 2:
            module.bank.boundary.rows["models"][1] = 0

    said = refused(doing(cb.Monitor, "on_boundary", writes), rounds=1)  # the second is saved after all monitors
    assert "writes into the rows 'models' of before the round in on_boundary; a monitor measures" in said


@pytest.mark.parametrize(
    "hook", ["on_train_epoch_start", "on_train_batch_start", "on_train_epoch_end", "on_validation_end"]
)
def test_writes_in_lightning_hooks_end_the_run_before_saving(refused, hook):
    def writes(trainer, module, *batch):
        if module.bank.boundary.round == (2 if hook.endswith("start") else 3):
            module.bank.rows("models")[:] = 0

    said = refused(doing(cb.Monitor, hook, writes))
    assert "one of Lightning's hooks" in said
    assert "writes into the rows 'models'" in said


class Curious(cb.Monitor):
    """Reads all that there is in each hook, and spoils what it gets."""

    def look(self, round, hook):
        bank = round.bank
        found = {name: bank.rows(name) for name in bank.boundary.rows}
        if HOOKS.index("on_outgoing") <= HOOKS.index(hook) and hook != "on_round_end" and not bank._work.mixed:
            found |= {name: bank.rows(name) for name in ("trained", "sent")}
            self.measure(round)
        found |= {f"next {name}": rows for name, rows in bank.next_rows().items()}
        before = {name: rows.clone() for name, rows in found.items()}
        for rows in found.values():
            rows -= rows.mean(0)
            host = rows.cpu()  # the same memory where these are on the CPU
            host.numpy()[:] = np.sort(host.numpy(), axis=0)
            rows.data.mul_(2)
        self.kept = before
        bank.scratch("mine")
        bank.mix([everything("models")], "mine", torch.arange(CLIENTS))
        bank.rows("mine").zero_()

    def measure(self, round):
        everyone = torch.arange(CLIENTS)
        others = References.rows("trained", everyone, everyone.flip(0), "trained")
        assert round.evaluate(others).losses.isfinite().all()
        assert round.loss_of(round.reachable).isfinite().sum() == len(round.reachable.between(senders=round.active))
        round.compare("trained", round.reachable)
        round.gradients(References.rows("trained", everyone), batches=1)
        weights = Weights.of_dense(torch.full((CLIENTS, CLIENTS), 1 / CLIENTS))
        round.bank.scratch("averages")
        round.mix([(weights, "trained")], into="averages", where=everyone)
        training = Training("local", round.index, round.phases, round.hyperparameters)
        round.bank.scratch("rehearsed")
        round.federation.engine.rehearse(round.jobs, training, into="rehearsed")
        round.draw_links(round.reachable, 2, "mine")
        round.ledger.forget(everyone)
        round.charge_message("curiosity", round.reachable, 100)
        round.log("curious", 1.0)


for name in HOOKS:
    setattr(Curious, name, lambda self, round, name=name: self.look(round, name))


@pytest.mark.parametrize("method", in_turn(["afind", "dpfl", "stale and compressed"]))
def test_monitor_that_alters_its_copies_changes_nothing(small_run, method):
    made = {
        "afind": lambda: [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann(), cb.Bernoulli(0.3)],
        "dpfl": lambda: [cb.DPFL(budget=2), cb.SampleWeighted()],
        "stale and compressed": lambda: [
            *(cb.Gossip(k=2), cb.Uniform(), cb.Stale(), cb.Bernoulli(0.4), cb.TopK(share=0.1))
        ],
    }[method]
    plain = small_run(3, policies=made()).fit()
    watched = small_run(3, [Curious()], made()).fit()
    for name, rows in plain.module.bank.boundary.rows.items():
        assert torch.equal(watched.module.bank.boundary.rows[name], rows), name
    assert watched.trainer.run.metrics["curious"].all()
    for name, values in plain.trainer.run.metrics.items():
        if name not in ("seconds", "curious"):
            np.testing.assert_array_equal(watched.trainer.run.metrics[name], values, err_msg=name)


def test_rows_are_copied_once_per_hook_and_after_changes(small_run):
    class Looks(cb.Monitor):
        def on_trained(self, round):
            self.same = round.bank.rows("models") is round.bank.rows("models")
            round.bank.scratch("mine")
            self.zero = round.bank.rows("mine").abs().max().item()
            round.bank.mix([everything("models")], "mine", torch.arange(CLIENTS))
            self.mixed = round.bank.rows("mine").abs().max().item()

    looks = Looks()
    small_run(1, [looks], policies()).fit()
    assert looks.same
    assert looks.zero == 0 < looks.mixed


@pytest.mark.parametrize(
    ("hook", "body", "sentence"),
    [
        ("on_trained", lambda r: mix(r, "models"), r"'models' \(mix.*\) in on_trained; .* in on_mix only"),
        ("on_round_end", lambda r: r.bank.next_of("models"), r"in on_round_end; .* in on_mix only"),
        ("on_trained", lambda r: r.bank.change_sent(torch.arange(2)), r"in on_outgoing only"),
        ("on_compare", lambda r: r.bank.abandon(), r"calls bank.abandon\(\) in on_compare; remove the call"),
        ("on_trained", lambda r: r.bank.rows("models").zero_(), r"writes into the rows 'models' of before"),
        ("on_trained", lambda r: r.bank.scratch("models"), r"'models'\) has the name of another row set"),
    ],
)
def test_policies_write_rows_of_the_round_only_in_their_hooks(refused, hook, body, sentence):
    silent = {} if hook == "on_outgoing" else {"on_outgoing": lambda self, round: None}
    assert re.search(sentence, refused(doing(cb.Outgoing, hook, in_the_third_round(body), **silent)))


def test_an_objective_does_not_write_the_models(small_run):
    class Eager(Plain):
        def before_mixing(self, round):
            mix(round, "models")

    with pytest.raises(UserError, match=r"round 1: .*Eager writes the row set 'models' \(mix.* in before_mixing; "):
        small_run(1, policies=policies(), module={"objective": Eager()}).fit()


def test_an_aggregation_may_write_the_new_models_itself(small_run):
    class ByHand(cb.Uniform):
        def on_mix(self, round):
            votes = round.voters.dense(round.weights, 0.0).to(round.bank.device)
            trained = round.bank.rows("trained").clone()
            round.bank.next_of("models").copy_((votes @ trained.double()).to(trained.dtype))

    by_hand, plain = (small_run(2, policies=[cb.Gossip(k=2), one]).fit() for one in (ByHand(), cb.Uniform()))
    torch.testing.assert_close(by_hand.rows, plain.rows)
    assert not torch.equal(plain.rows[0], plain.rows[1])


def test_declared_row_sets_are_writable_in_every_hook_after_training(small_run):
    class Remembers(cb.Gossip):
        row_sets = {"mine": "zeros"}
        number = 0

        def remember(self, round):
            self.number += 1
            round.bank.next_of("mine")[:] = self.number

    for hook in HOOKS:
        policy = type("Remembers", (Remembers,), {})()
        former = getattr(cb.Gossip, hook)

        def body(self, round, former=former):
            former(self, round)
            self.remember(round)

        setattr(type(policy), hook, body)
        run = small_run(2, policies=[policy, cb.Uniform()]).fit()
        assert (run.module.bank.boundary.rows["mine"] == 2).all(), hook
