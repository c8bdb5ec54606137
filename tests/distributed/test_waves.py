"""A run of clients that do not wait, stopped inside a wave, ends with the same bits in one and in two processes."""

import contextlib
import io
import os
import shutil
from pathlib import Path

import pytest

from dfl_lightning.checkpoints.io import rounds_in
from dfl_lightning.cli import command as cli

STOPS = """
from dfl_lightning import callbacks


class InAWave(callbacks.Monitor):
    def on_mixed(self, round):
        if round.index == 2 and round.earlier:
            raise ValueError("stopped inside a wave")
"""
WORDS = ["--data.num_clients", "8", "--data.samples_per_client", "16", "--trainer.cohorts", "2"]
WORDS += ["--model.network.hidden", "[6]", "--trainer.max_rounds", "4", "--trainer.checkpoint_every", "1"]
WORDS += ["--clock.latency", "0.001"]


def _stopped(folder, words):
    """Run `dfl-fit` until the second wave of its third round; return its exit code and what it says."""
    os.chdir(folder)
    words = [*words, "--monitors+=stops_in_a_wave.InAWave", "--trainer.accelerator", "cpu"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.run("fit", [*words, "--trainer.devices", os.environ.get("WORLD_SIZE", "1")])
    return code, said.getvalue()


CONFIGS = ["adpsgd", "async_gossip", "fedbuff", "async_gossip --clock.waits false --clock.latency 0.02"]


@pytest.mark.parametrize(
    "config", [name if name == "adpsgd" else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS]
)
def test_run_stopped_inside_a_wave_resumes_with_other_processes(runs, on_ranks, tmp_path, config):
    name, *more = config.split()
    words = ["--config", name, *WORDS, *more]
    (tmp_path / "whole").mkdir()
    runs.fit(1, tmp_path / "whole", words)
    whole = runs.contents(tmp_path / "whole")
    for count in (1, 2):
        stopped = tmp_path / f"stopped {count}"
        stopped.mkdir()
        (stopped / "stops_in_a_wave.py").write_text(STOPS)
        answers = on_ranks(count, _stopped, str(stopped), words)
        assert all(code and "stopped inside a wave" in said for code, said in answers), answers
        [last] = stopped.glob("runs/*/*/checkpoints/last.ckpt")
        assert rounds_in(last) == 2
        for then in (1, 2):
            folder = tmp_path / f"stopped {count}, then {then}"
            shutil.copytree(stopped, folder)
            runs.fit(then, folder, [*words, "--ckpt_path", str(Path(last).relative_to(stopped))])
            runs.same(whole, runs.contents(folder), folder.name)
