"""LEAF's files other than FEMNIST: their samples, by hand, and runs on them."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks
from dfl_lightning.data import FEMNIST, LEAF, ByWriter
from dfl_lightning.models import MLP, CharTransformer
from dfl_lightning.runs.tables import read_metrics
from dfl_lightning.utils.errors import MissingData


def write(folder, users, test=None):
    for part, of_part in (("train", users), ("test", users if test is None else test)):
        place = folder / part
        place.mkdir(parents=True, exist_ok=True)
        content = {
            "users": list(of_part),
            "num_samples": [len(y) for _, y in of_part.values()],
            "user_data": {user: {"x": x, "y": y} for user, (x, y) in of_part.items()},
        }
        (place / "all.json").write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


PLAY = {
    "PLAY_HAMLET": (["to be ", "o be o", " be or"], ["o", "r", " "]),
    "PLAY_OTHELLO": (["the mo", "he moo"], ["o", "r"]),
}
LATER = {"PLAY_HAMLET": (["zebra "], ["o"]), "PLAY_OTHELLO": (["be"], ["t"])}
TWEETS = {
    "ann": ([["1", "Mon", "Good day, good people!"], ["2", "Tue", "a bad day"]], [1, 0]),
    "bob": ([["3", "Wed", "bad bad bad."], ["4", "Thu", "good"]], [0, 1]),
}
SYNTHETIC = {
    "f_0": ([[0.5, -1.0], [0.25, 2.0], [1.0, 1.0]], [3.0, 0.0, 1.0]),
    "f_1": ([[0.1, 0.2], [0.3, 0.4]], [3, 2]),
}


def test_lines_of_characters_have_their_next_one_as_target(tmp_path):
    source = LEAF(write(tmp_path / "shakespeare", PLAY, LATER)).load()
    counts = Counter(c for x, y in PLAY.values() for line, after in zip(x, y, strict=True) for c in line + after)
    order = sorted(counts, key=lambda c: (-counts[c], c))
    assert source.words == tuple(order)
    number = {c: i + 2 for i, c in enumerate(order)}
    lines = [line for x, _ in PLAY.values() for line in x]
    assert source.images.tolist() == [[number[c] for c in line] for line in lines]
    assert source.labels.tolist() == [[-1] * 5 + [number[c]] for _, y in PLAY.values() for c in y]
    tested = [[1, number["e"], number["b"], number["r"], 1, number[" "]], [0] * 4 + [number["b"], number["e"]]]
    assert source.test_images.tolist() == tested
    assert source.writers.tolist() == [0, 0, 0, 1, 1]
    assert source.writer_names == ("PLAY_HAMLET", "PLAY_OTHELLO")
    assert source.name == "LEAF shakespeare"


def test_tweets_are_counts_of_words_or_lines_of_them(tmp_path):
    path = write(tmp_path / "sent140", TWEETS)
    data = LEAF(path, words=4, num_clients=2)
    source = data.load()
    assert source.words == ("bad", "good", "day", "!")  # 4, 3, 2 times, and the first of those that are there once
    assert source.images.tolist() == [[0, 2, 1, 1], [1, 0, 1, 0], [3, 0, 0, 0], [0, 1, 0, 0]]
    assert source.labels.tolist() == [1, 0, 0, 1]
    assert source.num_classes == 2
    data.setup()
    assert data.notes() == ["data.field: entry 2 of a sample is taken for its text, the longest on average"]
    lines = LEAF(path, words=2, length=3).load()
    assert lines.images.tolist() == [[3, 1, 1], [1, 2, 1], [2, 2, 2], [3, 0, 0]]
    days = LEAF(path, words=4, field=1).load()
    assert days.words == ("mon", "thu", "tue", "wed")


def test_vectors_are_inputs_as_they_are(tmp_path):
    source = LEAF(write(tmp_path / "synthetic" / "data", SYNTHETIC)).load()
    assert source.images.dtype == torch.float32
    assert source.images.tolist() == np.float32([x for xs, _ in SYNTHETIC.values() for x in xs]).tolist()
    assert source.labels.tolist() == [3, 0, 1, 3, 2]
    assert source.num_classes == 4
    assert source.name == "LEAF synthetic"
    numbers = LEAF(write(tmp_path / "numbers", {"a": ([[1], [2]], [0.5, 1])})).load()
    assert numbers.labels.tolist() == [[0.5], [1.0]]
    plain = LEAF(write(tmp_path / "plain", {"a": ([1.5, 2], [0, 1])})).load()
    assert plain.images.tolist() == [[1.5], [2.0]]


def test_a_single_file_holds_out_a_share_of_each_user(tmp_path):
    write(tmp_path, SYNTHETIC)
    for path in (tmp_path / "train" / "all.json", tmp_path / "train"):
        data = LEAF(str(path), num_clients=2, test_fraction=0.4)
        data.setup()
        assert isinstance(data.partition, ByWriter)
        assert data.clients.sizes("train").tolist() == [2, 1]
        assert data.clients.sizes("test").tolist() == [1, 1]


@pytest.mark.parametrize(
    ("users", "network", "column"),
    [(PLAY, CharTransformer(width=8, depth=1, heads=2), "test_token_acc"), (TWEETS, MLP([4]), "test_acc")],
)
def test_shipped_networks_train_on_texts(users, network, column, tmp_path):
    data = LEAF(write(tmp_path / "set", users), num_clients=2)
    options = {"default_root_dir": tmp_path, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = DFLTrainer(max_rounds=1, callbacks=[callbacks.Gossip(k=1), callbacks.Uniform()], **options)
    trainer.fit(DFLModule(network, batch_size=2), datamodule=data)
    assert 0 <= float(read_metrics(trainer.run.path / "metrics.csv")[-1][column]) <= 1


REFUSED = {
    "mixed": ({"a": (["abc", [1.0]], ["d", "e"])}, None, "has samples of several forms; give files of one data set"),
    "lengths": ({"a": ([[1.0], [1.0, 2.0]], [0, 1])}, None, "has samples of several forms"),
    "kinds": (PLAY, SYNTHETIC, "training samples are characters, test samples vectors; give files of one kind"),
    "two": (SYNTHETIC, {"a": ([[1.0]], [1])}, "vectors of training and test differ in length"),
    "word": ({"a": (["abc"], ["de"])}, None, "y is a text, 'de'; targets are classes, numbers, or after a text its"),
    "nothing": ({"a": ([None], [1])}, None, r"not a file of LEAF \(a sample of user a is neither a text nor"),
    "none": ({"a": ([[1.0]], [None])}, None, "the targets of user a are neither finite numbers nor texts"),
    "far": ({"a": ([[1.0]], [5000])}, None, "the largest label is 5000, but only 1 labels occur"),
    "empty": ({}, None, "has no sample; use other files"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unusable_files_are_refused_in_one_sentence(what, tmp_path):
    users, test, sentence = REFUSED[what]
    with pytest.raises(UserError, match=sentence):
        LEAF(write(tmp_path, users, test)).load()


def test_options_and_places_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="characters=2, words=1000, length=None; there are 3 to 256 characters"):
        LEAF("somewhere", characters=2)
    with pytest.raises(MissingData, match="nowhere does not exist; give a folder with LEAF's train and test"):
        LEAF(str(tmp_path / "nowhere")).prepare_data()
    (tmp_path / "train").mkdir()
    with pytest.raises(MissingData, match=r"train has no json file; make them with LEAF's preprocess\.sh"):
        LEAF(str(tmp_path)).prepare_data()
    with pytest.raises(UserError, match="field=3; samples have the entries 0 to 2"):
        LEAF(write(tmp_path / "sent140", TWEETS), field=3).load()


def test_femnist_says_who_reads_texts(tmp_path):
    with pytest.raises(UserError, match="user PLAY_HAMLET are texts, as in Shakespeare and Sent140, which data LEAF"):
        FEMNIST(write(tmp_path, PLAY)).load()
