"""A small transformer that reads characters."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dfl_lightning.models.network import Network, show
from dfl_lightning.utils.errors import UserError

__all__ = ["CharTransformer"]


class CharTransformer(Network):
    """A causal transformer over characters: at each place, scores of the character that comes next.

    Inputs are numbers of characters, [T], in whatever type the data have them; outputs [T, C] for C characters. Blocks
    normalise before attention and before the feed-forward layers ("pre-norm"), positions are learned, and there is no
    dropout.

    Args:
        width: numbers for each character.
        depth: blocks.
        heads: attention heads; they divide the width.
        padding_idx: a character that stands for nothing; its embedding stays zero.
        input_shape: (T,), by default taken from the data.
        num_classes: characters, by default taken from the data.

    Raises:
        UserError: a number below 1, heads that do not divide the width, or inputs that are no line of characters.

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
                f"CharTransformer: width={width}, depth={depth}, heads={heads}; each is 1 or more, and heads divide "
                "the width."
            )
        self.width, self.depth, self.heads, self.padding_idx = width, depth, heads, padding_idx
        self.build_if_known(input_shape, num_classes)

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the embedding, one block after the other, and a last norm; then a linear layer over characters."""
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
    """Characters [B, T] as numbers [B, T, width], to which the place adds its own."""

    def __init__(self, characters: int, width: int, length: int, padding_idx: int | None) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width, padding_idx=padding_idx)
        self.places = _Places(length, width)

    def forward(self, x: Tensor) -> Tensor:
        """Embed characters [B, T]."""
        return self.places(self.characters(x.long()))


class _Places(nn.Module):
    """Learned numbers for each place of a line, added to what stands there."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from the normal distribution, as torch's embeddings do."""
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add to [B, T, width]."""
        return x + self.weight


class _Block(nn.Module):
    """Causal attention and two linear layers, each added to what goes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, width] to as many numbers."""
        y = self.norm1(x)
        query, key, value = (self._of_heads(of(y)) for of in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))

    def _of_heads(self, x: Tensor) -> Tensor:
        """[B, T, width] as [B, heads, T, width / heads]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)
