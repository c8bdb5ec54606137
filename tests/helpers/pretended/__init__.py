"""A GPU that is not there, for tests on machines without one: a device whose tensors compute on the CPU.

Its tensors say that they are on `DEVICE` and on a GPU, and refuse what CUDA refuses: an operation on tensors of two
devices. Everything else is as on any device: modules and optimizers move to it, autograd runs on it, a whole run trains
on it. `Count` counts what costs time on a GPU: launches of kernels, and the moments when the host waits for a number.
`Scarce` lets an allocation fail, `Broken` everything.
"""

from pretended.broken import Broken
from pretended.count import Count
from pretended.device import ASSERTED, DEVICE, DISORDERED, Elsewhere
from pretended.run import everything_on
from pretended.scarce import Scarce

__all__ = ["ASSERTED", "DEVICE", "DISORDERED", "Broken", "Count", "Elsewhere", "Scarce", "everything_on"]
