import pytest


@pytest.fixture(autouse=True)
def seed_zero(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
