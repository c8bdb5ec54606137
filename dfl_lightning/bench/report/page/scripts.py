"""The script that draws Vega-Lite charts, out of the package vl-convert, and data packed into a page."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from typing import Any


@cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which declares nothing but `window.vegaEmbed`."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub is stricter
    return f"(function () {{\n{bundle}\n}})();"


@cache  # a run writes a page every few rounds
def packed_vega() -> str:
    """The script that draws, packed."""
    return packed(vega_script())


_IN_HTML = str.maketrans("<&", ".,")
"""Two letters of base 85 mean something in HTML."""


def packed(text: str) -> str:
    """A text that the page unpacks with `DecompressionStream`, in base 85: 6 % shorter than in base 64."""
    return base64.b85encode(gzip.compress(text.encode(), 9, mtime=0)).decode().translate(_IN_HTML)


def packed_json(value: Any) -> str:
    """A value of JSON's types, packed."""
    return packed(json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
