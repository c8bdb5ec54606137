"""The base class of shipped networks, which are built once the shape of the data is known."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from dfl_lightning.utils.code.constructor_arguments import RecordsArguments
from dfl_lightning.utils.errors import UserError


class Network(RecordsArguments, nn.Module):
    """Base class of the shipped networks, which consist of `features` and `head`.

    Both are built once the input shape and the number of classes are known. The constructor of a subclass takes its own
    options, then the two keywords `input_shape` and `num_classes`, and ends with
    `self.build_if_known(input_shape, num_classes)`. The only method that a subclass must implement is `layers`. Both
    parts are sequences in the order of the forward pass, so that patterns such as `features.*` name the body, and the
    last module with parameters is the classifier.
    """

    features: nn.Module
    head: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.input_shape: tuple[int, ...] | None = None
        self.num_classes: int | None = None
        self.drawn_with: int | None = None  # the seed of the run that drew the parameters; None: the user built it

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the feature extractor and the head.

        Args:
            input_shape: shape of one input without the batch dimension, (C, H, W) for images.
            num_classes: number of outputs of the head.

        Returns:
            `features` ([B, *input_shape] to [B, ...]) and `head` (to [B, num_classes]).
        """
        raise NotImplementedError

    @property
    def takes_parts(self) -> bool:
        """True if `forward` takes inputs of several parts."""
        return False

    def read_categories(self, categories: tuple[int, ...]) -> None:
        """Receive, before `build`, which columns of the data are categorical; by default this is ignored.

        Args:
            categories: number of categories in each of the first columns; () if all columns are numbers.
        """

    def build_if_known(self, input_shape: Sequence[int] | None, num_classes: int | None) -> None:
        """Build the layers if both arguments are given; otherwise a run builds them for its data.

        Args:
            input_shape: shape of one input without the batch dimension.
            num_classes: number of outputs of the head.

        Raises:
            UserError: only one of the two is given.
        """
        if input_shape is not None and num_classes is not None:
            self.build(input_shape, num_classes)
        elif input_shape is not None or num_classes is not None:
            raise UserError(f"{type(self).__name__}: give both input_shape and num_classes, or neither.")

    def build(self, input_shape: Sequence[int], num_classes: int) -> Self:
        """Build the layers, with parameters drawn from torch's global generator, if they do not exist yet.

        Args:
            input_shape: shape of one input without the batch, for example (3, 32, 32).
            num_classes: number of classes, C.

        Returns:
            The network itself.

        Raises:
            UserError: the network was built for other shapes, or cannot take such inputs.
        """
        name = type(self).__name__
        shape = tuple(int(size) for size in input_shape)
        if self.num_classes is not None:
            if (shape, num_classes) != (self.input_shape, self.num_classes):
                raise UserError(
                    f"{name}: built for inputs of shape {show(self.input_shape or ())} and {self.num_classes} classes, "
                    f"but the data has {show(shape)} and {num_classes}; leave input_shape and num_classes out."
                )
            return self
        if not shape or min(shape) < 1 or num_classes < 1:
            raise UserError(f"{name}: inputs of shape {show(shape)} and {num_classes} classes make no network.")
        self.features, self.head = self.layers(shape, num_classes)
        self.input_shape, self.num_classes = shape, num_classes
        return self

    def draw(self, input_shape: Sequence[int], num_classes: int, seed: int) -> Self:
        """Build the network with parameters drawn from the seed of a run.

        Parameters that another run has drawn are drawn again. Parameters that the user has set since then, for example
        pretrained ones, are kept.

        Args:
            input_shape: shape of one input without the batch.
            num_classes: number of classes, C.
            seed: seed of the run.

        Returns:
            The network itself.

        Raises:
            UserError: the user built or filled the network for other shapes, or it cannot take such inputs.
        """
        wanted = (tuple(int(size) for size in input_shape), num_classes, seed)
        if self.drawn_with is not None and wanted != (self.input_shape, self.num_classes, self.drawn_with):
            shape, classes = self.input_shape or (), self.num_classes or 0
            drawn = copy.deepcopy(self)._draw(shape, classes, self.drawn_with)
            present, drawn_state = self.state_dict(), drawn.state_dict()
            # The parameters are only drawn again if the user has not changed them since the other run drew them.
            if all(torch.equal(present[name], drawn_state[name]) for name in present):
                return self._draw(*wanted)
        return self._draw(*wanted) if self.num_classes is None else self.build(input_shape, num_classes)

    def _draw(self, input_shape: tuple[int, ...], num_classes: int, seed: int) -> Self:
        """Build the layers again, with parameters drawn from the seed."""
        self.input_shape = self.num_classes = None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed all GPUs too
            self.build(input_shape, num_classes)
        self.drawn_with = seed
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits [batch, num_classes] of inputs [batch, *input_shape]."""
        if self.num_classes is None:
            name = type(self).__name__
            raise UserError(f"{name}: not built yet; call build(input_shape, num_classes) or give both to {name}(...).")
        return self.head(self.features(x))


def show(shape: Sequence[int]) -> str:
    """Format a shape for messages.

    Examples:
        >>> show((3, 32, 32))
        '3x32x32'
    """
    return "x".join(map(str, shape))


def check_images(network: Network, input_shape: Sequence[int], smallest: int) -> None:
    """Raise if the inputs are not images [channels, height, width] of a least height and width.

    Args:
        network: the network that is being built, which the message names.
        input_shape: shape of one input.
        smallest: least height and width in pixels.

    Raises:
        UserError: the inputs do not fit; the message contains both shapes.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise UserError(
            f"{type(network).__name__}: needs images (channels x height x width) of at least "
            f"{show((1, smallest, smallest))}, but the data has {show(input_shape)}; choose another network."
        )


@torch.no_grad()
def flat_size(layers: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Count the features that layers compute from one input, by a pass over zeros that draws no random numbers.

    Args:
        layers: the feature extractor.
        input_shape: shape of one input without the batch dimension.
    """
    layers.eval()  # dropout layers would draw in training mode
    size = layers(torch.zeros(1, *input_shape, dtype=torch.get_default_dtype())).numel()
    layers.train()
    return int(size)
