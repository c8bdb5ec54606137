"""A network that can be described before the data are known."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from dfl_lightning.utils.code.constructor_arguments import RecordsArguments
from dfl_lightning.utils.errors import UserError


class Network(RecordsArguments, nn.Module):
    """Base of the shipped networks: `features`, then `head`, built once shape and classes are known.

    A subclass takes its own options, then the two keywords `input_shape` and `num_classes`, and ends its constructor
    with `self.build_if_known(input_shape, num_classes)`. It only writes `layers`. Both parts are sequences in the
    order of the forward pass, so patterns such as `features.*` name the body and the last module with parameters is
    the classifier.
    """

    features: nn.Module
    head: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.input_shape: tuple[int, ...] | None = None
        self.num_classes: int | None = None
        self.drawn_with: int | None = None  # the seed of a run whose first models it holds; None: the user built it

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Make the feature extractor and the head.

        Args:
            input_shape: of one input, without the batch dimension: (C, H, W) for images.
            num_classes: outputs of the head.

        Returns:
            `features` ([B, *input_shape] to [B, ...]) and `head` (to [B, num_classes]).
        """
        raise NotImplementedError

    def read_categories(self, categories: tuple[int, ...]) -> None:
        """Read which columns of the data are categories, before `build`; by default they are numbers like others.

        Args:
            categories: how many there are in each of the first columns; () where all columns are numbers.
        """

    def build_if_known(self, input_shape: Sequence[int] | None, num_classes: int | None) -> None:
        """Build now when both arguments are given; otherwise `build` is called when the data are known.

        Args:
            input_shape: of one input, without the batch dimension.
            num_classes: outputs of the head.

        Raises:
            UserError: one of the two is given without the other.
        """
        if input_shape is not None and num_classes is not None:
            self.build(input_shape, num_classes)
        elif input_shape is not None or num_classes is not None:
            raise UserError(f"{type(self).__name__}: give both input_shape and num_classes, or neither.")

    def build(self, input_shape: Sequence[int], num_classes: int) -> Self:
        """Make the layers, with parameters drawn from torch's global generator; nothing if they exist already.

        Args:
            input_shape: shape of one input without the batch, for example (3, 32, 32).
            num_classes: number of classes, C.

        Returns:
            The network itself.

        Raises:
            UserError: the network was built for other numbers, or cannot take such inputs.
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
        """Build the network with the first parameters of a run; redraw those of another run.

        Parameters that were given after an earlier run has drawn its own, pretrained ones for example, are kept.

        Args:
            input_shape: shape of one input without the batch.
            num_classes: number of classes, C.
            seed: of the run.

        Returns:
            The network itself.

        Raises:
            UserError: the user built or filled the network for other numbers, or it cannot take such inputs.
        """
        wanted = (tuple(int(size) for size in input_shape), num_classes, seed)
        if self.drawn_with is not None and wanted != (self.input_shape, self.num_classes, self.drawn_with):
            shape, classes = self.input_shape or (), self.num_classes or 0
            drawn = copy.deepcopy(self)._draw(shape, classes, self.drawn_with)
            mine, its = self.state_dict(), drawn.state_dict()
            if all(torch.equal(mine[name], its[name]) for name in mine):
                return self._draw(*wanted)
        return self._draw(*wanted) if self.num_classes is None else self.build(input_shape, num_classes)

    def _draw(self, input_shape: tuple[int, ...], num_classes: int, seed: int) -> Self:
        """Make the layers anew, with parameters drawn from the seed."""
        self.input_shape = self.num_classes = None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU too
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
    """A shape as people write it.

    Examples:
        >>> show((3, 32, 32))
        '3x32x32'
    """
    return "x".join(map(str, shape))


def check_images(network: Network, input_shape: Sequence[int], smallest: int) -> None:
    """Refuse inputs that are not images [channels, height, width] of at least some height and width.

    Args:
        network: the one that is built, for the message.
        input_shape: of one input.
        smallest: least height and width in pixels.

    Raises:
        UserError: says what the network needs and what the data has.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise UserError(
            f"{type(network).__name__}: needs images (channels x height x width) of at least "
            f"{show((1, smallest, smallest))}, but the data has {show(input_shape)}; choose another network."
        )


@torch.no_grad()
def flat_size(layers: nn.Module, input_shape: tuple[int, ...]) -> int:
    """The number of features that layers make of one input, found by a pass over zeros; draws no random numbers.

    Args:
        layers: the feature extractor.
        input_shape: of one input, without the batch dimension.
    """
    layers.eval()  # dropout layers would draw
    size = layers(torch.zeros(1, *input_shape, dtype=torch.get_default_dtype())).numel()
    layers.train()
    return int(size)
