"""What models received are worth on a client's validation data, for the selection and the average of FedFomo."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.functional import first_order_gain
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round


def gains_of(round: Round, links: Links) -> Tensor:
    """What the senders' trained models are worth to their receivers, float64 [E]; see `first_order_gain`.

    Args:
        round: between training and mixing.
        links: between clients; one may receive from itself.
    """
    before = losses_before(round, links)
    after = round.loss_of(links, split="val")
    distances = round.compare("trained", links, own="models").distances
    return first_order_gain(before, after, distances, round.bank.rows("models").dtype)


def losses_before(round: Round, links: Links) -> Tensor:
    """Validation loss of each receiver's model from before the round, beside its links, float64 [E].

    Args:
        round: between training and mixing.
        links: whose receivers are clients.
    """
    itself = Links.loops(links.count > 0)
    return itself.sum(round.loss_of(itself, "models", "val"))[links.receivers]
