"""A GPU: the memory that is free, and what to say when it was not enough, or when the GPU fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dfl_lightning.utils.errors import UserError, is_gpu_failure, is_out_of_memory, reason


def free_memory(device: torch.device) -> int | None:
    """Bytes that this process can still have on a GPU; None where that is unknown.

    What torch holds and does not use counts as free.
    """
    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def give_back(device: torch.device) -> None:
    """Give what torch holds of a GPU and does not use back to it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> str:
    """One sentence about an allocation that failed, where no better remedy is known."""
    return f"out of memory ({reason(error)}); lower data.num_clients, model.batch_size or the network"


@contextmanager
def one_sentence(sentence: Callable[[BaseException], str] = out_of_memory) -> Iterator[None]:
    """Say in one sentence that memory was not enough for the work inside.

    Raises:
        UserError: in the place of torch's error.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(sentence(error)) from error


@contextmanager
def gpu_failures(saved: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Say in one sentence that a GPU failed in the work inside.

    Args:
        saved: what is left of the work, to end the sentence with.

    Raises:
        UserError: in the place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_gpu_failure(error):
            raise
        rest = "; ".join(part for part in (saved(), "CUDA_LAUNCH_BLOCKING=1 shows which operation fails") if part)
        raise UserError(f"the GPU failed ({reason(error)}); {rest}") from error
