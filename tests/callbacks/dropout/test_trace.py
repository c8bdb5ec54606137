import pytest
import torch

from dfl_lightning.callbacks import Gossip, Trace, Uniform
from dfl_lightning.utils.errors import UserError

LINES = ["1 1 0 1 0 1", "0 1 1 1 1 1", "1 0 0 0 0 0"]


@pytest.fixture
def write(tmp_path):
    def _write(text):
        file = tmp_path / "trace.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)

    return _write


def replayed(run):
    return [" ".join(str(int(up)) for up in round.active) for round in run.rounds]


@pytest.mark.parametrize("separator", [" ", ",", ", ", "\t"])
def test_a_trace_is_replayed(separator, write, start):
    text = "# who is active\n\n" + "\n".join(separator.join(line.split()) for line in LINES) + "\n"
    assert replayed(start(Gossip(k=1), Uniform(), Trace(write(text)), rounds=3).go(3)) == LINES


def test_a_trace_can_start_again(write, start):
    run = start(Gossip(k=1), Uniform(), Trace(write("\n".join(LINES)), repeat=True), rounds=5).go(5)
    assert replayed(run) == [*LINES, *LINES[:2]]


def test_full_first_round_replaces_the_first_line(write, start):
    trace = Trace(write("\n".join(LINES)), full_first_round=True)
    assert replayed(start(Gossip(k=1), Uniform(), trace, rounds=3).go(3)) == ["1 1 1 1 1 1", *LINES[1:]]


def test_a_trace_is_not_written_into(write, start):
    trace = Trace(write("\n".join(LINES)))
    table = trace.table.clone()
    start(Gossip(k=1), Uniform(), trace, rounds=3).go(3)
    assert torch.equal(trace.table, table)


def test_a_trace_that_is_too_short_is_refused(write, start):
    with pytest.raises(UserError, match=r"3 lines, but trainer.max_rounds=4; add lines or set dropout.repeat=true"):
        start(Gossip(k=1), Uniform(), Trace(write("\n".join(LINES))), rounds=4)


def test_a_trace_of_other_clients_is_refused(write, start):
    with pytest.raises(UserError, match="5 columns, but data has 6 clients"):
        start(Gossip(k=1), Uniform(), Trace(write("1 1 1 1 1")), rounds=1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("1 0\n1 2\n", "line 2: a dropout trace holds 0"),
        ("1 0\n\n1 up\n", "line 3: a dropout trace holds 0"),
        ("1 0\n1\n", "line 2: 1 columns, but the lines above have 2"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_malformed_trace_is_refused_by_name(text, sentence, write):
    file = write(text)
    with pytest.raises(UserError, match=sentence) as caught:
        Trace(file)
    assert str(caught.value).startswith(file)


def test_folder_is_refused_as_a_trace(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        Trace(str(tmp_path))
