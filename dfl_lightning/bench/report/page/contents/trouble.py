"""The time line of trouble of each run: divergence, dropouts, chance level, plateaus, adversaries, changes of links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from dfl_lightning.bench.report.attack import adversaries, attack_of
from dfl_lightning.bench.report.chance_level import bound_of, level_of
from dfl_lightning.bench.report.method_names import class_name
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.over_seeds import from_one, known_numbers
from dfl_lightning.bench.report.page.contents.choices import choices
from dfl_lightning.bench.report.page.sentences.verdict import and_
from dfl_lightning.bench.report.settings.redraws import drawn_anew_from
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.words import as_percent, counted

DIVERGED, DROPPED, CHANCE, PLATEAU = "diverged", "dropped out", "at chance level", "no progress"
ADVERSARIES, CHANGES = "links to adversaries", "links that are new"
EXPLODED = "training loss explodes"
LANES = (DIVERGED, EXPLODED, DROPPED, CHANCE, PLATEAU, ADVERSARIES, CHANGES)
"""Kinds of events, from top to bottom."""

_PLATEAU, _PROGRESS = 0.2, 0.02
"""Least length of a plateau as a share of the rounds, and least progress as a share of the whole range of the score."""

_LEAST_EVALUATIONS = 5
"""Least number of evaluations of a plateau."""

_GROWTH, _HUGE = 1e3, 1e6
"""A training loss explodes if it is this many times its first value, or this large."""

_NAMED = 6
"""Largest number of clients that an event names and a click on it offers."""

_SHORT = 3
"""The same of the words in the table."""


@dataclass(frozen=True)
class Event:
    """An event of a run.

    Attributes:
        lane: one of `LANES`.
        first: first round, counted from 1.
        last: last round.
        words: description.
        clients: clients that a click opens, the first of many; empty without one.
        share: how strong it is, from 0 to 1.
    """

    lane: str
    first: int
    last: int
    words: str
    clients: tuple[int, ...] = ()
    share: float = 1.0


def events(run: Run, links: bool = True) -> list[Event]:
    """List the events of a run by lane and round, without shares of links that are 0 when they are written.

    Args:
        run: finished or not.
        links: read the recorded links, too, which takes time.
    """
    found = [*_diverged(run), *_exploded(run), *_dropouts(run), *_at_chance(run), *_plateaus(run), *_adversaries(run)]
    found += _changes(run) if links else []
    return [event for event in found if as_percent(event.share) != as_percent(0) or event.lane == DROPPED]


def trouble_of_page(methods: Sequence[Method], with_links: set[Any]) -> list[dict[str, Any]]:
    """Return the time line and a summary of each run of the page that has any event.

    Args:
        methods: methods of the page, in its order.
        with_links: folders of the runs whose links are read.

    Returns:
        The runs with graver trouble first; for each `method`, `seed`, `last` (its last round), `events`, and `summary`,
        words by lane.
    """
    found: list[dict[str, Any]] = []
    for method in methods:
        for run in method.runs:
            of_run = events(run, run.path in with_links)
            if not of_run:
                continue
            found.append(
                {
                    "method": method.full_name,
                    "seed": seed_of(run),
                    "last": from_one(run.metrics["round"][-1]),
                    "summary": {lane: _summary(run, lane, of_run) for lane in LANES},
                    "events": [
                        {
                            "what": event.lane,
                            "from": event.first,
                            "to": event.last,
                            "clients": event.clients,
                            "share": round(event.share, 3),
                            "words": event.words,
                        }
                        for event in of_run
                    ],
                }
            )
    return sorted(found, key=_severity)


_NAMED_RUNS = 3
"""Largest number of runs in which a client diverged that a sentence names."""


def about_divergence(methods: Sequence[Method]) -> str:
    """Say in which runs of the page the training of a client diverged, or that it did in none.

    Args:
        methods: methods of the page.
    """
    named = {run.path: f"{m.full_name}, seed {seed_of(run)}" for m in methods for run in m.runs}
    found = [named[run.path] for m in methods for run in m.runs if len(run.diverged.get("client", ()))]
    found = list(dict.fromkeys(found))  # a run may be in several cells of a study
    if not found:
        of = f" in any of the {len(named)} runs" if len(named) > 1 else ""
        return f"No client's training ended in NaN or infinity{of}."
    more = f"; and {len(found) - _NAMED_RUNS} more" if len(found) > _NAMED_RUNS else ""
    which = f": {'; '.join(found[:_NAMED_RUNS])}{more}" if len(named) > 1 else ""
    of = f"In {len(found)} of {len(named)} runs the" if len(named) > 1 else "The"
    return f"{of} training of clients ended in NaN or infinity{which}."


def about_new_links(methods: Sequence[Method]) -> str:
    """Say which methods' new links are not counted, since neighbours are drawn anew by design; empty without any.

    Args:
        methods: methods of the page.
    """
    first = {m.full_name: anew for m in methods if (anew := drawn_anew_from(m.runs[0].config)) is not None}
    always = [name for name, anew in first.items() if anew == 0]
    later = [f"{name} (from round {from_one(anew)} on)" for name, anew in first.items() if anew]
    if not first:
        return ""
    return f"Not counted as new are the links of {and_([*always, *later])}, where neighbours are drawn anew by design."


def _severity(run: dict[str, Any]) -> tuple[bool, ...]:
    """Return the key that puts runs with graver trouble first: divergence, then dropouts, and so on."""
    return tuple(not run["summary"][lane] for lane in LANES)


def _summary(run: Run, lane: str, found: Sequence[Event]) -> str:
    """Say what a lane of a run's time line shows; empty without events."""
    of_lane = [event for event in found if event.lane == lane]
    if not of_lane:
        return ""
    if lane == DIVERGED:
        clients = len(np.unique(run.diverged["client"]))
        first = [event.clients[0] for event in of_lane if event.first == of_lane[0].first]
        return f"{counted(clients, 'client')}; first in round {of_lane[0].first}: {_who(first)}"
    if lane == EXPLODED:
        return of_lane[0].words.removeprefix("the training loss is ")
    if lane == DROPPED:
        rounds, all_of = len(of_lane), run.num_clients or 0
        mean = sum(event.share for event in of_lane) / rounds * all_of
        first = _dropped(run, of_lane[0].first)
        asked = f", as configured ({asked})" if (asked := _dropout_of(run)) else ""
        number = f"{mean:.1f}".removesuffix(".0")
        in_all = f"in {counted(rounds, 'round')}, {number} of {counted(all_of, 'client')} on average{asked}"
        return f"{in_all}; first in round {of_lane[0].first}: {_who(first)}"
    if lane in (CHANCE, PLATEAU):
        return ", ".join(_rounds(event.first, event.last) for event in of_lane)
    if lane == ADVERSARIES:
        return f"{attack_of(run)}: {_who(np.flatnonzero(adversaries(run, run.num_clients or 0)).tolist())}"
    ends = [as_percent(event.share) for event in (of_lane[0], of_lane[-1])]
    return f"{ends[0]} in round {of_lane[0].first}, {ends[1]} in round {of_lane[-1].first}"


def _who(clients: Sequence[int]) -> str:
    """Name clients, and count those beyond a few.

    Examples:
        >>> _who([7]), _who([0, 3, 4, 8, 9])
        ('client 7', 'clients 0, 3, 4 and 2 more')
    """
    shown = list(map(str, clients[:_SHORT]))
    shown += [f"{len(clients) - _SHORT} more"] if len(clients) > _SHORT else []
    return f"client{'' if len(clients) == 1 else 's'} {and_(shown)}"


def _dropout_of(run: Run) -> str:
    """Return the name of the dropout that a run's config asks for; empty without one."""
    dropout = run.config.get("dropout")
    name = dropout.get("class_path", "") if isinstance(dropout, Mapping) else dropout
    return class_name(str(name or ""))


def _dropped(run: Run, r: int) -> list[int]:
    """List the clients that dropped out of a round, counted from 1."""
    return sorted(run.dropouts["client"][run.dropouts["round"] + 1 == r].tolist())


def _rounds(first: int, last: int) -> str:
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def _diverged(run: Run) -> list[Event]:
    """List each client's stretches of rounds in which its training diverged, the first one first."""
    columns = run.diverged
    if not len(columns.get("client", ())):
        return []
    found = []
    for client in np.unique(columns["client"]).tolist():
        rounds = sorted({int(r) for r in columns["round"][columns["client"] == client]})
        for first, last in _stretches(rounds):
            words = f"the training of client {client} diverged, {_rounds(from_one(first), from_one(last))}"
            found.append(Event(DIVERGED, from_one(first), from_one(last), words, (client,)))
    return sorted(found, key=lambda event: (event.first, event.clients))


def _exploded(run: Run) -> list[Event]:
    """List the stretches of rounds in which the mean training loss is huge, or many times that of the first round."""
    losses = {r: value for r, value in sorted(known_numbers(run, "train_loss").items()) if not math.isnan(value)}
    first = next(iter(losses.values()), math.nan)
    rounds = [r for r, value in losses.items() if value > _HUGE or 0 < first * _GROWTH < value]
    found = []
    for begin, end in _stretches(rounds):
        words = f"the training loss is {losses[begin]:.3g} in round {from_one(begin)}, after {first:.3g} at first"
        found.append(Event(EXPLODED, from_one(begin), from_one(end), words))
    return found


def _stretches(rounds: Sequence[int]) -> list[tuple[int, int]]:
    """Group ascending rounds without gaps, and return the first and the last of each group.

    Examples:
        >>> _stretches([1, 2, 3, 7])
        [(1, 3), (7, 7)]
    """
    groups = groupby(enumerate(rounds), key=lambda item: item[1] - item[0])
    found = [[r for _, r in group] for _, group in groups]
    return [(group[0], group[-1]) for group in found]


def _dropouts(run: Run) -> list[Event]:
    """List the rounds in which clients dropped out."""
    columns, clients = run.dropouts, run.num_clients or 0
    if not len(columns.get("client", ())) or not clients:
        return []
    found = []
    for r in np.unique(columns["round"]).tolist():
        of_round = sorted(columns["client"][columns["round"] == r].tolist())
        words = f"{counted(len(of_round), 'client')} of {clients} dropped out: {_listed(of_round)}"
        found.append(Event(DROPPED, from_one(r), from_one(r), words, tuple(of_round[:_NAMED]), len(of_round) / clients))
    return found


def _listed(clients: Sequence[int]) -> str:
    more = f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    return f"{', '.join(map(str, clients[:_NAMED]))}{more}"


def _at_chance(run: Run) -> list[Event]:
    """List the stretches of evaluations whose mean score is not above chance level."""
    bound, level = bound_of(run), level_of(run)
    if bound is None or level is None:
        return []
    words = f"the mean score is at most {as_percent(bound)}: chance level, {as_percent(level)}, and two standard errors"
    scores = known_numbers(run, run.score.column)
    low = [(at, r) for at, (r, value) in enumerate(sorted(scores.items())) if value <= bound]
    rounds = dict(low)
    return [
        Event(CHANCE, from_one(rounds[first]), from_one(rounds[last]), words)
        for first, last in _stretches(list(rounds))
    ]


def _plateaus(run: Run) -> list[Event]:
    """List the stretches in which the mean score does not get better than before by a fiftieth of its whole range."""
    scores = sorted((r, v) for r, v in known_numbers(run, run.score.column).items() if math.isfinite(v))
    if len(scores) <= _LEAST_EVALUATIONS:
        return []
    values = [run.score.merit(value) for _, value in scores]
    least = _PROGRESS * (max(values) - min(values))
    length = max(_LEAST_EVALUATIONS, math.ceil(_PLATEAU * len(scores)))
    found, best, since = [], values[0], 0
    for at in range(1, len(values) + 1):
        if at < len(values) and values[at] <= best + least:
            continue
        if at - 1 - since >= length:
            first, last = from_one(scores[since][0]), from_one(scores[at - 1][0])
            words = f"after round {first} the score is not above {run.score.text(scores[since][1])} by more than "
            words = words if run.score.higher_is_better else words.replace("above", "below")
            words += f"{run.score.distance(least)} until round {last}"
            found.append(Event(PLATEAU, first + 1, last, words))
        if at < len(values):
            best, since = values[at], at
    return found


def _adversaries(run: Run) -> list[Event]:
    """List the share of honest clients' links that end at adversaries by round; without it one event of all rounds."""
    clients = run.num_clients or 0
    who = np.flatnonzero(adversaries(run, clients)).tolist()
    if not who:
        return []
    named, first = f"{attack_of(run)}: {_listed(who)}", tuple(who[:_NAMED])
    shares = {r: v for r, v in known_numbers(run, "adversary_links").items() if math.isfinite(v)}
    if not shares:
        return [Event(ADVERSARIES, 1, from_one(run.metrics["round"][-1]), named, first)]
    words = "of the links that honest clients chose end at adversaries"
    return [
        Event(ADVERSARIES, from_one(r), from_one(r), f"{as_percent(v)} {words} ({named})", first, v)
        for r, v in sorted(shares.items())
    ]


def _changes(run: Run) -> list[Event]:
    """List the share of chosen links that were not chosen in the recorded round before.

    Rounds in which neighbours are drawn anew by design are left out.
    """
    anew = drawn_anew_from(run.config)
    found = None if anew == 0 else choices(run)
    if found is None:
        return []
    until = math.inf if anew is None else anew  # the last round, counted from 1, whose links are chosen
    chosen = np.array(found["same"]) + np.array(found["other"])
    gone = np.array(found["gone"])
    entries = []
    for at in range(1, len(found["rounds"])):
        if found["rounds"][at] > until:
            break
        kept = chosen[:, at - 1].sum() - gone[:, at].sum()
        new, total = int(chosen[:, at].sum() - kept), int(chosen[:, at].sum())
        if not total:
            continue
        most = int(gone[:, at].argmax())
        words = f"{new} of {total} links were not there in round {found['rounds'][at - 1]}"
        words += f"; client {most} gave up most senders, {gone[most, at]}" if gone[most, at] else ""
        r = found["rounds"][at]
        entries.append(Event(CHANGES, r, r, words, (most,) if gone[most, at] else (), new / total))
    return entries
