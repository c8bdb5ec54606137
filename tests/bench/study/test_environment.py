"""The number of threads of a study's cells: the user's, or a share of the cores."""

import pytest

from dfl_lightning.bench.study.cells import environment
from dfl_lightning.bench.study.cells.environment import environment_of_a_cell, threads_of_a_cell


@pytest.mark.parametrize(
    ("asked", "jobs", "threads"),
    [(None, 1, 8), (None, 3, 2), (None, 20, 1), ("1", 1, 1), ("3", 4, 3), ("2,1", 1, 2), ("many", 2, 4), ("0", 2, 4)],
)
def test_cells_share_the_cores_unless_threads_are_set(asked, jobs, threads, monkeypatch):
    monkeypatch.setattr(environment, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads_of_a_cell(jobs) == threads


def test_settings_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    found = environment_of_a_cell(8)
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("1", "8")
    assert "SLURM_JOB_ID" not in found
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert environment_of_a_cell(8)["OMP_NUM_THREADS"] == "8"
