"""Free memory of a GPU, and error messages for a GPU that fails or runs out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dfl_lightning.utils.errors import UserError, is_gpu_failure, is_out_of_memory, reason


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that this process can still allocate on a GPU; None if the device is not a GPU.

    Memory that torch has reserved and does not use counts as free.
    """
    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def give_back(device: torch.device) -> None:
    """Release the GPU memory that torch has reserved and does not use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> str:
    """Describe a failed allocation in one sentence, with the general remedies."""
    return f"out of memory ({reason(error)}); lower data.num_clients, model.batch_size or the network"


@contextmanager
def one_sentence(sentence: Callable[[BaseException], str] = out_of_memory) -> Iterator[None]:
    """Replace an out-of-memory error raised inside by one sentence.

    Raises:
        UserError: raised instead of torch's error.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(sentence(error)) from error


@contextmanager
def gpu_failures(saved: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Replace a GPU failure raised inside by one sentence.

    Args:
        saved: returns a part of the sentence that says what of the work is saved; empty if nothing is.

    Raises:
        UserError: raised instead of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_gpu_failure(error):
            raise
        rest = "; ".join(part for part in (saved(), "CUDA_LAUNCH_BLOCKING=1 shows which operation fails") if part)
        raise UserError(f"the GPU failed ({reason(error)}); {rest}") from error
