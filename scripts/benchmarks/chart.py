"""Pictures of the measurements of `bench_engine.py` and `bench_scale.py`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.tables import Table

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

COLOURS = {"stacked": "#0072b2", "loop": "#56b4e9", "plain": "#7f7f7f", "bound": "#d5d5d5"}
VERB_COLOURS = {"train": "#0072b2", "evaluate": "#009e73", "compare": "#e69f00", "mix": "#d55e00", "rest": "#7f7f7f"}


def draw(tables: dict[str, Table], path: Path) -> bool:
    """Draw bars of the sections `train` and `systems`, if they were measured.

    Returns:
        Whether there was anything to draw.
    """
    panels = [(name, panel) for name, panel in (("train", _training), ("systems", _systems)) if name in tables]
    panels = [(name, panel) for name, panel in panels if tables[name].numbers]
    if not panels:
        return False
    heights = [0.9 + 0.17 * _bars(name, tables[name]) for name, _ in panels]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(8, sum(heights) + 0.6), squeeze=False, height_ratios=heights, layout="constrained"
    )
    for (name, panel), place in zip(panels, axes[:, 0], strict=True):
        panel(place, tables[name].numbers)
        place.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def _bars(name: str, table: Table) -> int:
    return len(table.numbers) * (5 if name == "train" else 2)


def _training(axes: Axes, numbers: list[dict[str, Any]]) -> None:
    """Draw the speed in units of the plain loop."""
    labels = []
    for place, row in enumerate(numbers):
        seconds = {name: statistics.median(values) for name, values in row["seconds_per_sample"].items()}
        seconds["bound"] = seconds[row["bound"]]
        for offset, (name, colour) in enumerate(COLOURS.items()):
            speed = seconds["plain"] / seconds[name]
            at = place + 0.2 * (offset - 1.5)
            axes.barh(at, speed, 0.2, color=colour, label=name if not place else None)
            axes.text(speed, at, f" {speed:.2f}" if name != "plain" else "", va="center", fontsize=7)
        labels.append(f"{row['network']}\n{row['clients']} x {row['samples']}, B {row['batch_size']}")
        if len({other["threads"] for other in numbers}) > 1:
            labels[-1] += f"\n{row['threads']} thread{'s' * (row['threads'] > 1)}"
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel("local training: times as fast as the plain loop with the same threads")
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(COLOURS))


def _systems(axes: Axes, numbers: list[dict[str, Any]]) -> None:
    """Draw the seconds of a round, by verb."""
    labels = []
    for place, row in enumerate(numbers):
        left = 0.0
        for verb, colour in VERB_COLOURS.items():
            width = statistics.median(spent[verb] for spent in row["rounds"][1:])
            axes.barh(place, width, 0.75, left=left, color=colour, label=verb if not place else None)
            left += width
        axes.text(left, place, f" {left:.2f} s", va="center", fontsize=7)
        labels.append(f"{row['config']}, {row['engine']}")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel("seconds of a round of every shipped system")
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(VERB_COLOURS))


def draw_scale(cells: list[dict[str, Any]], path: Path) -> bool:
    """Draw seconds and megabytes of a round by the number of clients, on logarithmic axes, a line for each system.

    Returns:
        Whether there was anything to draw.
    """
    measured = [cell for cell in cells if "seconds" in cell]
    if not measured:
        return False
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for place, system in enumerate(dict.fromkeys(cell["system"] for cell in measured)):
        its = [cell for cell in measured if cell["system"] == system]
        clients = [cell["clients"] for cell in its]
        line = {"color": f"C{place}", "marker": "o", "markersize": 4, "label": system}
        left.plot(clients, [cell["seconds"]["wall"] for cell in its], **line)
        right.plot(clients, [cell["grown"] / 1e6 for cell in its], **line)
    for axes, what in (
        (left, "seconds of a round"),
        (right, "MB in addition to the loaded process"),
    ):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("clients")
        axes.set_title(what, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True
