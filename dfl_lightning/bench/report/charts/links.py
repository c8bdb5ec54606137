"""Charts of the links of a round: the collaboration graph, and a matrix.

The page draws both on canvases (`page/linked.js`), so that its slider can move in milliseconds. It takes sizes, dashes
and shapes from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfl_lightning.bench.report.charts.base import altair, data, finished
from dfl_lightning.bench.report.look.theme import LIGHT, SHAPES
from dfl_lightning.bench.report.network import (
    DROPPED,
    KEPT,
    NEW,
    OWN,
    PROBED,
    STANDS_IN,
    SUBSTITUTE,
    Link,
    largest_weight,
    links_by_round,
    nodes,
    recorded_rounds,
)
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError

SIZE = 480
SPAN = 1.14
"""Half of the range of the graph's axes; positions of nodes are from -1 to 1."""

CROSS = "M-1,-1L1,1M1,-1L-1,1"
TRIANGLE = "M0,-1.1547L1,0.57735L-1,0.57735Z"

WIDTHS = (1.1, 7)
"""Widths in pixels of links with weight 0 and weight 1."""

ASIDE = 3.2
"""Distance in pixels of a link from the middle, so that two clients that learn from each other have two lines."""

HEAD, SERVER = 34, 1300
"""Areas of an arrowhead and of a server, in square pixels."""

AROUND = 0.62
"""Distance of a link's end from a client, as a multiple of the root of its area."""

FROM_SERVER = 5
"""Pixels between the end of a link and the square of a server."""

NAMED, LISTED = 60, 40
"""Largest number of nodes with which the graph, and the matrix, show their ids."""

MORE = "; the receiver's own may be more"

RIM = 3.6
"""Width in pixels of the rim that keeps marks in the matrix apart from dark cells."""
"""Addition to the title of the scale of weights, if a receiver's own model weighs more than all others."""

_DASHES = {KEPT: [1, 0], NEW: [1, 0], SUBSTITUTE: [1, 0], DROPPED: [5, 4], PROBED: [1, 4], STANDS_IN: [3, 2]}

Row = dict[str, Any]


def collaboration_graph(run: Run, round: int | None = None) -> Any:
    """Draw the collaboration graph of a round: links from senders to receivers.

    Args:
        run: run with recorded links.
        round: recorded round, 0-based; default: the last one.

    Raises:
        UserError: that round was not recorded.
    """
    return graph_chart(*round_rows(run, round))


def link_heatmap(run: Run, round: int | None = None) -> Any:
    """Draw the links of a round as a matrix, receivers in rows, coloured by their weight in the receiver's new model.

    Colours end at the largest weight of another client's model in the run, so that all rounds have the same scale.

    Args:
        run: run with recorded links.
        round: recorded round, 0-based; default: the last one.

    Raises:
        UserError: that round was not recorded.
    """
    return heatmap_chart(*round_rows(run, round), largest_weight(run))


def clusters_of(points: Sequence[Row]) -> list[int]:
    """List the ground-truth clusters that clients belong to, ascending; -1 if unknown."""
    return sorted({point["cluster"] for point in points if not point["server"]})


def round_rows(run: Run, round: int | None = None) -> tuple[list[Row], list[Row]]:
    """Return the rows of links and the rows of nodes of a recorded round.

    Args:
        run: run with recorded links.
        round: recorded round, 0-based; default: the last one.

    Raises:
        UserError: that round was not recorded.
    """
    recorded = recorded_rounds(run, most=10**9)
    if not recorded:
        raise UserError(f"{run.path} has no links in graphs.npz")
    wanted = recorded[-1] if round is None else round
    if wanted not in recorded:
        raise UserError(f"{run.path} has no links of round {wanted}; it has those of rounds {_listed(recorded)}")
    index = recorded.index(wanted)
    links = links_by_round(run, recorded[max(0, index - 1) : index + 1])[wanted]
    dropped = set(run.dropouts["client"][run.dropouts["round"] == wanted].tolist()) if run.dropouts else set()
    points = [{**node, "dropped": node["id"] in dropped} for node in nodes(run)]
    return link_rows(links, points), points


def link_rows(links: Sequence[Link], points: Sequence[Row], theme: dict[str, Any] = LIGHT) -> list[Row]:
    """Return a row for each link with the positions of both ends and the colour, for the graph and the matrix.

    Args:
        links: links of one round.
        points: nodes, as `nodes` returns them.
        theme: theme with the colours.
    """
    node_of = {point["id"]: point for point in points}
    rows = []
    for link in links:
        r, s = node_of[link.receiver], node_of[link.sender]
        ends = {"rx": r["x"], "ry": r["y"], "sx": s["x"], "sy": s["y"], "row": r["order"], "column": s["order"]}
        about = {"receiver": link.receiver, "sender": link.sender, "state": link.state, "weight": round(link.weight, 4)}
        rows.append({**about, "colour": theme.get(link.state, ""), **ends})
    return rows


def node_area(number: int) -> float:
    """Return the area of a node of the graph, in square pixels.

    Args:
        number: number of nodes.
    """
    return max(60, min(560, 15000 / max(number, 1)))


def mark_areas(number: int) -> dict[str, float]:
    """Return the areas of the matrix's marks by state of the link, in square pixels.

    Args:
        number: number of nodes.
    """
    size = max(6, min(60, 9000 / max(number, 1) ** 1.35))
    return {NEW: size, DROPPED: size * 0.8, PROBED: max(2, size * 0.08)}


def look() -> dict[str, Any]:
    """Return sizes, shapes and dashes for the page's own drawing, which looks like these charts."""
    sizes = {
        "span": SPAN,
        "widths": WIDTHS,
        "gap": ASIDE,
        "around": AROUND,
        "from_server": FROM_SERVER,
        "head": HEAD,
        "server": SERVER,
    }
    shapes = {"shapes": SHAPES, "cross": CROSS, "triangle": TRIANGLE, "dashes": _DASHES}
    return {**sizes, **shapes, "named": NAMED, "listed": LISTED, "more": MORE, "rim": RIM}


def graph_chart(rows: Sequence[Row], points: Sequence[Row]) -> Any:
    """Draw links as arrows between nodes; clients that learn from each other have two arrows side by side.

    Args:
        rows: rows of links, as `link_rows` returns them.
        points: rows of nodes.
    """
    alt, number = altair(), len(points)
    scale = alt.Scale(domain=[-SPAN, SPAN], nice=False, zero=False)
    area = node_area(number)
    unit, clients = f"{2 * SPAN} / width", sum(not point["server"] for point in points)
    around, server = (
        f"{(area**0.5) * AROUND + 2:.1f}",
        f"({SERVER**0.5 / 2 + FROM_SERVER:.1f} / max(abs(datum.ux), abs(datum.uy)))",
    )
    start, end = (f"((datum.{node} < {clients} ? {around} : {server}) * {unit})" for node in ("sender", "receiver"))
    base = (
        alt.Chart(data(rows))
        .transform_filter(f"datum.state != '{OWN}'")
        .transform_calculate(
            dx="datum.rx - datum.sx",
            dy="datum.ry - datum.sy",
            d="max(1e-6, sqrt(pow(datum.rx - datum.sx, 2) + pow(datum.ry - datum.sy, 2)))",
        )
        .transform_calculate(ux="datum.dx / datum.d", uy="datum.dy / datum.d", off=f"{ASIDE} * {unit}")
        .transform_calculate(
            x0=f"datum.sx + datum.ux * {start} - datum.uy * datum.off",
            y0=f"datum.sy + datum.uy * {start} + datum.ux * datum.off",
            x1=f"datum.rx - datum.ux * {end} - datum.uy * datum.off",
            y1=f"datum.ry - datum.uy * {end} + datum.ux * datum.off",
            angle="90 - atan2(datum.uy, datum.ux) * 180 / PI",
        )
    )
    dash = alt.StrokeDash("state:N").scale(domain=list(_DASHES), range=list(_DASHES.values())).legend(None)
    thick = alt.Size("weight:Q").scale(domain=[0, 1], range=list(WIDTHS), clamp=True).legend(None)
    colour = alt.Color("colour:N").scale(None)
    x, y = alt.X("x0:Q").axis(None).scale(scale), alt.Y("y0:Q").axis(None).scale(scale)
    rules = base.mark_rule(strokeOpacity=0.8).encode(
        x=x,
        y=y,
        x2=alt.X2("x1:Q"),
        y2=alt.Y2("y1:Q"),
        color=colour,
        strokeDash=dash,
        size=thick,
        tooltip=_link_tips(),
    )  # no `opacity`: drawing a picture needs a canvas for each mark that has one, which takes seconds for 1,000 links
    heads = (
        base.transform_filter(f"datum.state != '{PROBED}'")
        .mark_point(shape="triangle", filled=True, size=HEAD, opacity=1, fillOpacity=0.56)
        .encode(
            x=alt.X("x1:Q").axis(None).scale(scale),
            y=alt.Y("y1:Q").axis(None).scale(scale),
            angle=alt.Angle("angle:Q").scale(domain=[0, 360], range=[0, 360]),
            color=colour,
        )
    )
    layers = [rules, heads, *_node_layers(points, scale, area)]
    return finished(alt.layer(*layers).resolve_scale(color="independent", size="independent"), width=SIZE, height=SIZE)


def heatmap_chart(rows: Sequence[Row], points: Sequence[Row], most: float = 1.0) -> Any:
    """Draw a matrix with a cell for each link, coloured by weight; new, dropped and only probed links have marks.

    Args:
        rows: rows of links, as `link_rows` returns them.
        points: rows of nodes.
        most: weight at which the colours end.
    """
    alt, number = altair(), len(points)
    x_scale = alt.Scale(domain=[-0.5, number - 0.5], nice=False, zero=False)
    y_scale = alt.Scale(domain=[-0.5, number - 0.5], nice=False, zero=False, reverse=True)
    gap = 0.46 if number <= NAMED else 0.5
    more = any(row["weight"] > most * (1 + 1e-3) for row in rows)
    legend = alt.Legend(
        title=f"weight in the new model{MORE if more else ''}",
        orient="bottom",
        gradientLength=160,
        gradientThickness=10,
        values=[0, most],
        format=".3~g",
    )
    base = alt.Chart(data([row for row in rows if row["state"] != STANDS_IN]))
    cells = (
        base.transform_filter(f"indexof(['{KEPT}', '{NEW}', '{SUBSTITUTE}', '{OWN}'], datum.state) >= 0")
        .transform_calculate(
            **{"x0": f"datum.column - {gap}", "x1": f"datum.column + {gap}"},
            **{"y0": f"datum.row - {gap}", "y1": f"datum.row + {gap}"},
        )
        .mark_rect()
        .encode(
            x=alt.X("x0:Q").axis(None).scale(x_scale),
            x2=alt.X2("x1:Q"),
            y=alt.Y("y0:Q").axis(None).scale(y_scale),
            y2=alt.Y2("y1:Q"),
            color=alt.Color("weight:Q").scale(range="ramp", domain=[0, most], clamp=True).legend(legend),
            tooltip=_link_tips(),
        )
    )
    area = f"{{{', '.join(f'{state}: {value:.1f}' for state, value in mark_areas(number).items())}}}[datum.state]"
    shapes = {NEW: "square", DROPPED: CROSS, PROBED: "circle"}
    marked = base.transform_filter(f"indexof(['{NEW}', '{DROPPED}', '{PROBED}'], datum.state) >= 0")
    marked = marked.transform_calculate(area=area).encode(
        x=alt.X("column:Q").axis(None).scale(x_scale),
        y=alt.Y("row:Q").axis(None).scale(y_scale),
        shape=alt.Shape("state:N").scale(domain=list(shapes), range=list(shapes.values())).legend(None),
        size=alt.Size("area:Q").scale(None),
        tooltip=_link_tips(),
    )
    rims = marked.transform_filter(f"datum.state === '{NEW}'").mark_point(
        style="rim", filled=False, strokeWidth=RIM, opacity=1
    )
    marks = marked.mark_point(filled=False, strokeWidth=1.6, opacity=1).encode(color=alt.Color("colour:N").scale(None))
    layers = [cells, rims, marks]
    if number <= LISTED:
        ids = alt.Chart(data(points))
        at_top = alt.X("order:Q").axis(None).scale(x_scale)
        at_left = alt.Y("order:Q").axis(None).scale(y_scale)
        layers.append(ids.mark_text(style="note", fontSize=9).encode(x=at_top, y=alt.value(-8), text=alt.Text("id:N")))
        layers.append(
            ids.mark_text(style="note", fontSize=9, align="right").encode(
                x=alt.value(-6), y=at_left, text=alt.Text("id:N")
            )
        )
    return finished(alt.layer(*layers).resolve_scale(color="independent", size="independent"), width=SIZE, height=SIZE)


def _node_layers(points: Sequence[Row], scale: Any, area: float) -> list[Any]:
    """Draw nodes: shape and colour are the cluster, a ring is an adversary, a hollow mark has dropped out."""
    alt, clusters = altair(), clusters_of(points)
    base = alt.Chart(data(points))
    shapes = [SHAPES[at % len(SHAPES)] for at in range(len(clusters))]
    places = {"x": alt.X("x:Q").axis(None).scale(scale), "y": alt.Y("y:Q").axis(None).scale(scale)}
    colour = alt.Color("cluster:N").scale(domain=list(clusters)).legend(None)
    shape = alt.Shape("cluster:N").scale(domain=list(clusters), range=shapes).legend(None)
    tips = [
        alt.Tooltip("id:N", title="client"),
        alt.Tooltip("cluster:N"),
        alt.Tooltip("dropped:N", title="dropped out"),
        alt.Tooltip("falsified:N"),
    ]
    ring = base.transform_filter("datum.falsified").mark_point(
        style="falsified", shape="circle", size=area * 2.1, opacity=1
    )
    active = base.transform_filter("!datum.server && !datum.dropped").mark_point(
        style="frame", filled=True, size=area, opacity=1
    )
    dropped = base.transform_filter("datum.dropped").mark_point(
        style="dotted", filled=False, size=area * 0.8, opacity=1
    )
    servers = base.transform_filter("datum.server").mark_point(
        style="strong", shape="square", filled=True, size=SERVER, opacity=1
    )
    clients = sum(not point["server"] for point in points)
    word = "'server'" if len(points) == clients + 1 else f"'S' + (datum.id - {clients})"
    named = base.transform_filter("datum.server").transform_calculate(word=word).mark_text(style="id", fontSize=9)
    layers = [
        ring.encode(**places),
        active.encode(**places, color=colour, shape=shape, tooltip=tips),
        dropped.encode(**places, shape=shape, tooltip=tips),
        servers.encode(**places, tooltip=[alt.Tooltip("id:N", title="server")]),
        named.encode(**places, text=alt.Text("word:N")),
    ]
    if len(points) <= NAMED:
        on_fill = base.transform_filter("!datum.server && !datum.dropped").mark_text(style="id")
        on_card = base.transform_filter("!datum.server && datum.dropped").mark_text(style="note", fontSize=10)
        layers += [text.encode(**places, text=alt.Text("id:N")) for text in (on_fill, on_card)]
    return layers


def _link_tips() -> list[Any]:
    alt = altair()
    return [
        alt.Tooltip("receiver:Q"),
        alt.Tooltip("sender:Q"),
        alt.Tooltip("state:N"),
        alt.Tooltip("weight:Q", format=".3f"),
    ]


def _listed(rounds: list[int]) -> str:
    words = [str(r) for r in rounds]
    return ", ".join(words if len(words) <= 6 else [*words[:3], "…", *words[-2:]])
