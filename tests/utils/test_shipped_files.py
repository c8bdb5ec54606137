"""Files that answer to their names."""

import pytest

from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.storage import shipped_files
from dfl_lightning.utils.storage.shipped_files import find, shipped


def test_a_name_finds_the_shipped_file_without_its_suffix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find("configs", "afind") == find("configs", "afind.yaml") == shipped("configs")["afind"]
    assert find("topologies", "two_clusters.graphml").suffix == ".graphml"


def test_an_existing_path_wins_over_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afind").write_text("mine")
    assert find("configs", "afind").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["afind.yml", "afind.graphml", "configs/afind", "../configs/afind", "", ".", "nothing"]
)
def test_an_unknown_name_is_refused_with_the_choices(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError,
        match=r"no such file, and none of that name among the shipped configs.*shipped: adf_lora, adpsgd, .*gossip",
    ):
        find("configs", name)


def test_a_misspelt_name_gets_a_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="did you mean 'gossip'"):
        find("configs", "gosip")


def test_files_inside_the_package_come_first(tmp_path, monkeypatch):
    inside, outside = tmp_path / "package" / "configs", tmp_path / "configs"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
        (folder / "one.yaml").write_text(folder.parent.name)
    monkeypatch.setattr(shipped_files, "_PACKAGE", tmp_path / "package")
    assert shipped("configs")["one"].read_text() == "package"
    assert shipped("studies") == {}


def test_hints_ignore_case_and_need_a_similar_name():
    assert nearest("GOSSIP", ["AFIND", "Gossip"]) == "; did you mean 'Gossip'?"
    assert nearest("zzz", ["AFIND", "Gossip"]) == ""
    assert nearest("x", []) == ""
