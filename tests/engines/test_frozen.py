"""Frozen parameters exist once: not in rows, messages and comparisons, but in checkpoints and exports."""

import copy
import functools
import resource

import pytest
import torch
from banks import SEED, make_federation, own
from forked import Forked
from safetensors.torch import load_file
from torch import nn

from dfl_lightning import UserError
from dfl_lightning import callbacks as cb
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import References
from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.cli.exports.export import export
from dfl_lightning.engines.loop import loop_engine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.trials.constant_buffers import constant_buffers
from dfl_lightning.utils.code.frozen import frozen_norms, hash_of


class Pretrained(nn.Module):
    """A frozen body with a batch norm, a constant buffer, and a trained head."""

    def __init__(self, counts=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.norm.running_mean += 0.3
        self.norm.running_var *= 1.7
        for layer in (self.conv, self.norm):
            layer.requires_grad_(False)
        self.register_buffer("mask", (torch.arange(48) % 3 > 0).float(), persistent=False)
        self.register_buffer("seen", torch.zeros(()))
        self.head = nn.Linear(48, 3)
        self.counts = counts

    def forward(self, x):
        if self.training and self.counts:
            self.seen += 1
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1) * self.mask)


def seeded(make):
    torch.manual_seed(0)
    return make()


class Forms(nn.Module):
    """Each kind of frozen layer that has a rule of its own, or none, next to trained ones."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4, padding_idx=0)
        self.place = nn.Parameter(torch.randn(1, 6, 4), requires_grad=False)
        self.mixed = nn.Linear(4, 4)
        self.mixed.weight.requires_grad_(False)
        self.normed = nn.LayerNorm(4)
        self.pair = nn.Bilinear(4, 4, 5)  # no rule: by vmap
        self.along = nn.Conv1d(5, 4, 3, padding=1, padding_mode="circular")
        self.groups = nn.GroupNorm(2, 4)
        self.head = nn.Linear(24, 3)
        for layer in (self.table, self.normed, self.pair, self.along, self.groups):
            layer.requires_grad_(False)

    def forward(self, x):
        h = self.mixed(self.table((x.abs() * 3).long().clamp(max=6)) + self.place)
        return self.head(self.groups(self.along(self.pair(self.normed(h), h).transpose(1, 2))).flatten(1))


# --- the rows ---------------------------------------------------------------------------------------------------------
def test_rows_have_what_is_trained_or_written_and_nothing_else(make_data):
    network = seeded(lambda: Pretrained(counts=True))
    constant = constant_buffers(network, make_data(shape=(1, 6, 6)), torch.float32, SEED)
    assert constant == ("mask",)
    layout = Layout(network, constant=constant)
    assert [(entry.name, entry.start, entry.stop) for entry in layout.entries] == [
        ("head.weight", 0, 144),
        ("head.bias", 144, 147),
        ("seen", 147, 148),
    ]
    assert frozen_norms(network) == ["norm"]
    assert [common.name for common in layout.common] == [
        *("conv.weight", "conv.bias", "norm.weight", "norm.bias"),
        *("mask", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
    ]
    assert layout.feature_layers == ["head"]
    with pytest.raises(UserError, match=r"layer 'conv' is frozen, so that it is the same for all clients; .*\(head\)"):
        layout.module_columns("conv")
    assert constant_buffers(Pretrained(), make_data(shape=(1, 6, 6)), torch.float32, SEED) == ("mask", "seen")


def test_an_infinite_mask_and_large_integers_may_be_constant():
    network = nn.Linear(2, 2)
    network.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
    network.register_buffer("places", torch.tensor([2**40]))
    layout = Layout(network, constant=("mask", "places"))
    layout.load_base(network.state_dict())
    state = layout.state_dict(torch.zeros(6))
    assert state["mask"].tolist() == [0.0, float("-inf")]
    assert state["places"].tolist() == [2**40]


def test_a_buffer_that_is_written_after_the_trial_is_refused(make_data):
    class Late(nn.Linear):
        """Counts batches of the first client only, whose inputs are large."""

        def __init__(self):
            super().__init__(6, 3)
            self.register_buffer("large", torch.zeros(()))

        def forward(self, x):
            if bool((x > 100).any()):
                self.large += 1
            return super().forward(x)

    data = make_data()
    network = Late()
    constant = constant_buffers(network, data, torch.float64, SEED)
    assert constant == ("large",)
    f = make_federation(network=network, data=data, constant=constant)
    data.images[data.train[1]] = 1e4
    f.engine.train(own(0), f.training())
    with pytest.raises(UserError, match="its forward pass writes the buffer 'large', which it did not in the trial"):
        f.engine.train(own(1), f.training())


# --- both engines -----------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("make", [Pretrained, Forms])
def test_training_and_scores_are_those_of_plain_torch(engine, naive, make):
    """Frozen batch norms are in evaluation mode, as a user of plain torch would put them."""
    network = seeded(make)
    optimizer = functools.partial(torch.optim.AdamW, lr=77.0, weight_decay=0.3)
    options = {"kind": "batchnorm"} if make is Pretrained else {}
    constant = ("mask", "seen") if make is Pretrained else ()
    f = make_federation(
        **options, network=network, optimizer=optimizer, engine=engine, constant=constant, clip_norm=0.4
    )
    f.engine.cohorts = [torch.arange(3)]
    start, before = f.bank.rows("models").clone(), hash_of(f.layout.base)
    f.engine.train(own(0, 1, 2), f.training(lr=0.01))
    scores = f.engine.evaluate(References.rows("trained", torch.arange(3)), "test")
    names = [entry.name for entry in f.layout.entries]
    for client in range(3):
        module = copy.deepcopy(network).double()
        module.train = functools.partial(train_all_but_norms, module)
        tensors = dict(module.named_parameters())
        for entry in f.layout.entries:
            tensors[entry.name].data = start[client, entry.start : entry.stop].clone().view(entry.shape)
        adam = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.3)
        naive.train(module, f.data, client, adam, epochs=2, dtype=f.dtype, clip_norm=0.4)
        row = torch.cat([tensors[name].detach().reshape(-1) for name in names])
        torch.testing.assert_close(f.bank.rows("trained")[client], row, rtol=1e-9, atol=1e-10)
        x, y = naive.inputs(f.data, f.data.test[client], f.dtype)
        with torch.no_grad():
            assert float(scores.losses[client]) == pytest.approx(
                float(nn.functional.cross_entropy(module.eval()(x), y)), rel=1e-8
            )
    assert hash_of(f.layout.base) == before


def train_all_but_norms(module, mode=True):
    nn.Module.train(module, mode)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()
    return module


def test_frozen_batch_norms_do_not_keep_clients_apart():
    """Samples interact in batch norms in training mode only."""
    f = make_federation("batchnorm", network=seeded(Pretrained), engine=StackedEngine, constant=("mask", "seen"))
    assert not f.engine._context.network.couples_samples


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_copies_of_the_network_have_the_base_itself(engine, small_run):
    run = small_run(1, policies=[cb.Gossip(k=2), cb.Uniform()], module={"network": body()}, engine=engine).fit()
    base, engine = run.module.federation.layout.base, run.module.engine
    networks = (
        [scratch.network for scratch in engine._scratches]
        if isinstance(engine, loop_engine.LoopEngine)
        else [engine._context.network.network]
    )
    assert networks
    for network in networks:
        tensors = dict(network.named_parameters())
        assert all(tensors[name].data_ptr() == value.data_ptr() for name, value in base.items())


# --- a run ------------------------------------------------------------------------------------------------------------
def body(width=8):
    torch.manual_seed(3)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))
    network[1].requires_grad_(False)
    return network


def values(network):
    return {name: p.detach().clone() for name, p in network.named_parameters()}


HARSH = [cb.Gossip(k=3), cb.GaussianNoise(0.5), cb.TrimmedMean(0.2)]


@pytest.mark.parametrize("init", ["common", "independent"])
def test_nothing_of_a_run_changes_the_base(small_run, init):
    """Weight decay, clipping, first parameters of each client's own, noise and a robust rule."""
    network = body()
    before = values(network)
    module = {
        "network": network,
        "init": init,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5, weight_decay=0.5, momentum=0.9),
        "keep_optimizer": True,
    }
    run = small_run(3, policies=copy.deepcopy(HARSH), module=module, gradient_clip_val=0.1).fit()
    layout = run.module.federation.layout
    assert (layout.width, run.rows.shape) == (90, (6, 90))
    assert hash_of(layout.base) == layout.base_hash == hash_of({k: before[k] for k in ("1.weight", "1.bias")})
    assert len({row.numpy().tobytes() for row in run.rows}) > 1
    state = run.module.bank.boundary.rows
    assert {rows.shape[1] for rows in state.values()} == {90}


def test_checkpoints_have_the_base_once_and_exports_have_it(small_run):
    network = body()
    before = values(network)
    run = small_run(2, policies=[cb.Gossip(k=2), cb.Uniform()], module={"network": network}).fit()
    content = read_checkpoint(run.folder / "checkpoints" / "last.ckpt")
    of_base = {key: value for key, value in content["state_dict"].items() if "base" in key}
    assert {key: value.numel() for key, value in of_base.items()} == {"bank.base.1.weight": 512, "bank.base.1.bias": 8}
    (file,) = export(run.folder, [4], run.folder.parent / "out")
    state = load_file(file)
    assert state.keys() == network.state_dict().keys()
    assert torch.equal(state["1.weight"], before["1.weight"])
    assert torch.equal(state["3.bias"], run.rows[4][80:])
    # bytes of each link: 90 numbers
    received = run.module.bank.boundary.metrics["bytes_received"]
    assert received == pytest.approx(2 * 90 * 4)


def test_another_base_is_refused_by_a_resume(small_run):
    options = {"policies": [cb.Gossip(k=2), cb.Uniform()]}
    run = small_run(2, module={"network": body()}, **options).fit()
    other = body()
    with torch.no_grad():
        other[1].weight[3, 5] += 1e-3
    again = small_run(4, module={"network": other}, **options)
    with pytest.raises(UserError, match=r"frozen parameters .* other values than in the checkpoint \(hash"):
        again.fit(str(run.folder / "checkpoints" / "last.ckpt"))
    small_run(4, module={"network": body()}, **options).fit(str(run.folder / "checkpoints" / "last.ckpt"))


def test_the_base_may_come_from_a_file(small_run, tmp_path):
    torch.manual_seed(9)
    state = {name: torch.randn_like(value) for name, value in body().state_dict().items()}
    torch.save(state, tmp_path / "start.pt")
    module = {"network": body(), "init": str(tmp_path / "start.pt")}
    run = small_run(1, policies=[cb.Gossip(k=2), cb.Uniform()], module=module).fit()
    assert torch.equal(run.module.federation.layout.base["1.weight"], state["1.weight"])
    del state["1.bias"]
    torch.save(state, tmp_path / "start.pt")
    with pytest.raises(UserError, match=r"model.init=.*start.pt: the file has no '1.bias'"):
        small_run(1, policies=[cb.Gossip(k=2), cb.Uniform()], module=module | {"network": body()}).fit()


def test_freezing_and_thawing_within_a_run_is_refused(small_run):
    for layer, word in ((1, "frozen .* and is trained now"), (3, "trained .* and is frozen now")):

        class Switch(cb.Monitor):
            """Changes `requires_grad` in the second round."""

            def on_boundary(self, trainer, module, layer=layer):
                weight = module.network[layer].weight
                weight.requires_grad_(not weight.requires_grad)

        run = small_run(3, policies=[cb.Gossip(k=2), cb.Uniform()], callbacks=[Switch()], module={"network": body()})
        with pytest.raises(UserError, match=rf"'{layer}.weight' was {word}"):
            run.fit()


# --- memory -----------------------------------------------------------------------------------------------------------
def fit_many():
    """Fit 50 clients with a base of 4 million parameters and adapters of 50,000; print the growth of memory."""
    from small_run import SmallRun

    torch.manual_seed(0)
    wide = nn.Linear(64, 62_500)
    network = nn.Sequential(nn.Flatten(), wide, nn.Tanh(), nn.AdaptiveAvgPool1d(500), nn.Linear(500, 100, bias=False))
    wide.requires_grad_(False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = {"num_clients": 50, "samples_per_client": 10}
    run = SmallRun(
        ".", 2, policies=[cb.Gossip(k=3), cb.Uniform()], module={"network": network, "batch_size": 4}, data=data
    )
    run.fit()
    print(run.rows.shape[1], 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def test_fifty_clients_have_the_memory_of_one_base(tmp_path):
    """50 bases would take 800 MB, and twice as much with the buffer of the next round."""
    out, err = Forked(f"{__file__}:fit_many", ["fit"], tmp_path).communicate()
    width, grown = map(int, out.split()[-2:])
    assert width == 50_000, err
    base, rows = 4 * 62_500 * 65, 4 * 50 * 50_000
    assert grown < 10 * base + 3 * rows + 100e6
