"""A working folder for commands."""

import sys

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder, and undo what a command changes in the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.delenv("DFL_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "pytest-of" not in p])
    return tmp_path
