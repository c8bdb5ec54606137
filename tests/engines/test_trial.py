"""Trial of networks and losses before the first round, and the sentences that refuse them, in both engines."""

import functools
import warnings
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from banks import in_rows, own
from networks import Idle
from torch import nn
from torch.nn.utils import parametrizations, prune

from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import References
from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.models.init import fresh_parameters
from dfl_lightning.objectives import Plain
from dfl_lightning.utils.code.module_copies import copy_of
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order


@pytest.fixture(params=["auto", "loop"])
def engine(request):
    """Use each engine choice in turn instead of the engine classes."""
    return functools.partial(make_engine, request.param)


class Net(nn.Module):
    """A body and a head, with `between` in between; `buffers` are zeros [5]."""

    def __init__(self, between=lambda self, x: x, buffers=()):
        super().__init__()
        self.between, self.body, self.head = between, nn.Linear(6, 5), nn.Linear(5, 3)
        for name in buffers:
            self.register_buffer(name, torch.zeros(5))

    def forward(self, x):
        return self.head(self.between(self, torch.tanh(self.body(x))))


def quietly(function, *args):
    """Ways of torch that it has given up recommending."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


# --- what a trial costs -----------------------------------------------------------------------------------------------
class Watchers(nn.Flatten):
    """Counts in each pass the modes that see torch's calls: each takes as long as a call."""

    seen: ClassVar = []  # of all copies

    def forward(self, x):
        self.seen.append(torch._C._len_torch_function_stack())
        return super().forward(x)


@pytest.mark.parametrize("choice", ["auto", "loop"])
def test_torchs_calls_are_not_watched_in_a_trial(small_run, monkeypatch, choice):
    monkeypatch.setattr(Watchers, "seen", [])
    small_run(
        rounds=1, engine=choice, module={"network": nn.Sequential(Watchers(), nn.Linear(64, 8), nn.Linear(8, 10))}
    ).fit()
    assert sum(Watchers.seen) == 1  # in the pass that looks for random draws


# --- what works, as by hand -------------------------------------------------------------------------------------------
def running(self, x):
    if self.training:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
    return x - self.mean


def kept_for_a_look(self, x):
    self.last = x
    return x


def body(change):
    def make():
        network = Net()
        network.body = change(network.body)
        return network

    return make


def with_hook(way, hook):
    def make():
        network = Net()
        network.act = nn.Tanh()
        network.between = lambda self, x: self.act(x)
        getattr(network.act, way)(hook)
        return network

    return make


class Words(nn.Module):
    """Reads inputs as words, whose gradients are sparse."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 2, sparse=True), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.embedding((4 * x).long().clamp(0, 9)).flatten(1))


class Experts(nn.Module):
    """Each sample goes to one of two layers, and a layer without a sample is not called."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x):
        scores, first = x.new_zeros(len(x), 3), x[:, 0] > 0.5
        for expert, mine in zip(self.experts, (first, ~first), strict=True):
            if mine.any():
                scores = scores.index_put((mine,), expert(x[mine]))
        return scores


class Reordered(nn.Linear):
    """The order of its inputs is a parameter, which has no gradient."""

    def __init__(self):
        super().__init__(6, 3)
        self.order = nn.Parameter(torch.arange(6).flip(0), requires_grad=False)

    def forward(self, x):
        return super().forward(x[:, self.order])


WORKS = {
    "sparse gradients": Words,
    "experts": Experts,
    "integers": Reordered,
    "idle layer": body(lambda layer: nn.Sequential(layer, Idle())),
    "assigned buffer": lambda: Net(running, ["mean"]),
    "attribute": lambda: Net(kept_for_a_look),
    "old weight norm": body(lambda layer: quietly(nn.utils.weight_norm, layer)),
    "weight norm": body(parametrizations.weight_norm),
    "orthogonal": body(parametrizations.orthogonal),
    "old spectral norm": body(nn.utils.spectral_norm),
    "spectral norm": body(parametrizations.spectral_norm),
    "pruned": body(lambda layer: prune.l1_unstructured(layer, "weight", 0.4)),
    "pruned twice": body(
        lambda layer: prune.random_unstructured(prune.l1_unstructured(layer, "weight", 0.4), "weight", 0.2)
    ),
    "scripted layer": body(lambda layer: quietly(torch.jit.script, layer)),
    "scripted norm": body(lambda layer: quietly(torch.jit.script, nn.Sequential(layer, nn.BatchNorm1d(5)))),
    "forward hook": with_hook("register_forward_hook", lambda module, inputs, output: 0.5 * output),
    "backward hook": with_hook("register_full_backward_hook", lambda module, inner, outer: (0.5 * inner[0],)),
    "backward pre-hook": with_hook("register_full_backward_pre_hook", lambda module, outer: (0.5 * outer[0],)),
}


def by_hand(make, row):
    """The network as it is made, not copied, with the numbers of a row."""
    torch.manual_seed(0)
    module, at = make().double(), 0
    with torch.no_grad():
        for tensor in in_rows(module):
            tensor.copy_(row[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()
    assert at == len(row)
    return module


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", WORKS)
def test_unusual_networks_train_and_evaluate_as_by_hand(federation, naive, name):
    make, decay = WORKS[name], 0.0 if name == "sparse gradients" else 0.1  # which torch does not add up
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=decay)
    torch.manual_seed(0)
    f = federation(network=make(), sizes=(8, 4, 14), optimizer=optimizer)
    start = f.bank.rows("models").clone()
    f.engine.train(own(0, 1, 2), f.training(lr=0.1))
    trained = f.bank.rows("trained")
    scores = f.engine.evaluate(References.rows("trained", torch.arange(3)), "test")
    for i in range(3):
        module = by_hand(make, start[i])
        naive.train(module, f.data, i, optimizer, epochs=2, dtype=f.dtype)
        torch.testing.assert_close(trained[i], naive.row(module, f.dtype), rtol=1e-9, atol=1e-9)
        x, y = naive.inputs(f.data, f.data.test[i], f.dtype)
        with torch.no_grad():
            assert float(scores.losses[i]) == pytest.approx(float(F.cross_entropy(module.eval()(x), y)), rel=1e-9)


def assigns_in_evaluation(self, x):
    if not self.training:
        self.mean = self.mean + 1
    return x + self.mean


def test_assignments_in_an_evaluation_are_not_kept(federation):
    torch.manual_seed(0)
    f = federation(network=Net(assigns_in_evaluation, ["mean"]))
    before = f.bank.rows("models").clone()
    assert "evaluation" in f.engine.details  # one batch for each client, for the next one would see the buffer
    first = f.engine.evaluate(own(0, 1, 2), "test").losses
    assert torch.equal(f.engine.evaluate(own(0, 1, 2), "test").losses, first)
    assert torch.equal(f.bank.rows("models"), before)


def test_an_assigned_buffer_stays_in_a_phase_without_it(federation, naive):
    torch.manual_seed(0)
    network = Net(running, ["mean"])
    f = federation(network=network, shared=["body.*", "mean"], objective=Plain(personal_epochs=1))
    start = f.bank.rows("models")[0].clone()
    f.engine.train(own(0), f.training(epochs=1, lr=0.1))
    module, samples = naive.module(network, start), f.data.train[0]
    for epoch, part in enumerate((module.head, module.body)):
        optimizer, mean = torch.optim.SGD(part.parameters(), lr=0.1), module.mean
        order = drawn_order(9, naive.seed, "local", 3, 0, epoch)
        for at in range(0, 9, 4):
            x, y = naive.inputs(f.data, samples[order[at : at + 4]], f.dtype)
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
        module.mean = mean if part is module.head else module.mean  # personal things alone move in the first phase
    torch.testing.assert_close(f.bank.rows("trained")[0], naive.row(module, f.dtype), rtol=1e-10, atol=1e-10)


def test_masks_of_pruned_layers_are_never_exchanged():
    layout = Layout(WORKS["pruned twice"]())
    shared = {entry.name for entry in layout.entries if layout.is_shared(entry)}
    assert shared == {"body.weight_orig", "body.bias", "head.weight", "head.bias"}
    assert not layout.has_personal_parameters


@pytest.mark.parametrize("name", ["old weight norm", "old spectral norm", "pruned"])
def test_layers_that_cannot_be_drawn_anew_are_refused(name):
    with pytest.raises(UserError, match=r"layer 'body' computes its 'weight' in each pass.*init: common"):
        fresh_parameters(WORKS[name](), 0, 1)


def test_a_copy_has_its_own_parameters_and_what_hooks_compute():
    for name in ("old weight norm", "pruned", "scripted layer"):
        network = WORKS[name]()
        before = network(torch.ones(2, 6))
        copied = copy_of(network)
        assert torch.equal(copied(torch.ones(2, 6)), before)
        assert all(p.is_leaf and p.requires_grad for p in copied.parameters())
        with torch.no_grad():
            for p in copied.body.parameters():
                p.fill_(2.0)
        assert not torch.equal(copied(torch.ones(2, 6)), before)
        assert torch.equal(network(torch.ones(2, 6)), before)


# --- samples that meet in evaluation ----------------------------------------------------------------------------------
class Centred(Net):
    def __init__(self):
        super().__init__(lambda self, x: x - x[: x.shape[0] // 2].mean(0))


def test_interacting_samples_are_evaluated_in_one_batch(federation, naive, monkeypatch):
    monkeypatch.setattr("dfl_lightning.engines.loop.scratch.EVALUATION_BATCH", 4)
    torch.manual_seed(0)
    f = federation(network=Centred(), servers=1)
    assert type(f.engine) is LoopEngine
    said = "all samples of a client in one batch, because samples interact in the network"
    assert f.engine.details["evaluation"] == said
    references = References.rows("models", torch.tensor([2, 0, 3]), torch.tensor([2, 1, -1]))
    for split in ("train", "test"):
        found = f.engine.evaluate(references, split)
        for job, (model, owner) in enumerate(((2, 2), (0, 1), (3, -1))):
            samples = f.data.global_test if owner < 0 else getattr(f.data, split)[owner]
            if owner < 0 and split == "train":
                continue
            x, y = naive.inputs(f.data, samples, f.dtype)
            module = naive.module(f.network, f.bank.rows("models")[model]).eval()
            with torch.no_grad():
                scores = module(x)
            assert float(found.losses[job]) == pytest.approx(float(F.cross_entropy(scores, y)), rel=1e-12)
            assert float(found.metrics["acc"][job]) == pytest.approx(float((scores.argmax(1) == y).double().mean()))


def test_ordinary_networks_are_evaluated_in_batches(federation):
    assert "evaluation" not in federation().engine.details


# --- what no engine can do for each client by itself ------------------------------------------------------------------
def hooked(way, hook):
    def make():
        network = Net()
        getattr(network.body.weight, way)(hook)
        return network

    return make


def with_history(self, x):
    self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
    return x - self.mean


def of_another_shape(self, x):
    self.mean = x.detach()
    return x


def remembers(self, x):
    last = getattr(self, "last", None)
    self.last = x.detach().mean(0)
    return x if last is None else x - last


def counts(self, x):
    self.passes = getattr(self, "passes", 0) + 1
    return x * self.passes


def new_parameter(self, x):
    self.head.weight = nn.Parameter(self.head.weight.detach() * 0.5)
    return x


def uncopyable():
    network = Net()
    network.generator = torch.Generator()
    network.file = open(__file__)  # noqa: SIM115
    return network


def fails(self, x):
    if x.requires_grad:
        raise RuntimeError("no gradients here")
    return x


NETWORKS = {
    "register_hook": (
        hooked("register_hook", lambda gradient: 0 * gradient),
        r"parameter 'body.weight' has a gradient hook \(register_hook\).*objective",
    ),
    "post hook": (
        hooked("register_post_accumulate_grad_hook", lambda parameter: None),
        r"parameter 'body.weight' has a gradient hook \(register_post_accumulate_grad_hook\)",
    ),
    "buffer with history": (lambda: Net(with_history, ["mean"]), r"the buffer 'mean' a tensor with a gradient.*detach"),
    "buffer of another shape": (lambda: Net(of_another_shape, ["mean"]), r"replaces the buffer 'mean'.*another shape"),
    "memory": (lambda: Net(remembers), r"keeps something from one pass to the next.*register_buffer"),
    "counter": (lambda: Net(counts), r"keeps something from one pass to the next.*register_buffer"),
    "parameter": (lambda: Net(new_parameter), r"replaces the parameter 'head.weight'"),
    "copy": (uncopyable, r"Net cannot be copied.*TextIOWrapper"),
    "failing": (lambda: Net(fails), r"model.network Net fails on a batch of 3 samples.*no gradients here"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_no_engine_can_train_are_refused_by_name(federation, name):
    make, sentence = NETWORKS[name]
    torch.manual_seed(0)
    network = make()
    with pytest.raises(UserError, match=sentence) as refusal:
        federation(network=network)
    assert "model.network Net" in str(refusal.value)
    if hasattr(network, "file"):
        network.file.close()


def test_scores_without_a_gradient_are_refused(federation):
    class Detached(Net):
        def forward(self, x):
            return super().forward(x).detach()

    with pytest.raises(UserError, match=r"model.network Detached returns scores without a gradient"):
        federation(network=Detached())


def test_networks_that_fail_on_single_samples_are_refused(federation):
    def squeezed(self, x):
        return (x.squeeze().unsqueeze(-1) * torch.ones(1)).squeeze(2)

    with pytest.raises(UserError, match=r"model.network Net fails on a batch of 1 samples in training"):
        federation(network=Net(squeezed), sizes=(9, 4, 14))
    federation(network=Net(squeezed), sizes=(10, 4, 14))


# --- losses -----------------------------------------------------------------------------------------------------------
def by_name(scores, labels):
    return (scores.argmax(1) != labels).double().mean()


def in_place(scores, labels):
    scores.sub_(scores.detach().amax(1, keepdim=True))
    scores.exp_()
    return -(scores[range(len(labels)), labels] / scores.sum(1)).log().mean()


def labels_in_place(scores, labels):
    loss = F.cross_entropy(scores, labels.clone())  # whose gradient reads them
    labels.zero_()
    return loss


def seven(scores, labels):
    return 7


def first_classes(scores, labels):
    return F.nll_loss(scores.log_softmax(1)[:, :2], labels)


LOSSES = {
    "weights of another length": (
        nn.CrossEntropyLoss(weight=torch.ones(4)),
        r"CrossEntropyLoss fails on scores \[3, 3\]",
    ),
    "no reduction": (nn.CrossEntropyLoss(reduction="none"), r"returns a tensor of shape \(3,\).*reduction='mean'"),
    "a number": (seven, r"model.loss seven returns int; it must return one number as a tensor"),
    "float targets": (nn.BCEWithLogitsLoss(), r"BCEWithLogitsLoss fails on scores"),
    "broadcast": (nn.MSELoss(), r"MSELoss fails on scores.*target size"),
    "no gradient": (by_name, r"model.loss by_name returns a number without a gradient \(float64\)"),
    "too few classes": (first_classes, r"model.loss first_classes fails on scores"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_wrong_losses_are_refused_by_name(federation, name):
    loss, sentence = LOSSES[name]
    with pytest.raises(UserError, match=sentence):
        federation(loss=loss)


def test_weights_of_classes_are_in_the_runs_precision(federation):
    weights = torch.tensor([0.5, 1.0, 2.0])
    found = []
    for loss in (nn.CrossEntropyLoss(weight=weights), lambda s, y: F.cross_entropy(s, y, weight=weights.double())):
        f = federation(loss=loss)
        f.engine.train(own(0, 1, 2), f.training(lr=0.1))
        found.append(f.bank.rows("trained"))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", [in_place, labels_in_place])
def test_a_loss_may_write_into_what_it_is_given(federation, naive, loss):
    f, plain = federation(loss=loss), federation(engine=LoopEngine)
    found = []
    for g in (f, plain):
        g.engine.train(own(0, 1, 2), g.training(lr=0.1))
        scores = g.engine.evaluate(References.rows("trained", torch.arange(3)), "test")
        found.append([g.bank.rows("trained"), scores.losses, scores.metrics["acc"]])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
