"""Networks of a few lines."""

import torch
from torch import nn

from dfl_lightning.models import MLP


class Forward(nn.Module):
    """A network whose forward pass is a function of x and of its layers."""

    def __init__(self, function, *layers):
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x):
        return self.function(x, *self.layers)


class Times(nn.Module):
    """Its input times a number that is learned, kept as a tensor of some shape: () or (1,)."""

    def __init__(self, shape=()):
        super().__init__()
        self.scale = nn.Parameter(torch.full(shape, 1.5))

    def forward(self, x):
        return x * self.scale


class Idle(nn.Linear):
    """Hands its input on, and has a weight that it does not use."""

    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        return x


class FrozenBody(MLP):
    """An MLP whose layers before the head are frozen as they were drawn."""

    def layers(self, input_shape, num_classes):
        features, head = super().layers(input_shape, num_classes)
        return features.requires_grad_(False), head
