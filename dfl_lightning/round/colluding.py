"""Clients that all send the same message, computed from all their models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.card import one_sentence
from dfl_lightning.bank.reducing import Received, Reduce, reduce_rows

if TYPE_CHECKING:
    from dfl_lightning.round.record import Round


def send_alike(round: Round, who: Tensor, fn: Reduce) -> None:
    """Replace some clients' rows of `sent` by one common row: a column-wise function of these rows.

    Only shared parameters are replaced, as by `send_updates`. The function is computed once for each cohort that has
    such a client, from the rows in the order of their ids, so that its bits do not depend on the number of processes.

    Args:
        round: the round, after its training.
        who: the clients, long [k], in ascending order; the same in all processes.
        fn: function of all k rows, [1, k, columns] -> [1, columns].
    """
    bank = round.bank
    if not len(who):
        return
    sent, columns, group = bank.change_sent(who), bank.layout.shared_parameters, bank.mixing_groups()[who]
    first = torch.stack([who[group == one][0] for one in group.unique()])
    copied_from = first[torch.searchsorted(group.unique(), group)]
    received = Received(sent, first.repeat_interleave(len(who)), who.repeat(len(first)))
    with bank.timed("send"), one_sentence():
        reduce_rows([received], fn, sent, columns, bank.ranks, bank.mixing_groups(), bank.layout.num_parameters)
        here = bank.ranks.at_home(who) & (who != copied_from)
        to, of = (bank.ranks.place[nodes[here]].to(sent.device) for nodes in (who, copied_from))
        for start, stop in columns.ranges:
            sent[:, start:stop].index_copy_(0, to, sent[:, start:stop].index_select(0, of))
