"""Addresses within the page, as `address.js` reads them."""

from __future__ import annotations

from urllib.parse import urlencode

from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.runs.reading import Run


def client_address(method: Method, run: Run, client: int) -> str:
    """Return the address that opens a client of a run at its last recorded round.

    Args:
        method: method of the run.
        run: run of the page.
        client: id of the client.
    """
    seed = {"seed": seed_of(run)} if len(method.runs) > 1 else {}
    words = {"run": method.full_name, **seed, "round": len(run.metrics["round"]), "client": client}
    return f"#who?{urlencode(words)}"
