"""D-SGD: averaging with all neighbours by Metropolis weights."""

import networkx as nx
import numpy as np
import pytest
import torch

from dfl_lightning.callbacks import FDMS, Bernoulli, Gossip, Metropolis, Uniform
from dfl_lightning.functional import metropolis_weights
from dfl_lightning.links import Links
from dfl_lightning.terminal.banner import banner
from dfl_lightning.topology import spectral_gap

DOUBLE = {"trainer": {"precision": "64-true"}}
STILL = {**DOUBLE, "local_epochs": 0, "init": "independent"}


def uneven_graph():
    """Build a triangle with a tail: degrees 1, 2 and 3."""
    return nx.Graph([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5)])


def test_untrained_models_reach_their_mean_at_the_second_eigenvalues_rate(start):
    """The deviation from the mean shrinks by at most |lambda_2| a round, and in the end by just that."""
    graph = uneven_graph()
    run = start(Gossip(k="all"), Metropolis(), topology=graph, **STILL)
    first = run.models.clone()
    mean = first.mean(0)
    matrix = np.zeros((6, 6))
    for i, j in graph.edges:
        matrix[i, j] = matrix[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    matrix += np.diag(1 - matrix.sum(1))
    rate = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2]
    off = [float((first - mean).norm())]
    for round in run.go(25).rounds:
        torch.testing.assert_close(round.after.mean(0), mean, rtol=0, atol=1e-14)
        off.append(float((round.after - mean).norm()))
        assert off[-1] <= rate * off[-2] + 1e-14
    assert off[-1] / off[-2] == pytest.approx(rate, rel=1e-3)
    torch.testing.assert_close(run.models, torch.tensor(np.linalg.matrix_power(matrix, 25)) @ first)


def test_uniform_weights_reach_an_average_in_which_degrees_count(start):
    """Row means have another fixed point: shares of degree + 1."""
    graph = uneven_graph()
    run = start(Gossip(k="all"), Uniform(), topology=graph, rounds=200, **STILL)
    first = run.models.clone()
    shares = torch.tensor([graph.degree[i] + 1.0 for i in range(6)], dtype=torch.float64)
    run.go(150)
    torch.testing.assert_close(run.models, (shares / shares.sum() @ first).expand(6, -1))


def test_only_training_moves_the_mean_despite_dropouts(start):
    run = start(Gossip(k="all"), Metropolis(), Bernoulli(0.4), topology=uneven_graph(), **DOUBLE).go(5)
    assert any(round.dropped.any() for round in run.rounds)
    for round in run.rounds:
        torch.testing.assert_close(round.after.mean(0), round.trained.mean(0), rtol=0, atol=1e-14)


def test_every_neighbours_model_is_received_once(start):
    run = start(Gossip(k="all"), Metropolis(), topology="ring").go()
    assert run.rounds[0].metrics["models_received"] == 2


def remarks(run):
    return [remark for remark in run.trainer.remarks if remark.startswith("Metropolis")]


def test_asymmetric_selection_gets_a_remark(start):
    assert remarks(start(Gossip(k="all"), Metropolis(), topology="ring")) == []
    (remark,) = remarks(start(Gossip(k=2), Metropolis()))
    assert "undirected topology and --selection.k all" in remark
    arcs = nx.cycle_graph(6, create_using=nx.DiGraph)
    assert remarks(start(Gossip(k="all"), Metropolis(), topology=arcs)) == [remark]
    (remark,) = remarks(start(Gossip(k="all"), Metropolis(), FDMS(), Bernoulli(0.3), topology="ring"))
    assert "--substitution null" in remark


def test_star_mixes_slowly_despite_its_large_spectral_gap(start):
    """The spectral gap of a graph does not tell how fast its Metropolis weights bring models together."""
    star, ring = nx.star_graph(23), nx.circulant_graph(24, [1, 2, 3])
    gaps, rates = [], []
    for graph in (star, ring):
        links = nx.to_numpy_array(graph)
        gaps.append(spectral_gap(Links.from_mask(torch.from_numpy(links > 0))))
        assert gaps[-1] == pytest.approx(
            np.sort(np.linalg.eigvalsh(nx.normalized_laplacian_matrix(graph).toarray()))[1]
        )
        voters = Links.from_mask(torch.from_numpy(links + np.eye(24)) > 0)
        weights = voters.dense(metropolis_weights(torch.ones(len(voters)), voters), 0).numpy()
        rates.append(np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2])
        run = start(Gossip(k="all"), Metropolis(), clients=24, topology=graph, **STILL)
        line = f"Metropolis weights: second largest eigenvalue modulus {rates[-1]:.4g} with all clients active"
        assert line in banner(run.trainer, run.module)
    assert gaps[0] == pytest.approx(1)
    assert rates[0] == pytest.approx(0.958, abs=5e-4)
    assert gaps[1] < gaps[0]
    assert rates[1] < rates[0]
