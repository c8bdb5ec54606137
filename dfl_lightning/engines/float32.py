"""Precision of float32 products and convolutions: float32 throughout, or TensorFloat32 on a GPU.

By default torch computes convolutions on a GPU in TensorFloat32 (10 bits of mantissa) and matrix products in float32,
so that the precision of a layer would depend on the operation that computes it. Both are settings of the whole process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_PER_OPERATION = ("cudnn.conv", "cudnn.rnn", "cuda.matmul", "mkldnn.conv", "mkldnn.rnn", "mkldnn.matmul")
"""Attributes that hold a precision for each kind of operation in newer versions of torch; older ones have two switches
for all."""

_inside: list[bool] = []


@contextmanager
def float32_arithmetic(tf32: bool) -> Iterator[None]:
    """Compute float32 products and convolutions in one precision inside; restore the user's settings afterwards.

    Args:
        tf32: allow TensorFloat32 on a GPU; if False, compute in float32 everywhere, whatever was allowed before.
    """
    if _inside[-1:] == [tf32]:  # The bank's methods enter this context again inside a run.
        yield
        return
    former = _settings()
    _inside.append(tf32)
    _set_both("high" if tf32 else "highest", tf32)
    for name in former["own"]:
        _backend(name).fp32_precision = "tf32" if tf32 and name.startswith("cu") else "ieee"
    try:
        yield
    finally:
        _inside.pop()
        _set_both(former["products"], former["convolutions"])
        for name, precision in former["own"].items():
            if _backend(name).fp32_precision != precision:
                _backend(name).fp32_precision = precision


def _settings() -> dict[str, Any]:
    """Read the process' present settings; torch's defaults if the old switches cannot express the new settings."""
    switches: dict[str, Any] = {"products": "highest", "convolutions": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some versions warn that the switches are deprecated.
        with suppress(RuntimeError):
            switches["products"] = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            switches["convolutions"] = torch.backends.cudnn.allow_tf32
    backends = {name: _backend(name) for name in _PER_OPERATION}
    own = {name: backend.fp32_precision for name, backend in backends.items() if hasattr(backend, "fp32_precision")}
    return {**switches, "own": own}


def _set_both(products: str, convolutions: bool) -> None:
    """Set the two switches that all versions of torch have; newer versions change some other settings with them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def _backend(name: str) -> Any:
    backend, _, kind = name.partition(".")
    return getattr(getattr(torch.backends, backend), kind, None)
