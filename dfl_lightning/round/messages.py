"""The messages of a round: what receivers fetch is charged to the ledger, and is what others sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.links import Links
from dfl_lightning.round.fields import RoundFields
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round


class RoundMessages(RoundFields):
    """A round whose receivers fetch models, parts of models and other messages."""

    def charge_comparison(
        self, rows: str | Tensor, links: Links, columns: Columns | None = None, relative_to: str | None = None
    ) -> None:
        """Charge each link for what the receiver needs to compare rows; a link from a client to itself costs nothing.

        If the receiver can compute what is compared from the sender's model, the model is charged. This is so for whole
        models, and for their differences from a first model that all clients have in common. Anything else is sent for
        the comparison and charged as a part: a layer, gradients, or the update of a whole model, since only the sender
        knows the model that its training started from. If the model is mixed too, it is a second message.

        With servers, only the uploads of clients to servers are charged: a server compares clients by their uploads.

        If clients push their models, these are charged when they are sent, and comparing them costs nothing more.

        Args:
            rows: the rows that are compared; see `compare`.
            links: links between clients.
            columns: the columns that are compared; default: the shared parameters.
            relative_to: what is subtracted from the rows; see `compare`.

        Raises:
            UserError: clients push their models, and the receivers need something else.
        """
        if self.num_servers:
            self.ledger.fetch_over(links.between(receivers=~self.clients_only))
            return
        whole = self.bank.layout.shared_parameters
        columns = whole if columns is None else columns
        known_origin = relative_to is None or (relative_to == "initial" and self.federation.common_start)
        if self.ledger.pushes:  # a receiver has whole models, and parts of them
            if not (isinstance(rows, str) and known_origin) and self._has_others(links):
                self._refuse_asking("what it compares")
            return
        if isinstance(rows, str) and rows in ("trained", "sent", "models") and known_origin and columns == whole:
            self.ledger.fetch(links.receivers, links.senders)
            return
        what = f"{rows if isinstance(rows, str) else 'gradients'} less {relative_to}, columns {columns.ranges}"
        self.ledger.fetch_part(what, len(columns), links)

    def charge_starts(self, links: Links) -> None:
        """Charge each link for the sender's model from before the round, a message in addition to its trained model."""
        self.ledger.fetch_part("model from before the round", len(self.bank.layout.shared), links)

    def charge_message(self, name: str, links: Links, size: Tensor | int) -> None:
        """Charge each link for a message that is neither a model nor a part of one, for example a summary of data.

        Args:
            name: name of the message. A message of the same name over the same link counts once in a round; a client's
                message to itself costs nothing.
            links: links over which it is sent.
            size: bytes, one number for all links or long [len(links)].

        Raises:
            UserError: clients push their models, and send nothing else.
        """
        if self.ledger.pushes and self._has_others(links):
            self._refuse_asking(f"the message '{name}'")
        self.ledger.fetch_message(name, links, size)

    @staticmethod
    def _has_others(links: Links) -> bool:
        return bool((links.receivers != links.senders).any())

    def _refuse_asking(self, what: str) -> None:
        raise UserError(
            f"{nth_round(self.index)}: a policy asks other clients for {what}, and clients that push send their models "
            "and nothing else; run with --clock.waits true"
        )

    def charge(self, references: References) -> None:
        """Charge the owners of references: each row of another node that they read costs a model.

        Raises:
            UserError: a reference reads another client's row of `models`, and there are Outgoing policies or an
                asynchronous clock.
        """
        for term in references.terms:
            if term.rows not in ("models", "trained", "sent"):
                continue
            if isinstance(term.which, Weights):
                counted = term.which.shares != 0
                receivers, senders = references.owners[term.which.jobs[counted]], term.which.rows[counted]
            else:
                receivers, senders = references.owners, term.which
            client = receivers >= 0
            receivers, senders = receivers[client], senders[client]
            if term.rows == "models" and (self.has_messages or self.published is not None):
                unsent = (senders != receivers) & (senders < self.num_clients)
                if unsent.any():
                    self._refuse_unsent(
                        f"reads client {int(senders[unsent][0])}'s model from before the round's training"
                    )
            self.ledger.fetch(receivers, senders)

    # --- what others sent ---------------------------------------------------------------------------------------------
    def receivable(self, links: Links) -> Links:
        """Return the links whose senders' models can be received: those of active senders.

        On an asynchronous clock, they are those of senders that have published a model by the time that the receiver
        finishes; if clients push their models, one of them has arrived there by then.

        Args:
            links: links between nodes.
        """
        if self.published is None:
            return links.between(senders=self.active)
        if self.published.travel is None and bool((self.published.instants[0] >= 0).all()):
            return links  # without a list of all pairs
        known = self.versions(links) >= 0
        return links if bool(known.all()) else links.keep(known)

    def is_fresh(self, links: Links) -> Tensor:
        """Return True for each link over which the model of this round's training is received, bool [E].

        On an asynchronous clock, this is so if the sender has finished in this wave, no later than its receiver.
        Otherwise the receiver gets what the sender has published before; see `published`.

        Args:
            links: links between nodes.
        """
        return self.versions(links) == 0

    def versions(self, links: Links) -> Tensor:
        """Return which of the sender's models each link brings, long [E].

        It is 0 for the model of this round's training, k for the k-th of `published.rows`, and -1 if there is none. The
        newest model counts that has reached the receiver when it finishes.

        Args:
            links: links between nodes.
        """
        return self._versions(links.receivers, links.senders)

    def _versions(self, receivers: Tensor, senders: Tensor) -> Tensor:
        versions = torch.zeros(len(receivers), dtype=torch.long)
        if self.published is None:
            return versions
        by = self.instants[receivers]
        if self.published.travel is not None:
            by = by - self.published.travel(receivers, senders)  # what is published later has not arrived yet
        versions -= 1
        for place in reversed(range(len(self.published.rows))):
            when = self.published.instants[place, senders]
            versions[(when >= 0) & (when <= by)] = place + 1
        versions[self.active[senders] & (self.instants[senders] <= by)] = 0
        versions[receivers == senders] = 0
        return versions

    def _received_versions(self, receivers: Tensor, senders: Tensor) -> Tensor:
        """Return the same as `versions` for pairs of nodes, long [e]; raise if one of them brings no model."""
        versions = self._versions(receivers, senders)
        missing = torch.nonzero(versions < 0).squeeze(1)
        if len(missing):
            raise UserError(
                f"{nth_round(self.index)}: a policy reads a model of client {int(senders[missing[0]])} for client "
                f"{int(receivers[missing[0]])}, which none has reached; stay within round.receivable(links)"
            )
        return versions

    def received_terms(self, terms: Sequence[tuple[Weights, str]], receivers: Tensor) -> list[tuple[Weights, str]]:
        """Replace other clients' rows of `trained` by those that the receivers get, in summands of `mix`.

        These are their rows of `sent`, or on an asynchronous clock those of the models that they published last.

        Args:
            terms: summands, each the weights of rows in w sums and the name of the row set.
            receivers: long [w], the nodes that get the sums.
        """
        received: list[tuple[Weights, str]] = []
        for weights, name in terms:
            received += self._by_set(weights, receivers) if name == "trained" else [(weights, name)]
        return received

    def _by_set(self, weights: Weights, receivers: Tensor) -> list[tuple[Weights, str]]:
        """Divide weights of rows of `trained` by the row sets that receivers get them from.

        Args:
            weights: weights of rows in w sums.
            receivers: long [w], the nodes that get the sums; -1: no node, without a row of its own.
        """
        to = receivers[weights.jobs]
        versions, parts = self._received_versions(to, weights.rows), [(weights, "trained")]
        stored = versions > 0
        any_stored = bool(stored.any())
        if self.bank.changes_messages:
            is_own = weights.rows == to
            parts = [(weights.keep(is_own), "trained"), (weights.keep(~is_own & ~stored), "sent")]
        elif any_stored:
            parts = [(weights.keep(~stored), "trained")]
        if any_stored and self.published is not None:
            for version, name in enumerate(self.published.rows, start=1):
                of_it = versions == version
                if bool(of_it.any()):
                    parts.append((weights.keep(of_it), name))
        return parts

    def _as_received(self, references: References) -> list[tuple[Tensor, References]]:
        """Replace other clients' rows of `trained` by those that the owners get, in references; see `received_terms`.

        References that read different row sets cannot be in one batch. The result is a list of batches, each with the
        indices of its references, long.
        """
        everything = torch.arange(len(references))
        if not self.bank.changes_messages and self.published is None:
            return [(everything, references)]
        names = ["sent", "trained", *(() if self.published is None else self.published.rows)]
        terms: list[Term] = []
        sets: list[Tensor] = []  # for each term with single rows of `trained`: the set of each row, an index of `names`
        for term in references.terms:
            if term.rows == "trained" and isinstance(term.which, Weights):
                terms += [Term(name, weights) for weights, name in self._by_set(term.which, references.owners)]
                continue
            terms.append(term)
            if term.rows == "trained" and isinstance(term.which, Tensor):
                of_sent = self.bank.changes_messages & (term.which != references.owners)
                versions = self._received_versions(references.owners, term.which)
                sets.append(torch.where(versions > 0, 1 + versions, (~of_sent).long()))
        # The digits of a reference's pattern, in base `len(names)`, are the sets of these terms.
        base = len(names)
        pattern = sum((of * base**digit for digit, of in enumerate(sets)), torch.zeros_like(everything))
        batches = []
        for kind in pattern.unique().tolist():
            index = torch.nonzero(pattern == kind).squeeze(1)
            digits = iter(range(len(sets)))
            read = [
                replace(term, rows=names[kind // base ** next(digits) % base])
                if term.rows == "trained" and isinstance(term.which, Tensor)
                else term
                for term in terms
            ]
            batches.append((index, replace(references, terms=tuple(read)).take(index)))
        return batches

    def _refuse_mixing_starts(self, terms: Sequence[tuple[Weights, str]], receivers: Tensor) -> None:
        """Raise if a sum mixes another client's row of `models`, which is not sent with Outgoing policies or a clock.

        Only its difference from the model that the client sent may be mixed, so that the two weights add up to 0.
        """
        if not self.has_messages and self.published is None:
            return
        m, n = self.num_clients, self.num_nodes
        read = [(weights, name) for weights, name in terms if name in ("models", "trained", "sent")]
        if not any(name == "models" for _, name in read):
            return
        codes = torch.cat([receivers[weights.jobs] * n + weights.rows for weights, _ in read])
        shares = torch.cat([weights.shares for weights, _ in read])
        starting = torch.cat([torch.full((len(weights.rows),), name == "models") for weights, name in read])
        pairs, index = codes.unique(return_inverse=True)
        zeros = torch.zeros(len(pairs), dtype=torch.float64)
        of_starts, in_all = zeros.index_add(0, index, shares * starting), zeros.index_add(0, index, shares)
        to, of = pairs // n, pairs % n
        unsent = torch.nonzero((of_starts != 0) & (in_all != 0) & (to != of) & (of < m)).squeeze(1)
        if len(unsent):
            self._refuse_unsent(f"mixes client {int(of[unsent[0]])}'s model from before the round's training")

    def _refuse_unsent(self, what: str) -> None:
        if self.published is None:
            why, remedy = "no Outgoing policy has passed", "run without --outgoing"
        else:
            why, remedy = "clients that do not wait for each other do not publish", "run with --clock null"
        raise UserError(
            f"{nth_round(self.index)}: a policy {what}, which {why}; read the row set 'trained' or 'sent', or {remedy}"
        )

    def references(self, receivers: Tensor, rows: Tensor) -> References:
        """Refer to the rows that `votes` and `weights` index: trained models, then each of `substitute_rows`.

        Args:
            receivers: long [J], the nodes that mix the rows.
            rows: long [J], all in one block: the n nodes' rows, or the m rows of a set of substitutes.
        """
        if not len(rows) or int(rows.max()) < self.num_nodes:
            return References.rows("trained", rows, receivers, "trained")
        block = (int(rows[0]) - self.num_nodes) // self.num_clients
        substitutes = self.substitute_rows[block]
        which = rows - self.num_nodes - block * self.num_clients
        terms = [Term(substitutes.rows, which)]
        if substitutes.relative:
            terms.append(Term("models", receivers))
        return References(tuple(terms), receivers, "trained")
