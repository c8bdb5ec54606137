"""The stacked engine: k clients' models as one network.

- `activation` what flows through the network, `layers` the rule of each kind of layer for k clients, `group_norm` and
  `masked_norm` those of norms, `kernels` custom backward passes
- `network` traces a plain network and checks the stacked one against it, `loss` the losses
- `convolution` by groups or by patches (`patches`), `autotune` which layers by which on a GPU
- `cuda_graphs` steps that a GPU records once and replays
- `parameters` rows to stacked parameters and back, `optimizer` the user's optimizer on the clients that have batches
  left, `optimizer_trial` whether it treats each client as a plain network's
- `batches` the batches of a cohort, `training` its local training, `evaluation` the scoring of models
- `cost` how wide a cohort is, `budget` and `footprint` how much memory it may and does take
- `context` what the jobs of an engine share, `engine` the engine itself
"""

from dfl_lightning.engines.stacked.cannot_stack import CannotStack
from dfl_lightning.engines.stacked.engine import StackedEngine

__all__ = ["CannotStack", "StackedEngine"]
