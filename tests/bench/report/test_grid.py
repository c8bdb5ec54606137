"""Figures stand in rows without holes."""

import pytest

from dfl_lightning.bench.report.page.grid import columns, in_fours

SPANS = {"w12": 12, "w6": 6, "w4": 4, "w12 lone": 12}


@pytest.mark.parametrize("number", range(1, 17))
def test_rows_of_small_charts_are_full(number):
    row = 0
    for place in columns(["small"] * number):
        row += SPANS[place]
        assert row <= 12
        row %= 12
    assert row == 0


@pytest.mark.parametrize(("number", "missing"), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 4), (6, 0), (8, 0), (9, 0)])
def test_squares_of_a_section_are_of_one_size(number, missing):
    places = columns(["square"] * number)
    assert len(set(places)) == 1
    assert -sum(SPANS[place] for place in places) % 12 == missing


@pytest.mark.parametrize("number", range(2, 17))
@pytest.mark.parametrize("shape", ["small", "square"])
def test_no_chart_stands_alone_in_a_row_on_paper(shape, number):
    fours = sum(in_fours([shape] * number))
    assert in_fours([shape] * number) == [True] * fours + [False] * (number - fours)
    assert fours % 4 != 1
    assert (number - fours) % 3 != 1
    assert fours in (0, number) or number == 13  # of one size, but for the only number that is divided by neither


def test_each_shape_of_chart_has_its_own_rows():
    assert columns(["wide", "half", "half", "wide", "small"]) == ["w12", "w6", "w6", "w12", "w12 lone"]
