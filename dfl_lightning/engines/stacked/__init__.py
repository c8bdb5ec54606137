"""Stacked engine: k clients' models as one network.

- `layers`: the rule of each kind of layer for k clients, with the values that flow between layers (`activation`)
- `network`: traces a network and runs it for k clients; `loss`: the losses of k clients
- `parameters`: rows to stacked parameters and back; `optimizer` and `kept_optimizer`: the user's optimizer on clients
- `batches`: the batches of a cohort; `training`: its local training; `evaluation`: the scoring of models
- `cost`: the width of a cohort
- `gpu`: the choice of convolution methods, the memory of a cohort, and recorded steps
- `context`: the parts that the jobs of an engine share; `engine`: the engine itself
"""

from dfl_lightning.engines.stacked.cannot_stack import CannotStack
from dfl_lightning.engines.stacked.engine import StackedEngine

__all__ = ["CannotStack", "StackedEngine"]
