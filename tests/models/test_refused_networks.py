"""Networks that a run cannot have: too few positions, another precision, more than the memory; the remedies work."""

import types

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from dfl_lightning import UserError, build_checks, callbacks
from dfl_lightning.data import FromDataset

TOKENS, WORDS = 6, 9


class Lines(Dataset):
    """Sequences of six tokens in three classes."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.randint(WORDS, (TOKENS,), generator=torch.Generator().manual_seed(index)), index % 3


class Reader(nn.Module):
    """Embeds tokens and their positions, as networks of transformers do, with a config that says how many there are."""

    def __init__(self, positions=TOKENS):
        super().__init__()
        self.config = types.SimpleNamespace(max_position_embeddings=positions)
        self.words, self.places, self.head = nn.Embedding(WORDS, 4), nn.Embedding(positions, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head((self.words(tokens) + self.places.weight).mean(1))


class Numbers(nn.Linear):
    """Takes tokens as numbers in float32."""

    def __init__(self):
        super().__init__(TOKENS, 3)

    def forward(self, tokens):
        return super().forward(tokens.float())


def fit(small_run, network):
    run = small_run(1, policies=[callbacks.Gossip(k=1), callbacks.SampleWeighted()], module={"network": network})
    run.data = FromDataset(Lines(), num_clients=3, test_fraction=0.2)
    return run.fit()


def test_sequences_longer_than_the_positions(small_run):
    with pytest.raises(UserError, match=r"a sequence has 6 tokens, and the network 5 positions .*cut the sequences"):
        fit(small_run, Reader(5))
    assert fit(small_run, Reader(6)).rows.isfinite().all()


def test_weights_in_float64_in_a_run_of_float32(small_run):
    with pytest.raises(UserError, match=r"call .float\(\) on the network"):
        fit(small_run, Numbers().double())
    assert fit(small_run, Numbers().double().float()).rows.isfinite().all()


@pytest.mark.parametrize(("bytes_more", "fits"), [(0, True), (-1, False)])
def test_models_of_all_clients_must_fit_into_memory(small_run, monkeypatch, bytes_more, fits):
    numbers = WORDS * 4 + TOKENS * 4 + 4 * 3 + 3
    needed = 3 * numbers * 4 * 2  # clients, float32, and the buffer that a round writes
    monkeypatch.setattr(build_checks, "machine_memory", lambda: needed + bytes_more)
    if fits:
        assert fit(small_run, Reader()).rows.isfinite().all()
        return
    with pytest.raises(UserError, match=rf"the models of 3 clients of {numbers} numbers each need at least .*LoRA"):
        fit(small_run, Reader())
