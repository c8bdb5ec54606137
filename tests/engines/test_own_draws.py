"""Random functions of torch in a network: masks of the project's own, or torch's generator under a lock."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dfl_lightning.engines.calling.adapted import Calling, prepare
from dfl_lightning.engines.calling.finding import find_calling
from dfl_lightning.engines.calling.own_draws import OwnDraws
from dfl_lightning.engines.dropout_layers import MaskSource, keep_mask, mask_key
from dfl_lightning.utils.errors import UserError

KEY = mask_key(5)
ALPHA = 1.6732632423543772 * 1.0507009873554805  # of SELU: Klambauer et al., 2017


def source_with(key=KEY):
    source = MaskSource()
    source.begin(key)
    return source


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def factors(call, shape, p, key=KEY):
    """Factors of a dropout with the masks of `nn.Dropout` layers."""
    return keep_mask(key.unsqueeze(0), call, shape, p)[0].double() / (1 - p)


def test_dropout_functions_have_the_masks_of_dropout_layers():
    x = randn(4, 6, 3)
    with OwnDraws(source_with()):
        got = [F.dropout(x, 0.3), torch.dropout(x, 0.3, True), F.dropout2d(x[..., None], 0.4)[..., 0]]
        held = [F.dropout(x, 0.3, training=False), F.dropout(x, 0.0), F.alpha_dropout(x, 0.3)]
        last = F.dropout1d(x, 0.4)
    torch.testing.assert_close(got[0], x * factors(0, (4, 6, 3), 0.3))
    torch.testing.assert_close(got[1], x * factors(1, (4, 6, 3), 0.3))
    torch.testing.assert_close(got[2], x * factors(2, (4, 6, 1), 0.4))
    assert all(torch.equal(one, x) for one in held)
    torch.testing.assert_close(last, x * factors(3, (4, 6, 1), 0.4))  # calls without a draw do not count


def test_a_dropout_in_place_writes_into_its_input():
    x = torch.ones(50)
    with OwnDraws(source_with()):
        assert F.dropout(x, 0.5, inplace=True) is x
    assert set(x.tolist()) == {0.0, 2.0}


def test_alpha_dropout_keeps_mean_and_variance_of_normal_numbers():
    x = randn(400, 500)
    with OwnDraws(source_with()):
        y = F.alpha_dropout(x, 0.2, training=True)
    scale = ((1 - 0.2) * (1 + 0.2 * ALPHA**2)) ** -0.5
    dropped = y[keep_mask(KEY.unsqueeze(0), 0, (400, 500), 0.2)[0].logical_not()]
    torch.testing.assert_close(dropped, torch.full_like(dropped, -ALPHA * scale + ALPHA * scale * 0.2))
    assert float(y.mean()) == pytest.approx(0, abs=0.01)
    assert float(y.var()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "empty"])
def test_attention_drops_weights_of_a_softmax(kind):
    q, k, v = (randn(2, 3, 4, 5, seed=seed) for seed in range(3))
    allowed = {"bool": randn(4, 4, seed=4) < 0.5, "empty": torch.zeros(4, 4, dtype=torch.bool)}.get(kind)
    mask = randn(4, 4, seed=5) if kind == "float" else allowed
    if kind == "bool":
        allowed[:, 0] = True
    with OwnDraws(source_with()):
        got = F.scaled_dot_product_attention(q, k, v, mask, 0.25, kind == "causal")
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(5)
    if kind == "causal":
        allowed = torch.ones(4, 4, dtype=torch.bool).tril()
    scores = scores + mask if kind == "float" else scores if allowed is None else scores.masked_fill(~allowed, -1e300)
    weights = scores.softmax(-1) * (0 if kind == "empty" else 1)
    torch.testing.assert_close(got, (weights * factors(0, (2, 3, 4, 4), 0.25)) @ v)


@pytest.mark.parametrize(
    "options", [{}, {"bias": False, "kdim": 7, "vdim": 7}, {"add_bias_kv": True, "add_zero_attn": True}]
)
def test_multihead_attention_is_torchs_and_drops_its_weights(options, monkeypatch):
    layer = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True, **options).double()
    layer.out_proj.weight.data = torch.eye(6, dtype=torch.float64)
    x, other = randn(3, 4, 6), randn(3, 5, options.get("kdim", 6), seed=1)
    everything = torch.ones(3, 2, 4, 5 + 2 * ("add_bias_kv" in options), dtype=torch.float64)
    with monkeypatch.context() as patched:
        patched.setattr("dfl_lightning.engines.calling.own_draws._scaled", lambda *_: everything)
        with OwnDraws(source_with()):
            whole = layer.train()(x, other, other)
    for got, plain in zip(whole, layer.eval()(x, other, other), strict=True):
        torch.testing.assert_close(got, plain)
    source = source_with()
    with OwnDraws(source):
        out, weights = layer.train()(x, other, other, average_attn_weights=False)
    torch.testing.assert_close(
        weights, layer.eval()(x, other, other, average_attn_weights=False)[1] * factors(0, everything.shape, 0.3)
    )
    assert source.call == 1
    assert out.shape == x.shape


def test_a_path_is_dropped_by_bernoulli_with_the_given_share():
    with OwnDraws(source_with()):
        kept = torch.empty(4000, 1).bernoulli_(0.7)
    assert float(kept.mean()) == pytest.approx(0.7, abs=0.03)
    assert torch.equal(kept.bool(), keep_mask(KEY.unsqueeze(0), 0, (4000, 1), 0.3)[0])


def test_keys_of_several_clients_give_each_its_own_masks():
    keys, x = torch.stack([mask_key(seed) for seed in (1, 2, 3)]), randn(3, 4, 5)
    with OwnDraws(source_with(keys)):
        together = F.dropout(x.flatten(0, 1), 0.5).unflatten(0, (3, 4))
    for client, key in enumerate(keys):
        with OwnDraws(source_with(key)):
            assert torch.equal(F.dropout(x[client], 0.5), together[client])
    with OwnDraws(source_with(keys)), pytest.raises(ValueError, match="cannot be divided among 3 clients"):
        F.dropout(x[0], 0.5)  # 4 samples


class Functional(nn.Module):
    """Functional dropout, among layers with buffers and one held in evaluation mode."""

    def __init__(self, p):
        super().__init__()
        self.norm, self.held, self.p = nn.BatchNorm1d(6), nn.BatchNorm1d(6).eval(), p

    def forward(self, x):
        return F.dropout(self.held(self.norm(x)), self.p, training=self.training)


class Noise(nn.Module):
    """Adds noise in training."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x) if self.training else x


class Noisy(nn.Module):
    """A layer with noise, then a linear one."""

    def __init__(self):
        super().__init__()
        self.body, self.head = Noise(), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Recomputed(nn.Module):
    """A layer that is computed again in the backward pass."""

    def __init__(self, p):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Dropout(p))

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize("p", [0.5, 0.0])
def test_the_trial_finds_functional_dropout_and_leaves_no_trace(p):
    network = Functional(p)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    calling, _ = find_calling(network, torch.rand(2, 6, generator=torch.Generator().manual_seed(0)))
    assert calling == Calling(draws=p > 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert (network.training, network.norm.training, network.held.training) == (True, True, False)


def test_a_failing_trial_leaves_no_trace_either():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        find_calling(Functional(0.5), torch.zeros(2, 7))
    assert torch.equal(torch.get_rng_state(), state)


def test_what_draws_elsewhere_is_named_and_seeded_by_the_key():
    calling, _ = find_calling(Noisy(), torch.zeros(2, 6))
    assert calling.foreign == "randn_like in layer 'body' (Noise)"
    network = Noisy()
    source, state = prepare(network, calling), torch.get_rng_state()
    x = torch.ones(2, 6)
    passes = []
    for seed in (1, 2, 1):
        source.begin(mask_key(seed))
        passes.append(network(x))
    assert torch.equal(passes[0], passes[2])
    assert not torch.equal(passes[0], passes[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_computed_again_in_the_backward_pass_is_refused():
    assert find_calling(Recomputed(0.0), torch.ones(2, 6))[0] == Calling()
    with pytest.raises(UserError, match=r"Recomputed draws again in its backward pass.*gradient_checkpointing_disable"):
        find_calling(Recomputed(0.5), torch.ones(2, 6))


def test_further_outputs_in_training_are_refused():
    class Auxiliary(nn.Linear):
        def forward(self, x):
            return (super().forward(x), x) if self.training else super().forward(x)

    with pytest.raises(UserError, match=r"Auxiliary returns a tuple in training and scores in evaluation.*aux_logits"):
        find_calling(Auxiliary(6, 2), torch.ones(2, 6))
