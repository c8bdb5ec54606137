"""Small runs on graph files: what a round does with them, computed by numpy."""

import networkx as nx
import numpy as np
import pytest
import torch
from small_run import SmallRun

from dfl_lightning.callbacks import FromTopology, Gossip, Uniform
from dfl_lightning.utils.errors import UserError

STILL = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.0), "init": "independent"}
"""Training that changes nothing, from different first models, so that mixing can be computed by hand."""


def run(folder, topology, aggregation, rounds=2):
    policies = [Gossip(k="all"), aggregation]
    return SmallRun(folder, rounds=rounds, policies=policies, topology=topology, module=STILL).fit()


def test_a_mixing_matrix_in_a_file_mixes_models(tmp_path):
    """W has unequal rows, so that its transpose, or one without the diagonal, would give other models."""
    random = np.random.default_rng(0)
    matrix = random.random((6, 6)) * (random.random((6, 6)) < 0.6) + np.eye(6) / 4
    matrix /= matrix.sum(1, keepdims=True)
    np.save(tmp_path / "w.npy", matrix)
    first = run(tmp_path, "complete", Uniform(), rounds=0).rows.double().numpy()
    mixed = run(tmp_path, str(tmp_path / "w.npy"), FromTopology()).rows
    np.testing.assert_allclose(mixed.numpy(), matrix @ matrix @ first, atol=1e-6)
    with pytest.raises(UserError, match=r"topology w prescribes a mixing matrix, .*; use --aggregation FromTopology"):
        run(tmp_path, str(tmp_path / "w.npy"), Uniform())


def test_a_snap_file_is_averaged_over_its_neighbours(tmp_path):
    graph = nx.DiGraph([(11, 3), (3, 11), (3, 27), (4, 3), (5, 4), (101, 5), (27, 101)])
    lines = "\n".join(f"{u}\t{v}" for u, v in graph.edges())
    head = "# Directed graph (each unordered pair of nodes is saved once): my.txt\n# FromNodeId\tToNodeId\n"
    (tmp_path / "my.txt").write_text(head + lines + "\n")
    labels = [3, 4, 5, 11, 27, 101]
    receives = nx.to_numpy_array(graph, nodelist=labels).T + np.eye(6)
    matrix = receives / receives.sum(1, keepdims=True)
    first = run(tmp_path, "complete", Uniform(), rounds=0).rows.double().numpy()
    mixed = run(tmp_path, str(tmp_path / "my.txt"), Uniform()).rows
    np.testing.assert_allclose(mixed.numpy(), matrix @ matrix @ first, atol=1e-6)
