"""The next character: numbers token by token, engines as plain loops, texts as files say them, and what is refused."""

import functools
import math
import platform

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from banks import SEED, _data, _module, _row, make_federation
from torch import nn

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks, data, models
from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.tasks import NextToken, default_task

SIZES, LENGTH, TOKENS = (5, 1, 9, 4), 6, 7


def lines():
    """Clients of unequal size; some tokens are ignored, of one client all but the first."""
    found = _data(SIZES, (LENGTH,))
    g = torch.Generator().manual_seed(4)
    found.images = torch.randint(0, TOKENS, (len(found.images), LENGTH), generator=g).to(torch.uint8)
    found.labels = torch.randint(0, TOKENS, found.images.shape, generator=g)
    found.labels[::3, 4:] = -1
    found.labels[found.train[1], 1:] = -1
    found.num_classes = TOKENS
    return found


def by_tokens(model, x, y):
    """Loss, perplexity and token accuracy, one token after the other."""
    with torch.no_grad():
        logs = model(x).log_softmax(-1)
    pairs = [(logs[i, t], int(y[i, t])) for i in range(len(y)) for t in range(y.shape[1]) if y[i, t] >= 0]
    loss = -sum(float(log[token]) for log, token in pairs) / len(pairs)
    return loss, math.exp(loss), sum(int(log.argmax()) == token for log, token in pairs) / len(pairs)


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_a_transformer_is_trained_and_evaluated_token_by_token(engine):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = models.CharTransformer(8, 1, 2, padding_idx=0, input_shape=(LENGTH,), num_classes=TOKENS)
    task = NextToken()
    f = make_federation(network=network, data=lines(), engine=engine, loss=task.mean_loss(), task=task, clip_norm=0.5)
    training = f.training()
    f.engine.train(References.rows("models", torch.arange(4)), training)
    for client in range(4):
        model = _module(f.network, f.bank.rows("models")[client])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        draws, samples = training.draws(SEED), f.data.train[client]
        for epoch in range(2):
            for part in samples[draws.orders_of(client, epoch, 1, len(samples))[0]].split(4):
                x, y = f.data.batch(part, dtype=torch.float64)
                optimizer.zero_grad()
                F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-1).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        assert torch.allclose(f.bank.rows("trained")[client], _row(model, torch.float64), rtol=0, atol=1e-9)
    found = f.engine.evaluate(References.rows("models", torch.arange(4)), "train")
    for client in range(4):
        model = _module(f.network, f.bank.rows("models")[client])
        wanted = by_tokens(model, *f.data.batch(f.data.train[client], dtype=torch.float64))
        got = [found.losses[client], *(found.metrics[name][client] for name in task.numbers)]
        assert [float(number) for number in got] == pytest.approx(wanted, rel=1e-9)


def test_the_end_of_a_text_is_held_out_in_blocks(tmp_path):
    (tmp_path / "a.txt").write_text("aabab" * 10 + "ä")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.txt").write_text("ba")
    (tmp_path / "b" / "2.txt").write_text("bbbbbbb\n" * 4)
    found = data.Text(str(tmp_path), length=8, characters=5, held_out=0.34, num_clients=2)
    found.setup()
    source = found.source
    assert source.writer_names == ("a.txt", "b")
    names = ["", "?", "b", "a", "\n"]  # by how often they occur in the parts for training
    for place, text in enumerate(("aabab" * 10 + "ä", "ba\n" + "bbbbbbb\n" * 4)):
        blocks = torch.cat([source.images[source.writers == place], source.test_images[source.test_writers == place]])
        targets = torch.cat([source.labels[source.writers == place], source.test_labels[source.test_writers == place]])
        read = "".join(names[code] for code in blocks.flatten().tolist())
        assert read == text[:-1].replace("ä", "?")
        following = [code for code in targets.flatten().tolist() if code >= 0]
        assert "".join(names[code] for code in following) == text[1:].replace("ä", "?")
        assert int((source.test_writers == place).sum()) == int(0.34 * len(blocks))
        assert not blocks.flatten()[len(text) - 1 :].any()
        assert (targets.flatten()[len(text) - 1 :] == -1).all()
    assert [len(part) for part in found.clients.test] == [2, 1]
    assert type(default_task(source.labels, source.num_classes)) is NextToken


def test_pythons_library_is_a_text_without_a_download(tmp_path):
    texts = data.Text(num_clients=4, length=16, most=600, val_fraction=0.2)
    module = DFLModule(
        models.CharTransformer(16, 1, 2, padding_idx=0),
        local_epochs=1,
        batch_size=8,
        optimizer=functools.partial(torch.optim.Adam, lr=0.01),
    )
    trainer = DFLTrainer(
        max_rounds=3,
        callbacks=[callbacks.Gossip(k=1), callbacks.Uniform(), callbacks.MergedModel()],
        default_root_dir=tmp_path,
        accelerator="cpu",
        enable_progress_bar=False,
    )
    trainer.fit(module, datamodule=texts)
    perplexity = trainer.run.metrics["test_perplexity"]
    assert perplexity[-1] < perplexity[0] < 96
    merged = _module(module.network, module.bank.rows("models").double().mean(0))
    x, y = module.federation.data.batch(torch.cat(list(module.federation.data.test)), dtype=torch.float64)
    wanted = by_tokens(merged, x, y)[1]
    assert trainer.run.metrics["merged_test_perplexity"][-1] == pytest.approx(wanted, rel=1e-5)
    assert trainer.run.summary["task"] == {
        **{"name": "NextToken", "score": "perplexity"},
        **{"higher_is_better": False, "percent": False},
    }
    assert trainer.run.summary["test_score"]["best_round"] == pytest.approx(perplexity.min())
    assert trainer.run.summary["engine"]["name"] == "stacked"
    assert f"Python {platform.python_version()}'s library" in trainer.run.summary["data"]


class Recurrent(nn.Module):
    """A user's network of torch's LSTM."""

    def __init__(self):
        super().__init__()
        self.table, self.lstm, self.out = nn.Embedding(96, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 96)

    def forward(self, x):
        return self.out(self.lstm(self.table(x.long()))[0])


def test_a_users_lstm_is_stacked_without_a_note(tmp_path):
    from dfl_lightning.terminal.banner import notes

    module = DFLModule(Recurrent(), local_epochs=1, batch_size=8)
    options = {"default_root_dir": tmp_path, "accelerator": "cpu", "enable_progress_bar": False}
    trainer = DFLTrainer(max_rounds=1, callbacks=[callbacks.Gossip(k=1), callbacks.Uniform()], **options)
    trainer.fit(module, datamodule=data.Text(num_clients=2, length=8, most=120))
    assert trainer.run.summary["engine"]["name"] == "stacked"
    assert not [note for note in notes(trainer, module) if "LSTM" in note]
    assert np.isfinite(trainer.run.metrics["test_perplexity"][-1])


def of_texts(folder, *texts, **options):
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return data.Text(str(folder), **{"num_clients": len(texts), "length": 8, **options})


def test_without_a_held_out_part_all_blocks_are_for_training(tmp_path):
    texts = of_texts(tmp_path, "a few words " * 20, "some others " * 30, held_out=0)
    texts.setup()
    assert texts.clients.sizes("test").tolist() == [0, 0]
    assert texts.clients.sizes("train").tolist() == [30, 45]  # all but one of 240 and of 360 characters


def test_many_rare_characters_are_noted(tmp_path):
    """The text has 40 different characters, 3 of them with a number and 37 rare; a byte order mark does not count."""
    signs = "".join(map(chr, range(0x4E00, 0x4E00 + 40)))
    texts = of_texts(tmp_path, "\ufeff" + signs, held_out=0, characters=5)
    texts.setup()
    [note] = texts.notes()
    assert note.startswith("92.5 % of the characters are rare ones that count as one")
    texts = of_texts(tmp_path, signs, held_out=0, characters=42)
    texts.setup()
    assert texts.notes() == []


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda at: data.Text(length=0), "length=0, characters=96"),
        (lambda at: data.Text(held_out=1.0), "held_out=1.0; it must be at least 0"),
        (lambda at: data.Text(test_fraction=0.2), "would draw test blocks at random; use held_out"),
        (lambda at: data.Text(normalise=True), "data.normalise is for images"),
        (lambda at: data.Text(str(at / "none")).setup(), "is not a folder; give one with files"),
        (lambda at: data.Text(str(at)).setup(), "has no files"),
        (lambda at: of_texts(at, "", "x").setup(), "no text of .* has 2 characters; give longer ones"),
        (
            lambda at: of_texts(at, "a word", "two words").setup(),
            r"no text a test block: the longest has 9 char.*\(8\)",
        ),
        (lambda at: NextToken().output_shape(torch.zeros(3, dtype=torch.int64), 4), "needs targets that are the numb"),
    ],
)
def test_unusable_texts_are_refused_in_one_sentence(make, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        make(tmp_path)
