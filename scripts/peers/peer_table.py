"""From the runs' results to medians, ratios, checks and a Markdown table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from peer_list import OURS, PLAIN, Peer

Run = dict[str, Any]
COLUMNS = (
    *("runner", "version", "seconds a round", "times ours (range)", "CPU seconds a round (times ours)"),
    *("test accuracy", "SGD steps", "processes x threads"),
)


@dataclass
class Line:
    """Results of one runner in one kind of work.

    Args:
        peer: the simulator.
        runs: results, by repeat; a repeat that failed is missing.
        reason: why there are no results, in one sentence.
    """

    peer: Peer
    runs: dict[int, Run] = field(default_factory=dict)
    reason: str = ""

    def median(self, name: str) -> float:
        """Compute the median over the repeats."""
        return statistics.median(run[name] for run in self.runs.values())


def seconds_per_round(run: Run, kind: str = "seconds") -> float:
    """Compute the median round of a run (wall clock, or `cpu_seconds`), without the first one, which warms up.

    Examples:
        >>> seconds_per_round({"seconds": [9.0, 1.0, 2.0, 4.0]})
        2.0
    """
    return statistics.median(run[kind][1:])


def ratios(line: Line, ours: Line, kind: str = "seconds") -> list[float]:
    """Compute a runner's seconds per round over ours, repeat by repeat: adjacent in time, so that drift cancels.

    Repeats in which one of them has no such number are left out.

    Examples:
        >>> peer = Peer("peer", {"fedavg": "the work"})
        >>> slow = Line(peer, {0: {"seconds": [9, 4]}, 1: {"seconds": [9, 8]}})
        >>> ratios(slow, Line(peer, {0: {"seconds": [9, 2]}, 1: {"seconds": [9, 2]}, 2: {"seconds": [9, 2]}}))
        [2.0, 4.0]
    """
    pairs = [(line.runs[r], ours.runs[r]) for r in sorted(line.runs.keys() & ours.runs.keys())]
    known = [(theirs, own) for theirs, own in pairs if kind in theirs and kind in own]
    return [seconds_per_round(theirs, kind) / seconds_per_round(own, kind) for theirs, own in known]


def complaints(lines: list[Line], steps: int, tolerance: float, classes: int) -> list[str]:
    """List signs that the work is not the same: another number of steps, or an accuracy outside the tolerance.

    Accuracies near chance are listed too, since they agree for any work.

    Args:
        lines: of one kind of work.
        steps: that every runner should have taken.
        tolerance: largest difference from the accuracy of the reference, the first of plain and ours that ran.
        classes: chance is one over this.
    """
    found = []
    by_name = {line.peer.name: line for line in lines if line.runs}
    reference = by_name.get(PLAIN) or by_name.get(OURS)
    if reference is not None and not reference.median("accuracy") >= 2 / classes:
        reached = reference.median("accuracy")
        found.append(
            f"{reference.peer.name} learned too little (accuracy {reached:.3f}, chance is {1 / classes:.3f}) "
            "for accuracies to show that the work is the same; raise --rounds, --local-epochs or --lr"
        )
    for name, line in by_name.items():
        taken = sorted({run["steps"] for run in line.runs.values()})
        if taken != [steps]:
            found.append(f"{name} took {', '.join(map(str, taken))} SGD steps instead of {steps}")
        if reference is not None and line is not reference:
            difference = line.median("accuracy") - reference.median("accuracy")
            if not abs(difference) <= tolerance:
                found.append(
                    f"{name}'s accuracy differs from {reference.peer.name}'s by {difference:+.3f}, "
                    f"more than {tolerance:g}"
                )
    return found


def markdown(work: str, title: str, lines: list[Line], steps: int, tolerance: float, classes: int) -> str:
    """Format the table of one kind of work, with the work of each runner below."""
    ours = next((line for line in lines if line.peer.name == OURS), None)
    rows = [
        f"### {title}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(_row(line, ours) for line in lines),
        "",
    ]
    wrong = complaints(lines, steps, tolerance, classes)
    rows += [f"- **Not shown to be the same: {sentence}.**" for sentence in wrong]
    if not wrong and sum(bool(line.runs) for line in lines) > 1:
        rows += [f"- All took {steps} SGD steps in a run; accuracies agree within {tolerance:g}."]
    for line in lines:
        if line.runs:
            differs = f" How it differs: {line.peer.differs}." if line.peer.differs else ""
            rows.append(f"- {line.peer.name} was asked for: {line.peer.asked[work]}.{differs}")
    return "\n".join(rows) + "\n"


def busy(lines: list[Line], cores: int) -> list[str]:
    """Describe the load of the machine, and warn if it was too high for reliable times."""
    loads = [run["load_before"] for line in lines for run in line.runs.values()]
    if not loads:
        return []
    load = statistics.median(loads)
    text = f"Load of the machine before the runs: median {load:.1f}, {min(loads):.1f} to {max(loads):.1f}."
    if load > 1.5 * cores:
        text += (
            f" **Others were using its {cores} cores: wall-clock ratios are unreliable, most of all of processes with "
            "several threads; measure on an idle machine or with --threads 1.**"
        )
    return [text + "\n"]


def _row(line: Line, ours: Line | None) -> str:
    name = line.peer.name
    if not line.runs:
        return f"| {name} | {line.peer.version} | {line.reason} {'| ' * (len(COLUMNS) - 3)}|"
    last = line.runs[max(line.runs)]
    seconds = statistics.median(seconds_per_round(run) for run in line.runs.values())
    found = ratios(line, ours) if ours is not None and ours.runs else []
    times = f"{statistics.median(found):.2f}" if found else ""
    if len(found) > 1 and line is not ours:
        times += f" ({min(found):.2f} to {max(found):.2f})"
    spent = [seconds_per_round(run, "cpu_seconds") for run in line.runs.values() if "cpu_seconds" in run]
    cpu = f"{statistics.median(spent):.3g}" if spent else "not known"
    in_cpu = ratios(line, ours, "cpu_seconds") if ours is not None else []
    cpu += f" ({statistics.median(in_cpu):.2f})" if in_cpu else ""
    engine = f", engine {last['engine']}" if "engine" in last else ""
    taken = ", ".join(str(n) for n in sorted({run["steps"] for run in line.runs.values()}))
    cells = [name, f"{last['version']}{engine}", f"{seconds:.3g}", times, cpu, f"{line.median('accuracy'):.3f}", taken]
    failed = f" ({line.reason})" if line.reason else ""
    return f"| {' | '.join(cells)} | {last['processes']} x {last['threads']}{failed} |"
