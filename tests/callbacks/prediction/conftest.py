"""Runs of predictions, and plain clients to compare them with."""

import pytest
import torch
from plain_clients import EPOCHS, LR, MOMENTUM, UP, Plain, network, samples


@pytest.fixture
def plain_run(start, tmp_path, monkeypatch):
    """Make a run in float64 with full batches and clients that drop out, and a plain federation to compare it with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "up.txt").write_text("\n".join(" ".join(line) for line in UP))

    def _run(*policies, engine="stacked", data=None, **options):
        settings = {
            "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM),
            "local_epochs": EPOCHS,
            **options,
        }
        run = start(
            *policies,
            clients=5,
            rounds=len(UP),
            data=samples() if data is None else data,
            trainer={"precision": "64-true", "engine": engine},
            network=network(),
            batch_size=100,
            **settings,
        )
        return run, Plain(run)

    return _run
