"""Formats of numbers, times and lists of names for readers."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """Format a number of things.

    Args:
        number: number of things.
        what: a noun in the singular.

    Examples:
        >>> counted(1, "cell"), counted(2, "cell")
        ('1 cell', '2 cells')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def enumerated(names: Sequence[str]) -> str:
    """Join names for a sentence.

    Examples:
        >>> enumerated(["A"]), enumerated(["A", "B"]), enumerated(["A", "B", "C"])
        ('A', 'A and B', 'A, B and C')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 2 else names)


def nth_round(index: int) -> str:
    """Name a round, counted from 1 for readers; files and Python count from 0.

    Args:
        index: index of the round, counted from 0.

    Examples:
        >>> nth_round(0)
        'round 1'
    """
    return f"round {index + 1}"


def as_time(seconds: float) -> str:
    """Format seconds as minutes, hours and days.

    Examples:
        >>> as_time(75), as_time(3 * 3600 + 120), as_time(100 * 3600)
        ('1:15', '3:02:00', '4 days 4:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02}:{rest:02}" if hours or days else f"{minutes}:{rest:02}"
    return f"{days} day{'s' * (days > 1)} {clock}" if days else clock


def as_percent(share: float) -> str:
    """Format an accuracy, or another share from 0 to 1, in percent.

    Examples:
        >>> as_percent(0.9398), as_percent(1.0)
        ('94.0 %', '100.0 %')
    """
    return f"{100 * share:.1f} %"


def about(seconds: float) -> str:
    """Format an estimated time in seconds, minutes or hours.

    Examples:
        >>> about(0.3), about(48), about(300), about(2 * 3600 + 1800)
        ('0.3 s', '48 s', '5.0 minutes', '2.5 hours')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} minutes" if minutes < 99.5 else f"{minutes / 60:.1f} hours"
