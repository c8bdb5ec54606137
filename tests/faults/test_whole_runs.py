"""Drawn runs over all policies keep their promises or are refused; the default suite plays dozens, -m slow hundreds."""

import pytest
import torch
from game.draws import RULES, cases, changing_graphs, graphs, names
from game.parts import AGGREGATIONS, DROPOUTS, OBJECTIVES, SELECTIONS, SUBSTITUTIONS, THRESHOLDS
from game.play import Case, Game, play, set_up
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=25, **RULES)
@given(case=cases())
def test_any_run_satisfies_its_rules_or_is_refused(case):
    play(case)


@pytest.mark.slow
@settings(max_examples=500, **RULES)
@given(case=cases())
def test_many_runs_satisfy_their_rules_or_are_refused(case):
    play(case)


@settings(max_examples=30, **RULES)
@given(data=st.data())
def test_any_combination_of_policies_is_set_up_or_refused(data):
    """Whatever goes together; nothing is trained."""
    choice = {
        "selection": data.draw(names(SELECTIONS)),
        "aggregation": data.draw(names(AGGREGATIONS)),
        "threshold": data.draw(names(THRESHOLDS)),
        "dropout": data.draw(st.none() | names(DROPOUTS)),
        "substitution": data.draw(names(SUBSTITUTIONS)),
        "objective": data.draw(names(OBJECTIVES)),
        "topology": data.draw(st.one_of(graphs(3), changing_graphs())),
    }
    if data.draw(st.booleans()):
        choice["topology"] = {"generator": "server", "args": {"servers": data.draw(st.integers(1, 2))}}
    set_up(Case([3, 1, 5], [1, 0, 2], [1, 1, 1], engine="loop", **choice))


@settings(max_examples=4, **RULES)
@given(case=cases(poisoned=st.just({1: {0: float("nan")}})))
def test_both_engines_agree_about_faults(case):
    case.watched = False
    games = []
    for engine in ("loop", "stacked"):
        case.engine = engine
        games.append(Game(case).play(rounds=2))
    loop, stacked = games
    assert loop.named == stacked.named
    torch.testing.assert_close(loop.models, stacked.models, rtol=1e-4, atol=1e-5)
