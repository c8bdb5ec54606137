import math
import statistics

import pytest
import torch

from dfl_lightning.callbacks import AFIND, AdaptiveThreshold, Selection, Uniform
from dfl_lightning.utils.errors import UserError


def test_threshold_is_tau_times_the_mean_uncertainty(start):
    round = start(AFIND(), AdaptiveThreshold(tau=0.8), Uniform()).go().rounds[0]
    for i in range(6):
        entropies = []
        for j in range(6):
            if j != i:
                e = max((float(round.similarity[i, j]) + 1) / 2, 1 / math.e)
                entropies.append(-e * math.e * math.log(e))
        assert round.threshold[i] == pytest.approx(0.8 * sum(entropies) / 5)
    assert round.metrics["threshold"] == pytest.approx(float(round.threshold.mean()))


def test_literal_rule_keeps_thresholds_of_dropped_clients(start, trace):
    threshold = AdaptiveThreshold(rule="literal")
    up = trace("1 1 1 1 1 1", "0 1 1 1 1 1")
    run = start(AFIND(rule="literal", nu=0.01), threshold, Uniform(), up).go(1)
    before = threshold.threshold.clone()
    run.go(1)
    assert threshold.threshold[0] == before[0]
    assert (threshold.threshold[1:] != before[1:]).any()


def test_entropies_may_be_standardised_before_the_sigmoid(start):
    """Eq. 10 to 13 with z-scores, by hand from the similarities; on a ring each sees two neighbours' and its own."""
    for topology, near in (("ring", 1), ("complete", 5)):
        threshold = AdaptiveThreshold(tau=0.8, rule="literal", normalise=True)
        run = start(AFIND(rule="literal", nu=0.5), threshold, Uniform(), topology=topology).go(1)
        (round,) = run.rounds
        h = []
        for i in range(6):
            e = [(float(round.similarity[i, j]) + 1) / 2 for j in range(6) if round.selected[i, j]]
            h.append(-sum(x * math.log(x) for x in e))
        for i in range(6):
            seen = [h[j] for j in range(6) if min((i - j) % 6, (j - i) % 6) <= near]
            z = (h[i] - statistics.mean(seen)) / statistics.pstdev(seen)
            assert threshold.threshold[i] == pytest.approx(0.8 * (1 - 1 / (1 + math.exp(-z))))
        assert round.metrics["messages_received"] == len(seen) - 1
    with pytest.raises(UserError, match=r"normalise=true is for threshold\.rule=literal, .*; use --threshold\.rule"):
        AdaptiveThreshold(normalise=True)


def test_a_selection_without_similarities_is_refused(start):
    class Blind(Selection):
        reads = frozenset({"threshold"})

        def on_compare(self, round):
            round.scores = torch.ones(len(round.candidates))

    with pytest.raises(UserError, match="reads similarities, and the selection Blind writes none"):
        start(Blind(), AdaptiveThreshold(), Uniform()).go()
