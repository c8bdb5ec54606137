"""The stacked engine: k clients' models as one network.

- `activation` what flows through it, `layers` how each kind of layer works on k clients, `kernels` own backward passes
- `network` traces a plain network and tries the stacked one out against it, `loss` the losses
- `convolution` by groups or by patches, and which layers by which on a GPU; `stopwatch` times them
- `graphs` steps that a GPU records once and replays
- `staging` rows to parameters and back, `optimizer` the user's optimizer on those clients that are left
- `feed` batches, `job` the local training of a cohort, `scoring` evaluations
- `cost` how wide a cohort is, `workshop` what jobs have in common, `engine` the whole
"""

from dfl_lightning.engines.stacked.engine import StackedEngine
from dfl_lightning.engines.stacked.network import CannotStack

__all__ = ["CannotStack", "StackedEngine"]
