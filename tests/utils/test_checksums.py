"""Checkpoints with a single changed bit are refused, or have the same content as before."""

import random
import resource
import shutil
import signal
import warnings
import zipfile
import zlib
from types import SimpleNamespace

import pytest
import torch

from dfl_lightning.checkpoints.io import (
    FORMAT,
    AtomicCheckpointIO,
    ShardedCheckpointIO,
    look_at_checkpoint,
    read_checkpoint,
    rounds_in,
)
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.models.start_file import load_parameters
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.checksums import checksum

NODES = 5
COHORTS = [torch.tensor([0, 3]), torch.tensor([4, 1, 2])]


def a_checkpoint(number=0, width=3):
    """Make a checkpoint of five nodes with two row sets."""
    about = {
        **{"format": FORMAT, "metrics": {}, "network": {}, "clients": NODES, "nodes": NODES, "seed": 0, "data": ""},
        **{
            "rows": "",
            "row sets": ["best", "models"],
            "reported": "models",
            "of_server": False,
            "policies": {},
            "config": {},
            "checksums": {},
            "rounds": {},
        },
    }
    rows = torch.arange(NODES * width, dtype=torch.float32).view(NODES, width) + number
    state = {"bank.progress": torch.tensor([number, 1]), "bank.rows.best": rows, "bank.rows.models": -rows}
    return {"dfl_lightning": about, "number": number, "state_dict": state, "callbacks": {}}


def last(run):
    return run.folder / "checkpoints" / "last.ckpt"


def contents(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def whole():
    return AtomicCheckpointIO()


def in_pieces():
    bank = SimpleNamespace(ranks=Ranks.alone(NODES), cohorts=COHORTS, num_clients=NODES, num_nodes=NODES)
    return ShardedCheckpointIO(lambda: bank)


KINDS = {"whole": whole, "in pieces": in_pieces}


def everything(path, **how):
    """All that a checkpoint holds, its rows as tensors."""
    content = read_checkpoint(path, **how)
    nodes = torch.arange(NODES)
    state = content["state_dict"]
    rows = {key: values[nodes] for key, values in state.items() if key.startswith("bank.rows.")}
    return {**content, "state_dict": {**state, **rows}}


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def flip(file, place):
    """Change bit `place` of a file."""
    content = bytearray(file.read_bytes())
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)


def test_a_checksum_is_that_of_the_bytes():
    tensor = torch.arange(12, dtype=torch.float64).view(3, 4)
    assert checksum(tensor) == zlib.crc32(tensor.numpy().tobytes())
    assert checksum(tensor[:, ::2]) == zlib.crc32(tensor[:, ::2].numpy().tobytes())
    assert checksum(torch.empty(0, 4)) == zlib.crc32(b"")


def is_refused(path, before, **how):
    """Return True if a checkpoint is refused by name; otherwise check that it is unchanged."""
    try:
        found = everything(path, **how)
    except UserError as error:
        return "last.ckpt: not a" in str(error)
    assert same(found, before)
    return False


@pytest.mark.parametrize("how", [{}, {"mmap": True}, {"mmap": True, "verify": False}], ids=str)
@pytest.mark.parametrize("share", [0.02, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_a_file_is_refused_or_harmless(tmp_path, how, share):
    file, draw, refused, tried = tmp_path / "last.ckpt", random.Random(0), 0, 0
    whole().save_checkpoint(a_checkpoint(), file)
    content, before = file.read_bytes(), everything(file)
    for place in range(8 * len(content)):
        if draw.random() < share:
            tried += 1
            file.write_bytes(content)
            flip(file, place)
            refused += is_refused(file, before, **how)
    assert refused > tried / 3, "the rest is padding, and names that are not read"


def test_an_archive_member_marked_as_a_folder_is_refused(tmp_path):
    file = tmp_path / "last.ckpt"
    whole().save_checkpoint(a_checkpoint(), file)
    with zipfile.ZipFile(file) as archive:
        entry = archive.start_dir  # the entries of the directory, 46 bytes and a name each
        names = [info.orig_filename for info in archive.infolist()]
    content = file.read_bytes()
    for name in names:
        assert content[entry : entry + 4] == b"PK\1\2"
        flip(file, 8 * (entry + 38) + 4)  # the attribute of a folder: torch would leave the rows as memory was before
        with pytest.raises(UserError, match="not a whole checkpoint"):
            everything(file)
        file.write_bytes(content)
        entry += 46 + sum(int.from_bytes(content[entry + at : entry + at + 2], "little") for at in (28, 30, 32))
        assert len(name)


def rows_in(content):
    """Return the positions of the bytes of clients' models in a file of a checkpoint."""
    rows = torch.arange(NODES * 3, dtype=torch.float32).view(NODES, 3)
    bytes_of = [row.numpy().tobytes() for row in (*rows, *-rows)]  # 12 each, which stand nowhere else
    starts = [content.find(row) for row in bytes_of]
    return {at for start in starts if start >= 0 for at in range(start, start + 12)}


@pytest.mark.parametrize("share", [0.003, pytest.param(0.2, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_a_piece_is_refused_or_harmless(tmp_path, share):
    folder, draw = tmp_path / "last.ckpt", random.Random(0)
    in_pieces().save_checkpoint(a_checkpoint(), folder)
    before = everything(folder)
    assert torch.equal(before["state_dict"]["bank.rows.best"], a_checkpoint()["state_dict"]["bank.rows.best"])
    files = sorted(file for file in folder.iterdir() if file.is_file())
    assert [file.name for file in files] == [".metadata", "__0_0.distcp", "meta.pt"]
    for file in files:
        content = file.read_bytes()
        rows = rows_in(content)  # most of the rest of an archive that small is padding, and names that are not read
        assert file.name != "__0_0.distcp" or len(rows) == 2 * NODES * 12
        for place in range(8 * len(content)):
            of_rows = place // 8 in rows
            if draw.random() < share or (of_rows and draw.random() < 1 / 8):
                flip(file, place)
                assert is_refused(folder, before) or not (of_rows or file.name == ".metadata")
                file.write_bytes(content)


def rows_of(path):
    """Return the file in which the rows of one node begin, and their position in bits."""
    wanted = a_checkpoint()["state_dict"]["bank.rows.models"][4].numpy().tobytes()
    files = [path] if path.is_file() else sorted(path.glob("*.distcp"))
    [(file, at)] = [(file, file.read_bytes().find(wanted)) for file in files]
    assert at > 0
    return file, 8 * at


@pytest.mark.parametrize("kind", KINDS)
def test_the_message_names_the_damage_and_an_intact_predecessor(tmp_path, kind):
    file = tmp_path / "last.ckpt"
    for number in (1, 0):
        KINDS[kind]().save_checkpoint(a_checkpoint(number), file)
    flip(*rows_of(file))
    with pytest.raises(UserError) as refusal:
        everything(file)
    what = "/data/" if kind == "whole" else "__0_0.distcp: the checksum of 'models/1' does not match"
    assert what in str(refusal.value)
    assert str(refusal.value).endswith(f"; the one before it is {tmp_path / 'previous.ckpt'}")
    assert everything(tmp_path / "previous.ckpt")["number"] == 1
    previous = tmp_path / "previous.ckpt"
    piece = previous if previous.is_file() else previous / "__0_0.distcp"
    flip(piece, 8 * piece.read_bytes().find(torch.tensor([4.0, 5.0]).numpy().tobytes()))
    with pytest.raises(UserError, match=r"; the one before it, .*previous\.ckpt, is not whole either$"):
        everything(file)


def test_files_of_another_checkpoint_are_refused(tmp_path):
    folder, other = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for number in (1, 0):
        in_pieces().save_checkpoint(a_checkpoint(number), folder)
    for name in ("__0_0.distcp", "meta.pt"):
        content = (folder / name).read_bytes()
        shutil.copyfile(other / name, folder / name)
        with pytest.raises(UserError, match=r"not a whole checkpoint .*; the one before it is"):
            everything(folder)
        (folder / name).write_bytes(content)
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(UserError, match=r"not a whole checkpoint \(__0_0.distcp is missing\)"):
        everything(folder)


def test_looking_at_a_checkpoint_reads_no_rows(tmp_path):
    file = tmp_path / "last.ckpt"
    whole().save_checkpoint(a_checkpoint(7, width=10**5), file)
    place = file.read_bytes().find(torch.tensor([8.0, 9.0, 10.0]).numpy().tobytes())
    flip(file, 8 * place)
    assert rounds_in(file) == look_at_checkpoint(file)["number"] == 7
    with pytest.raises(UserError, match="not a whole checkpoint"):
        read_checkpoint(file)


@pytest.mark.parametrize("kind", KINDS)
def test_checksums_are_written_despite_torchs_setting(tmp_path, kind):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        KINDS[kind]().save_checkpoint(a_checkpoint(), tmp_path / "last.ckpt")
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(before)
    assert same(everything(tmp_path / "last.ckpt")["dfl_lightning"], a_checkpoint()["dfl_lightning"])


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_format_is_named(tmp_path, kind):
    content = a_checkpoint()
    content["dfl_lightning"]["format"] = 1
    KINDS[kind]().save_checkpoint(content, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=r"a checkpoint of format 1, .* reads format 4; use the version that wrote it"):
        read_checkpoint(tmp_path / "last.ckpt")


@pytest.mark.parametrize("checkpoints", ["full", "sharded"])
def test_a_run_does_not_resume_from_a_damaged_checkpoint(small_run, checkpoints):
    run = small_run(4, checkpoint_every=3, checkpoints=checkpoints).fit()
    file = last(run) if checkpoints == "full" else last(run) / "__0_0.distcp"
    row = run.rows[3].numpy().tobytes()
    flip(file, 8 * (file.read_bytes().find(row) + len(row) // 2))
    before = contents(run.folder)
    with pytest.raises(
        UserError, match=r"last\.ckpt: not a whole checkpoint .*; the one before it is .*previous\.ckpt"
    ):
        small_run(6, checkpoints=checkpoints).fit(last(run))
    assert contents(run.folder) == before
    resumed = small_run(4, checkpoints=checkpoints).fit(last(run).with_name("previous.ckpt"))
    assert torch.equal(resumed.rows, run.rows)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of torch's writers, Python 3.13
def test_a_full_disk_leaves_only_the_former_pieces(tmp_path):
    folder = tmp_path / "last.ckpt"
    in_pieces().save_checkpoint(a_checkpoint(1), folder)
    before = contents(tmp_path)
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sizes = [content.stat().st_size for content in folder.iterdir()]
    try:
        for room in (0, 100, min(sizes) - 1, max(sizes) - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, limit[1]))
            with warnings.catch_warnings(), pytest.raises(OSError, match="File too large"):
                in_pieces().save_checkpoint(a_checkpoint(2), folder)
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            assert contents(tmp_path) == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert everything(folder)["number"] == 1


def test_first_models_with_a_changed_bit_are_refused(tmp_path):
    file, state = tmp_path / "net.pt", {"weight": torch.arange(6.0)}
    torch.save(state, file)
    assert torch.equal(load_parameters(str(file))["weight"], state["weight"])
    flip(file, 8 * file.read_bytes().find(state["weight"].numpy().tobytes()))
    with pytest.raises(UserError, match=r"net\.pt: damaged \(.*data/0.*\)"):
        load_parameters(str(file))
    torch.save(state, file, _use_new_zipfile_serialization=False)  # has no checksums
    assert torch.equal(load_parameters(str(file))["weight"], state["weight"])
