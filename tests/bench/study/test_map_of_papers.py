"""Every command of the map in docs/results.md makes what it says, on a study cut down to few clients and two rounds."""

import functools
import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.file.study_file import KIND, MISSING
from dfl_lightning.data.sets.vision import TorchvisionData
from dfl_lightning.utils.storage.shipped_files import shipped

PAGE = (Path(__file__).parents[3] / "docs" / "results.md").read_text(encoding="utf-8")
COMMANDS: dict[str, list[list[str]]] = {}
"""Of each study, the commands about it: what is made, and the options."""
for words in sorted(set(re.findall(r"^\| (?:figure|table).*\| `dfl-study (.*?)` \|$", PAGE, re.MULTILINE))):
    kind, study, *more = shlex.split(words)
    COMMANDS.setdefault(study, []).append([kind, *more])
FEW = {"trainer.max_rounds": 2, "data.num_clients": 24, "model.network": "MLP", "model.local_epochs": 1}
ROOT = os.environ.get("DFL_DATA_ROOT")


def cut_down(content):
    """Limit a study to one seed, one column, one epoch a round and few clients with few images."""
    column = next(name for name, settings in content["columns"].items() if MISSING not in (settings or {}))
    content |= {"columns": {column: content["columns"][column]}, "seeds": content.get("seeds", [0])[:1]}
    few = FEW if "per_class" in yaml.safe_dump(content) else {**FEW, "data.samples_per_client": 40}
    for row in content["rows"]:
        cells = content.setdefault("cells", {}).setdefault(row, {})
        own = cells.get(column, {})
        content["cells"][row] = {column: None if own is None else {**(own or {}), **few}}
    content["published"] = {
        row: {column: of[column]} for row, of in (content.get("published") or {}).items() if column in of
    }
    content.pop("published_numbers", None)
    return content


@pytest.fixture(scope="module", autouse=True)
def files_are_read_once():
    """Cache data sets, as torchvision checks and reads the files each time: most of the time of a small cell."""
    read = functools.cache(lambda kind, root, train: kind(root, train=train, download=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchvisionData, "_open", lambda self, train, download: read(self.dataset, self.root, train))
        yield


@pytest.mark.slow
@pytest.mark.skipif(ROOT is None, reason="no data sets: DFL_DATA_ROOT names the folder that has them")
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_commands_of_the_map_produce_the_named_results(name, in_this_process, tmp_path, monkeypatch, capsys):
    """Each study is trained once for all its tables and pages."""
    monkeypatch.chdir(tmp_path)
    content = cut_down(yaml.safe_load(Path(shipped(KIND)[name]).read_text(encoding="utf-8")))
    Path(f"{name}.yaml").write_text(f"# {name}\n{yaml.safe_dump(content, sort_keys=False)}")
    with in_this_process():
        assert main(["run", f"{name}.yaml"]) == 0, capsys.readouterr()
    for kind, *options in COMMANDS[name]:
        capsys.readouterr()
        assert main([kind, f"{name}.yaml", *options]) == 0
        said = capsys.readouterr().out
        if kind == "table":
            for row in content["rows"]:
                [line] = [line for line in said.splitlines() if line.startswith(f"| {row} |")]
                assert re.search(r"\d\.\d|not in the library|–", line), line
        else:
            assert (tmp_path / "studies" / name / "report.html").stat().st_size > 100_000
