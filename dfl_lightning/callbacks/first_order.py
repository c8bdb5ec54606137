"""The first-order gain of received models on a client's validation data, for the selection and average of FedFomo."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.functional import first_order_gain
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round


def gains_of(round: Round, links: Links) -> Tensor:
    """Compute the gain of each sender's trained model for its receiver, float64 [E]; see `first_order_gain`.

    Args:
        round: the round between training and mixing.
        links: pairs of clients; a client may be its own sender.
    """
    before = losses_before(round, links)
    after = round.loss_of(links, split="val")
    distances = round.compare("trained", links, own="models").distances
    return first_order_gain(before, after, distances, round.bank.rows("models").dtype)


def losses_before(round: Round, links: Links) -> Tensor:
    """Compute for each link the validation loss of the receiver's model from before the round, float64 [E].

    Args:
        round: the round between training and mixing.
        links: links whose receivers are clients.
    """
    itself = Links.loops(links.count > 0)
    return itself.sum(round.loss_of(itself, "models", "val"))[links.receivers]
