"""Tasks: the meaning of a network's outputs, the loss of each sample, and the scores that are reported."""

from dfl_lightning.tasks.choice import default_task
from dfl_lightning.tasks.classification import Classification
from dfl_lightning.tasks.forecast import Forecast
from dfl_lightning.tasks.multi_label import MultiLabel
from dfl_lightning.tasks.next_token import NextToken
from dfl_lightning.tasks.regression import Regression
from dfl_lightning.tasks.task import MeanLoss, Task

__all__ = ["Classification", "Forecast", "MeanLoss", "MultiLabel", "NextToken", "Regression", "Task", "default_task"]
