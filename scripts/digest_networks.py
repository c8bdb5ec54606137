"""Networks of `digests.py`: between them they have most kinds of layers, for images of 1 x 8 x 8 and 10 classes."""

import torch
from torch import Tensor, nn


class Normed(nn.Module):
    """Batch norms, through which samples interact, group norms and dropout between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.GroupNorm(3, 6), nn.ReLU(inplace=True), nn.Dropout2d(0.2)),
        )
        self.head = nn.Linear(6 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores [B, 10] of images [B, 1, 8, 8]."""
        scores: Tensor = self.head(self.features(x).flatten(1))
        return scores


class Varied(nn.Module):
    """Layers of other kinds, one without a rule of its own, a residual, and no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.InstanceNorm2d(4, affine=True))
        self.middle = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.PReLU(), nn.GroupNorm(1, 4))
        self.last = nn.Sequential(nn.ConvTranspose2d(4, 3, 2), nn.GELU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())
        self.head = nn.Sequential(nn.LayerNorm(27), nn.Linear(27, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores [B, 10] of images [B, 1, 8, 8]."""
        x = torch.relu(self.first(x))
        scores: Tensor = self.head(self.last(x + self.middle(x)))
        return scores
