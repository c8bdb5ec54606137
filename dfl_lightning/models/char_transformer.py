"""A small transformer for text."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dfl_lightning.models.network import Network, show
from dfl_lightning.utils.errors import UserError

__all__ = ["CharTransformer"]


class CharTransformer(Network):
    """A causal transformer that predicts the next character at each position of a line.

    Inputs are the indices of characters, [T], of any dtype; outputs are scores [T, C] for C characters. Blocks
    normalise before attention and before the feed-forward layers ("pre-norm"). Positions are learned, and there is no
    dropout.

    Args:
        width: size of the embedding of a character.
        depth: number of blocks.
        heads: number of attention heads, a divisor of the width.
        padding_idx: index of the padding character, whose embedding stays zero.
        input_shape: (T,); by default taken from the data.
        num_classes: number of characters C; by default taken from the data.

    Raises:
        UserError: a number is below 1, the heads do not divide the width, or the inputs are not lines of characters.

    Examples:
        >>> sum(p.numel() for p in CharTransformer(input_shape=(32,), num_classes=50).parameters())
        108594
    """

    def __init__(
        self,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        padding_idx: int | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        if min(width, depth, heads) < 1 or width % heads:
            raise UserError(
                f"CharTransformer: width={width}, depth={depth}, heads={heads}; each must be 1 or more, and heads must "
                "divide the width."
            )
        self.width, self.depth, self.heads, self.padding_idx = width, depth, heads, padding_idx
        self.build_if_known(input_shape, num_classes)

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the embedding, the blocks and a last normalisation as features, and a linear layer as head."""
        if len(input_shape) != 1:
            raise UserError(
                f"CharTransformer: needs lines of characters (T numbers), but the data has {show(input_shape)}; choose "
                "another network."
            )
        features: OrderedDict[str, nn.Module] = OrderedDict(
            embedding=_Embedding(num_classes, self.width, input_shape[0], self.padding_idx)
        )
        for number in range(1, self.depth + 1):
            features[f"block{number}"] = _Block(self.width, self.heads)
        features["norm"] = nn.LayerNorm(self.width)
        return nn.Sequential(features), nn.Linear(self.width, num_classes)


class _Embedding(nn.Module):
    """Embedding of characters and positions, from [B, T] to [B, T, width]."""

    def __init__(self, characters: int, width: int, length: int, padding_idx: int | None) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width, padding_idx=padding_idx)
        self.places = _Places(length, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the embeddings of characters [B, T] and of their positions."""
        return self.places(self.characters(x.long()))


class _Places(nn.Module):
    """Learned embeddings of the positions of a line, which are added to the inputs."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights from the standard normal distribution, as torch's embeddings do."""
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add the embeddings of positions to inputs [B, T, width]."""
        return x + self.weight


class _Block(nn.Module):
    """Causal attention and a feed-forward part of two linear layers, both with a shortcut around them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform [B, T, width]; the shape stays the same."""
        y = self.norm1(x)
        query, key, value = (self._split_heads(layer(y)) for layer in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))

    def _split_heads(self, x: Tensor) -> Tensor:
        """Reshape [B, T, width] to [B, heads, T, width / heads]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)
