"""Functions of lists of links as functions of matrices, receiver by sender: what references are written with."""

import torch

from dfl_lightning.links import Links


def told_by_matrices(function, numbers=1, fill=0.0, by_receiver=False):
    """function(numbers [E] ..., links, settings ...) as one of (matrices [r, n] ..., mask of the links, settings ...).

    The result is a matrix with `fill` outside the links, unless there is one number for each receiver.
    """

    def told(*arguments, **settings):
        matrices, mask, rest = arguments[:numbers], arguments[numbers], arguments[numbers + 1 :]
        links = Links.from_mask(mask)
        found = function(*(matrix[mask] for matrix in matrices), links, *rest, **settings)
        return found if by_receiver else links.dense(found, fill)

    return told


def everywhere(matrix):
    """Links wherever the matrix has an entry."""
    return torch.ones_like(matrix, dtype=torch.bool)


def own_rows(matrix):
    """Mark the receivers' own entries in a matrix [n, P]."""
    return torch.eye(*matrix.shape, dtype=torch.bool)


def remembered(memory, fill=float("nan")):
    """Return the values of a `LinkMemory` as a matrix, with `fill` where it has none."""
    return memory.links.dense(memory.values, fill)


def seen_as_matrices(round):
    """Return a round's links and their numbers as matrices by name: receiver by sender, NaN = unknown."""
    seen = {name: vars(round).get(name) for name in ("reachable", "available", "candidates", "selected")}
    seen = {name: None if links is None else links.mask for name, links in seen.items()}
    for name, links in (("similarity", round.candidates), ("scores", round.candidates)):
        numbers = vars(round).get(name)
        seen[name] = None if numbers is None else links.dense(numbers)
    for name in ("votes", "weights"):
        numbers = vars(round).get(name)
        seen[name] = None if numbers is None else round.voters.dense(numbers, 0.0)
    if round.has("substitute"):  # every sender that is not selected substitutes itself
        seen["substitute"] = torch.arange(round.num_nodes).repeat(round.num_nodes, 1)
        seen["substitute"][round.selected.receivers, round.selected.senders] = round.substitute
    if round.likeness is not None:
        seen["likeness"] = remembered(round.likeness)
    return seen


class LedgerMatrices:
    """A ledger whose lists are matrices."""

    def __init__(self, ledger):
        self.sizes, self.held, self.repeated = ledger.sizes, ledger.held, ledger.repeated
        self.models, self.mixed, self.kept = ledger.models.mask, ledger.mixed.mask, ledger.kept.mask
        self.proxies, self.used = ledger.proxies.mask, ledger.used.mask
        self.again = ledger.models.dense(ledger.again, 0)
        self.parts = {part: links.mask for part, links in ledger.parts.items()}
