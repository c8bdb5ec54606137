"""Words for standard deviations."""

from __future__ import annotations


def spread_in_words(sd: float, text: str) -> str:
    """Write a standard deviation whose digits may all be zeros: 0 if it is 0, otherwise what it is below.

    Args:
        sd: the standard deviation.
        text: the same in the digits of the mean.

    Examples:
        >>> spread_in_words(0.0, "0.0"), spread_in_words(0.004, "0.0"), spread_in_words(0.21, "0.2")
        ('0', '< 0.1', '0.2')
    """
    if sd == 0:
        return "0"
    return text if text.strip("0.") else f"< {text[:-1]}1"
