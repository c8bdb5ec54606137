"""The bank: the models of all nodes as rows of matrices, with operations that compare and mix them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from dfl_lightning.bank.card import one_sentence
from dfl_lightning.bank.comparing.similarity import Comparison, compare_rows, compare_sets, distances_in_groups
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.mixing import mix_rows
from dfl_lightning.bank.reducing import Received, Reduce, reduce_rows
from dfl_lightning.bank.referenced_rows import ReferencedRows
from dfl_lightning.bank.references import Weights
from dfl_lightning.links import Links
from dfl_lightning.utils.thread_pool import workers

COMBINED_AT_ONCE = 4096
"""Columns of a block that `Bank.combine` passes to its function."""


class Bank(ReferencedRows):
    """Row sets with operations that compare and mix rows; engines train and score them.

    See `RowSets` for the arguments, the names of row sets and several processes.
    """

    # --- comparing and mixing ---------------------------------------------------------------------------------------
    def compare(
        self,
        rows: str | Tensor,
        links: Links,
        columns: Columns | None = None,
        relative_to: str | None = None,
        centre: bool = False,
        to: str | None = None,
        own: str | None = None,
        stored: tuple[Sequence[str], Tensor] | None = None,
    ) -> Comparison:
        """Compute the cosine and the distance between the two clients' rows of each link.

        Args:
            rows: a row set's name, or a matrix such as `gradients` returns.
            links: for each receiver the clients that it compares itself with.
            columns: the columns that count; default: the shared parameters.
            relative_to: what is subtracted from each row, by the client that the row belongs to: `start` (the
                reference that its training started from), the row of that client in another row set, or None: nothing.
            centre: see `compare_rows`.
            to: if `sent`, the rows of senders come from the set `sent`, except where a client compares itself with
                itself.
            own: the row set of the receivers' own rows; default: `rows`.
            stored: further row sets, and for each link the one that its sender's row comes from, counted from 1, long
                [E]; 0: none of them.
        """
        mine = self.ranks.own[self.ranks.own < self.num_clients]
        sets: list[str | Tensor] = [rows]
        which, told = torch.zeros(len(links), dtype=torch.long), torch.ones(self.num_clients, dtype=torch.bool)
        changed = self._work.changed if to == "sent" else None
        if changed is not None:
            sets, changed = [rows, "sent"], changed[: self.num_clients]
            which += changed[links.senders] & (links.receivers != links.senders)
            told = torch.cat([~changed, told])
        if stored is not None:
            names, place = stored
            which = torch.where(place > 0, len(sets) - 1 + place, which)
            sets, told = [*sets, *names], torch.cat([told, torch.ones(len(names) * self.num_clients).bool()])
        if own is not None:
            sets, which, told = [own, *sets], which + 1, torch.cat([torch.zeros(self.num_clients).bool(), told])
        sources = [(self.stored(one) if isinstance(one, str) else one)[: len(mine)] for one in sets]
        source = sources[0]
        moving = None
        if relative_to == "start":
            moving = self._starts_here()
            moved = self.ranks.place[moving.owners].to(source.device)
            idle = torch.ones(len(mine), dtype=torch.bool, device=source.device)
            idle[moved] = False

        def moved_by(source: Tensor, start: int, stop: int) -> Tensor:
            block = source[:, start:stop]
            if moving is not None:
                block = block.clone()
                block[moved] -= self.materialise(moving, start, stop)
                block[idle] = 0  # a client that did not train has no update
            elif relative_to is not None:
                block = block - self.stored(relative_to)[: len(mine), start:stop]
            return block

        def read(start: int, stop: int) -> Tensor:
            blocks = [moved_by(source, start, stop) for source in sources]
            return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

        columns = self.layout.shared_parameters if columns is None else columns
        with self.timed("compare"), one_sentence(), nullcontext() if moving is None else self.with_remote_rows(moving):
            if len(sets) == 1:
                return compare_rows(read, self.num_clients, links, columns, centre, self.ranks)
            with self.ranks.repeated(self.num_clients, len(sets)) as ranks:
                return compare_sets(read, self.num_clients, links, which, told, columns, centre, ranks)

    def distances_in_groups(self, sets: Sequence[str], pairs: Links, groups: Links) -> Tensor:
        """Compute the distances between rows of several sets, over the shared parameters, float64 [E].

        Args:
            sets: s names of row sets.
            pairs: different pairs of rows, the larger one as receiver, as links between s * m nodes: row i + t * m is
                that of client i in set t.
            groups: for each group, as a receiver, its rows; each pair has a group in common.
        """
        m = self.num_clients
        mine = self.ranks.own[self.ranks.own < m]
        sources = [self.stored(name)[: len(mine)] for name in sets]

        def read(start: int, stop: int) -> Tensor:
            blocks = [source[:, start:stop] for source in sources]
            return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

        with self.timed("compare"), one_sentence(), self.ranks.repeated(m, len(sets)) as ranks:
            return distances_in_groups(read, len(sets) * m, pairs, groups, self.layout.shared_parameters, ranks)

    def mix(
        self, terms: Sequence[tuple[Weights | Tensor, str]], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Write the sum over terms of weights @ rows into the rows `where` of the set `into`.

        On the columns of buffers the sum is turned into an average (see `bank.averaging`), unless a set made by
        `scratch` takes part, which holds plain sums.

        Mixing into `models` must come last in a round: the new models are written over the rows of `trained`.

        Args:
            terms: summands, each the weights of nodes' rows in w sums (or a matrix [w, n]) and the name of the row set.
            into: `models`, a persistent set, or one made by `scratch`.
            where: bool [n] or long [w], the w nodes whose rows are written.
            columns: default: the shared columns.

        Raises:
            UserError: the hook that is running may not write this set.
        """
        self.check_write(f"mix(..., into='{into}')", into)
        index = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        columns = self.layout.shared if columns is None else columns
        summands: Sequence[tuple[Weights, str]] = [(Weights.of(weights), name) for weights, name in terms]
        parts, buffers = [(summands, columns)], columns.common(self.layout.buffers)
        if buffers.ranges and len(index):
            averaged = self._averages(summands, index, into)
            if averaged is not summands:
                parts = [(summands, columns.common(self.layout.parameters)), (averaged, buffers)]
        sources = [([(weights, self.stored(name)) for weights, name in several], some) for several, some in parts]
        target = self._target(into)
        with self.timed("mix"), one_sentence():
            for several, some in sources:
                mix_rows(several, target, index, some, self.ranks, self.mixing_groups())
        self._work.mixed |= into == "models"

    def reduce(self, entries: Sequence[tuple[str, Tensor, Tensor, str | None]], fn: Reduce, into: str) -> None:
        """Replace the shared columns of receivers' rows by a function of the rows that they receive; see `reduce_rows`.

        The function gets buffers as they are in the sets: own rows are added to parameters only. As with `mix`,
        reducing into `models` must come last in a round.

        Args:
            entries: (row set, receivers long [e], nodes long [e], name of the set whose row of the receiver is added to
                the received row, or None); the same in all processes.
            fn: [receivers, received, columns] -> [receivers, columns].
            into: `models`, or a persistent set.

        Raises:
            UserError: the hook that is running may not write this set.
        """
        self.check_write(f"reduce(..., into='{into}')", into)
        received = [
            Received(self.stored(name), receivers, nodes, None if added is None else self.stored(added))
            for name, receivers, nodes, added in entries
            if len(receivers)
        ]
        target = self._target(into)
        with self.timed("mix"), one_sentence():
            if received:
                reduce_rows(
                    *(received, fn, target, self.layout.shared, self.ranks, self.mixing_groups()),
                    self.layout.num_parameters,
                )
        self._work.mixed |= into == "models"

    def combine(
        self,
        fn: Callable[..., Tensor],
        sets: Sequence[str],
        into: str,
        where: Tensor,
        columns: Columns | None = None,
        only_reads: bool = False,
    ) -> None:
        """Replace nodes' rows by an elementwise function of the same nodes' rows in several sets.

        As with `mix`, combining into `models` must come last in a round.

        Args:
            fn: called with a block [k, columns] of each set; returns [k, columns].
            sets: names of the row sets, in the order of the arguments of `fn`.
            into: `models`, a persistent set, or one made by `scratch`.
            where: bool [n] or long [w], the nodes whose rows are written.
            columns: default: the shared columns.
            only_reads: True if `fn` never writes into its arguments, so that rows that lie together are not copied.

        Raises:
            UserError: the hook that is running may not write this set.
        """
        nodes = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        places = self.ranks.place[nodes[self.ranks.at_home(nodes)]]
        self.check_write(f"combine(..., into='{into}')", into)
        sources = [self.stored(name) for name in sets]
        target = self._target(into)
        first, last = (int(places[0]), int(places[-1]) + 1) if only_reads and len(places) else (0, 0)
        in_one_piece = first < last and torch.equal(places, torch.arange(first, last))
        places = places.to(target.device)
        with self.timed("mix"), one_sentence(), self.ranks.together():
            for start, stop in (self.layout.shared if columns is None else columns).blocks(COMBINED_AT_ONCE):
                if in_one_piece:
                    target[first:last, start:stop] = fn(*(source[first:last, start:stop] for source in sources))
                elif len(places):
                    blocks = [source[:, start:stop].index_select(0, places) for source in sources]
                    target[:, start:stop].index_copy_(0, places, fn(*blocks).to(target.dtype))
        self._work.mixed |= into == "models"

    def _target(self, into: str) -> Tensor:
        """Return the matrix that a write into the set `into` changes, [own, width]."""
        if into == "models":
            return self.stored("trained")
        return self._work.scratch[into] if into in self._work.scratch else self.next_of(into)

    def mix_again(self, weights: Weights, where: Tensor) -> None:
        """Mix the models that have been mixed already; see `mix`.

        Args:
            weights: weights of nodes' rows in w sums.
            where: long [w], the nodes whose rows are written.

        Raises:
            UserError: the hook that is running may not write them.
        """
        self.check_write("mix_again(...)", "models")
        models = self._next_models
        with self.timed("mix"), one_sentence():
            mix_rows([(weights, models)], models, where, self.layout.shared, self.ranks, self.mixing_groups())

    def squared_lengths(self, name: str, where: Tensor, columns: Columns | None = None) -> Tensor:
        """Compute the squared Euclidean norms of nodes' rows.

        Args:
            name: name of the row set.
            where: the nodes, long [w].
            columns: the columns that count; default: the shared columns.

        Returns:
            float64 [w], the same in every process.
        """
        mine = torch.nonzero(self.ranks.at_home(where)).squeeze(1)
        rows, ranges = self.stored(name), (self.layout.shared if columns is None else columns).ranges
        squares = torch.zeros(len(where), dtype=torch.float64)
        if not len(mine) or not ranges:
            return self.ranks.join(mine, [squares])[0]
        with workers():  # one thread, since the bits of a sum depend on the number of threads
            parts = [
                rows[place, start:stop].double().square().sum()
                for place in self.ranks.place[where[mine]].tolist()
                for start, stop in ranges
            ]
        # The parts are stacked so that the host waits for the GPU once.
        for part in torch.stack(parts).cpu().view(len(mine), len(ranges)).unbind(1):
            squares[mine] += part
        return self.ranks.join(mine, [squares])[0]

    def mixing_groups(self) -> Tensor:
        """Return the number of each node's mixing group, long [n]: clients of one cohort are in one group.

        The rows of a group are mixed by one matrix product, whatever the number of processes.
        """
        mixing_groups = torch.arange(self.num_nodes)
        for cohort in self.cohorts:
            mixing_groups[cohort] = cohort[0]
        return mixing_groups
