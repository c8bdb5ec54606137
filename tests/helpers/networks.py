"""Networks of a few lines."""

from torch import nn


class Forward(nn.Module):
    """A network whose forward pass is a function of x and of its layers."""

    def __init__(self, function, *layers):
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x):
        return self.function(x, *self.layers)
