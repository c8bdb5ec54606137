"""Recordings on a CPU that forget as much as a CUDA graph does."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class Waits(AssertionError):
    """A recorded step asks for a number: on a GPU it would wait, and could not be recorded."""


class Tape(TorchDispatchMode):
    """Forgets as much as a CUDA graph does: writes torch's operations down, with their very tensors and numbers.

    Replaying repeats these operations and nothing of the Python around them: what a step made anew is made anew, and
    everything else is the very tensor, or the very number, of the recording.
    """

    FORBIDDEN = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in self.FORBIDDEN:
            raise Waits(f"{name} inside a recorded step")
        result = func(*args, **(kwargs or {}))
        if not name.startswith("profiler::"):
            self.operations.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        """The operations again."""
        made = {}  # memory of the recording -> memory of this replay; what autograd saves has the same under a new name

        def present(value):
            if not torch.is_tensor(value) or value.untyped_storage()._cdata not in made:
                return value
            storage = made[value.untyped_storage()._cdata]
            return value.new_empty(0).set_(storage, value.storage_offset(), value.shape, value.stride())

        with torch.no_grad():
            for func, args, kwargs, former in self.operations:
                result = func(*tree_map(present, args), **tree_map(present, kwargs))
                for old, new in zip(flat(former), flat(result), strict=True):
                    if torch.is_tensor(old) and old.untyped_storage()._cdata != new.untyped_storage()._cdata:
                        made[old.untyped_storage()._cdata] = new.untyped_storage()


def flat(value):
    return [inner for part in value for inner in flat(part)] if isinstance(value, list | tuple) else [value]


class TapeRecorder:
    """Records with tapes."""

    def __init__(self):
        self.recorded, self.replayed = 0, 0

    def record(self, step):
        """As `CudaGraphs` does, which runs the step to warm up."""
        step()
        tape = Tape()
        with tape:
            step()
        self.recorded += 1

        def replay():
            self.replayed += 1
            tape.replay()

        return replay
