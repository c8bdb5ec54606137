"""The README and the pages of docs/: what they name exists, under the name that they give it.

That what they tell a reader to type works is in test_walk.py; the commands of docs/data.md are also in
test_data_page.py, the tables of networks and methods in test_networks_page.py and test_methods_page.py.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import torch
import torchmetrics.classification

from dfl_lightning import callbacks, data, functional, models, objectives, tasks
from dfl_lightning.cli.arguments import SECTIONS, TOP_LEVEL, Settings, split, with_configs
from dfl_lightning.cli.classes.registry import GROUPS, class_of, parameters_of, shipped_classes
from dfl_lightning.cli.command import run
from dfl_lightning.round.record import Round
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.shipped_files import shipped

ROOT = Path(__file__).parents[2]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]
}
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CONFIGS_OF = {  # whose options a page's switches are; the others' are any config's
    "docs/afind.md": ["afind", "afind_literal"],
    "docs/panm.md": ["panm_grad", "pens"],
    "docs/fl_fdms.md": ["fdms"],
    "docs/dpfl.md": ["dpfl"],
}
OF_OTHER_PAGES = {name for names in CONFIGS_OF.values() for name in names} - {"pens"}
CONFIGS_OF["docs/baselines.md"] = sorted(set(shipped("configs")) - OF_OTHER_PAGES)
DEPARTURES = ["docs/afind.md", "docs/panm.md", "docs/fl_fdms.md", "docs/dpfl.md", "docs/baselines.md"]
OF_USERS = {
    "idea.yaml",
    "lowest_loss.py",
    "mine.py",
    "exp/mine.py",
    "exp/my.yaml",
    "my_network.yaml",
    "my_network.graphml",
    "config.yaml",
    "tuned.yaml",
}  # examples, and a run's own
ELSEWHERE = {
    *("Trainer", "EarlyStopping", "ModelCheckpoint", "DataLoader", "DiGraph"),
    *("LinkMemory", "Links", "Round", "Source", "UserError", "ClientData", "Listed"),
    *("Random", "Grid"),  # samplers of Optuna
}
"""Words in capitals that name something else than a class with a short name."""


def spans(page):
    """Find the texts in backticks, outside of blocks of code."""
    return re.findall(r"`([^`]+)`", FENCED.sub("", TEXTS[page]))


def commands(page):
    """Find the words after `dfl-fit` of every whole command, in blocks of code and in backticks."""
    lines = "\n".join(FENCED.findall(TEXTS[page])).splitlines() + [f"{span}\n" for span in spans(page)]
    found = [re.match(r"(?:\.venv/bin/)?dfl-fit (--config \S.*?)(?:  +#.*)?$", line) for line in lines]
    return [match[1] for match in found if match and "…" not in match[1]]


# --- switches ---------------------------------------------------------------------------------------------------------
def as_words(span):
    """Return a switch in backticks as words of a command line; None for other texts and for examples of users."""
    if any(example in span for example in ("…", "NAME", "mine.", "my_", ".help")):
        return None
    if span.startswith("--"):
        words = span.replace("+=", "=").split()
        return words if re.split(r"[.=]", words[0][2:])[0] in TOP_LEVEL else None
    match = re.fullmatch(rf"((?:{'|'.join(TOP_LEVEL)})\.[a-z_.]+)(?:: (.+))?", span)
    if not match or (ROOT / "dfl_lightning" / match[1]).exists() or match[1].endswith((".csv", ".json", ".npz")):
        return None
    return [f"--{match[1]}={match[2] or 'null'}"]


SWITCHES = [(page, span) for page in TEXTS for span in dict.fromkeys(spans(page)) if as_words(span)]


@functools.cache
def objection(words, config):
    """Return the reason why the words are not switches on top of a config, or None; switches without value get null."""
    alone = [*(word.startswith("--") for word in words[1:]), True]
    words = [f"{word}=null" if re.fullmatch(r"--[^=]+", word) and alone[at] else word for at, word in enumerate(words)]
    for word in words:
        section, _, option = word.partition("=")[0].removeprefix("--").partition(".")
        first = option.partition(".")[0]
        if word.startswith("--") and section in SECTIONS and first and first not in SECTIONS[section]:
            return f"{section} has no option {option}"
    try:
        Settings(with_configs(split(["--config", config, *words])))
    except UserError as error:
        return None if "leave it out, or give it a value" in str(error) else str(error)
    return None


def fitting(page, words):
    """Return the first of the page's configs on top of which the words are switches, or None."""
    return next((c for c in CONFIGS_OF.get(page, shipped("configs")) if objection(tuple(words), c) is None), None)


def test_switches_are_found_on_the_pages():
    assert len(SWITCHES) > 80
    assert {page for page, _ in SWITCHES} >= {"README.md", *DEPARTURES}
    assert as_words("selection.rule: literal") == ["--selection.rule=literal"]
    assert as_words("--dropout null") == ["--dropout", "null"]
    assert as_words("threshold") is as_words("trainer.py") is None


@pytest.mark.parametrize(
    "words", ["--selection.mu 3", "selection.rules: literal", "trainer.rounds: 3", "--aggregation Mean", "model.epochs"]
)
def test_unknown_switches_are_noticed(words):
    assert fitting("docs/afind.md", as_words(words)) is None


@pytest.mark.parametrize(("page", "span"), SWITCHES)
def test_every_switch_is_one_that_the_parser_knows(page, span):
    words = as_words(span)
    if words[0] == "--config":
        assert words[1] in shipped("configs")
    elif fitting(page, words) is None:  # perhaps of a class that no config has, where the page has no config either
        assert page not in CONFIGS_OF, objection(tuple(words), CONFIGS_OF[page][0])
        group, _, option = words[0].removeprefix("--").partition("=")[0].rpartition(".")
        assert any(option in parameters_of(cls) for cls in shipped_classes(group).values())


@pytest.mark.parametrize("page", CONFIGS_OF)
def test_the_values_of_switches_are_accepted(page, tmp_path, monkeypatch, capsys):
    """Options with values, as many in a command line as go together."""
    monkeypatch.chdir(tmp_path)
    lines: list[tuple[str, dict[str, str]]] = []
    for _, span in (switch for switch in SWITCHES if switch[0] == page):
        option, value = [*" ".join(as_words(span)).replace("=", " ", 1).split(maxsplit=1), ""][:2]
        config = fitting(page, [f"{option}={value}"])
        if config and "." in option and value and " --" not in value and re.search(r"[ =]", span):
            fits = (line for at, line in lines if at == config and option not in line)
            line = next(fits, None)
            if line is None:
                lines.append((config, line := {}))
            line[option] = value
    for config, options in lines:
        words = [f"{option}={value}" for option, value in options.items()]
        assert run("fit", ["--config", config, *words, "--print_config"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "page",
    [p for p in TEXTS if p not in ("README.md", "docs/data.md", "docs/running.md", "docs/tutorial.md") and commands(p)],
)
def test_every_command_can_be_resolved(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in dict.fromkeys(commands(page)):
        assert run("fit", [*command.split(), "--print_config"]) == 0, (command, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("page", DEPARTURES)
def test_options_of_every_departure_fit_into_a_run(page, tmp_path, monkeypatch, capsys):
    """The switches of a row together, on one of the page's configs: nothing is refused before the training."""
    monkeypatch.chdir(tmp_path)
    tried = 0
    for row in re.findall(r"^\| (?!the paper).*$", TEXTS[page], re.MULTILINE):
        letter = row.strip("| ").split(" | ")[-1]
        words = [
            w for span in re.findall(r"`([^`]+)`", letter) if re.search("[ =]", span) for w in as_words(span) or []
        ]
        if "rule=literal" in " ".join(words) and page == "docs/afind.md":
            words = ["--selection.rule=literal", "--threshold.rule=literal"]  # one switch, as the page says
        if not words or "FromTopology" in words or "CIFAR10" in words:  # these need a file
            continue
        tried += 1
        answers = {c: run("fit", ["--config", c, *words, "--explain"]) for c in CONFIGS_OF[page]}
        assert 0 in answers.values(), (words, capsys.readouterr().err)
    assert tried > 2


# --- tables of departures ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", DEPARTURES)
def test_departures_are_tables_of_four_columns_with_nothing_left_out(page):
    tables = re.findall(r"^\| the paper \|.*\n(?:\|.*\n)+", TEXTS[page], re.MULTILINE)
    assert tables
    for table in tables:
        head, _, *rows = table.replace(r"\|", "/").splitlines()
        assert head == "| the paper | the default | why | as printed |"
        for row in rows:
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            assert len(cells) == 4, row
            assert all(cells), row


# --- names ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", TEXTS)
def test_classes_exist(page):
    rooms = (callbacks, data, data.partitions, models, objectives, tasks, torch.optim, torch.optim.lr_scheduler)
    rooms += (torchmetrics, torchmetrics.classification)
    for word in spans(page):
        match = re.fullmatch(r"(?:(?:cb|callbacks|data|models)\.)?([A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*)(?:\(.*)?", word)
        if match and match[1] not in ELSEWHERE:
            assert any(hasattr(room, match[1]) for room in rooms), word
        match = re.fullmatch(r"([a-z_.]+): ([A-Z]\w+)", word)
        if match and match[1] in GROUPS:
            class_of(match[1], match[2])


@pytest.mark.parametrize("page", TEXTS)
def test_functions_and_fields_exist(page):
    fields = {field.name for field in dataclasses.fields(Round)} | {n for n, _ in inspect.getmembers(Round)}
    for word in spans(page):
        name = word.partition("(")[0]
        if name.startswith("functional."):
            assert hasattr(functional, name.removeprefix("functional.")), word
        if name.startswith("dfl_lightning.") and "/" not in name:
            module, _, attribute = name.rpartition(".")
            found = importlib.import_module(module)
            assert hasattr(found, attribute) or importlib.util.find_spec(name), word
        if name.startswith("round."):
            assert name.removeprefix("round.") in fields, word


# --- files and links --------------------------------------------------------------------------------------------------
def slug(heading):
    """Return the anchor that GitHub makes of a heading.

    Examples:
        >>> slug("The accuracies in summary.json")
        'the-accuracies-in-summaryjson'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path):
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", TEXTS[page]))
    for link in links:
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", [*TEXTS, "docs/example.ipynb"])
def test_imports_are_of_what_the_package_and_its_rooms_export(page):
    """A user who does as a page does is not hurt when a file below a room is moved or renamed."""
    for module, line in re.findall(r"from (dfl_lightning\S*) import ([^#`\n\\]+)", (ROOT / page).read_text("utf-8")):
        exported = importlib.import_module(module)
        assert Path(str(exported.__file__)).name == "__init__.py", module
        assert {word.split(" as ")[0].strip(' ")') for word in line.split(",")} <= {*exported.__all__}, line


@pytest.mark.parametrize("page", TEXTS)
def test_files_exist(page):
    named = set(re.findall(r"(?<![\w/.])(?:scripts|docs|tests|configs|topologies)/[\w/.*-]*\.\w+", TEXTS[page]))
    named |= {span for span in spans(page) if re.fullmatch(r"[\w/.*-]+\.(?:py|md|yaml|svg|png|graphml)", span)}
    places = [ROOT, *(ROOT / room for room in ("dfl_lightning", "docs", "configs", "topologies", "scripts"))]
    for name in named - OF_USERS:
        assert any(list(place.glob(name)) for place in places), name


def test_the_readme_leads_to_every_page():
    linked = set(re.findall(r"\]\((docs/[\w]+\.md)", TEXTS["README.md"]))
    assert linked == {page for page in TEXTS if page.startswith("docs/")}


@pytest.mark.parametrize("page", TEXTS)
def test_a_page_begins_with_its_title(page):
    assert re.match(r"# \S.*\n\n", TEXTS[page])


@pytest.mark.parametrize("page", TEXTS)
def test_table_rows_have_as_many_cells_as_their_head(page):
    for table in re.findall(r"(?:^\|.*\|\n)+", FENCED.sub("", TEXTS[page]), re.MULTILINE):
        rows = [re.sub(r"`[^`]*`|\\\|", "", row).count("|") for row in table.splitlines()]
        assert len(set(rows)) == 1, table.splitlines()[0]


def test_the_lines_about_topologies_are_what_a_run_prints():
    lines = re.findall(r"^(\w+) graph: .*$", TEXTS["docs/topologies.md"], re.MULTILINE)
    assert len(lines) > 3
    for name in lines:
        assert load_topology(name, 24, 0).describe() in TEXTS["docs/topologies.md"].splitlines()
