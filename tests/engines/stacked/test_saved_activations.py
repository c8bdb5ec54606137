"""A step of the stacked engine keeps and allocates as much for each client as one plain network does."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import Dataset, default_collate

from dfl_lightning import DFLModule, DFLTrainer, callbacks, models
from dfl_lightning.data import FromDataset
from dfl_lightning.engines.stacked import StackedEngine

CLIENTS, BATCH, TOKENS, WORDS, TARGETS = 6, 16, 64, 100, ("*.query", "*.value")


class Sentences(Dataset):
    """Sentences of 64 words in three classes, as a tensor or as a dict."""

    def __init__(self, parts=False):
        self.parts = parts

    def __len__(self):
        return CLIENTS * 40

    def __getitem__(self, index):
        ids = torch.randint(2, WORDS, (TOKENS,), generator=torch.Generator().manual_seed(index))
        if self.parts:
            return {"input_ids": ids, "attention_mask": torch.ones(TOKENS, dtype=torch.long)}, index % 3
        return ids, index % 3


class Encoder(torch.nn.Module):
    """A block of a transformer with two frozen linear layers of its own."""

    def __init__(self, width=32):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, width)
        self.query, self.wide = torch.nn.Linear(width, width), torch.nn.Linear(width, 2 * width)
        self.narrow, self.value = torch.nn.Linear(2 * width, width), torch.nn.Linear(width, 3)

    def forward(self, tokens):
        x = self.query(self.words(tokens.long()))
        return self.value((x + self.narrow(torch.nn.functional.gelu(self.wide(x)))).mean(1))


def bert(width):
    config = {"model_type": "bert", "vocab_size": WORDS, "hidden_size": width, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "intermediate_size": 2 * width, "max_position_embeddings": TOKENS}
    return models.HuggingFace(config)


class Kept:
    """Sums the bytes that are kept for backward passes; the largest sum between two of them is `most`."""

    def __init__(self, owned=()):
        self.most, self._now, self._owned = 0, {}, {p.untyped_storage().data_ptr() for p in owned}

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def _pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._owned:
            self._now[storage.data_ptr()] = (storage.nbytes(), tensor)
        self.most = max(self.most, sum(size for size, _ in self._now.values()))
        return tensor

    def _unpack(self, tensor):
        self._now.clear()
        return tensor


def peak(profiled, file):
    """Read from a profile by how much the allocated bytes grew at most."""
    profiled.export_chrome_trace(str(file))
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    totals = [event["args"]["Total Allocated"] for event in sorted(events, key=lambda event: event["ts"])]
    return max(totals) - totals[0]


@pytest.mark.parametrize(
    ("network", "targets", "parts"),
    [
        pytest.param(Encoder, ["*.query", "*.value"], False, id="a block of linear layers"),
        *(
            pytest.param(
                lambda width=w: bert(width),
                TARGETS,
                True,
                id=f"BERT of width {w}",
                marks=[pytest.mark.hf, pytest.mark.slow],
            )
            for w in (32, 64, 128)
        ),
    ],
)
def test_step_of_a_cohort_keeps_the_activations_of_its_clients(tmp_path, monkeypatch, network, targets, parts):
    kept, peaks = Kept(), []
    train = StackedEngine.train

    def watched(self, *args, **options):
        with kept, profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            trained = train(self, *args, **options)
        peaks.append(peak(profiled, tmp_path / "trace.json"))
        return trained

    monkeypatch.setattr(StackedEngine, "train", watched)
    data = FromDataset(Sentences(parts), num_clients=CLIENTS, samples_per_client=32, test_fraction=0.2)
    module = DFLModule(models.LoRA(network(), rank=2, targets=list(targets)), local_epochs=1, batch_size=BATCH)
    trainer = DFLTrainer(
        max_rounds=1,
        callbacks=[callbacks.Gossip(k=1), callbacks.SampleWeighted()],
        engine="stacked",
        accelerator="cpu",
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        defaults=False,
    )
    trainer.fit(module, datamodule=data)
    width = max(map(len, module.bank.cohorts))
    words = default_collate([Sentences(parts)[i][0] for i in range(BATCH)])
    with Kept(module.network.parameters()) as plain:
        outputs = module.network.train()(**words) if parts else module.network.train()(words)
        outputs.sum()
    assert plain.most > BATCH * TOKENS * 32 * 4
    assert plain.most * width <= kept.most <= 1.2 * plain.most * width
    rows = 2 * module.bank.boundary.rows["models"].nbytes
    assert kept.most < max(peaks)
    if parts:  # of a few layers, a single tensor of the backward pass is a large share
        assert max(peaks) <= 1.2 * (plain.most * width + rows + module.federation.layout.base_bytes)
