"""Every policy that the package ships, with what its runs need. A new one is listed here, and nowhere else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dfl_lightning import callbacks as cb
from dfl_lightning.cli.classes.registry import shipped_classes
from dfl_lightning.objectives import DisPFL, FedProto
from tester.renaming import Rule, by_place, coin_first


@dataclass(frozen=True, eq=False)
class Listed:
    """A policy, and what the tester must know about it.

    Args:
        name: for people; unique. A further variant of another one has its name, a comma and what differs.
        make: makes the policy; a dropout's passes keywords on. The working folder holds `trace.txt`, `all_up.txt` and
            `all_down.txt`, with a column for each client.
        company: makers of policies of other families that it needs; see `tester.scenes` for who is there otherwise.
        places: where it works, of `tester.scenes.PLACES`; elsewhere it must refuse before anything is trained.
        settings: options of the model that it needs.
        draws: what the numbers of a stream are, by its purpose, where `rand` does not draw one for each node and
            `randperm` no order of the nodes.
        all_up: of a dropout: one under which all clients are active.
        keeps_former: of an aggregation whose receivers may keep their models from before the round.
        refuses: classes of policies of other families that it refuses before anything is trained.
        trims: of an aggregation whose receivers keep a part only of what they train by themselves.
        mixes_itself: of an aggregation whose models are not the sums over its weights: a test of its own says what.
        refuses_one: places where it refuses a federation of one client.
        of_columns: of an aggregation that works column by column: what numpy makes of the received rows.
        all_present: whether it works only while all clients are active, and refuses dropouts.
        all_down: of a dropout: one under which all clients have dropped out; None if it always leaves a client
        active.
    """

    name: str
    make: Callable[..., cb.Policy]
    company: tuple[Callable[[], cb.Policy], ...] = ()
    places: tuple[str, ...] = ("clients",)
    settings: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Rule] = field(default_factory=dict)
    all_up: Callable[[], cb.Policy] | None = None
    all_down: Callable[[], cb.Policy] | None = None
    all_present: bool = False
    keeps_former: bool = False
    refuses: tuple[type[cb.Policy], ...] = ()
    mixes_itself: bool = False
    trims: bool = False
    refuses_one: tuple[str, ...] = ()
    of_columns: Callable[[Any], Any] | None = None

    def along_with(self, other: "Listed") -> "Listed":
        """The policy in company of another one."""
        company, name = (*self.company, other.make), f"{self.name}, {other.name}"
        return replace(self, name=name, company=company, draws={**self.draws, **other.draws})


class Scoring(cb.Gossip):
    """Gossip that also gives scores to all candidates: the more samples the better."""

    scores_are_weights = True

    def on_compare(self, round):
        scores = torch.ones(round.num_nodes, dtype=torch.float64)
        scores[: round.num_clients] = round.data.sizes("train").double()
        round.scores, round.own_scores = scores[round.candidates.senders], scores


def at_a_rate(name: str, make: Callable[..., cb.Dropout]) -> Listed:
    """A dropout that takes the share of clients that have dropped out."""
    return Listed(
        name, lambda **more: make(0.4, **more), places=EITHER, all_up=lambda: make(0.0), all_down=lambda: make(1.0)
    )


def trace(file: str = "trace.txt", **more: Any) -> cb.Trace:
    return cb.Trace(file, repeat=True, **more)


def all_up() -> cb.Trace:
    return trace("all_up.txt")


def all_neighbours() -> cb.Gossip:
    return cb.Gossip(k="all")


def afind_by_the_letter() -> cb.AFIND:
    return cb.AFIND(nu=0.01, rule="literal", proxy="grad_at_receiver", center=False)


def panm_by_the_letter() -> cb.PANM:
    return cb.PANM(k=2, l=2, stage_one=2, tau=2, candidates="all", matching="literal")


def threshold_by_the_letter() -> cb.AdaptiveThreshold:
    return cb.AdaptiveThreshold(rule="literal")


def boltzmann_by_the_letter() -> cb.Boltzmann:
    return cb.Boltzmann(contribution="printed", include_self=False)


def boltzmann_over_rounds() -> cb.Boltzmann:
    return cb.Boltzmann(contribution="printed", smooth="rounds")


def choco() -> cb.CHOCO:
    return cb.CHOCO(share=0.3)


def trimmed() -> cb.TrimmedMean:
    return cb.TrimmedMean(0.3)


def multi_krum() -> cb.MultiKrum:
    return cb.MultiKrum(0, include_self=False)


def federico() -> cb.FedeRiCo:
    return cb.FedeRiCo(k=2)


def noisy() -> cb.GaussianNoise:
    return cb.GaussianNoise(clip=0.5, sigma=0.1)


def backwards() -> cb.SignFlip:
    return cb.SignFlip(fraction=0.5)


def noise_only() -> cb.NoiseAttack:
    return cb.NoiseAttack(fraction=0.5, sigma=0.1)


def a_little_off() -> cb.ALittleIsEnough:
    return cb.ALittleIsEnough(fraction=0.5)


EITHER = ("clients", "server")
SERVER = ("server",)
ADAPTIVE = (cb.AdaptiveThreshold,)
APART = {"init": "independent"}
TAKES_PART = (cb.Substitution, cb.Outgoing)
PROXY_NOISE = {"afind proxy noise": by_place}
NOISE = {"outgoing GaussianNoise": by_place}

LISTED: dict[str, list[Listed]] = {
    "clock": [Listed("synchronous", lambda: cb.Synchronous(speed=100.0), places=EITHER)],
    "selection": [
        Listed("gossip", lambda: cb.Gossip(k=2), places=EITHER),
        Listed("all neighbours", all_neighbours, places=EITHER),
        Listed("no neighbours", lambda: cb.Gossip(k=0), places=EITHER),
        Listed("oracle", lambda: cb.Gossip(k="all", within="cluster")),
        Listed("fixed neighbours", lambda: cb.Gossip(k=2, redraw=False), places=EITHER),
        Listed("afind", cb.AFIND, ADAPTIVE),
        Listed("afind, k best", lambda: cb.AFIND(k=2)),
        Listed("afind, uncentred", lambda: cb.AFIND(center=False), ADAPTIVE),
        Listed("afind, update of the round", lambda: cb.AFIND(proxy="delta"), ADAPTIVE),
        Listed("afind, weights", lambda: cb.AFIND(proxy="weight", center=False), ADAPTIVE),
        Listed("afind, first batch", lambda: cb.AFIND(proxy="grad_batch"), ADAPTIVE),
        Listed("afind, at the receiver", lambda: cb.AFIND(proxy="grad_at_receiver"), ADAPTIVE, refuses=(cb.Outgoing,)),
        Listed("afind, activations", lambda: cb.AFIND(proxy="activations"), ADAPTIVE, refuses=(cb.Outgoing,)),
        Listed("afind, sampled", lambda: cb.AFIND(k=2, choose="sampled")),
        Listed("afind, distances", lambda: cb.AFIND(similarity="distance"), ADAPTIVE),
        Listed("afind as printed", afind_by_the_letter, (threshold_by_the_letter,)),
        Listed(
            "afind, noise",
            lambda: cb.AFIND(proxy_noise=1.0, proxy_clip=0.1),
            ADAPTIVE,
            draws=PROXY_NOISE,
            refuses=(cb.Outgoing,),
        ),
        Listed(
            "afind, noise at the receiver",
            lambda: cb.AFIND(proxy="grad_at_receiver", proxy_noise=1.0, proxy_clip=0.1),
            ADAPTIVE,
            draws=PROXY_NOISE,
            refuses=(cb.Outgoing,),
        ),
        Listed("dpfl", lambda: cb.DPFL(budget=2, initial_epochs=2)),
        Listed("dpfl, all again", lambda: cb.DPFL("all", initial_epochs=2, period=2, repeat_bggc=True)),
        Listed("dpfl as printed", lambda: cb.DPFL(budget=2, initial_epochs=2, rule="literal")),
        # two rounds of stage one, then a matching in every other round
        Listed("panm", lambda: cb.PANM(k=2, l=2, stage_one=2, tau=2)),
        Listed("panm by losses", lambda: cb.PANM("loss", k=2, l=2, stage_one=2, tau=2)),
        Listed("panm, unoriented", lambda: cb.PANM(k=2, l=2, stage_one=2, tau=2, matching="unoriented")),
        Listed("panm as printed", panm_by_the_letter),
        Listed("pens", lambda: cb.PENS(k=2, sampled=3, top=2, stage_one=2)),
        Listed("pens, sent", lambda: cb.PENS(k=2, sampled=3, top=2, stage_one=3, rule="sent")),
        Listed("federico", lambda: cb.FedeRiCo(k=2), draws={"federico": coin_first}),
        Listed("federico, greedy", lambda: cb.FedeRiCo(k=2, epsilon=0), draws={"federico": coin_first}),
        Listed("fedfomo", lambda: cb.FedFomo(k=2), (cb.FirstOrder,)),
        Listed("fedfomo, greedy", lambda: cb.FedFomo(k=2, epsilon=0), (cb.FirstOrder,)),
        Listed("pacfl", lambda: cb.PACFL(60.0)),
        Listed("pacfl, entries", lambda: cb.PACFL(40.0, distance="entries", linkage="weighted")),
        Listed("ifca", cb.IFCA, places=("server", "three servers"), settings=APART),
    ],
    "outgoing": [
        Listed("noise", noisy, places=EITHER, draws=NOISE),
        Listed("largest entries", lambda: cb.TopK(share=0.3), places=EITHER),
        Listed("quantized", lambda: cb.QSGD(bits=4, bucket=5), places=EITHER, draws={"outgoing QSGD": by_place}),
        Listed("choco", choco, (cb.CHOCOMix, all_neighbours), all_present=True),
        Listed(
            "choco, quantized",
            lambda: cb.CHOCO(bits=4),
            (cb.CHOCOMix, all_neighbours),
            draws={"outgoing CHOCO": by_place},
            all_present=True,
        ),
        Listed("attack", backwards, places=EITHER),
        Listed("noise attack", noise_only, places=EITHER, draws={"outgoing NoiseAttack": by_place}),
        Listed("a little is enough", a_little_off, places=EITHER, refuses_one=EITHER),
        Listed("noise, largest entries, attack", noisy, (cb.TopK, backwards), places=EITHER, draws=NOISE),
    ],
    "threshold": [
        Listed("adaptive", cb.AdaptiveThreshold, (cb.AFIND,)),
        Listed("adaptive as printed", threshold_by_the_letter, (afind_by_the_letter,)),
        Listed(
            "adaptive as printed, standardised",
            lambda: cb.AdaptiveThreshold(rule="literal", normalise=True),
            (afind_by_the_letter,),
        ),
    ],
    "dropout": [
        at_a_rate("bernoulli", cb.Bernoulli),
        at_a_rate("exact count", cb.ExactCount),
        at_a_rate("markov", lambda rate, **more: cb.Markov(rate, outage=2.0, **more)),
        Listed(
            "grouped count",
            lambda **more: cb.GroupedCount(0.4, **more),
            places=EITHER,
            all_up=lambda: cb.GroupedCount(0.0),
        ),
        Listed("trace", trace, places=EITHER, all_up=all_up, all_down=lambda: trace("all_down.txt")),
    ],
    "substitution": [
        Listed("fdms", cb.FDMS, places=EITHER),
        Listed("fdms, distances", lambda: cb.FDMS(similarity="distance"), places=EITHER),
        Listed("fdms, fewer candidates", lambda: cb.FDMS(theta_scale=0.01), (all_neighbours,), places=("server",)),
        Listed("stale", cb.Stale, places=EITHER),
        Listed("stale, models", lambda: cb.Stale("model"), places=EITHER),
    ],
    "aggregation": [
        Listed("uniform", cb.Uniform, places=EITHER),
        Listed("uniform, half a step", lambda: cb.Uniform(server_step=0.5), places=EITHER),
        Listed("by samples", cb.SampleWeighted, places=EITHER),
        Listed("by all samples", lambda: cb.SampleWeighted(count="train_and_val"), places=EITHER),
        Listed("by scores", cb.ScoreWeighted, (lambda: Scoring(k=3),), places=EITHER),
        Listed("from the topology", cb.FromTopology),
        Listed("choco", cb.CHOCOMix, (choco, all_neighbours), refuses=TAKES_PART, mixes_itself=True, all_present=True),
        Listed("metropolis", cb.Metropolis),
        Listed("median", cb.Median, places=EITHER, of_columns=lambda rows: np.median(rows, axis=0)),
        Listed("trimmed", trimmed, places=EITHER, of_columns=lambda rows: stats.trim_mean(rows, 0.3)),
        Listed(
            "federico's step",
            cb.FedeRiCoStep,
            (federico,),
            draws={"federico": coin_first},
            refuses=TAKES_PART,
            mixes_itself=True,
        ),
        Listed(
            "masked",
            cb.MaskedAverage,
            settings={"objective": DisPFL(0.5)},
            refuses=(cb.Stale,),
            mixes_itself=True,
            trims=True,
            draws={"dispfl mask": by_place},
        ),
        Listed(
            "prototypes",
            cb.PrototypeAverage,
            settings={"objective": FedProto()},
            places=EITHER,
            refuses=TAKES_PART,
            mixes_itself=True,
        ),
        Listed("clipped gossip", cb.ClippedGossip, refuses=(cb.Stale,)),
        Listed("balance", lambda: cb.BALANCE(gamma=1.2), refuses=(cb.Stale,)),
        Listed("krum", cb.Krum, (all_neighbours,), refuses=(cb.Stale,), places=EITHER, refuses_one=SERVER),
        Listed("multi-krum", multi_krum, (all_neighbours,), refuses=(cb.Stale,), places=EITHER, refuses_one=SERVER),
        Listed("geometric median", cb.GeometricMedian, refuses=(cb.Stale,), places=EITHER),
        Listed("first order", cb.FirstOrder, keeps_former=True),
        Listed("push-sum", cb.PushSum, refuses=(cb.Stale, cb.Outgoing), mixes_itself=True),
        Listed("metropolis, two steps", lambda: cb.Metropolis(2), refuses=TAKES_PART, mixes_itself=True),
        Listed("pfedgraph", cb.SimilarityWeighted, refuses=(cb.Stale,)),
        Listed("boltzmann", cb.Boltzmann),
        Listed("boltzmann, cold, without oneself", lambda: cb.Boltzmann(temperature=0.1, include_self=False)),
        Listed("boltzmann as printed", boltzmann_by_the_letter, refuses=(cb.Stale, cb.Outgoing)),
        Listed("boltzmann as printed, over rounds", boltzmann_over_rounds, refuses=(cb.Stale,)),
        Listed("boltzmann, own losses", lambda: cb.Boltzmann(contribution="own"), places=EITHER),
    ],
    "prediction": [
        Listed("knn", lambda: cb.KNN(k=2), places=EITHER),
        Listed("knn, the paper's kernel", lambda: cb.KNN(k=3, kernel="euclidean"), places=EITHER),
        Listed("knn, by validation", lambda: cb.KNN(weight="validation"), places=EITHER),
        Listed(
            "nearest prototype",
            cb.NearestPrototype,
            (cb.PrototypeAverage,),
            settings={"objective": FedProto()},
            places=EITHER,
        ),
        Listed("mixture", cb.Mixture, (federico,), draws={"federico": coin_first}),
        Listed("mixture, federico whole", cb.Mixture, (federico, cb.FedeRiCoStep), draws={"federico": coin_first}),
    ],
}
"""By family, the key of a config."""


def each(*families: str) -> list[Any]:
    """The policies of these families as parameters of a test, one by one."""
    return [pytest.param(listed, id=f"{family}: {listed.name}") for family in families for listed in LISTED[family]]


def where_they_work(*families: str) -> list[Any]:
    """The policies (of these families) at each place where they work, as two parameters of a test."""
    return _at(lambda listed: listed.places, families)


def aggregations_that_average() -> list[Any]:
    """The aggregations that average trained models, at each place where they work."""
    return [parameters for parameters in where_they_work("aggregation") if not parameters.values[0].mixes_itself]


def where_they_do_not(*families: str) -> list[Any]:
    """The policies (of these families) at each place of `EITHER` where they must refuse, as two parameters."""
    return _at(lambda listed: [place for place in EITHER if place not in listed.places], families)


def _at(places: Callable[[Listed], Sequence[str]], families: Sequence[str]) -> list[Any]:
    return [
        pytest.param(listed, place, id=f"{family}: {listed.name} ({place})")
        for family in families or LISTED
        for listed in LISTED[family]
        for place in places(listed)
    ]


TESTED_APART = {cb.Asynchronous, cb.StalenessWeighted, cb.Pairwise, cb.Buffered}
"""Policies of rounds with several waves, which the tester does not take: tests/callbacks/clock."""


def left_out(tested: set[type]) -> str:
    """A sentence about the policies that are shipped and not among the tested ones; empty if there are none."""
    tested = tested | TESTED_APART
    missing = [f"{name} ({key})" for key in LISTED for name, cls in shipped_classes(key).items() if cls not in tested]
    file = "tests/helpers/tester/shipped.py"
    return f"shipped, but not listed in {file}, where a line each is needed: {', '.join(missing)}" if missing else ""
