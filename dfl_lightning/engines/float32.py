"""How exact products and convolutions of float32 numbers are: float32 throughout, or TensorFloat32 on a GPU.

By default torch computes convolutions on a GPU in TensorFloat32 (10 bits behind the point) and matrix products in
float32, so that the precision of a layer would depend on how it is computed. Both are settings of the whole process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_OWN = ("cudnn.conv", "cudnn.rnn", "cuda.matmul", "mkldnn.conv", "mkldnn.rnn", "mkldnn.matmul")
"""Where newer versions of torch keep a precision for each kind of operation; older ones have two switches for all."""

_inside: list[bool] = []


@contextmanager
def float32_arithmetic(tf32: bool) -> Iterator[None]:
    """Products and convolutions of float32 numbers are alike inside; afterwards the user's own settings are back.

    Args:
        tf32: they may be TensorFloat32 on a GPU; else they are float32 everywhere, whatever was allowed before.
    """
    if _inside[-1:] == [tf32]:  # a verb of the bank inside a run
        yield
        return
    former = _settings()
    _inside.append(tf32)
    _set_both("high" if tf32 else "highest", tf32)
    for name in former["own"]:
        _place(name).fp32_precision = "tf32" if tf32 and name.startswith("cu") else "ieee"
    try:
        yield
    finally:
        _inside.pop()
        _set_both(former["products"], former["convolutions"])
        for name, precision in former["own"].items():
            if _place(name).fp32_precision != precision:
                _place(name).fp32_precision = precision


def _settings() -> dict[str, Any]:
    """The present settings; torch's own where the old switches cannot say what the new ones are set to."""
    found: dict[str, Any] = {"products": "highest", "convolutions": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions call the switches old
        with suppress(RuntimeError):
            found["products"] = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            found["convolutions"] = torch.backends.cudnn.allow_tf32
    places = {name: _place(name) for name in _OWN}
    own = {name: place.fp32_precision for name, place in places.items() if hasattr(place, "fp32_precision")}
    return {**found, "own": own}


def _set_both(products: str, convolutions: bool) -> None:
    """The switches of all versions of torch; newer ones move some of their own settings with them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def _place(name: str) -> Any:
    backend, _, kind = name.partition(".")
    return getattr(getattr(torch.backends, backend), kind, None)
