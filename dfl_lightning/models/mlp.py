"""Fully connected networks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from dfl_lightning.models.network import Network
from dfl_lightning.utils.errors import UserError


class MLP(Network):
    """Fully connected layers with ReLU.

    The default is PANM's 784-200-200-10 on MNIST and FashionMNIST (section 4.2, "a three-layer MLP").

    Args:
        hidden: width of each hidden layer; an empty list gives logistic regression.
        input_shape: shape of one input, which is flattened first; by default taken from the data.
        num_classes: by default taken from the data.

    Raises:
        UserError: a width is below 1.

    Examples:
        >>> sum(p.numel() for p in MLP(input_shape=(1, 28, 28), num_classes=10).parameters())
        199210
    """

    def __init__(
        self,
        hidden: Sequence[int] = (200, 200),
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.hidden = [int(width) for width in hidden]
        if min(self.hidden, default=1) < 1:
            raise UserError(f"MLP: hidden layers need widths of 1 or more, not {self.hidden}.")
        self.build_if_known(input_shape, num_classes)

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the hidden layers as features, and the classifier as head."""
        features: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = 1
        for size in input_shape:
            width *= size
        for number, wider in enumerate(self.hidden, start=1):
            features[f"fc{number}"] = nn.Linear(width, wider)
            features[f"relu{number}"] = nn.ReLU()
            width = wider
        return nn.Sequential(features), nn.Linear(width, num_classes)
