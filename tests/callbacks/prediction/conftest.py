"""Runs of predictions with plain clients beside them."""

import pytest
import torch
from plain_clients import EPOCHS, LR, MOMENTUM, UP, Plain, network, samples


@pytest.fixture
def plain_run(start, tmp_path, monkeypatch):
    """A run in float64 with full batches, clients that drop out, and the plain federation beside it."""
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
