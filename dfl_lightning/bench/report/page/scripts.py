"""The script that draws Vega-Lite charts, from the package vl-convert, and the compression of data in a page."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from typing import Any


@cache
def vega_script() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script, which only declares `window.vegaEmbed`."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # the stub of vl-convert is stricter than the function
    return f"(function () {{\n{bundle}\n}})();"


@cache  # a run that is training writes a page every few rounds
def packed_vega() -> str:
    """Compress the script that draws charts."""
    return packed(vega_script())


_IN_HTML = str.maketrans("<&", ".,")
"""Replacements for the two letters of base 85 that have a meaning in HTML."""


def packed(text: str) -> str:
    """Compress a text by gzip and encode it in base 85, which is 6 % shorter than base 64.

    The page restores it with `DecompressionStream`.
    """
    return base64.b85encode(gzip.compress(text.encode(), 9, mtime=0)).decode().translate(_IN_HTML)


def packed_json(value: Any) -> str:
    """Compress a value made of JSON's types."""
    return packed(json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
