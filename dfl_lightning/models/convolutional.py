"""Small convolutional networks from the papers."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from torch import nn

from dfl_lightning.models.network import Network, check_images, flat_size
from dfl_lightning.utils.errors import UserError


class _Images(Network):
    """Networks on images [channels, height, width]: convolutions, then fully connected layers."""

    smallest: ClassVar[int]  # the least height and width; one pixel is left after the convolutions

    def convolutions(self, channels: int) -> OrderedDict[str, nn.Module]:
        raise NotImplementedError

    def connected(self, width: int) -> OrderedDict[str, nn.Module]:
        raise NotImplementedError

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the convolutions and the fully connected layers as features, and the classifier as head."""
        check_images(self, input_shape, self.smallest)
        convolutions = self.convolutions(input_shape[0])
        width = flat_size(nn.Sequential(convolutions), input_shape)
        connected = self.connected(width)
        last = next(layer for layer in reversed(connected.values()) if isinstance(layer, nn.Linear))
        features = nn.Sequential(OrderedDict([*convolutions.items(), ("flatten", nn.Flatten()), *connected.items()]))
        return features, nn.Linear(last.out_features, num_classes)


class LeNet(_Images):
    """LeNet with ReLU and max pooling: conv5x5 6 and 16, fully connected 120, 84 (CIFAR-10 of FL-FDMS, DPFL).

    DPFL (appendix H.3.2) mentions three convolutions and lists these two. Its 400 inputs of the first fully connected
    layer imply that both are pooled.

    Args:
        input_shape: shape of one image, [channels, height, width]; by default taken from the data.
        num_classes: by default taken from the data.

    Raises:
        UserError: the inputs are not images of at least 16x16.

    Examples:
        >>> sum(p.numel() for p in LeNet(input_shape=(3, 32, 32), num_classes=10).parameters())
        62006
    """

    smallest = 16

    def __init__(self, *, input_shape: tuple[int, ...] | None = None, num_classes: int | None = None) -> None:
        super().__init__()
        self.build_if_known(input_shape, num_classes)

    def convolutions(self, channels: int) -> OrderedDict[str, nn.Module]:
        """Build two blocks of convolution, ReLU and pooling."""
        return OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
        )

    def connected(self, width: int) -> OrderedDict[str, nn.Module]:
        """Build fully connected layers of 120 and 84 units."""
        return OrderedDict(fc1=nn.Linear(width, 120), relu3=nn.ReLU(), fc2=nn.Linear(120, 84), relu4=nn.ReLU())


class MNISTCNN(_Images):
    """conv5x5 10 and 20 with max pooling, fully connected 50, with dropout layers (FL-FDMS on MNIST).

    The paper mentions a layer of 320 units. In its code, as here, 320 is the number of inputs of the layer of 50.

    Args:
        dropout: probability, 0 to 1, of dropping a channel of the second convolution, and a unit before the head.
        input_shape: shape of one image, [channels, height, width]; by default taken from the data.
        num_classes: by default taken from the data.

    Raises:
        UserError: the probability is outside 0 to 1, or the inputs are not images of at least 16x16.

    Examples:
        >>> sum(p.numel() for p in MNISTCNN(input_shape=(1, 28, 28), num_classes=10).parameters())
        21840
    """

    smallest = 16

    def __init__(
        self,
        dropout: float = 0.5,
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= dropout <= 1:
            raise UserError(f"MNISTCNN: dropout must be a probability from 0 to 1, not {dropout}.")
        self.dropout = dropout
        self.build_if_known(input_shape, num_classes)

    def convolutions(self, channels: int) -> OrderedDict[str, nn.Module]:
        """Build two blocks of convolution, pooling and ReLU, with dropout of whole channels in the second."""
        return OrderedDict(
            conv1=nn.Conv2d(channels, 10, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(10, 20, 5),
            dropout2=nn.Dropout2d(self.dropout),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
        )

    def connected(self, width: int) -> OrderedDict[str, nn.Module]:
        """Build a fully connected layer of 50 units and a dropout layer."""
        return OrderedDict(fc1=nn.Linear(width, 50), relu3=nn.ReLU(), dropout3=nn.Dropout(self.dropout))


class CNN4(_Images):
    """A four-layer CNN for CIFAR-10: conv5x5 32 and 64 with max pooling, fully connected 512 (AFIND+).

    The paper names a "four-layer CNN" and gives no layout. This one (same-size convolutions, two fully connected
    layers) is our choice, as it is common in federated learning: 2,156,490 parameters for 3x32x32 and 10 classes.

    Args:
        input_shape: shape of one image, [channels, height, width]; by default taken from the data.
        num_classes: by default taken from the data.

    Raises:
        UserError: the inputs are not images of at least 4x4.
    """

    smallest = 4

    def __init__(self, *, input_shape: tuple[int, ...] | None = None, num_classes: int | None = None) -> None:
        super().__init__()
        self.build_if_known(input_shape, num_classes)

    def convolutions(self, channels: int) -> OrderedDict[str, nn.Module]:
        """Build two blocks of convolution, ReLU and pooling; the padding keeps the size in a convolution."""
        return OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
        )

    def connected(self, width: int) -> OrderedDict[str, nn.Module]:
        """Build a fully connected layer of 512 units."""
        return OrderedDict(fc1=nn.Linear(width, 512), relu3=nn.ReLU())


class PENSCNN(_Images):
    """conv3x3 32, 64 and 64 with max pooling, fully connected 64 (PENS; fits PANM's description for CIFAR-10).

    PANM (section 4.2) names three convolutions and two fully connected layers and gives no widths. These widths are
    from the public code of PENS, "Decentralized federated learning of deep neural networks on non-iid data" (2021).

    Args:
        input_shape: shape of one image, [channels, height, width]; by default taken from the data.
        num_classes: by default taken from the data.

    Raises:
        UserError: the inputs are not images of at least 22x22.

    Examples:
        >>> sum(p.numel() for p in PENSCNN(input_shape=(3, 32, 32), num_classes=10).parameters())
        73418
    """

    smallest = 22

    def __init__(self, *, input_shape: tuple[int, ...] | None = None, num_classes: int | None = None) -> None:
        super().__init__()
        self.build_if_known(input_shape, num_classes)

    def convolutions(self, channels: int) -> OrderedDict[str, nn.Module]:
        """Build three blocks of convolution, ReLU and pooling."""
        return OrderedDict(
            conv1=nn.Conv2d(channels, 32, 3),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 3),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(64, 64, 3),
            relu3=nn.ReLU(),
            pool3=nn.MaxPool2d(2),
        )

    def connected(self, width: int) -> OrderedDict[str, nn.Module]:
        """Build a fully connected layer of 64 units."""
        return OrderedDict(fc1=nn.Linear(width, 64), relu4=nn.ReLU())


class FEMNISTCNN(_Images):
    """conv5x5 4 and 12 with max pooling, fully connected 120, 100 (DPFL on FEMNIST).

    The paper (appendix H.4.2) mentions three convolutions and lists these two. Its 192 inputs of the first fully
    connected layer imply that both are pooled. With 62 classes instead of the paper's 10 it has 42,838 parameters.

    Args:
        input_shape: shape of one image, [channels, height, width]; by default taken from the data.
        num_classes: by default taken from the data.

    Raises:
        UserError: the inputs are not images of at least 16x16.

    Examples:
        >>> sum(p.numel() for p in FEMNISTCNN(input_shape=(1, 28, 28), num_classes=10).parameters())
        37586
    """

    smallest = 16

    def __init__(self, *, input_shape: tuple[int, ...] | None = None, num_classes: int | None = None) -> None:
        super().__init__()
        self.build_if_known(input_shape, num_classes)

    def convolutions(self, channels: int) -> OrderedDict[str, nn.Module]:
        """Build two blocks of convolution, ReLU and pooling."""
        return OrderedDict(
            conv1=nn.Conv2d(channels, 4, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(4, 12, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
        )

    def connected(self, width: int) -> OrderedDict[str, nn.Module]:
        """Build fully connected layers of 120 and 100 units."""
        return OrderedDict(fc1=nn.Linear(width, 120), relu3=nn.ReLU(), fc2=nn.Linear(120, 100), relu4=nn.ReLU())
