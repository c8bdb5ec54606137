"""Reading of graph files in the format that their suffix names; no format runs code of a file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dfl_lightning.topology.formats.attributed import read_dot, read_gexf, read_graphml, read_node_link
from dfl_lightning.topology.formats.contradictions import ContradictionError
from dfl_lightning.topology.formats.edge_list import read_adjacency_list, read_edge_list
from dfl_lightning.topology.formats.gml import read_gml
from dfl_lightning.topology.formats.lines import split_lines
from dfl_lightning.topology.formats.matrices import read_mtx, read_npy, read_table
from dfl_lightning.topology.formats.pajek import read_pajek
from dfl_lightning.topology.formats.read import GraphRead
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.storage.files import read_bounded

# Limits on the size of a graph file in bytes: editors of GraphML write about a thousand bytes for a link.
_LEAST_BOUND = 8 * 10**6
_A_PAIR = 1024

Reader = Callable[[bytes, int, bool | None], GraphRead]
"""A function of a file's content, the number of clients, and the key `directed` that makes a graph."""


def read_bytes(path: Path, most: int) -> bytes:
    """Read a file of limited size.

    Args:
        path: the file.
        most: largest number of bytes.

    Raises:
        UserError: the file cannot be read, or is larger.
    """
    try:
        return read_bounded(path, most)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}; give a smaller file.") from error


def read_graph(path: Path, num_clients: int, directed: bool | None = None) -> GraphRead:
    """Read a graph file in the format that its suffix names, one of `FORMATS`.

    Args:
        path: the file.
        num_clients: number of clients m, which determines the largest accepted size of the file, and which of some
            formats are matrices.
        directed: whether a list of links is directed; None: as the file says, otherwise undirected.

    Raises:
        UserError: the suffix is unknown, the file cannot be read, or its content is not a graph of that format.
    """
    suffix = path.suffix.lower()
    reader = FORMATS.get(suffix)
    if reader is None:
        raise UserError(f"{path}: unknown graph format '{path.suffix}'; known are: {', '.join(FORMATS)}.")
    if directed is not None and suffix not in LINK_LISTS:
        raise UserError(f"{path}: directed is for lists of links ({', '.join(LINK_LISTS)}); a {suffix} file says it.")
    data = read_bytes(path, _LEAST_BOUND + _A_PAIR * num_clients**2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # readers warn of optional parts of a format
            return reader(data, num_clients, directed)
    except ContradictionError as error:
        raise UserError(f"{path}: {error}.") from error
    except Exception as error:  # the readers raise many types of errors on files of another format
        raise UserError(f"{path}: not a {suffix} graph ({reason(error)}).") from error


def _of_content(read: Callable[[bytes], GraphRead], data: bytes, num_clients: int, directed: bool | None) -> GraphRead:
    return read(data)


def _links(data: bytes, num_clients: int, directed: bool | None) -> GraphRead:
    return read_edge_list(split_lines(data), num_clients, directed)


def _links_or_matrix(data: bytes, num_clients: int, directed: bool | None) -> GraphRead:
    return read_table(split_lines(data), num_clients, directed)


def _neighbours(data: bytes) -> GraphRead:
    return read_adjacency_list(split_lines(data))


FORMATS: dict[str, Reader] = {
    ".graphml": partial(_of_content, read_graphml),
    ".gexf": partial(_of_content, read_gexf),
    ".gml": partial(_of_content, read_gml),
    ".net": partial(_of_content, read_pajek),
    ".dot": partial(_of_content, read_dot),
    ".json": partial(_of_content, read_node_link),
    ".edgelist": _links,
    ".adjlist": partial(_of_content, _neighbours),
    ".txt": _links_or_matrix,
    ".csv": _links_or_matrix,
    ".tsv": _links_or_matrix,
    ".npy": read_npy,
    ".mtx": read_mtx,
}
LINK_LISTS = (".edgelist", ".txt", ".csv", ".tsv", ".npy")
"""Suffixes of the formats that may be lists of links, for which a topology file may say whether they are directed."""
