"""Counts of the clients that are worse off than alone, by method and seed, with their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfl_lightning.bench.report.charts.clients import gains
from dfl_lightning.bench.report.comparable import best_first, for_charts
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.page.contents.address import client_address

MOST_NAMED = 10
"""With more losing clients of a run than this their ids are folded."""


def losers_table(methods: Sequence[Method]) -> dict[str, Any] | None:
    """Return the table of the clients that lose against training alone; None if nothing can be paired with that.

    Args:
        methods: methods of a task.

    Returns:
        `seeds`, the heads of the columns; and `rows`, with the `method`, `all` (its losing clients of all clients, in
        words) and `cells`, one for each seed. A cell has the same `words`, the `clients` that lose, each with an `id`
        and the `address` that opens it, and `folded`, True if they are many; a cell without a pair has no words.
    """
    drawn = best_first(for_charts(methods))
    alone = next((method for method in drawn if method.is_local), None)
    if alone is None:
        return None
    found = gains([method for method in drawn if not method.aside], alone)
    if not found:
        return None
    seeds = list(dict.fromkeys(row["seed"] for row in found))
    rows = []
    for method in drawn:
        of_method = [row for row in found if row["method"] == method.name]
        if not of_method:
            continue
        runs = {seed_of(run): run for run in method.runs}
        cells: list[dict[str, Any]] = []
        for seed in seeds:
            of_seed = [row for row in of_method if row["seed"] == seed]
            lose = [row["client"] for row in of_seed if row["gain"] < 0]
            clients = [{"id": i, "address": client_address(method, runs[seed], i)} for i in lose]
            cells.append({"words": _of(of_seed), "clients": clients, "folded": len(lose) > MOST_NAMED})
        rows.append({"method": method.name, "all": _of(of_method), "cells": cells})
    return {"seeds": ["lose" if seed is None else f"seed {seed}" for seed in seeds], "rows": rows}


def _of(rows: Sequence[dict[str, Any]]) -> str:
    """Say how many of these clients lose; empty without clients."""
    return f"{sum(row['gain'] < 0 for row in rows)} of {len(rows)}" if rows else ""
