"""Krum and Multi-Krum."""

from plain.book import Method, others
from plain.neighbours import STAR
from plain.robust_rounds import INPUTS, ITSELF, OUTPUTS, alike, attacked, rounds


def krum(before, trained, sent, graph, active, adversaries, kept, include_self=True):
    def mix(i, near, received):
        ids = sorted([i] * include_self + near)
        models = [trained[i] if j == i else received[near.index(j)] for j in ids]
        n = len(ids)
        if n < 2 * adversaries + 3:
            return 1.0, [0.0] * len(near)
        scores = []
        for a in range(n):
            apart = sorted(float(((models[a] - models[b]) ** 2).sum()) for b in range(n) if b != a)
            scores.append(sum(apart[: n - adversaries - 2]))
        best = sorted(range(n), key=lambda a: (scores[a], a))[: min(kept, n) if kept else n - adversaries]
        share = {ids[a]: 1 / len(best) for a in best}
        return share.get(i, 0.0), [share.get(j, 0.0) for j in near]

    return rounds(before, trained, sent, graph, active, mix)


METHOD = Method(
    name="Krum and Multi-Krum",
    configs=["dsgd --topology complete --aggregation Krum", "dsgd --topology complete --aggregation MultiKrum"],
    paper="Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient "
    "Descent, NeurIPS 2017, arXiv 1703.02757",
    equation="the definition of Krum",
    does="Of the n models of a client, its own and those received, each has as its score the sum of squared distances to "
    "the n - f - 2 nearest others; those with the lowest scores are averaged, of equal scores the lowest id first.",
    inputs={
        **INPUTS,
        "adversaries": "f, how many of a client's n models may be falsified",
        "kept": "how many models are averaged: 1 is Krum; 0: n - f",
    },
    outputs=OUTPUTS,
    readings=[
        (
            "What if n < 2 f + 3?",
            "the client keeps the model that it trained",
            "the paper's server has n > 2 f + 2; among fewer its choice proves nothing",
        ),
        ITSELF,
    ],
    cases=[
        ("one of five is falsified", attacked(221, others(5), adversaries=1, kept=1)),
        ("two of seven, averaged", attacked(222, others(7), liars=(0, 4), adversaries=2, kept=0)),
        ("the liars agree", alike(attacked(223, others(7), liars=(), adversaries=2, kept=1), 5, 6)),
        ("the best three", attacked(224, others(6), adversaries=1, kept=3)),
        ("equal scores", alike(attacked(225, others(5), adversaries=0, kept=1), 1, 2, 4)),
        ("too few are active", attacked(226, others(5), active=[True, True, False, True, True], adversaries=1, kept=1)),
        ("too few for some", attacked(227, STAR, liars=(3,), adversaries=1, kept=0)),
    ],
    function=krum,
)
