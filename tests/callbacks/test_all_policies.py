"""Properties of every policy: `tester/shipped.py` lists the policies, `tester/properties.py` has the properties."""

import pytest
from tester import properties
from tester.scenes import FEDERATION, folder_of_traces
from tester.shipped import LISTED, left_out, where_they_do_not, where_they_work

from dfl_lightning.cli.classes.registry import FAMILIES


def slow_if(further):
    """Parametrise a test by all policies at all places; some of them run only with `-m slow`."""
    found = [(p, pytest.mark.slow if further(*p.values) else []) for p in where_they_work()]
    return pytest.mark.parametrize(("listed", "place"), [pytest.param(*p.values, id=p.id, marks=m) for p, m in found])


def is_variant_or_elsewhere(listed, place):
    """Return True for variants, whose names have a comma, and for further places, where engines do the same."""
    return "," in listed.name or place not in (listed.places[0], "three servers")


def is_variant_or_not_at_its_first_place(listed, place):
    """Return True for variants, and for all places but a policy's first."""
    return "," in listed.name or place != listed.places[0]


@pytest.fixture(scope="module")
def classes():
    """Return the classes of the listed policies, by family."""
    with folder_of_traces(FEDERATION):
        return {family: {type(listed.make()) for listed in LISTED[family]} for family in LISTED}


# --- the list


def test_every_shipped_policy_is_listed(classes):
    sentence = left_out(set.union(*classes.values()))
    assert not sentence, sentence


def test_a_policy_that_is_not_listed_is_named(classes):
    sentence = left_out(set.union(*classes.values()) - classes["substitution"])
    assert sentence.endswith(
        "tester/shipped.py, where a line each is needed: FDMS (substitution), Stale (substitution)"
    )


def test_every_policy_is_listed_by_family_and_unique_name(classes):
    for family, listed in LISTED.items():
        assert all(issubclass(cls, FAMILIES[family]) for cls in classes[family])
        assert len({policy.name for policy in listed}) == len(listed)
        assert all((policy.all_up is not None) == (family == "dropout") for policy in listed)


# --- the properties


@slow_if(is_variant_or_elsewhere)
def test_draws_depend_only_on_names(listed, place):
    properties.draws_by_name_only(listed, place)


@slow_if(is_variant_or_elsewhere)
def test_only_reachable_clients_are_selected(listed, place):
    properties.selects_reachable_clients(listed, place)


@slow_if(lambda listed, place: "," in listed.name or place != "clients")
def test_isolated_client_only_trains_locally(listed, place):
    properties.isolated_client_only_trains_locally(listed, place)


@slow_if(is_variant_or_elsewhere)
def test_round_without_active_clients_changes_nothing(listed, place):
    properties.skips_rounds_without_active_clients(listed, place)


@slow_if(is_variant_or_elsewhere)
def test_single_client_only_trains_locally(listed, place):
    properties.lets_one_client_train_alone(listed, place)


@slow_if(is_variant_or_elsewhere)
def test_policy_resumes_from_a_file(listed, place):
    properties.goes_on_from_a_file(listed, place)


@slow_if(is_variant_or_not_at_its_first_place)
def test_policy_uses_the_number_of_rounds_that_it_reads(listed, place):
    properties.computes_with_the_number_of_rounds_where_it_reads_it(listed, place)


@slow_if(is_variant_or_elsewhere)
def test_results_depend_neither_on_ids_nor_on_cohorts(listed, place):
    """Each of the two alone is tried with `-m slow`, which says which of them it was."""
    properties.sees_neither_ids_nor_cohorts(listed, place)


@pytest.mark.slow
@pytest.mark.parametrize(("listed", "place"), where_they_work())
def test_results_do_not_depend_on_cohorts(listed, place):
    properties.does_not_see_cohorts(listed, place)


@pytest.mark.slow
@pytest.mark.parametrize(("listed", "place"), where_they_work())
def test_results_do_not_depend_on_ids(listed, place):
    properties.does_not_see_ids(listed, place)


@slow_if(is_variant_or_not_at_its_first_place)
def test_a_policy_begins_anew_in_another_fit(listed, place):
    properties.begins_anew_in_another_fit(listed, place)


WAYS = [
    ("64-true", True, "loop"),
    ("32-true", False, "loop"),
    ("64-true", False, "stacked"),
    ("32-true", True, "stacked"),
]
"""Precision, whether pairs come one by one, engine: the first two take turns, the others with `-m slow`."""


@pytest.mark.parametrize(
    ("listed", "place", "way"),
    [
        pytest.param(
            *p.values,
            way,
            id=f"{p.id}, {way}",
            marks=[pytest.mark.slow] * (way != WAYS[turn % 2] or is_variant_or_not_at_its_first_place(*p.values)),
        )
        for turn, p in enumerate(where_they_work())
        for way in WAYS
    ],
)
def test_rows_change_only_by_verbs_that_write(listed, place, way):
    seen = properties.changes_no_rows_but_by_verbs_that_write(listed, place, *way)
    assert seen.get("evaluate", 0) + seen.get("outputs", 0) >= 5
    assert seen["on_compare"] >= 4


@pytest.mark.parametrize(("listed", "place"), where_they_do_not())
def test_unsupported_places_are_refused(listed, place):
    properties.refuses_where_it_cannot_work(listed, place)
