"""Recurrent networks for text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from dfl_lightning.models.network import Network, show
from dfl_lightning.utils.errors import UserError

__all__ = ["CharLSTM"]

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


class CharLSTM(Network):
    """A recurrent network that predicts the next character at each position of a line.

    Inputs are the indices of characters, [T], of any dtype; outputs are scores [T, C] for C characters. With
    `units: 256` it has the layers of the network for Shakespeare's plays in McMahan et al. 2017 (arXiv 1602.05629,
    section 3).

    Args:
        width: size of the embedding of a character.
        units: number of units of a recurrent layer.
        depth: number of recurrent layers.
        cell: `LSTM`, `GRU` or `RNN`.
        dropout: share of the outputs of a recurrent layer that the next one does not get, in training.
        padding_idx: index of the padding character, whose embedding stays zero.
        input_shape: (T,); by default taken from the data.
        num_classes: number of characters C; by default taken from the data.

    Raises:
        UserError: a number is below 1, a cell is unknown, or the inputs are not lines of characters.

    Examples:
        >>> sum(p.numel() for p in CharLSTM(input_shape=(80,), num_classes=80).parameters())
        58064
    """

    def __init__(
        self,
        width: int = 8,
        units: int = 64,
        depth: int = 2,
        cell: str = "LSTM",
        dropout: float = 0.0,
        padding_idx: int | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        if min(width, units, depth) < 1:
            raise UserError(f"CharLSTM: width={width}, units={units}, depth={depth}; each must be 1 or more.")
        if cell not in CELLS:
            raise UserError(f"CharLSTM: there is no cell={cell!r}; choose {', '.join(CELLS)}.")
        if not 0 <= dropout < 1 or (dropout and depth == 1):
            raise UserError(
                f"CharLSTM: dropout={dropout} with depth={depth}; it must be at least 0 and below 1, and is between "
                "layers, so that a single one has none."
            )
        self.width, self.units, self.depth, self.cell = width, units, depth, cell
        self.dropout, self.padding_idx = dropout, padding_idx
        self.build_if_known(input_shape, num_classes)

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the embedding and the recurrent layers as features, and a linear layer as head."""
        if len(input_shape) != 1:
            raise UserError(
                f"CharLSTM: needs lines of characters (T numbers), but the data has {show(input_shape)}; choose "
                "another network."
            )
        layers = CELLS[self.cell](self.width, self.units, self.depth, batch_first=True, dropout=self.dropout)
        features: OrderedDict[str, nn.Module] = OrderedDict(
            embedding=_Embedding(num_classes, self.width, self.padding_idx), recurrent=_Outputs(layers)
        )
        return nn.Sequential(features), nn.Linear(self.units, num_classes)


class _Embedding(nn.Module):
    """Embedding of characters whose numbers may be of any type."""

    def __init__(self, characters: int, width: int, padding_idx: int | None) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width, padding_idx=padding_idx)

    def forward(self, x: Tensor) -> Tensor:
        """Look up characters [B, T]; return [B, T, width]."""
        vectors: Tensor = self.characters(x.long())
        return vectors


class _Outputs(nn.Module):
    """Outputs of recurrent layers, without their last states."""

    def __init__(self, layers: nn.RNNBase) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """Transform [B, T, width] to [B, T, units]."""
        outputs: Tensor = self.layers(x)[0]
        return outputs
