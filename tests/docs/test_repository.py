"""Files that people expect of a repository in addition to code and pages."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_names_the_four_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert [paper["notes"] for paper in citation["references"]] == ["AFIND+", "PANM", "FL-FDMS", "DPFL"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for paper in citation["references"]:
        assert paper["authors"]
        number = re.search(r"arxiv\.org/abs/(\S+)", paper.get("url", ""))
        assert number is None or f"arXiv {number[1]}" in readme


def test_types_are_published():
    assert (ROOT / "dfl_lightning" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_the_workflow_runs_what_the_project_declares():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["test"]
    declared = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == declared
    assert declared[0] == PROJECT["requires-python"].removeprefix(">=")
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci" / "run").is_file()


def test_commits_are_checked_by_the_tools_of_the_development_install():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    dev = " ".join(PROJECT["optional-dependencies"]["dev"])
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "mypy"}
    assert all(hook["entry"].split()[0] in dev for hook in hooks)


def test_workers_keep_the_order_in_which_long_tests_come_first(pytestconfig):
    """Otherwise files of few tests, which may take half a minute each, come last."""
    pytest.importorskip("xdist")
    assert not pytestconfig.getoption("loadscopereorder")


def test_git_ignores_no_module():
    """A wheel leaves out what git ignores; a room named like an output folder, such as runs, would be missing in it."""
    files = [
        file.relative_to(ROOT).as_posix()
        for room in ("dfl_lightning", "tests")
        for file in ROOT.glob(f"{room}/**/*.py")
    ]
    words = ["git", "check-ignore", "--no-index", "--stdin"]
    found = subprocess.run(words, cwd=ROOT, input="\n".join(files), capture_output=True, text=True)
    if found.returncode == 128:
        pytest.skip("no git repository, such as a source distribution")
    assert found.stdout.split() == []
