"""The record of a communication round, with the operations (verbs) that its policies use.

The communication graph is a list of links (an edge j -> i: i receives from j), which is narrowed from step to step.
Values of links are kept in a tensor with an entry for each link of a list. Ids are 0-based. Nodes are the m clients
and, in a server topology, the servers after them: n nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.comparing.similarity import Comparison
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.reducing import Reduce
from dfl_lightning.bank.references import References, Weights
from dfl_lightning.engines.jobs import Evaluation
from dfl_lightning.links import Links
from dfl_lightning.round.fields import SubstituteRows
from dfl_lightning.round.messages import RoundMessages
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

__all__ = ["Round", "SubstituteRows"]


class Round(RoundMessages):
    """One communication round, with the verbs that policies use; see `RoundFields` for its fields.

    The protocol creates it, the hooks fill it from top to bottom, and then it is thrown away.
    """

    # --- the verbs, charged to the ledger -----------------------------------------------------------------------------
    # Of the row set `trained`, a client may read its own row only. For other clients it reads their rows of `sent`, or
    # on an asynchronous clock the models that they have published last.
    def evaluate(self, references: References, split: str = "train") -> Evaluation:
        """Evaluate models on their owners' data; each row of another node is charged to the owner as a model.

        Args:
            references: the models, and the owners on whose data they are evaluated.
            split: `train`, `val` or `test`.
        """
        self.charge(references)
        parts = self._as_received(references)
        if len(parts) == 1:
            return self.federation.engine.evaluate(parts[0][1], split)
        losses = torch.full((len(references),), float("nan"), dtype=torch.float64)
        metrics: dict[str, Tensor] = {}
        for index, part in parts:
            evaluation = self.federation.engine.evaluate(part, split)
            losses[index] = evaluation.losses
            for name, values in evaluation.metrics.items():
                metrics.setdefault(name, torch.full_like(losses, float("nan")))[index] = values
        return Evaluation(losses, metrics)

    def loss_of(self, links: Links, rows: str = "trained", split: str = "train") -> Tensor:
        """Evaluate each sender's model, completed by the receiver's personal parameters, on the receiver's data.

        Args:
            links: links whose receivers are clients; a client may be linked to itself.
            rows: `trained` (the models after this round's training, for other clients what they sent) or `models` (the
                models before it).
            split: `train` or `val`.

        Returns:
            Losses, float64 [E]; NaN if the sender's model cannot be received; see `receivable`.
        """
        up = self.receivable(links)
        losses = self.evaluate(References.rows(rows, up.senders, up.receivers, rows), split).losses
        return losses if len(up) == len(links) else up.spread(losses, links)

    def vote_losses(self, split: str = "train") -> Tensor:
        """Evaluate each row that has a vote on the receiver's data; float64 [len(voters)], NaN for rows without a vote.

        Receivers must be clients: a server has no data.

        Args:
            split: `train` or `val`.
        """
        losses = torch.full_like(self.votes, float("nan"))
        for block in range(len(self.substitute_rows) + 1):
            at = torch.nonzero(self._of_block(self.voters.senders, block) & (self.votes > 0)).squeeze(1)
            if len(at):
                references = self.references(self.voters.receivers[at], self.voters.senders[at])
                losses[at] = self.evaluate(references, split).losses
        return losses

    def _of_block(self, rows: Tensor, block: int) -> Tensor:
        """Return a mask of the rows that belong to a block: the nodes' rows (block 0) or a set of substitute rows."""
        n, m = self.num_nodes, self.num_clients
        return rows < n if block == 0 else (rows >= n + (block - 1) * m) & (rows < n + block * m)

    def compare(
        self,
        rows: str | Tensor,
        links: Links,
        columns: Columns | None = None,
        relative_to: str | None = None,
        centre: bool = False,
        own: str | None = None,
    ) -> Comparison:
        """Compute the similarity of the clients of each link; NaN if the sender's model cannot be received.

        A receiver compares its own trained row with the rows that the senders sent, on an asynchronous clock with those
        that they have published last. It is charged; see `charge_comparison`. A server compares sent rows on both
        sides. With `own="models"` a receiver compares the model that it had before the round's training (FedFomo's
        distances); a link to itself then compares this model with its own row of `rows`.

        Args:
            rows: a row set's name, or a matrix such as `gradients` returns.
            links: links between clients.
            columns: the columns that count; default: the shared parameters.
            relative_to: what is subtracted from each row, by the client that the row belongs to: `start` (the model
                that its training started from), the row of that client in another row set, or None: nothing.
            centre: subtract the mean of a receiver's row and the rows that it compares it with; see `compare_rows`.
            own: the row set of the receivers' own rows; default: that of `rows`.

        Raises:
            UserError: there are Outgoing policies or an asynchronous clock, and the rows are not among those that
                clients send or publish; or `own` is given and there are servers.
        """
        if own is not None and self.num_servers:
            raise UserError(f"{nth_round(self.index)}: under a server no client compares others with its own {own!r}")
        up = self.receivable(links)
        self.charge_comparison(rows, up, columns, relative_to)
        passed = isinstance(rows, str) and rows != "models"
        unsent = not passed and (self.has_messages or self.published is not None)
        if (unsent or (self.published is not None and relative_to == "start")) and self._has_others(up):
            what = "models from before the round's training" if isinstance(rows, str) else "gradients"
            self._refuse_unsent(f"compares clients by {'updates' if passed else what}")
        to = "sent" if isinstance(rows, str) and rows == "trained" else None
        if to is not None and self.num_servers:
            rows, to = "sent", None
        versions = self.versions(up)
        oldest = int(versions.max()) if len(versions) else 0
        stored = None if self.published is None or not oldest else (self.published.rows[:oldest], versions)
        comparison = self.bank.compare(rows, up, columns, relative_to, centre, to, own, stored)
        if len(up) == len(links):
            return comparison
        return Comparison(up.spread(comparison.cosines, links), up.spread(comparison.distances, links))

    def gradients(self, references: References, batches: int | None = None) -> Tensor:
        """Compute gradients of the mean training loss at the references, [n, width]; charged as in `evaluate`.

        Args:
            references: the models, and the owners on whose training data gradients are computed.
            batches: number of batches, the first ones of the epoch; default: all.
        """
        self.charge(references)
        training = self.local_training(gradients=True, batches=batches)
        (_, first), *others = self._as_received(references)
        gradients = self.federation.engine.gradients(first, training)
        for _, part in others:
            gradients += self.federation.engine.gradients(part, training)  # zero where the owner has no job
        return gradients

    def mix(
        self, terms: Sequence[tuple[Weights | Tensor, str]], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Set rows `where` of `into` to the sum over terms of weights @ rows; each row of another node costs a model.

        Args:
            terms: summands, each the weights of nodes' rows in w sums (or a matrix [w, n]) and the name of the row set.
            into: `models`, or a set that a policy declared or made by `bank.scratch`.
            where: bool [n] or long [w], the w nodes whose rows are written.
            columns: default: the shared columns.
        """
        index = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        sparse = [(Weights.of(weights), name) for weights, name in terms]
        if into == "models":  # writing a policy's own memory is not a message
            for weights, name in sparse:
                stored = any(name == substitutes.rows for substitutes in self.substitute_rows)
                # A server has stored what clients uploaded, so stored rows are not sent to it again.
                if name in ("trained", "sent", "models") or (stored and not self.num_servers):
                    counted = weights.shares != 0
                    self.ledger.fetch(index[weights.jobs[counted]], weights.rows[counted], mixed=True)
        self._refuse_mixing_starts(sparse, index)
        self.bank.mix(self.received_terms(sparse, index), into, index, columns)

    def combine(
        self, fn: Callable[..., Tensor], sets: Sequence[str], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Replace nodes' rows by an elementwise function of the same nodes' rows in several sets; costs nothing.

        Args:
            fn: called with a block [k, columns] of each set; returns [k, columns].
            sets: names of row sets, such as sums that `mix` has written into sets made by `bank.scratch`.
            into: `models`, or a set that a policy declared or made by `bank.scratch`.
            where: bool [n] or long [w], the nodes whose rows are written.
            columns: default: the shared columns.
        """
        self.bank.combine(fn, sets, into, where, columns)

    def mix_again(self, weights: Tensor, where: Tensor) -> None:
        """Mix the mixed models of this round once more; each is received, and charged, again.

        Args:
            weights: mixing weights, float64 [len(voters)]; only nodes' rows may have one.
            where: the receivers, bool [n].
        """
        counted = (weights != 0) & where[self.voters.receivers]
        receivers, senders = self.voters.receivers[counted], self.voters.senders[counted]
        nodes = torch.nonzero(where).squeeze(1)
        self.ledger.forget(nodes)
        self.ledger.fetch(receivers, senders, mixed=True)
        jobs = (where.cumsum(0) - 1)[receivers]
        self.bank.mix_again(Weights(jobs, senders, weights[counted], (len(nodes), self.num_nodes)), nodes)

    def reduce(self, votes: Tensor, fn: Reduce, into: str = "models") -> None:
        """Replace receivers' rows by a column-wise function of the rows that have a vote; charged as in `mix`.

        A row counts once, however many votes it has. Rows of other clients are those that they sent, on an asynchronous
        clock those that they have published last. A row of `substitute_rows` is received as a whole model: an update
        is added to the receiver's own model first. Personal columns and the rows of receivers without votes stay.

        Args:
            votes: float64 [len(voters)]; rows with a vote other than 0 are received.
            fn: function [receivers, received, columns] -> [receivers, columns]. A call gets receivers of equally many
                rows and a block of columns; several threads call it.
            into: `models`, or a set that a policy declared.
        """
        n, m = self.num_nodes, self.num_clients
        counted = votes != 0
        all_receivers, rows = self.voters.receivers[counted], self.voters.senders[counted]
        of_nodes = self._of_block(rows, 0)
        receivers, senders = all_receivers[of_nodes], rows[of_nodes]
        foreign, versions = senders != receivers, self._received_versions(receivers, senders)
        fresh = foreign & (versions == 0)
        entries: list[tuple[str, Tensor, Tensor, str | None]] = [
            ("trained", receivers[~foreign], senders[~foreign], None),
            ("sent", receivers[fresh], senders[fresh], None),
        ]
        if self.published is not None:
            for version, name in enumerate(self.published.rows, start=1):
                stored = versions == version
                entries.append((name, receivers[stored], senders[stored], None))
        charged = [(receivers, senders)]
        for block, substitutes in enumerate(self.substitute_rows, start=1):
            inside = self._of_block(rows, block)
            to, clients = all_receivers[inside], rows[inside] - n - (block - 1) * m
            entries.append((substitutes.rows, to, clients, "models" if substitutes.relative else None))
            if not self.num_servers:  # a server has stored what clients uploaded
                charged.append((to, clients))
        if into == "models":
            for to, nodes in charged:
                self.ledger.fetch(to, nodes, mixed=True)
        self.bank.reduce(entries, fn, into)
