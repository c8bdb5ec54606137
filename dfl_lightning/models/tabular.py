"""Columns of categories and of numbers."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from dfl_lightning.models.network import Network, show
from dfl_lightning.utils.errors import UserError

__all__ = ["Tabular"]


class Tabular(Network):
    """Embeddings of the columns of categories, beside the columns of numbers; then a multilayer perceptron with ReLU.

    Inputs are rows [d]; the first columns hold numbers of categories, in whatever type the data have them. Category 0
    stands for an unknown one: its embedding stays zero.

    Args:
        hidden: width of each hidden layer.
        embedding: numbers for each category.
        categories: how many there are in each of the first columns, 0 included, by default taken from the data.
        input_shape: (d,), by default taken from the data.
        num_classes: outputs, by default taken from the data.

    Raises:
        UserError: a number below 1, more columns of categories than columns, or inputs that are no rows.

    Examples:
        >>> network = Tabular(hidden=[16], embedding=4, categories=[3, 5], input_shape=(6,), num_classes=1)
        >>> sum(p.numel() for p in network.parameters())  # (3 + 5) 4 + (8 + 4) 16 + 16 + 16 + 1
        257
    """

    def __init__(
        self,
        hidden: list[int] | None = None,
        embedding: int = 4,
        categories: list[int] | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.hidden = [64] if hidden is None else list(hidden)
        self.embedding, self.categories = embedding, None if categories is None else tuple(categories)
        if min([embedding, *self.hidden, *(categories or [])]) < 1:
            raise UserError(
                f"Tabular: hidden={self.hidden}, embedding={embedding}, categories={categories}; each is 1 or more."
            )
        self.build_if_known(input_shape, num_classes)

    def read_categories(self, categories: tuple[int, ...]) -> None:
        """Take the data's categories, unless others were given; see `Network.read_categories`.

        Raises:
            UserError: other categories were given.
        """
        if self.categories is None:
            self.categories = categories
        elif categories and categories != self.categories:
            raise UserError(
                f"Tabular: categories={list(self.categories)}, but the data has {list(categories)}; leave categories "
                "out."
            )

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the embeddings and the hidden layers; then a linear layer."""
        categories = self.categories or ()
        if len(input_shape) != 1 or input_shape[0] < len(categories):
            raise UserError(
                f"Tabular: needs rows with {len(categories)} columns of categories, but the data has "
                f"{show(input_shape)}; choose another network."
            )
        width = input_shape[0] - len(categories) + len(categories) * self.embedding
        features: OrderedDict[str, nn.Module] = OrderedDict()
        if categories:
            features["columns"] = _Columns(categories, self.embedding)
        for number, size in enumerate(self.hidden, 1):
            features[f"fc{number}"], features[f"relu{number}"] = nn.Linear(width, size), nn.ReLU()
            width = size
        return nn.Sequential(features), nn.Linear(width, num_classes)


class _Columns(nn.Module):
    """Rows [B, d], categories as their embeddings, [B, embeddings + numbers]."""

    def __init__(self, categories: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(count, width, padding_idx=0) for count in categories)

    def forward(self, x: Tensor) -> Tensor:
        """Embed the first columns; the others follow as they are."""
        found = [embed(x[:, column].long()) for column, embed in enumerate(self.embeddings)]
        return torch.cat([*found, x[:, len(found) :]], 1)
