"""Names and other texts stay texts in each template of the page, even if they look like HTML or like a template."""

from html.parser import HTMLParser
from importlib.resources import files

import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from jinja2 import UndefinedError

from dfl_lightning import read_run
from dfl_lightning.bench.report import learning_curves
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page import assemble
from dfl_lightning.bench.report.page.contents.repeating import Repeat, StudyFile
from dfl_lightning.bench.report.page.contents.seeds import SeedDot
from dfl_lightning.bench.report.page.opening import Opening
from dfl_lightning.bench.report.page.sections import Figure
from dfl_lightning.bench.report.page.settings import Head
from dfl_lightning.bench.report.page.tables import ColumnHead, Content, LineStyle
from dfl_lightning.bench.report.page.templates.filling import fill

HOSTILE = """<script>hostile()</script>'" onhostile='x' y=" {{ 7*7 }} {% endfor %} & &amp; """
HARMLESS = "harmless "


class Shown(HTMLParser):
    """Structure of a page, which is its tags and the names of their attributes, and its texts."""

    def __init__(self, html):
        super().__init__()
        self.structure, self.words, self.values = [], "", []
        self.feed(str(html))  # no longer `Markup`, which escapes whatever is joined to it
        self.close()
        self.texts = "\n".join([self.words, *self.values])

    def handle_starttag(self, tag, attributes):
        if tag != "wbr":  # in long words
            self.structure.append((tag, *(name for name, _ in attributes)))
        self.values += [value or "" for _, value in attributes]

    def handle_endtag(self, tag):
        self.structure.append(f"end of {tag}")

    def handle_data(self, data):
        self.words += data


class Texts:
    """Make texts that begin alike, and keep them."""

    def __init__(self, begin):
        self.begin, self.made = begin, []

    def __call__(self, number=None):
        if number is None:
            self.made.append(f"{self.begin}({len(self.made)})")
            return self.made[-1]
        return [self() for _ in range(number)]


def cells(new):
    return {new(): Content(number=new(), around=new()), new(): Content(words=new())}


def verdict_row(new, is_aside):
    adversaries = Content(words=new()) if is_aside else None
    about = {"notes": new(2), "is_aside": is_aside, "adversaries": adversaries}
    about["dots"] = [SeedDot(at, new(), new()) for at in (1.0, 2.0)]
    shown = {**cells(new), "seeds": Content(words=new())}
    return {"method": new(), "key": LineStyle(new(), new()), "cells": shown, **about}


def commands_row(new, **others):
    empty = {"commands": [], "repeats": "", "remark": ""}
    return {"names": new(2), "seed": new(), "rounds": new(), "seconds": new(), "longest": new(), **empty, **others}


def figure(new):
    names = ("name", "title", "heading", "note", "spoken", "method", "classes", "height")
    return {name: new() for name in names}


def settings_table(new):
    heads = [Head(new(), new(), config=new()), Head(new()), Head(setting=new(2)), Head(words=new())]
    return {"where": new(2), "number": new(), "corner": new(), "across": heads, "rows": [(heads[1], [new(2)])]}


def place(new, **others):
    names = ("remark", "mean", "sd", "sign", "seeds", "published")
    return {**dict.fromkeys(names, ""), "is_best": False, **others}


def study_row(new, key):
    number = place(new, **{name: new() for name in ("mean", "sd", "sign", "seeds", "published")}, is_best=key is None)
    return {"name": new(), "key": key, "places": [number, place(new, remark=new())], "further": new(2)}


def losers_of_task(new):
    cells = [
        {"words": new(), "clients": [{"id": new(), "address": new()}], "folded": folded} for folded in (True, False)
    ]
    return {"where": new(), "table": {"seeds": new(2), "rows": [{"method": new(), "all": new(), "cells": cells}]}}


def whole_page(new):
    charts = ("table", "learning", "bands", "clients", "cost", "sweeps", "over", "why", "alike", "dropouts")
    texts = (
        "title",
        "count",
        "live",
        "verdict",
        "left_out",
        "cost_heading",
        "divergence",
        "settings",
        "command",
        "commands",
        "trouble",
        "reaching",
        "losers",
        "repeating",
    )
    return {
        **{name: new() for name in (*texts, "versions")},
        "lead": {"warning": new(), "first": new(), "others": new(2), "whole": new()},
        "opening": {"body": new()},
        "charts": {name: new() for name in charts},
        "is_shortened": True,
        **dict.fromkeys(("has_links", "has_clients", "differs"), True),
        **dict.fromkeys(("style", "vega", "columns", "data", "script"), ""),  # the project's own
    }


def seeds_row(new):
    return {"method": new(), "cells": [{"value": new(), "gap": new()}, {"value": "", "gap": ""}], "without": new()}


def trouble_of(new):
    return {"method": new(), "seed": new(), "summary": {"diverged": new(), "dropped out": ""}}


VALUES = {
    "columns.html": lambda new: {},
    "seeds.html": lambda new: {
        "table": {"seeds": new(2), "best": new(), "rows": [seeds_row(new), seeds_row(new)]},
        "where": new(),
        "label": new(),
        "number": new(),
    },
    "trouble.html": lambda new: {
        **{"quiet": new(), "lanes": ["diverged", "dropped out"], "most": 1, "height": 9},
        "runs": [trouble_of(new), trouble_of(new)],
    },
    "commands.html": lambda new: {
        "rows": [
            commands_row(new, commands=[new(3)]),
            commands_row(new, repeats=new()),
            commands_row(new, remark=new()),
        ],
        "is_folded": False,
    },
    "figures.html": lambda new: {
        "group": {"heading": new(), "note": new()},
        "tasks": [(new(), [figure(new), figure(new)])],
    },
    "live.html": lambda new: {name: new() for name in ("gap", "written", "rounds", "clock")},
    "losers.html": lambda new: {"tasks": [losers_of_task(new) for _ in range(2)]},
    "page.html": whole_page,
    "parts.html": lambda new: {},
    "reaching.html": lambda new: {
        "several": True,
        "tasks": [
            {"where": new(), "label": new(), "percent": True, "sign": -1, "step": 5.0, "first": 80.0} for _ in range(2)
        ],
    },
    "repeating.html": lambda new: {
        "rows": [Repeat(new(), "text", new(2), new(), new(), new()), Repeat(new(), "", new(1))],
        "study": StudyFile(new(), new()),
        "can_all": True,
    },
    "settings.html": lambda new: {"note": new(), "tables": [settings_table(new), settings_table(new)]},
    "spread.html": lambda new: {
        "table": {
            "rows": [{"method": new(), "cells": new(5)}],
            **dict.fromkeys(("percent", "higher", "is_open", "several"), True),
            "worst": new(),
        },
        "label": new(),
        "number": new(),
    },
    "study.html": lambda new: {
        "caption": new(),
        "columns": new(2),
        "rows": [study_row(new, LineStyle(new(), new())), study_row(new, None)],
    },
    "study_opening.html": lambda new: {
        **{name: new() for name in ("table", "signs", "sentences", "signs_of_charts")},
        "notes": new(2),
    },
    "verdict.html": lambda new: {
        "tasks": [
            {
                **{name: new() for name in ("where", "number", "table", "words", "lead", "spread", "seeds")},
                "words_first": words_first,
                "metrics": new(2),
            }
            for words_first in (True, False)
        ],
        "note": new(),
    },
    "verdict_table.html": lambda new: {
        "caption": new(),
        "label": new(),
        "heads": [ColumnHead("seeds", new(), new()), ColumnHead("worst", new(), new(), new())],
        "scale": new(),
        "rows": [verdict_row(new, is_aside) for is_aside in (True, False)],
    },
    "versions.html": lambda new: {"runs_by_text": {new(): new(2), new(): new(1)}},
    "who.html": lambda new: {},
}
"""For each template a function of `Texts` that makes its values."""


def test_each_template_is_tested():
    folder = files("dfl_lightning.bench.report.page").joinpath("templates")
    assert set(VALUES) == {file.name for file in folder.iterdir() if file.name.endswith(".html")}


@pytest.mark.parametrize("template", VALUES)
def test_hostile_texts_are_shown_as_they_are(template):
    hostile, harmless = Texts(HOSTILE), Texts(HARMLESS)
    shown = Shown(fill(template, **VALUES[template](hostile)))
    assert shown.structure == Shown(fill(template, **VALUES[template](harmless))).structure
    assert [text for text in hostile.made if text not in shown.texts] == []


def test_template_without_one_of_its_values_is_refused():
    with pytest.raises(UndefinedError, match="'clock' is undefined"):
        fill("live.html", gap="1", written="2", rounds="3 rounds")


def test_page_of_hostile_runs_has_the_tags_of_any_page(tmp_path, make_run, monkeypatch):
    monkeypatch.setattr(assemble, "packed_vega", str)

    def shown(begin):
        folder, named = tmp_path / begin[:2], []
        for at, row in enumerate(("A", "B")):
            typed = {"commands": [(0, f"dfl-fit --config {begin.replace(chr(34), '')} --x=1")]} if row == "A" else {}
            selection = {"class_path": f"mine.{row}", "init_args": {"note": begin + row}}
            level = [[0.5 + 0.1 * at, 0.6, 0.7, 0.6]]
            about = {"adversaries": [0, 0, 0, 1], "data": begin, "config": {"selection": selection}, **typed}
            named.append((begin + row, read_run(make_run(folder / f"<b> & '{row}'", level, **about))))
        methods = find_methods([run for _, run in named], [name for name, _ in named], [begin, begin])
        opening = Opening(f"{begin} is best.", fill("study_opening.html", **VALUES["study_opening.html"](Texts(begin))))
        drawn = [Figure("one", begin, begin, learning_curves(methods), "wide", "learning")]
        return Shown(assemble.page(methods, drawn, begin, begin, opening, following=2.0))

    hostile = shown(HOSTILE)
    assert hostile.structure == shown(HARMLESS).structure
    for text in (f"{HOSTILE} is best.", f"adversaries of {HOSTILE}A", f"--config {HOSTILE.replace(chr(34), '')}"):
        assert text in hostile.words
