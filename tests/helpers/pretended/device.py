"""The device: tensors that wrap others of the CPU, and the operations on them."""

import os

import torch
from torch.utils import backend_registration


class _Module:
    """The module that torch expects as `torch.pretended`; random numbers are drawn on the CPU alone."""

    is_available = staticmethod(lambda: False)  # Lightning must not choose it by itself
    device_count = staticmethod(lambda: 0)  # of devices with a generator of their own
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


if os.environ.get("DFL_TEST_ACCELERATOR") != "gpu":  # torch has one accelerator: it would be this one instead of CUDA
    backend_registration._setup_privateuseone_for_python_backend("pretended", backend_module=_Module())

DEVICE = torch.device("privateuseone", 0)

COPIES = ("aten::copy_", "aten::_to_copy")
HOST_INDICES = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
"""Operations that take indices of the CPU, as on CUDA."""

NO_ORDER = (
    *("avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
    *("adaptive_max_pool2d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
    *("max_unpool2d", "max_unpool3d", "max_pool3d_with_indices_backward"),
    *("upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward"),
    *("upsample_trilinear3d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward"),
    *("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
    *("replication_pad1d_backward", "replication_pad3d_backward"),
    *("nll_loss2d", "_ctc_loss_backward", "_cudnn_ctc_loss", "grid_sampler_2d_backward", "grid_sampler_3d_backward"),
    *("put_", "histc", "kthvalue", "scatter_reduce"),
)
"""Operations that CUDA does in no fixed order, by the beginnings of their names: torch's list for 2.4 and later."""

DISORDERED: list[str] = []
"""Those that were called while `torch.use_deterministic_algorithms` refuses them."""

ASSERTED: list[str] = []
"""Those that were given an index out of range: on CUDA an assertion fails on the device, and nothing works any more."""


class Elsewhere(torch.Tensor):
    """Says that it is on `DEVICE`, and on a GPU."""

    is_cuda = property(lambda self: True)

    def _replace(self, value):
        torch.Tensor.data.__set__(self, value)
        self.inner = value.inner

    data = property(lambda self: self.detach(), _replace)

    def __reduce_ex__(self, protocol):
        return self.inner.__reduce_ex__(protocol)  # in a file it is an ordinary tensor

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=DEVICE
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    """Compute an operation on the CPU and return tensors on the device of its arguments."""
    name, kwargs = func._schema.name, dict(kwargs)
    there, here = sides(args, kwargs)
    if there and torch.are_deterministic_algorithms_enabled() and no_order(name, args, kwargs):
        DISORDERED.append(name)  # to raise in a backward pass, in a thread of autograd's own, would end the process
    if there and name not in COPIES and any(tensor.dim() for tensor in here):
        values = args[2:3] if name.startswith("aten::index_put") or name == "aten::_index_put_impl_" else ()
        at_home = [value for value in values if isinstance(value, torch.Tensor) and not isinstance(value, Elsewhere)]
        if name not in HOST_INDICES or not isinstance(args[0], Elsewhere) or any(value.dim() for value in at_home):
            raise RuntimeError(f"{name} meets tensors of two devices")
    asked = kwargs.get("device")
    stays = bool(there) if asked is None else torch.device(asked).type == DEVICE.type
    if asked is not None:
        kwargs["device"] = torch.device("cpu")
    wrappers = {id(tensor.inner): tensor for tensor in there}
    try:
        result = func(*mapped(inner_of, args), **{key: mapped(inner_of, value) for key, value in kwargs.items()})
    except IndexError:
        if there:
            ASSERTED.append(name)
        raise
    if name == "aten::copy_":
        return args[0]

    def outer(value):
        return wrappers.get(id(value), Elsewhere(value) if stays else value)

    return mapped(outer, result)


def no_order(name, args, kwargs):
    """Return True if an operation adds in any order on CUDA, so `torch.use_deterministic_algorithms` refuses it."""
    name = name.removeprefix("aten::")
    if name == "bincount":
        return kwargs.get("weights", args[1] if len(args) > 1 else None) is not None
    if name in ("cumsum", "cumsum_", "cumprod", "cumprod_"):  # of floating numbers, before torch 2.6
        return args[0].is_floating_point()
    if name in ("median", "nanmedian"):
        return len(args) > 1 or "dim" in kwargs  # with places
    if name == "_embedding_bag_dense_backward":
        return args[7] == 2  # mode max
    return name.startswith(NO_ORDER)


def sides(args, kwargs):
    """The tensors among arguments: on the device, and on the CPU."""
    tensors = tensors_in((*args, *kwargs.values()))
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    return there, [tensor for tensor in tensors if not isinstance(tensor, Elsewhere)]


def tensors_in(values):
    """All tensors, also those in lists; torch's own trees take most of the time of a run here."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def mapped(function, value):
    """A value with a function of each tensor in the tensor's place."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)([mapped(function, part) for part in value])
    return value


def inner_of(value):
    return value.inner if isinstance(value, Elsewhere) else value


# Where torch makes tensors itself, for an index that is a list for example, nothing of Python's is asked but these.
def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return Elsewhere(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source, target, non_blocking=False):
    inner_of(target).copy_(inner_of(source))
    return target


_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
_AUTOCAST = torch.library.Library("_", "IMPL")
_AUTOCAST.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
"""Autocast may be on; it has no list of operations for this device, and changes none."""
