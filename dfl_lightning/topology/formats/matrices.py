"""Graphs from matrices and arrays: in Python, and in `.npy`, `.mtx` and `.csv` files.

In a matrix the row is the receiver and the column the sender, as in a mixing matrix.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import torch

from dfl_lightning.topology.formats.contradictions import ContradictionError, EdgeList
from dfl_lightning.topology.formats.edge_list import read_edge_list
from dfl_lightning.topology.formats.lines import Lines
from dfl_lightning.topology.formats.read import GraphRead
from dfl_lightning.utils.errors import reason

_ROUNDING = 1e-6
"""Largest difference of a mixing matrix's row sums from 1."""


def from_matrix(matrix: np.ndarray, labels: Sequence[Any] | None = None) -> GraphRead:
    """Make a graph from a square matrix, with an arc j -> i for each entry (i, j) that is not 0 off the diagonal.

    Entries of 0 and 1 alone say where links are. Other entries are also their weights; if none is negative and each
    row sums to 1, they are a mixing matrix. The graph is undirected if the matrix is symmetric.

    Args:
        matrix: numbers or truth values, [n, n].
        labels: names of the n nodes; default: 0, 1, ….

    Raises:
        ContradictionError: the matrix is not square, or has entries that are not finite numbers.
    """
    entries = _numbers(matrix)
    if entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
        raise ContradictionError(f"a matrix has as many rows as columns, and this has the shape {list(entries.shape)}")
    receivers, senders = np.nonzero(entries)
    diagonal = entries.diagonal()
    return _from_entries(receivers, senders, entries[receivers, senders], diagonal, labels)


def from_sparse(matrix: Any) -> GraphRead:
    """Make a graph from a sparse matrix of scipy; see `from_matrix`.

    An entry may be there twice with the same value, but not with two values.

    Args:
        matrix: [n, n], of scipy.sparse.

    Raises:
        ContradictionError: see `from_matrix`; or an entry has two values.
    """
    rows, columns = matrix.shape
    if rows != columns:
        raise ContradictionError(f"a matrix has as many rows as columns, and this has the shape {[rows, columns]}")
    listed = matrix.tocoo()
    values = _numbers(np.asarray(listed.data))
    codes, first, group = np.unique(
        listed.row.astype(np.int64) * columns + listed.col, return_index=True, return_inverse=True
    )
    if (wrong := np.flatnonzero(values != values[first][group])).size:
        i, j = int(listed.row[wrong[0]]), int(listed.col[wrong[0]])
        raise ContradictionError(f"the entry in row {i}, column {j} (from 0) has two values; keep one")
    values, kept = values[first], values[first] != 0
    receivers, senders = codes[kept] // columns, codes[kept] % columns
    diagonal = np.zeros(rows)
    on = receivers == senders
    diagonal[receivers[on]] = values[kept][on]
    return _from_entries(receivers, senders, values[kept], diagonal, None)


def from_any_matrix(source: Any) -> GraphRead | None:
    """Return the graph of a matrix of numpy, torch or scipy, or of a list of lists; None if the source is none of them.

    A list that begins with a tuple is not a matrix.

    Args:
        source: any object.

    Raises:
        ContradictionError: see `from_matrix`; or the matrix is not of numbers.
    """
    rows = isinstance(source, list) and bool(source) and isinstance(source[0], list | np.ndarray)
    if not rows and not isinstance(source, np.ndarray | torch.Tensor) and not hasattr(source, "tocoo"):
        return None
    try:
        if hasattr(source, "tocoo"):
            return from_sparse(source)
        if isinstance(source, torch.Tensor):
            source = source.detach().cpu().to_dense().double()
        return from_matrix(np.asarray(source))
    except ContradictionError:
        raise
    except (ValueError, TypeError) as error:  # a list whose rows have different lengths, or a tensor without numbers
        raise ContradictionError(f"the matrix cannot be read ({reason(error)}); give numbers, [m, m]") from error


def from_array(array: np.ndarray, num_clients: int, directed: bool | None = None) -> GraphRead:
    """Make a graph from an array: a square matrix, or a link in each row of two or three columns.

    An array of as many rows and columns as there are clients is a matrix.

    Args:
        array: [n, n]; or [links, 2] with the ends of each link; or [links, 3] with its weight too.
        num_clients: number of clients m.
        directed: of links, True if they go from the first end to the second; default: undirected.

    Raises:
        ContradictionError: the array has another shape, ends are not whole numbers, or links contradict each other.
    """
    is_matrix = array.ndim == 2 and array.shape[0] == array.shape[1]
    if is_matrix and (len(array) == num_clients or array.shape[1] not in (2, 3)):
        _refuse_direction(directed)
        return from_matrix(array)
    if array.ndim != 2 or array.shape[1] not in (2, 3):
        raise ContradictionError(
            f"an array of the shape {list(array.shape)} is not a graph; give a square matrix, or a link in each of its "
            "rows of two or three columns"
        )
    numbers = _numbers(array)
    ends = numbers[:, :2].astype(np.int64)
    if (ends != numbers[:, :2]).any() or (ends < 0).any():
        raise ContradictionError("the ends of links are whole numbers from 0 on; give the weights in a third column")
    graph = nx.DiGraph() if directed else nx.Graph()
    links = EdgeList(bool(directed))
    for row, (a, b) in enumerate(ends.tolist()):
        weight = float(numbers[row, 2]) if array.shape[1] == 3 else None
        links.add(row, str(a), str(b), weight)
        graph.add_edge(a, b, **({} if weight is None else {"weight": weight}))
    if len(graph) and max(graph) < num_clients:  # an array has no lines for clients without links
        graph.add_nodes_from(range(num_clients))
    return GraphRead(graph)


def read_npy(data: bytes, num_clients: int, directed: bool | None) -> GraphRead:
    """Read an array of numpy; see `from_array`."""
    return from_array(np.load(io.BytesIO(data), allow_pickle=False), num_clients, directed)


def read_mtx(data: bytes, num_clients: int, directed: bool | None) -> GraphRead:
    """Read a matrix in the Matrix Market format; see `from_matrix`.

    Raises:
        ContradictionError: the matrix is not square, not of the number of clients, or its entries are not numbers.
    """
    from scipy.io import mminfo, mmread  # the import takes a part of a second

    _refuse_direction(directed)
    rows, columns, *_ = mminfo(io.BytesIO(data))
    if rows != columns or rows > max(10 * num_clients, 1000):  # not larger than memory
        raise ContradictionError(f"a matrix of {rows} x {columns}; it must be {num_clients} x {num_clients}")
    matrix = mmread(io.BytesIO(data))
    return from_matrix(matrix) if isinstance(matrix, np.ndarray) else from_sparse(matrix)


def read_table(lines: Lines, num_clients: int, directed: bool | None) -> GraphRead:
    """Read a text with a matrix of as many rows and columns as there are clients, or else with a list of links.

    The matrix may have a row and a column of names.

    Args:
        lines: the lines of the file.
        num_clients: number of clients m.
        directed: see `read_edge_list`.

    Raises:
        ContradictionError: the text is neither, or contradicts itself.
    """
    matrix = _as_matrix(lines, num_clients)
    if matrix is None:
        return read_edge_list(lines, num_clients, directed)
    _refuse_direction(directed)
    return from_matrix(*matrix)


# --- details ----------------------------------------------------------------------------------------------------------
def _numbers(array: np.ndarray) -> np.ndarray:
    """Return an array as float64; raise if it has other entries than finite numbers."""
    if array.dtype.kind not in "biuf":
        raise ContradictionError(f"the entries are of the type {array.dtype}; give numbers")
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        place = ", ".join(map(str, np.argwhere(~np.isfinite(numbers))[0].tolist()))
        raise ContradictionError(f"the entry at [{place}] is {numbers[~np.isfinite(numbers)][0]}; give a finite number")
    return numbers


def _refuse_direction(directed: bool | None) -> None:
    if directed is not None:
        raise ContradictionError("directed is for lists of links, and a matrix says it itself; leave it out")


def _from_entries(
    receivers: np.ndarray, senders: np.ndarray, values: np.ndarray, diagonal: np.ndarray, labels: Sequence[Any] | None
) -> GraphRead:
    """Make a graph from the entries of a matrix that are not 0."""
    n = len(diagonal)
    off = receivers != senders
    receivers, senders, weights = receivers[off], senders[off], values[off]
    is_plain = bool((weights == 1).all() and np.isin(diagonal, (0, 1)).all())
    sums = np.bincount(receivers, weights, minlength=n) + diagonal
    mixing = not is_plain and bool((values >= 0).all() and (np.abs(sums - 1) <= _ROUNDING).all())
    forth, back = receivers * n + senders, senders * n + receivers
    order, reverse = np.argsort(forth), np.argsort(back)
    symmetric = np.array_equal(forth[order], back[reverse]) and np.array_equal(weights[order], weights[reverse])
    graph = nx.Graph() if symmetric else nx.DiGraph()
    names = range(n) if labels is None else labels
    graph.add_nodes_from(names)
    links = zip(senders.tolist(), receivers.tolist(), weights.tolist(), strict=True)
    if is_plain:
        graph.add_edges_from((names[j], names[i]) for j, i, _ in links)
    else:
        graph.add_weighted_edges_from((names[j], names[i], weight) for j, i, weight in links)
    remark = "" if symmetric else "the matrix is not symmetric: the client of a row receives from those of its columns"
    return GraphRead(graph, mixing, remark)


def _as_matrix(lines: Lines, num_clients: int) -> tuple[np.ndarray, list[str] | None] | None:
    """Return the matrix in a text and the names of its rows; None if the text is a list of links."""
    table = [row.cells for row in lines.rows]
    labels = None
    if len(table) == num_clients + 1:
        head, table = table[0], table[1:]
        with_names = all(len(row) == num_clients + 1 for row in table)
        labels = head[-num_clients:]
        if len(labels) < num_clients or len(head) > num_clients + 1:
            return None
        if with_names:
            if [row[0] for row in table] != labels:
                return None
            table = [row[1:] for row in table]
    if len(table) != num_clients or any(len(row) != num_clients for row in table):
        return None
    try:
        matrix = np.array([[lines.number(cell) for cell in row] for row in table])
    except ValueError:
        return None
    if labels is not None and len(set(labels)) < len(labels):
        raise ContradictionError("a name is there twice in the first line; keep one")
    return None if labels is None and num_clients == 3 and _are_links(matrix) else (matrix, labels)


def _are_links(matrix: np.ndarray) -> bool:
    """Return True if the first two columns of three rows are ends of three different links."""
    ends = matrix[:, :2].tolist()
    return len({frozenset(pair) for pair in ends}) == 3 and all(a != b and {a, b} <= {0, 1, 2} for a, b in ends)
