"""A network for tables with categorical and numerical columns."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from dfl_lightning.models.network import Network, show
from dfl_lightning.utils.errors import UserError

__all__ = ["Tabular"]


class Tabular(Network):
    """A multilayer perceptron with ReLU, whose inputs are numbers and embeddings of categories.

    Inputs are rows [d]; the first columns contain indices of categories, of any dtype. Category 0 means an unknown
    category; its embedding stays zero.

    Args:
        hidden: width of each hidden layer.
        embedding: size of the embedding of a category.
        categories: number of categories in each of the first columns, category 0 included; by default taken from the
            data.
        input_shape: (d,); by default taken from the data.
        num_classes: number of outputs; by default taken from the data.

    Raises:
        UserError: a number is below 1, the inputs are not rows, or have fewer columns than there are categorical ones.

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
                f"Tabular: hidden={self.hidden}, embedding={embedding}, categories={categories}; each must be 1 or "
                "more."
            )
        self.build_if_known(input_shape, num_classes)

    def read_categories(self, categories: tuple[int, ...]) -> None:
        """Take the numbers of categories from the data, unless the user has given them; see `Network.read_categories`.

        Raises:
            UserError: the user has given other numbers.
        """
        if self.categories is None:
            self.categories = categories
        elif categories and categories != self.categories:
            raise UserError(
                f"Tabular: categories={list(self.categories)}, but the data has {list(categories)}; leave categories "
                "out."
            )

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the embeddings and the hidden layers as features, and a linear layer as head."""
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
    """Replacement of the categories in rows [B, d] by their embeddings, [B, embeddings + numbers]."""

    def __init__(self, categories: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(count, width, padding_idx=0) for count in categories)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the embeddings of the first columns and the other columns."""
        embedded = [embed(x[:, column].long()) for column, embed in enumerate(self.embeddings)]
        return torch.cat([*embedded, x[:, len(embedded) :]], 1)
