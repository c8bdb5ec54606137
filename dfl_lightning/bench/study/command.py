"""The command `dfl-study`: it trains the cells of a table, and prints their state and the table."""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfl_lightning.bench.study.cells.cell_state import contradictions, state_of
from dfl_lightning.bench.study.cells.disk import give_back
from dfl_lightning.bench.study.cells.of_code import about_code, by_reason
from dfl_lightning.bench.study.cells.other_code import SET_ASIDE, accept
from dfl_lightning.bench.study.file.cells_file import write_cells
from dfl_lightning.bench.study.file.exclude import sentences as about_excluded
from dfl_lightning.bench.study.file.settings import overridden, without_effect
from dfl_lightning.bench.study.file.study_file import KIND, Study, read_study_file
from dfl_lightning.bench.study.plan import Cell, Plan, add_seeds, make_plan
from dfl_lightning.bench.study.processes.slurm_words import PREFIX, split_options
from dfl_lightning.bench.study.processes.starting import Starter
from dfl_lightning.bench.study.tables.measures.equal_cost import COSTS, read_equal_cost
from dfl_lightning.bench.study.tables.measures.measure import BETTER, OVER_ROUNDS, SCORES, Measure, measure_of
from dfl_lightning.bench.study.tables.measures.reach import read_reach
from dfl_lightning.bench.study.tables.measures.window import in_window
from dfl_lightning.bench.study.tables.unequal import sentences as about_conditions
from dfl_lightning.bench.study.tuning import TRIALS, caption, chosen_values, tuned_file
from dfl_lightning.cli.outcome import OneSentenceParser, end, say
from dfl_lightning.runs.reading import PAGE
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.storage.shipped_files import shipped
from dfl_lightning.utils.words import counted
from dfl_lightning.utils.wrapping import for_terminal

if TYPE_CHECKING:
    from dfl_lightning.bench.report.page.contents.repeating import StudyFile

EPILOG = """\
A study file names rows (methods), columns (tasks) and seeds; docs/studies.md says how.
FILE is a path or the name of a shipped study (dfl-study list names them). All files of a
study are in studies/<name>/, or in the folder that --folder names. Cells that were stopped
or killed resume from their last checkpoint.

  dfl-study run digits_small --explain     cells, hours, memory, disk, estimated from a few rounds
  dfl-study run digits_small -j 2          train the cells that are not done, two at a time
  dfl-study run digits_small --slurm --slurm.timeout_min 60    the same as jobs on a cluster
  dfl-study table digits_small             the table of the cells that are done
  dfl-study report digits_small            a page with their curves, clients and links
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 2 a user's mistake, 1 a bug of ours, 128 + number of a signal."""

    def work() -> int:
        plain, options = split_options(sys.argv[1:] if argv is None else argv)
        words = make_parser().parse_args(plain)
        if options and words.do is not run:
            raise UserError(f"{PREFIX}{next(iter(options))}: only dfl-study run submits jobs")
        words.options = options
        return int(words.do(words))

    return end("dfl-study", work)


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command's arguments."""
    parser = OneSentenceParser(
        prog="dfl-study", description="Train a table of methods, tasks and seeds from one file, as resumable runs.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_version()
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=OneSentenceParser)
    for name, do, about in (
        ("run", run, "train the cells that are not done"),
        ("tune", tune_only, "run only the trials of a file with `tune`"),
        ("status", status, "the state of each cell"),
        ("table", table, "mean and standard deviation of each cell and published numbers"),
        ("rounds", rounds, "the numbers of each evaluated round of each cell, as CSV"),
        ("report", report, "a page with curves, clients and links of the cells that are done"),
        ("add-seeds", more_seeds, "add N further seeds to a study; `run` trains them"),
        ("list", list_studies, "the shipped studies"),
    ):
        one = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        one.set_defaults(do=do, name=name)
        if name == "list":
            continue
        one.add_argument("file", metavar="FILE", help="a study file, or the name of a shipped one")
        if name == "add-seeds":
            one.add_argument("number", metavar="N", type=int, help="how many")
        one.add_argument("--folder", metavar="DIR", help="the study's folder; default studies/<name>")
        if name != "add-seeds":
            help = "a part of the rounds, such as 0.1: separate cells"
            one.add_argument("--scale", metavar="S", type=float, default=1.0, help=help)
        if name in ("run", "tune"):
            help = "cells at a time; default 1, with --slurm no limit"
            one.add_argument("-j", "--jobs", metavar="N", type=int, help=help)
        if name == "run":
            one.add_argument(
                "--explain",
                action="store_true",
                help="estimate time, memory and disk from a few rounds, and train nothing else",
            )
            help = "keep the numbers of a cell that is done, but no checkpoint; dfl-test and dfl-export need one"
            one.add_argument("--discard-models", action="store_true", help=help)
            help = "count runs whose own code has changed since as runs of the present code; default: train them again"
            one.add_argument("--accept-code", action="store_true", help=help)
            one.add_argument("--slurm", action="store_true", help="submit the cells as jobs, and return")
            help = "options of the jobs: timeout_min, partition, gpus_per_node, cpus_per_task, mem_gb, ..."
            one.add_argument("--slurm.NAME", metavar="VALUE", help=help)
        if name == "table":
            formats = ("markdown", "csv", "latex", "png")
            help = "default: markdown, on a terminal a table to read"
            one.add_argument("--format", choices=formats, help=help)
            one.add_argument("--score", metavar="NAME", help=f"one of {', '.join(SCORES)}")
            one.add_argument("--number", metavar="COLUMN", help="a column of metrics.csv instead of the score")
            help = "rounds and bytes until the mean test score is 90 (%%)"
            one.add_argument("--reach", metavar="90", type=float, help=help)
            help = "the score at equal seconds, bytes or trainings"
            one.add_argument("--at-equal", metavar="COST", choices=COSTS, help=help)
            help = "of the column: last (default), mean, sum or best_val"
            one.add_argument("--over-rounds", metavar="HOW", choices=OVER_ROUNDS, help=help)
            one.add_argument("--after", metavar="ROUND", type=int, help="of the column: its mean after this round")
            one.add_argument("--until", metavar="ROUND", type=int, help="of the column: its mean up to this round")
            help = "of the column: higher or lower; default: the task's"
            one.add_argument("--better", metavar="SIDE", choices=BETTER, help=help)
            one.add_argument("--out", metavar="FILE", help="default the terminal; of a png the study's folder")
        if name == "rounds":
            help = "a column of metrics.csv, once for each; default all columns of evaluations"
            one.add_argument("--number", metavar="COLUMN", action="append", default=[], help=help)
            one.add_argument("--out", metavar="FILE", help="default the terminal")
        if name == "report":
            one.add_argument("--out", metavar="FILE", help="the page; default report.html in the study's folder")
    return parser


def run(words: argparse.Namespace) -> int:
    """Train the cells that are not done; then print the table."""
    with Starter() as starter:
        return _run(words, starter)


def _run(words: argparse.Namespace, starter: Starter) -> int:
    from dfl_lightning.bench.study.cells.checking import check
    from dfl_lightning.bench.study.processes.running import Stops, run_cells
    from dfl_lightning.bench.study.progress import Progress

    if words.jobs is not None and words.jobs < 1:
        raise UserError(f"-j {words.jobs}: it is a number of cells at a time, 1 or more")
    on_cluster = words.slurm or bool(words.options)
    if on_cluster and words.explain:
        raise UserError("--explain times a few rounds here and submits nothing; give it without --slurm")
    if on_cluster:
        from dfl_lightning.bench.study.processes import cluster

        cluster.check_options(words.options, words.jobs)
    jobs = words.jobs or 1
    study = read_study_file(words.file)
    folder = _folder(study, words.folder)
    tuned = chosen_values(study, folder, words.scale)
    if tuned is None and on_cluster:
        raise UserError(f"{study.path}: tune cannot run as jobs; run it here first: {_again(words, 'tune')}")
    if tuned is None and not words.explain:
        code = _tune(words, study, folder, starter)
        if code:
            return code
        tuned = chosen_values(study, folder, words.scale)
    plan = _planned(study, folder, words.scale, tuned or {})
    for remark in [*overridden(study), *without_effect(study), *about_excluded(study.exclude), *about_conditions(plan)]:
        print(for_terminal(remark, sys.stdout), flush=True)
    if words.explain:
        from dfl_lightning.bench.study.cells.estimate import explain

        if tuned is None and study.tune is not None:
            number = f"{study.tune.trials} trials of each row and column"
            print(f"tune: {number} come first; their time is not in the times below, nor are the chosen values")
        for line in explain(plan, jobs):
            print(for_terminal(line, sys.stdout), flush=True)
        return 0
    _make_folder(plan)
    for sentence in _settle_code(plan, words.accept_code):
        print(sentence, flush=True)
    todo = [replace(cell, keeps_models=not words.discard_models) for cell in check(plan)]
    if words.discard_models:
        for cell in plan.distinct():
            give_back(state_of(cell), keep_models=False)
    if on_cluster:
        _submit(words, plan, todo, cluster)
        return 0
    cells = plan.distinct()
    progress = Progress(cells, jobs, plan.study.measure)
    print(f"{study.name}: {progress.counts()}", flush=True)
    with Stops() as stops:
        try:
            run_cells(todo, jobs, progress, stops, starter)
        finally:
            progress.stop()
    states = [state_of(cell) for cell in cells]
    counts = Counter(state.word for state in states)
    if stops.signum:
        name = signal.Signals(stops.signum).name
        again = _again(words, "run")
        done = f"{counts['done']} of {len(cells)} cells are done"
        return say("dfl-study", f"stopped by {name}; {done}; continue with: {again}", 128 + stops.signum)
    print(f"{study.name}: {progress.counts()}\n", flush=True)
    _print_table(plan, None)
    for state in states:
        if state.word == "failed":
            say("dfl-study", f"{state.cell.label}: {state.why}", 2)
    return 2 if counts["failed"] else 0


def _settle_code(plan: Plan, accepts: bool) -> Iterator[str]:
    """Find runs of other code, and accept them if `accepts` is true; yield a sentence on each reason."""
    states = [state for cell in plan.distinct() if (state := state_of(cell)).other_code]
    for state in states:
        if accepts and state.run is not None:
            accept(state.cell, state.run)
    kept = f"trained again, and the former run is kept in {SET_ASIDE}/ of the cell; --accept-code keeps the number"
    for reason, labels in by_reason((state.other_code, state) for state in states).items():
        yield f"of other code: {labels}: {reason}; {'accepted' if accepts else kept}"


def tune_only(words: argparse.Namespace) -> int:
    """Run the trials that are not done, and print the values that they choose."""
    study = read_study_file(words.file)
    folder = _folder(study, words.folder)
    study.require_tune()
    if words.jobs is not None and words.jobs < 1:
        raise UserError(f"-j {words.jobs}: it is a number of cells at a time, 1 or more")
    if chosen_values(study, folder, words.scale) is None:
        with Starter() as starter:
            code = _tune(words, study, folder, starter)
        if code:
            return code
    for sentence in caption(study, folder, words.scale):
        print(sentence)
    print(tuned_file(folder, words.scale))
    return 0


def _tune(words: argparse.Namespace, study: Study, folder: Path, starter: Starter) -> int:
    """Run the trials that are not done; return 0 if all are done then, otherwise the exit code."""
    from dfl_lightning.bench.study.cells.checking import lacking_data
    from dfl_lightning.bench.study.processes.running import Stops, run_cells
    from dfl_lightning.bench.study.progress import Progress
    from dfl_lightning.bench.study.tuning import Tuning, run_trials

    tuning, jobs = Tuning(study, folder, words.scale), words.jobs or 1
    # All rows and columns are checked before the trials, those without options to be tuned included.
    lacking_data(make_plan(study, folder, words.scale))
    tuning.check()
    _make_trials_folder(folder)
    size = f"{counted(len(tuning.places), 'place')} of the table, {counted(tuning.tune.trials, 'trial')} each"
    print(f"{study.name}: tune, {size}", flush=True)
    with Stops() as stops:

        def work(cells: Sequence[Cell]) -> bool:
            progress = Progress(cells, jobs, None)  # no number is shown, since it would be one of the test data
            try:
                run_cells(cells, jobs, progress, stops, starter)
            finally:
                progress.stop()
            return not stops.signum

        run_trials(tuning, work)
    if stops.signum:
        name = signal.Signals(stops.signum).name
        done = "trials that are done stay"
        return say(
            "dfl-study", f"stopped by {name}; {done}; continue with: {_again(words, words.name)}", 128 + stops.signum
        )
    return 0


def _submit(words: argparse.Namespace, plan: Plan, todo: Sequence[Cell], cluster: Any) -> None:
    """Send the cells that no process works at to the cluster as jobs, and print which commands may follow."""
    running = sum(state_of(cell).is_running for cell in todo)
    cells = [cell for cell in todo if not state_of(cell).is_running]
    others = f"; {running} running already" * bool(running)
    if not cells:
        print(f"{plan.study.name}: no cell is open, nothing is submitted{others}")
        return
    job = cluster.submit(cells, plan.folder, plan.study.name, words.options, words.jobs)
    print(f"{plan.study.name}: {counted(len(cells), 'cell')} submitted, job {job}{others}")
    print(f"logs: {plan.folder / cluster.JOBS}, and log.txt in the folder of each cell below {plan.folder / 'cells'}")
    print(f"how far they are: {_again(words, 'status')}\nthe numbers: {_again(words, 'table')}")
    options = [w for name, value in words.options.items() for w in (f"{PREFIX}{name}", str(value))]
    jobs = ["-j", str(words.jobs)] if words.jobs else []
    again = shlex.join([*jobs, "--slurm", *options])
    print(f"cells that have failed or were cancelled, once more: {_again(words, 'run')} {again}")


def _again(words: argparse.Namespace, command: str) -> str:
    """Return the line to type for another command on the same study."""
    part = getattr(words, "scale", 1.0)  # add-seeds has no such option
    scale = ["--scale", f"{part:g}"] if part < 1 else []
    discard = ["--discard-models"] * (command == "run" and getattr(words, "discard_models", False))
    folder = ["--folder", words.folder] if words.folder else []
    return shlex.join(["dfl-study", command, words.file, *folder, *scale, *discard])


def status(words: argparse.Namespace) -> int:
    """Print a grid of all cells, a line for each cell that runs, was stopped or cannot be run, and the counts."""
    from dfl_lightning.bench.study.tables.grid import grid

    _, plan = _plan(words)
    states = {key: state_of(cell) for key, cell in plan.cells.items()}
    for line in grid(plan, states, shutil.get_terminal_size((100, 24)).columns):
        print(line)
    for sentence in [*about_excluded(plan.study.exclude), *about_code(plan, list(states.values()))]:
        print(sentence)
    for lack in dict.fromkeys(plan.missing.values()):
        print(f"not in the library yet: {lack}")
    for state in states.values():
        if state.word in ("running", "stopped"):
            print(f"{state.cell.label}: {state.word} at round {state.rounds} of {state.cell.rounds}")
    for state in states.values():
        if state.why and not state.is_done:
            print(f"{state.cell.label}: {state.word}: {state.why}")
    counts = Counter(state.word for state in {s.cell.folder: s for s in states.values()}.values())
    print(
        f"{counted(sum(counts.values()), 'cell')} in {plan.folder}: {', '.join(f'{n} {w}' for w, n in counts.items())}"
    )
    return 0


def table(words: argparse.Namespace) -> int:
    """Print the table in one of the formats, or write it to a file."""
    reach = None if words.reach is None else read_reach(words.reach)
    at_equal = None if words.at_equal is None else read_equal_cost(words.at_equal)
    measure = measure_of(words.score, words.number, words.over_rounds, words.better, reach, at_equal)
    measure = in_window(measure, words.after, words.until, words.over_rounds)
    _, plan = _plan(words)
    _print_table(plan, measure, words.format, words.out)
    return 0


def rounds(words: argparse.Namespace) -> int:
    """Print the numbers of each evaluated round of the cells that are done, or write them to a file."""
    from dfl_lightning.bench.study.tables.rounds import rounds_as_csv

    _, plan = _plan(words)
    cells = plan.distinct()
    done = sum(state_of(cell).is_done for cell in cells)
    if not done:
        raise UserError(f"{plan.folder}: no cell is done yet; train them with: {_again(words, 'run')}")
    text = rounds_as_csv(plan, words.number)
    if done < len(cells):
        print(f"{done} of {len(cells)} cells are done; the others have no lines", file=sys.stderr)
    if words.out:
        Path(words.out).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def report(words: argparse.Namespace) -> int:
    """Write the page of a study: a method for each row of the table, compared within each column."""
    from dfl_lightning.bench.report.writing import check_report, write_page

    check_report()
    from dfl_lightning.bench.study.tables.page import opening
    from dfl_lightning.bench.study.tables.table import make_table

    study, plan = _plan(words)
    done = [state for cell in plan.cells.values() if (state := state_of(cell)).is_done]
    if not done:
        raise UserError(f"{plan.folder}: no cell is done yet; train them with: {_again(words, 'run')}")
    runs = [(state.cell, state.run) for state in done if state.run is not None]
    file = write_page(
        [(cell.row, run) for cell, run in runs],
        Path(words.out) if words.out else plan.folder / PAGE,
        columns=[cell.column for cell, _ in runs] if len(study.columns) > 1 else None,
        study=plan.title,
        command=_again(words, "run"),
        opening=partial(opening, make_table(plan)),
        study_file=_file_to_repeat(words, study),
    )
    trained = len({state.cell.folder for state in done})  # a cell may have several places in the table
    print(f"{file} ({size(file.stat().st_size)}), {trained} of {len(plan.distinct())} cells")
    return 0


def _file_to_repeat(words: argparse.Namespace, study: Study) -> StudyFile:
    """Return the study's file for its page, with the options that a reader elsewhere gives, too."""
    from dfl_lightning.bench.report.page.contents.repeating import StudyFile

    options = f" --scale {words.scale:g}" if words.scale < 1 else ""
    return StudyFile(f"{study.name}.yaml", study.path.read_text(encoding="utf-8"), options)


def more_seeds(words: argparse.Namespace) -> int:
    """Add seeds to a study."""
    study = read_study_file(words.file)
    folder = _folder(study, words.folder)
    new = add_seeds(study, folder, words.number)
    added = ", ".join(map(str, new))
    print(f"added the seeds {added} in {folder / 'seeds.yaml'}; train them with: {_again(words, 'run')}")
    return 0


def list_studies(words: argparse.Namespace) -> int:
    """Print the name and title of each shipped study."""
    for name in shipped(KIND):
        print(for_terminal(f"{name:24}  {read_study_file(name).title}", sys.stdout))
    return 0


def _plan(words: argparse.Namespace) -> tuple[Study, Plan]:
    study = read_study_file(words.file)
    folder = _folder(study, words.folder)
    tuned = chosen_values(study, folder, words.scale)
    if tuned is None:
        raise UserError(
            f"{study.path}: the options of its block tune have no values yet; choose them with: {_again(words, 'tune')}"
        )
    return study, _planned(study, folder, words.scale, tuned)


def _planned(study: Study, folder: Path, scale: float, tuned: Mapping[tuple[str, str], Mapping[str, Any]]) -> Plan:
    plan = make_plan(study, folder, scale, tuned)
    for sentence in contradictions(plan.distinct()):
        raise UserError(sentence)
    write_cells(plan)
    return plan


def _folder(study: Study, to: str | None) -> Path:
    return Path(to) if to else Path("studies") / study.name


def _make_folder(plan: Plan) -> None:
    try:
        (plan.folder / "cells").mkdir(parents=True, exist_ok=True)
        write_cells(plan)
    except OSError as error:
        raise UserError(
            f"{plan.folder}: the study's folder cannot be made ({error.strerror}); give another with --folder"
        ) from error


def _make_trials_folder(folder: Path) -> None:
    try:
        (folder / TRIALS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: the study's folder cannot be made ({error.strerror}); give another with --folder"
        ) from error


def _print_table(plan: Plan, measure: Measure | None, format: str | None = None, out: str | None = None) -> None:
    from dfl_lightning.bench.study.tables import formats
    from dfl_lightning.bench.study.tables.table import make_table

    made = make_table(plan, measure)
    if format == "png":
        from dfl_lightning.bench.study.tables.picture import draw

        print(draw(made, Path(out) if out else plan.folder / f"{plan.study.name}.png"))
        return
    if format is None and not out and sys.stdout.isatty():
        from dfl_lightning.bench.study.tables.terminal import print_table

        print_table(made)
        return
    text = {None: formats.markdown, "markdown": formats.markdown, "csv": formats.as_csv, "latex": formats.latex}[
        format
    ](made)
    if out:
        Path(out).write_text(text, encoding="utf-8")
    else:
        print(text, end="" if format == "csv" else "\n")
