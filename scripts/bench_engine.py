"""Measure the engines: local training, skewed clients, mixing, pairwise losses, whole rounds.

    python scripts/bench_engine.py                              # everything; prints how long it will take
    python scripts/bench_engine.py --only train --networks LeNet,MLP --one-thread
    python scripts/bench_engine.py --device cuda --out runs/benchmarks/cuda

Every figure is a ratio of candidates that take turns within one run. Tables are printed as they come; --out gets them
as engine.md, with all digits and repetitions as engine.json, and as a picture, engine.png.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from benchmarks import rows as row_verbs
from benchmarks.chart import draw
from benchmarks.federations import SETTINGS, Setting
from benchmarks.losses import losses_table
from benchmarks.rounds import lightning_table, systems_table
from benchmarks.rules import rules_table
from benchmarks.tables import Table, busy_note, machine, times, write_json
from benchmarks.timing import Candidate, Machine, alternate, one_thread
from benchmarks.training import skew_table, train_table

from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.utils.storage.shipped_files import shipped

SECTIONS = {
    "train": "local training of a round: both engines, the plain loop, and the bound of one big batch",
    "skew": "log-normal sizes of clients: samples computed for each useful one, and time",
    "rules": "local training by the rules of the papers: both engines, and in units of FedAvg's",
    "rows": "mixing in units of a copy, comparing in units of the bare product",
    "losses": "losses of others' models, against load_state_dict and a forward pass for every pair",
    "lightning": "what Lightning and the round loop add to the four verbs",
    "systems": "whole rounds of every shipped config's system, stacked and loop",
}
SKEWED = ("LeNet", "MNISTCNN")
PAIRED = ("LeNet", "MLP", "MNISTCNN")
CONFIG_SECONDS = 8.0
"""One round of a config with both engines, more or less, at the default sizes on two ordinary cores."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for; returns the exit code."""
    parser = make_parser()
    words = parser.parse_args(argv)
    if words.device == "cuda" and not torch.cuda.is_available():
        print("bench_engine: --device cuda, but torch sees no GPU here; leave it out", file=sys.stderr)
        return 2
    known = [setting.name for setting in SETTINGS]
    for given, choices, option in ((words.only, SECTIONS, "--only"), (words.networks or [], known, "--networks")):
        unknown = [word for word in given if word not in choices]
        if unknown:
            parser.error(f"{option}: there is no '{unknown[0]}'; choose among {', '.join(choices)}")
    for name, number in vars(words).items():
        if type(number) is int and number < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more, not {number}")
    if words.one_thread and words.device == "cuda":
        parser.error("--one-thread measures time on the processor; leave it out with --device cuda")
    unknown = [name for name in words.configs or [] if name not in shipped("configs")]
    if unknown:
        parser.error(f"--configs: there is no '{unknown[0]}'; choose among {', '.join(shipped('configs'))}")
    for setting in SETTINGS:
        if not setting.is_installed and setting.name in (words.networks or known):
            print(f"{setting.name} is left out: it needs {setting.needs}; pip install 'dfl-lightning[hf]'")
    plan = make_plan(words)
    total = sum(seconds for _, seconds in plan.values())
    shown = ", ".join(f"{name} {seconds:.0f} s" for name, (_, seconds) in plan.items())
    print(f"about {total:.0f} s on two quiet cores: {shown}", flush=True)
    tables: dict[str, Table] = {}
    for name, (measure, _) in plan.items():
        started = time.perf_counter()
        with float32_arithmetic(tf32=False):  # as a run has it, so that all candidates have the same precision
            tables[name] = measure()
        print(f"\n{tables[name].markdown()}\n\n({name}: {time.perf_counter() - started:.0f} s)", flush=True)
        if words.out is not None:
            save(words.out, words, tables)
    if words.out is not None:
        print(f"\nwrote {words.out}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    sections = "\n".join(f"  {name:10} {what}" for name, what in SECTIONS.items())
    settings = "\n".join(f"  {s.name:10} {s.describe()}" for s in SETTINGS)
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"sections:\n{sections}\n\nnetworks (clients x samples, batch size):\n{settings}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=_list, default=list(SECTIONS), metavar="A,B", help="sections; default all")
    parser.add_argument("--networks", type=_list, metavar="A,B", help="networks of train, skew and losses")
    parser.add_argument("--configs", type=_list, metavar="A,B", help="configs of systems; default all shipped ones")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where everything runs (%(default)s)")
    parser.add_argument("--one-thread", action="store_true", help="also with one thread, by time on the processor")
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="repetitions; default 3 to 7, fewer for large networks"
    )
    parser.add_argument("--clients", type=int, metavar="N", help="clients, in place of each setting's own")
    parser.add_argument("--samples", type=int, metavar="N", help="samples of a client, in place of each setting's own")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="samples of a batch, in place of each setting's own"
    )
    parser.add_argument("--parameters", type=int, metavar="N", help="parameters of a client, in rows")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="rounds that count; default 6 in lightning, 2 in systems"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="gets engine.md, engine.json and engine.png")
    return parser


def make_plan(words: argparse.Namespace) -> dict[str, tuple[Callable[[], Table], float]]:
    """Plan the requested sections: the function that measures each, and its estimated seconds."""
    machines = [Machine(words.device), *([one_thread()] if words.one_thread else [])]
    configs = [path for name, path in shipped("configs").items() if words.configs is None or name in words.configs]
    clients = words.clients or 100
    share = clients / 100
    runs = 1 + 2.5 * words.one_thread

    def chosen(among: Sequence[str]) -> list[Setting]:
        named = [s for s in SETTINGS if s.name in (words.networks or among) and s.name in among]
        return [s.resized(words.clients, words.samples, words.batch_size) for s in named if s.is_installed]

    def seconds(settings: Sequence[Setting], part: float) -> float:
        turns = [1 + min(words.repeats or s.repeats, s.repeats) for s in settings]
        return runs * sum(part * s.seconds * n for s, n in zip(settings, turns, strict=True))

    everything, skewed, paired = chosen([s.name for s in SETTINGS]), chosen(SKEWED), chosen(PAIRED)
    ruled = [s.resized(None, words.samples or 96) for s in chosen(("LeNet", "MLP"))]
    repeats, samples, rounds = words.repeats, words.samples, words.rounds
    plan: dict[str, tuple[Callable[[], Table], float]] = {
        "train": (lambda: train_table(everything, machines, repeats), seconds(everything, 1.0)),
        "skew": (lambda: skew_table(skewed, machines, repeats), seconds(skewed, 0.6)),
        "rules": (lambda: rules_table(ruled, machines, repeats), runs * 12.0 * (1 + (repeats or 3)) * share),
        "rows": (lambda: rows_table(words), 20.0 * (1 + (repeats or 5)) / 6 * (share if words.clients else 1)),
        "losses": (lambda: losses_table(paired, machines, repeats), runs * 4.0 * (1 + (repeats or 5)) * share),
        "lightning": (
            lambda: lightning_table(clients, samples or 556, rounds or 6, words.device),
            2.5 * (1 + (rounds or 6)) * share * (samples or 556) / 556,
        ),
        "systems": (
            lambda: systems_table(configs, clients, samples or 134, rounds or 2, words.device),
            CONFIG_SECONDS * len(configs) * (1 + (rounds or 2)) * share * (samples or 134) / 134,
        ),
    }
    return {name: plan[name] for name in SECTIONS if name in words.only}


def rows_table(words: argparse.Namespace) -> Table:
    """Measure the row verbs in units of the simplest operation on the same rows."""
    table = Table("Mixing and comparing", ["clients x parameters", "verb", "unit", "ratio"])
    others = []
    shapes = [(words.clients or clients, words.parameters or width) for clients, width in row_verbs.SHAPES]
    for clients, parameters in dict.fromkeys(shapes):
        neighbours = min(10, clients - 1)
        for unit, verbs in (
            ("copy", row_verbs.mixing(clients, parameters, neighbours, words.device)),
            ("product", row_verbs.comparing(clients, parameters, words.device)),
        ):
            candidates = {name: Candidate(_once(verb)) for name, verb in verbs.items()}
            found = alternate(candidates, words.repeats or 5, Machine(words.device))
            for verb in (name for name in verbs if name != unit):
                ratio = found.ratio(verb, unit)
                table.rows.append([f"{clients} x {parameters}", verb, unit, times(ratio)])
            table.numbers.append({"clients": clients, "parameters": parameters, "seconds": found.seconds})
            others.append(found.others)
    table.notes = ["copy: of the rows; product: rows @ rows.T in float32, where comparing adds up in float64."]
    table.notes.append(busy_note(others))
    return table


def save(folder: Path, words: argparse.Namespace, tables: dict[str, Table]) -> None:
    """Write the Markdown, JSON and picture of the tables so far."""
    folder.mkdir(parents=True, exist_ok=True)
    where = machine(words.device)
    head = f"# Engine benchmark\n\n{where['processor']}, {where['cores']} cores, torch {where['torch']} with "
    head += f"{where['threads']} threads; device {where['device']}. Made by `python scripts/bench_engine.py`.\n\n"
    text = head + "\n\n".join(table.markdown() for table in tables.values()) + "\n"
    if draw(tables, folder / "engine.png"):
        text += "\n![Local training and whole rounds](engine.png)\n"
    (folder / "engine.md").write_text(text, encoding="utf-8")
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(words).items()}
    write_json(folder / "engine.json", {"machine": where, "asked": asked}, tables)


def _once(verb: Callable[[], object]) -> Callable[[], int]:
    def run() -> int:
        verb()
        return 1

    return run


def _list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


if __name__ == "__main__":
    sys.exit(main())
