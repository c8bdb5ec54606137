"""Assembly of the page: one file with all of its data, styles and scripts, which loads nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dfl_lightning.bench.report.attack import attacks, under_attack
from dfl_lightning.bench.report.charts import links as link_charts
from dfl_lightning.bench.report.charts.colours import colour_places
from dfl_lightning.bench.report.look.theme import DARK, DASHES, DOTTED, LIGHT, config, variables
from dfl_lightning.bench.report.methods import Method, names_for_colours
from dfl_lightning.bench.report.page.clients import clients_on_page, with_links
from dfl_lightning.bench.report.page.compact import compact
from dfl_lightning.bench.report.page.contents.columns import columns_of_page
from dfl_lightning.bench.report.page.contents.losers import losers_table
from dfl_lightning.bench.report.page.contents.reaching import reaching_of_page
from dfl_lightning.bench.report.page.contents.repeating import StudyFile, repeat_section, repeats, texts
from dfl_lightning.bench.report.page.contents.seeds import about_lead, dots, seeds_table
from dfl_lightning.bench.report.page.contents.spread import spread_table
from dfl_lightning.bench.report.page.contents.trouble import LANES, about_divergence, about_new_links, trouble_of_page
from dfl_lightning.bench.report.page.following import live_note
from dfl_lightning.bench.report.page.grid import columns, in_fours
from dfl_lightning.bench.report.page.opening import Opening
from dfl_lightning.bench.report.page.rounds import light_entry, run_entry
from dfl_lightning.bench.report.page.scripts import packed_json, packed_vega
from dfl_lightning.bench.report.page.sections import GROUPS, Figure, Group, described, figures, heading
from dfl_lightning.bench.report.page.sentences.limits import detailed, every_run, left_out, with_graphs
from dfl_lightning.bench.report.page.sentences.said import qualified
from dfl_lightning.bench.report.page.sentences.undefined import about_metrics
from dfl_lightning.bench.report.page.sentences.verdict import and_, lines, not_compared
from dfl_lightning.bench.report.page.settings import configs, settings_section
from dfl_lightning.bench.report.page.tables import commands_table, verdict_table, versions
from dfl_lightning.bench.report.page.templates.filling import fill
from dfl_lightning.utils.words import counted

if TYPE_CHECKING:
    from markupsafe import Markup

_SQUARE = 500
"""Height in pixels that is reserved for a square chart until it is drawn."""


def page(
    methods: Sequence[Method],
    drawn: Sequence[Figure] | None = None,
    study: str = "",
    command: str = "",
    opening: Opening | None = None,
    following: float | None = None,
    study_file: StudyFile | None = None,
) -> str:
    """Write a report about methods as HTML.

    Args:
        methods: methods to compare.
        drawn: their figures, if they have been drawn already.
        study: title of the study to which the runs belong; default: the page is named after their data.
        command: command that trains the study.
        opening: first section of a study's page, before the verdict.
        following: seconds until the next page, if the run is still training.
        study_file: file of the study, to run it again.
    """
    all_figures = list(figures(methods) if drawn is None else drawn)
    colours = {name: number for number, name in enumerate(colour_places(names_for_colours(methods)))}
    linked = [(m, run, entry) for m, run in with_graphs(methods) if (entry := run_entry(m, run)) is not None]
    graphs = {run.path for _, run, _ in linked}
    light = [(m, run, light_entry(m, run)) for m, run in every_run(methods) if run.path not in graphs]
    chosen = [*linked, *light]
    trouble = trouble_of_page(methods, with_links(methods, [run for _, run, _ in linked]))
    repeated, reached = repeats(methods), reaching_of_page(methods)
    content = {
        "themes": {"light": config(LIGHT), "dark": config(DARK)},
        "charts": {figure.name: {"description": figure.spoken, **unthemed(figure.spec)} for figure in all_figures},
        "colours": {"light": LIGHT, "dark": DARK},
        "look": link_charts.look(),
        "clients": clients_on_page(methods, [(run, entry) for _, run, entry in chosen]),
        "runs": [entry for *_, entry in chosen],
        "trouble": trouble,
        "reaching": reached,
        "first": _first([(m, entry) for m, _, entry in linked]),
        "configs": configs(methods),
        "repeating": texts(repeated, study_file),
    }
    read = files(__package__).joinpath
    scripts = (
        "expand.js",
        "near.js",
        "place.js",
        "more.js",
        "linked.js",
        "address.js",
        "settings.js",
        "repeating.js",
        "crosshair.js",
        "zoom.js",
        "single.js",
        "client.js",
        "chosen.js",
        "columns.js",
        "trouble.js",
        "reaching.js",
        "shade.js",
        "front.js",
        *(["follow.js"] * (following is not None)),
        "page.js",
    )
    scores = {method.score.label for method in methods}
    label = scores.pop() if len(scores) == 1 else "score"
    by_section = {
        section: [figure for figure in all_figures if figure.section == section]
        for section in ("table", "learning", "bands", "clients", "cost", "sweeps", "over", "why", "alike", "dropouts")
    }
    charts = {section: _grid(of_section, GROUPS.get(section)) for section, of_section in by_section.items()}
    html = fill(
        "page.html",
        title=study or title(methods),
        style=variables() + read("page.css").read_text(encoding="utf-8"),
        count=_count(methods),
        lead=_lead(methods) if opening is None else _without_qualification(opening.lead),
        losers=_losers(methods),
        live="" if following is None else live_note(methods, following),
        opening=opening,
        charts=charts,
        verdict=_verdict(methods, colours, leads=opening is None),
        left_out=left_out(methods),
        is_shortened=len(detailed(methods)) < len(methods),
        cost_heading=f"{label[:1].upper()}{label[1:]} and cost",
        reaching=_reaching(methods, reached),
        has_links=bool(linked),
        has_clients=bool(chosen),
        divergence=about_divergence(methods),
        trouble=_trouble(methods, trouble),
        differs=len(methods) > 1,
        settings=settings_section(methods),
        command=command,
        repeating=repeat_section(repeated, study_file),
        commands=commands_table(methods),
        versions=versions(methods),
        vega=packed_vega(),
        data=packed_json(compact(content)),
        columns=packed_json(compact(_columns(methods))),
        script="".join(read(name).read_text(encoding="utf-8") for name in scripts),
    )
    return str(html)


def _columns(methods: Sequence[Method]) -> dict[str, Any]:
    """Return the data of the picker of columns, with the dashes of lines."""
    look = {"number": len(LIGHT["category"]), "dashes": DASHES, "dotted": DOTTED}
    return {**columns_of_page(methods), "dash": look}


_ROWS_OF_TROUBLE, _FRAME, _LANE = 8, 64, 30
"""Rows of the table of trouble before the others are folded, and pixels around and of a lane of the time line."""


def _trouble(methods: Sequence[Method], runs: Sequence[dict[str, Any]]) -> Markup | str:
    """Write the table of trouble and the place of the time line; empty if no run has anything to show."""
    if not runs:
        return ""
    number = sum(len(method.runs) for method in methods)
    quiet = f"{number - len(runs)} of {number} runs have none of these." if number > len(runs) else ""
    quiet = " ".join(filter(None, [about_new_links(methods), quiet]))
    lanes = [lane for lane in LANES if any(run["summary"][lane] for run in runs)]
    height = _FRAME + _LANE * sum(bool(words) for words in runs[0]["summary"].values())
    return fill("trouble.html", runs=runs, lanes=lanes, quiet=quiet, most=_ROWS_OF_TROUBLE, height=height)


def _reaching(methods: Sequence[Method], tasks: Sequence[dict[str, Any]]) -> Markup | str:
    """Write the fields and the tables of what reaching a score costs; empty if no run was evaluated on test data."""
    several = any(len(method.runs) > 1 for method in methods)
    return fill("reaching.html", tasks=tasks, several=several) if tasks else ""


def _losers(methods: Sequence[Method]) -> Markup | str:
    """Write the table of losing clients of each task; empty if no run can be paired with training alone."""
    tasks, found = sorted({method.task for method in methods}), []
    for task in tasks:
        of_task = [method for method in methods if method.task == task]
        table = losers_table(of_task)
        if table is not None:
            found.append({"table": table, "where": heading(of_task, methods) if len(tasks) > 1 else ""})
    return fill("losers.html", tasks=found) if found else ""


def _first(linked: Sequence[tuple[Method, dict[str, Any]]]) -> int:
    """Choose the run that the page shows first, and return its number.

    Runs whose clients learn from each other come before runs with a server, and these before training alone.
    """

    def rank(number: int) -> tuple[bool, bool]:
        method, entry = linked[number]
        return method.is_local, any(node["server"] for node in entry["nodes"])

    return min(range(len(linked)), key=rank, default=0)


def largest_comparison(methods: Sequence[Method]) -> list[Method]:
    """Return the methods of the task with most methods; of several such tasks, the first.

    Args:
        methods: methods of one or several tasks.
    """
    sizes = Counter(method.task for method in methods)
    task = min(sizes, key=lambda task: (-sizes[task], task))
    return [method for method in methods if method.task == task]


def title(methods: Sequence[Method]) -> str:
    """Write the title of a page: the data on which most methods are compared, the number of clients, and the attack."""
    methods = largest_comparison(methods)
    clients = methods[0].runs[0].num_clients
    number = f", {counted(clients, 'client')}" if clients else ""
    attack = under_attack(methods)
    return f"{described(methods[0])}{number}{f', {attack}' if attack else ''}"


def unthemed(spec: dict[str, Any]) -> dict[str, Any]:
    """Remove the theme from the specification of a chart, since the page sets it."""
    return {key: value for key, value in spec.items() if key not in ("config", "$schema")}


def _count(methods: Sequence[Method]) -> str:
    number = len({run.path for method in methods for run in method.runs})  # a run may be in several cells of a study
    names = len({method.name for method in methods})
    return f"{number} run{'s' * (number > 1)}, {names} method{'s' * (names > 1)}"


def _lead(methods: Sequence[Method]) -> dict[str, Any]:
    """Write the brief verdict at the top of the page, on the largest comparison.

    Args:
        methods: methods of one or several tasks.

    Returns:
        `warning`, which may be empty; `first`, the verdict in a sentence; `others`, a list of sentences that qualify
        it; and `whole`, the id of the verdict in full, empty if it says no more.
    """
    main = largest_comparison(methods)
    words, aside = qualified(main, brief=True), not_compared(main)
    warning = aside if aside in words else ""
    first, *rest = words[1:] if warning else words
    has_tasks = len({method.task for method in methods}) > 1
    where = f"{heading(main, methods)}: " if main[0].column or has_tasks else ""
    attack = under_attack(main)
    where += f"{attack[:1].upper()}{attack[1:]}, honest clients: " if attack else ""
    return {
        "warning": warning,
        "first": where + first,
        "others": list(filter(None, [about_lead(main, brief=True), *rest])),
        "whole": f"said-{main[0].task + 1}" if words != qualified(main) else "",
    }


def _without_qualification(lead: str) -> dict[str, Any]:
    """Return the top of a study's page, whose sentence is given."""
    return {"warning": "", "first": lead, "others": [], "whole": ""}


def _verdict(methods: Sequence[Method], colours: dict[str, int], leads: bool) -> Markup:
    """Write the verdict of each task: sentences and a table.

    Args:
        methods: methods of one or several tasks.
        colours: number of each method's colour.
        leads: True if the page begins with the brief verdict of the largest comparison. The sentences of that one are
            then below its table, and left out if they are not longer.
    """
    parts, tasks = [], sorted({method.task for method in methods})
    led = largest_comparison(methods)[0].task
    for task in tasks:
        of_task = [method for method in methods if method.task == task]
        where = heading(of_task, methods)
        words, brief = (" ".join(qualified(of_task, brief=brief)) for brief in (False, True))
        is_led = leads and task == led
        rows = lines(of_task)
        ranked, number = [line.method for line in rows], task + 1
        label = f"{where}, {number}"
        names = {"label": label, "number": number}
        by_seed, over_clients = seeds_table(ranked), spread_table(ranked)
        opens = {"worst": f"spread-{number}"} if over_clients is not None else {}
        opens |= {"seeds": f"each-seed-{number}"} if by_seed is not None else {}
        table = verdict_table(rows, colours, _caption(of_task), f"Verdict: {label}", dots(of_task), opens)
        parts.append(
            {
                "where": where,
                "number": number,
                "table": table,
                "words": "" if is_led and words == brief else words,
                "words_first": not is_led,
                "metrics": about_metrics(of_task),
                "lead": about_lead(of_task),
                "spread": "" if over_clients is None else fill("spread.html", table=over_clients, **names),
                "seeds": "" if by_seed is None else fill("seeds.html", table=by_seed, where="", **names),
            }
        )
    several = any(len(method.runs) > 1 for method in methods)
    attacked = any(attacks(methods))
    note = f"Mean over {'honest clients' if attacked else 'clients'} at the last evaluation. "
    if several:
        note += (
            "± is the standard deviation over seeds. Differences are paired by seed and test data; below each is "
            "the 95 % interval of this pair alone (Student's t). It is not corrected for the number of methods, and so "
            "it can exclude 0 where there is no verdict. "
        )
    if len(tasks) > 1:
        column = "within a column, " if methods[0].column else ""
        note += f"Methods are compared {column}on the same test data only."
    return fill("verdict.html", tasks=parts, note=note)


def _caption(methods: Sequence[Method]) -> str:
    """Write the caption of a verdict: numbers of test and training samples, and of rounds if these differ."""
    run = methods[0].runs[0]
    offsets = run.split.get("test_offsets")
    tested = ""
    if offsets is not None and len(offsets) > 1:
        tested = f"{int(offsets[-1]):,} test samples over all {len(offsets) - 1} clients"
    trained: dict[int, list[str]] = {}
    for method in methods:
        train_offsets = method.runs[0].split.get("train_offsets")
        if train_offsets is not None and len(train_offsets) > 1:
            trained.setdefault(int(train_offsets[-1]), []).append(method.name)
    if len(trained) == 1:
        more = f", {next(iter(trained)):,} training samples"
    else:
        more = "".join(f"; training samples of {and_(names)}: {n:,}" for n, names in trained.items())
    rounds: dict[int, list[str]] = {}
    for method in methods:
        rounds.setdefault(max(len(run.metrics["round"]) for run in method.runs), []).append(method.name)
    if len(rounds) > 1:
        more += "".join(f"; {number} rounds: {and_(names)}" for number, names in sorted(rounds.items()))
    data = f"{described(methods[0])}: " if methods[0].column else ""
    return f"{data}{f'{tested}{more}'.lstrip(',; ')}"


def _grid(figures: Sequence[Figure], group: Group | None = None) -> Markup:
    """Write figures in rows; with several tasks, those of each task are below its name.

    Args:
        figures: figures of a section.
        group: words above the figures, if there are any.
    """
    tasks = []
    for where, of_task in groupby(figures, key=lambda figure: figure.where):
        shown = list(of_task)
        shapes = [figure.shape for figure in shown]
        widths = [width + " four" * four for width, four in zip(columns(shapes), in_fours(shapes), strict=True)]
        tasks.append((where, [_figure(figure, width) for figure, width in zip(shown, widths, strict=True)]))
    return fill("figures.html", tasks=tasks, group=group)


def _figure(figure: Figure, width: str) -> dict[str, Any]:
    """Return the texts of a figure, and the height that is reserved until its chart is drawn.

    Args:
        figure: figure of the page.
        width: CSS classes of its width.
    """
    heading, note = (brief or whole for brief, whole in zip(figure.brief, (figure.title, figure.note), strict=True))
    return {
        "name": figure.name,
        "title": figure.title,
        "heading": heading.removesuffix(f": {figure.where}"),
        "note": note,
        "spoken": figure.spoken,
        "method": figure.method,
        "classes": f"{figure.shape} {width}",
        "height": _SQUARE if figure.shape == "square" else figure.spec.get("height", 0),
    }
