"""Independence of receivers: a hub and many leaves get the results that each would get alone."""

import pytest
import torch

from dfl_lightning import functional
from dfl_lightning.links import Links

N = 400


def drawn(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def hub_and_leaves():
    """Link node 0 to all senders, each other node to a few, the last one to none; every node to itself."""
    mask = drawn(0, N, N) < 0.01
    mask[0] = True
    mask |= torch.eye(N, dtype=torch.bool)
    mask[-1] = False
    return Links.from_mask(mask)


LINKS = hub_and_leaves()
E = len(LINKS)
COSINES = torch.where(drawn(1, E) < 0.1, torch.nan, 2 * drawn(2, E) - 1)
VALUES, VOTES, SOME = drawn(3, E), (3 * drawn(4, E)).floor(), drawn(5, E) < 0.5
FUNCTIONS = {
    "selection_probabilities": lambda at, links: functional.selection_probabilities(COSINES[at], links, 0.2),
    "participation_ratio": lambda at, links: functional.participation_ratio(COSINES[at], links, 0.2),
    "updated_probabilities": lambda at, links: functional.updated_probabilities(
        VALUES[at], COSINES[at], SOME[at], links, 0.2
    ),
    "sampled_neighbours": lambda at, links: functional.sampled_neighbours(VOTES[at], VALUES[at], links, 2),
    "nearness": lambda at, links: functional.nearness(VALUES[at], links),
    "entropy_sum": lambda at, links: functional.entropy_sum(COSINES[at], links),
    "adaptive_threshold": lambda at, links: functional.adaptive_threshold(COSINES[at], links, 0.5),
    "boltzmann_weights": lambda at, links: functional.boltzmann_weights(COSINES[at], VOTES[at], links, 0.5),
    "uniform_weights": lambda at, links: functional.uniform_weights(VOTES[at], links),
    "same_cluster": lambda at, links: functional.same_cluster(VALUES[at], links, SOME[at]),
    "collaborator_weights": lambda at, links: functional.collaborator_weights(COSINES[at], links),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_receivers_result_does_not_depend_on_other_receivers(name):
    together = FUNCTIONS[name](torch.arange(E), LINKS)
    for receiver in (0, 1, 2, 57, N - 1):
        at = torch.arange(int(LINKS.starts[receiver]), int(LINKS.starts[receiver + 1]))
        alone = FUNCTIONS[name](at, LINKS.keep(at))
        where = at if len(together) == E else torch.tensor([receiver])
        found = alone if len(together) == E else alone[[receiver]]
        assert torch.equal(together[where].nan_to_num(nan=-9), found.nan_to_num(nan=-9))
