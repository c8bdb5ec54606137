"""Chart of all pairs of clients over a whole run: how often each client chose each other one, and its mean weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dfl_lightning.bench.report.charts.base import TILES, Row, altair, data, finished
from dfl_lightning.bench.report.charts.reasons import IDS_AT_SIDES, LISTED, MOST_CLIENTS, client_order
from dfl_lightning.bench.report.network import number_of_nodes
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError


@dataclass(frozen=True)
class OverRun:
    """Choices and weights of all pairs of m clients over the recorded rounds of a run.

    Attributes:
        rounds: number of recorded rounds.
        chosen: number of rounds in which the receiver chose the sender, int64 [m, m], receivers in rows.
        weight: mean over the recorded rounds of the sender's weight in the receiver's new model, float64 [m, m].
    """

    rounds: int
    chosen: np.ndarray
    weight: np.ndarray


def over_run(run: Run) -> OverRun:
    """Count how often each client chose each other one, and average its weights, over the recorded rounds of a run.

    Args:
        run: run whose clients learn from each other.

    Raises:
        UserError: no links were recorded, or clients chose no others, as under a server.
    """
    m, graphs = number_of_nodes(run)[0], run.graphs
    rounds = len(np.unique(graphs["round"])) if len(graphs.get("round", [])) else 0
    if not rounds:
        raise UserError(f"{run.path} has recorded no links")
    receiver, sender = (graphs[name].astype(np.int64) for name in ("receiver", "sender"))
    within = (receiver < m) & (sender < m)
    cells = receiver * m + sender
    picked = within & graphs["selected"].astype(bool) & (receiver != sender)
    if not picked.any():
        raise UserError(f"the clients of {run.path} chose no others")
    chosen = np.bincount(cells[picked], minlength=m * m).reshape(m, m)
    weights = graphs["weight"][within].astype(np.float64)
    weight = np.bincount(cells[within], weights=weights, minlength=m * m).reshape(m, m)
    return OverRun(rounds, chosen, weight / rounds)


def within_clusters(run: Run) -> float | None:
    """Compute the share of all choices in which the sender is of the receiver's ground-truth cluster.

    Args:
        run: run whose clients learn from each other.

    Returns:
        The share, from 0 to 1; None if clusters are unknown, if there is only one, or if no client chose another one.
    """
    clusters = run.split.get("clusters", np.array([]))
    try:
        chosen = over_run(run).chosen
    except UserError:
        return None
    if len(clusters) != len(chosen) or len(np.unique(clusters)) < 2:
        return None
    return float(chosen[clusters[:, None] == clusters[None]].sum() / chosen.sum())


def who_from_whom(run: Run) -> Any:
    """Draw a matrix of all pairs of clients: the share of recorded rounds in which the receiver chose the sender.

    Receivers are rows, senders columns, both in the order of their ground-truth clusters if known. The data of the
    chart also contain the mean weights, in thousandths.

    Args:
        run: run, as `read_run` returns it.

    Returns:
        An Altair chart.

    Raises:
        UserError: clients chose no others, no links were recorded, or there are too many clients for a picture.
    """
    alt, number = altair(), number_of_nodes(run)[0]
    if number > MOST_CLIENTS:
        raise UserError(f"{run.path} has {number} clients; a matrix of all pairs is drawn for {MOST_CLIENTS} at most")
    pairs, order = over_run(run), client_order(run, number)
    thousandths = np.rint(pairs.weight * 1000).astype(int)
    rows: list[Row] = [
        {"receiver": i, "rounds": pairs.chosen[i].tolist(), "weight": thousandths[i].tolist()} for i in range(number)
    ]  # a row for each receiver, not for each pair, as in `similarities`
    top, left = (
        alt.Axis(orient=side, title=title, labels=number <= LISTED, titleAnchor="middle", **IDS_AT_SIDES)
        for side, title in (("top", "sender"), ("left", "receiver"))
    )
    cells = (
        alt.Chart(data(rows))
        .transform_flatten(["rounds", "weight"])
        .transform_window([{"op": "row_number", "as": "place"}], groupby=["receiver"])
        .transform_calculate(
            sender="datum.place - 1", share=f"datum.rounds / {pairs.rounds}", mean="datum.weight / 1000"
        )
        .transform_filter("datum.rounds > 0")
        .mark_rect()
        .encode(
            x=alt.X("sender:N").axis(top).scale(domain=order),
            y=alt.Y("receiver:N").axis(left).scale(domain=order),
            color=alt.Color("share:Q")
            .scale(range="ramp", domain=[0, 1])
            .legend(
                alt.Legend(
                    title="share of rounds",
                    orient="bottom",
                    gradientLength=160,
                    gradientThickness=10,
                    tickCount=3,
                    labelExpr="format(100 * datum.value, '.0f') + ' %'",
                )
            ),
            tooltip=[
                alt.Tooltip("receiver:N"),
                alt.Tooltip("sender:N"),
                alt.Tooltip("share:Q", title="chosen in", format=".0%"),
                alt.Tooltip("mean:Q", title="mean weight", format=".3f"),
            ],
        )
    )
    return finished(cells.properties(name=TILES), width=380, height=380)
