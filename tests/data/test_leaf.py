import json

import numpy as np
import pytest

from dfl_lightning.data.readers import leaf
from dfl_lightning.data.readers.leaf import as_bytes, read_leaf_file
from dfl_lightning.utils.errors import UserError

USERS = {
    "ann": {"x": [[0.0, 1.0], [0.25, 1e-3]], "y": [3, 1]},
    "empty": {"x": [], "y": []},
    'b"ö\\b': {"x": [[1, 0]], "y": [0]},
}


def content(**changes):
    whole = {"users": ["ann", 'b"ö\\b'], "num_samples": [2, 1], "user_data": USERS}
    return {**whole, **changes}


def write(path, text):
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


def plain(users):
    return [(user, entry["x"], entry["y"]) for user, entry in users.items() if entry["y"]]


def read(path):
    return [(user, samples.tolist(), classes.tolist()) for user, samples, classes in read_leaf_file(path)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 50, 1 << 20])
@pytest.mark.parametrize("order", [["users", "num_samples", "user_data"], ["user_data", "num_samples", "users"]])
@pytest.mark.parametrize("indent", [None, 2])
def test_users_equal_those_of_the_json_module(tmp_path, monkeypatch, chunk, order, indent):
    monkeypatch.setattr(leaf, "CHUNK", chunk)
    whole = content(hierarchies=[12.5, {"a": None}], version=1234567)
    text = json.dumps(
        {key: whole[key] for key in ["version", *order, "hierarchies"]}, indent=indent, ensure_ascii=False
    )
    assert read(write(tmp_path / "a.json", text)) == plain(USERS)


def test_never_more_than_a_few_users_are_in_memory(tmp_path, monkeypatch):
    users = {f"u{i}": {"x": [[0.5] * 50] * 4, "y": [0] * 4} for i in range(200)}
    text = json.dumps({"user_data": users, "users": [*users], "num_samples": [4] * 200})
    windows = []
    original = leaf._Json._read
    monkeypatch.setattr(leaf, "CHUNK", 1000)
    monkeypatch.setattr(leaf._Json, "_read", lambda self: (original(self), windows.append(len(self.window)))[0])
    assert len(read(write(tmp_path / "a.json", text))) == 200
    assert max(windows) < 5000 < len(text) / 20


def test_a_file_cut_anywhere_is_refused_by_name(tmp_path):
    text = json.dumps(content(), ensure_ascii=False)
    for end in range(len(text)):
        with pytest.raises(UserError, match=r"torn\.json: not a file of LEAF \(.+\); make it again"):
            read(write(tmp_path / "torn.json", text[:end]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps(content()) + "x", "'x' follows the end"),
        ("[1, 2]", r"'\{' is missing where '\[' stands"),
        ("{}", "'users' is missing"),
        ('{"users": [], "user_data": {}}', "'num_samples' is missing"),
        ("{1: 2}", "a key is 1, not a text"),
        (content(users="ann"), "not lists of one length"),
        (content(users=["ann"]), "not lists of one length"),
        (content(users=[["ann"], "b"]), "unhashable"),
        (content(num_samples=[2, 2]), r"user b.* should have 2 samples, but has 1"),
        (content(users=["ann", "zoe"]), r"user zoe should have 1 samples, but has 0"),
        (content(users=["ann"], num_samples=[2]), r"user b.* should have 0 samples, but has 1"),
        (content(user_data={"ann": [1]}), "user ann has no lists x and y"),
        (content(user_data={"ann": {"x": [[1]], "y": [1, 2]}}), "user ann has 1 samples and 2 classes"),
        (content(user_data={"ann": {"x": [[1]], "y": [1.5]}}), "classes of user ann are not whole numbers"),
        (content(user_data={"ann": {"x": [[1]], "y": [True]}}), "classes of user ann are not whole numbers"),
        (content(user_data={"ann": {"x": [[1]], "y": [10**30]}}), "classes of user ann are not whole numbers"),
        (content(user_data={"ann": {"x": [[1], [1, 2]], "y": [1, 2]}}), "not lists of numbers of one length"),
        (content(user_data={"ann": {"x": [["a"]], "y": [1]}}), "user ann are texts, as in .* which data LEAF reads"),
        (content(user_data={"ann": {"x": [[1], ["a"]], "y": [1, 2]}}), "not lists of numbers of one length"),
        (content(user_data={"ann": {"x": [1], "y": [1]}}), "not lists of numbers of one length"),
        ('{"user_data": {"a": {"x": [[NaN]], "y": [1]}}}', "NaN is not a finite number"),
        ('{"user_data": {"a": {"x": [[1]], "y": [1]}, "a": {"x": [[1]], "y": [1]}}}', "user a is there twice"),
        ('{"user_data": {"a": ' + "[" * 100_000, "nested without end"),
    ],
)
def test_files_of_another_format_are_refused_with_the_reason(tmp_path, text, reason):
    with pytest.raises(UserError, match=rf"bad\.json: not a file of LEAF \(.*{reason}.*make it again"):
        read(write(tmp_path / "bad.json", text))


def test_undecodable_and_missing_files_are_refused(tmp_path):
    (tmp_path / "bad.json").write_bytes(b"\x80\x81\xff" * 100)
    for name in ("bad.json", "nowhere.json"):
        with pytest.raises(UserError, match=rf"{name}: not a file of LEAF"):
            read(tmp_path / name)


def test_every_grey_value_becomes_a_byte_after_float32_rounding():
    levels = np.arange(256)
    for pixels in (levels / 255, json.loads(json.dumps((levels / 255).tolist())), np.float32(levels / 255)):
        assert as_bytes(np.array(pixels, dtype=np.float64)).tolist() == levels.tolist()


@pytest.mark.parametrize("value", [0.5, 1 / 254, 1e-6, 0.99999])
def test_values_between_two_bytes_are_not_bytes(value):
    assert as_bytes(np.array([0.0, value])) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps(content(users=["ann", 'b"ö\\b', "ann"], num_samples=[2, 1, 2])), "users lists ann twice"),
        (json.dumps(content())[:-1] + ', "users": ["ann"]}', "the key 'users' is there twice"),
        ('{"user_data": {}, ' + json.dumps(content())[1:], "the key 'user_data' is there twice"),
        (
            json.dumps(content()).replace('"x": [[1, 0]]', '"x": [[1, 0]], "x": [[0, 1]]'),
            "the key 'x' is there twice in",
        ),
    ],
)
def test_repeated_users_and_fields_are_refused(tmp_path, text, reason):
    with pytest.raises(UserError, match=rf"twice\.json: not a file of LEAF \({reason}"):
        read(write(tmp_path / "twice.json", text))


def test_an_overlong_value_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(leaf, "CHUNK", 100)
    monkeypatch.setattr(leaf, "MOST", 10_000)
    text = json.dumps(content(user_data={"ann": {"x": [[0.5] * 2] * 9000, "y": [0] * 9000}}))
    with pytest.raises(UserError, match="one of its values has more than 10,000 characters"):
        read(write(tmp_path / "long.json", text))
