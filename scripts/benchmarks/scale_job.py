"""One system at one number of clients: run in a process of its own, prints one line of JSON.

`bench_scale.py` starts it as `python -m benchmarks.scale_job '{"system": "gossip", "clients": 1000, ...}'`.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from benchmarks.pools import make_pool
from benchmarks.resident import resident, settle
from benchmarks.rounds import VERBS, RoundClock, quietly
from benchmarks.timing import Others
from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning.callbacks import (
    AFIND,
    CHOCO,
    DPFL,
    FDMS,
    PANM,
    PENS,
    QSGD,
    AdaptiveThreshold,
    Boltzmann,
    CHOCOMix,
    ExactCount,
    FedeRiCo,
    FedFomo,
    FirstOrder,
    FromTopology,
    Gossip,
    Krum,
    SampleWeighted,
    ScoreWeighted,
    SimilarityWeighted,
    Uniform,
)
from dfl_lightning.runs.memory_estimate import predicted_memory
from dfl_lightning.runs.tables import read_metrics

HIDDEN = 32
"""Digits through 64-32-10: 2,410 parameters."""

BATCH_SIZE = 8

COHORTS = 16
"""At least so many where several processes share them: numbers of processes up to it do the same work."""


@dataclass(frozen=True)
class System:
    """Parts of a round.

    Args:
        policies: fresh ones, given how many neighbours a client has.
        what: in a few words.
        topology: given how many neighbours a client has; default: a random regular graph.
    """

    policies: Callable[[int], list[Callback]]
    what: str
    topology: Callable[[int], Any] = lambda k: {"generator": "random_regular_graph", "args": {"d": k}}


def everyone(*others: Callback) -> list[Callback]:
    """Return the policies of a round that uses all links of its graph.

    Args:
        *others: what mixes, and what is sent.
    """
    return [Gossip(k="all"), *others]


SYSTEMS = {
    "gossip": System(lambda k: [Gossip(k=k // 2), Uniform()], "half of the neighbours, drawn anew"),
    "afind": System(
        lambda k: [AFIND(k=k // 2), AdaptiveThreshold(), Boltzmann()],
        "proxies of all neighbours compared, losses of the chosen ones",
    ),
    "panm_loss": System(
        lambda k: [PANM("loss", k=k // 2, l=k // 2, stage_one=2, tau=2), Uniform()],
        "losses of half of the neighbours; the second round that counts matches",
    ),
    "panm_grad": System(
        lambda k: [PANM("grad", k=k // 2, l=k // 2, stage_one=2, tau=2), Uniform()],
        "updates of half of the neighbours compared; the second round that counts matches",
    ),
    "pens": System(
        lambda k: [PENS(k=k // 3, sampled=k // 2, top=k // 3, stage_one=2), Uniform()],
        "losses of half of the neighbours; the second round that counts gossips with those chosen often",
    ),
    "federico": System(
        lambda k: [FedeRiCo(k=k // 2), ScoreWeighted()],
        "losses of half of the neighbours, weighted by their averages",
    ),
    "fedfomo": System(
        lambda k: [FedFomo(k=k), FirstOrder()],
        "validation losses of all neighbours, and their distances",
    ),
    "pfedgraph": System(
        lambda k: [Gossip(k="all"), SimilarityWeighted()],
        "updates of all neighbours compared, weights projected on the simplex",
    ),
    "krum": System(
        lambda k: everyone(Krum()),
        "all pairs of a client's neighbours compared",
    ),
    "dpfl": System(
        lambda k: [DPFL(budget=3, initial_epochs=1), SampleWeighted(count="train_and_val")],
        "at most 3 of the neighbours, chosen greedily by averages",
    ),
    "one_peer": System(
        lambda k: everyone(Uniform()),
        "one-peer exponential graphs: one model each",
        lambda k: {"generator": "one_peer_exponential"},
    ),
    "base_graph": System(
        lambda k: everyone(FromTopology()),
        "the Base-2 graph: at most one model each",
        lambda k: {"generator": "base_graph", "args": {"k": 1}},
    ),
    "el_local": System(
        lambda k: everyone(Uniform()),
        "each sends to half as many others as there are neighbours, drawn from all clients",
        lambda k: {"generator": "el_local", "args": {"s": k // 2}},
    ),
    "el_oracle": System(
        lambda k: everyone(Uniform()),
        "a random regular graph of half of the degree, drawn anew",
        lambda k: {"generator": "el_oracle", "args": {"s": k // 2}},
    ),
    "choco": System(
        lambda k: everyone(CHOCO(), CHOCOMix()),
        "the largest tenth of the entries of differences, to all neighbours",
    ),
    "qsgd": System(
        lambda k: [Gossip(k=k // 2), QSGD(bits=8), Uniform()],
        "half of the neighbours, drawn anew; 8 bits an entry",
    ),
    "fdms": System(
        lambda k: [ExactCount(0.5), Gossip(k="all"), FDMS(), Uniform()],
        "half of the clients dropped out, a server compares all pairs of the others",
        lambda k: "server",
    ),
    "friends": System(
        lambda k: [ExactCount(0.5), Gossip(k="all"), FDMS(), Uniform()],
        "half of the clients dropped out, each other one compares the pairs of its neighbours that are active",
    ),
}


def federate(words: dict[str, Any]) -> tuple[DFLModule, RoundClock, int]:
    """Run some rounds, with evaluation and the run folder's graphs, without checkpoints.

    Returns:
        The module, the clock, and bytes that processes sent each other in the last round, as the first one knows.
    """
    system, degree = SYSTEMS[words["system"]], words["degree"]
    now = time.process_time if words["threads"] == 1 else time.perf_counter
    clock = RoundClock(now)
    with tempfile.TemporaryDirectory() as folder, quietly():
        trainer = DFLTrainer(
            max_rounds=1 + words["rounds"],
            topology=system.topology(degree),
            callbacks=[*system.policies(degree), clock],
            accelerator="cpu",
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_checkpointing=False,
            devices=words["processes"],
            cohorts=COHORTS if words["processes"] > 1 else 1,
        )
        optimizer = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
        network, data = make_pool(words)
        module = DFLModule(network, local_epochs=1, batch_size=BATCH_SIZE, optimizer=optimizer)
        trainer.fit(module, datamodule=data)
        moved = [int(read_metrics(file)[-1]["bytes_moved"]) for file in Path(folder).rglob("processes.csv")]
    return module, clock, sum(moved)


def main(words: dict[str, Any]) -> dict[str, Any]:
    """Measure seconds of a round by verb, and growth of the resident set to its peak."""
    torch.set_num_threads(words["threads"])
    if words["processes"] == 1:  # others are started once
        federate({**words, "clients": 16, "degree": 4})  # libraries allocate and compile on their first use
    settle()
    before, started, others = resident("VmRSS"), time.process_time(), Others()
    module, clock, moved = federate(words)
    seconds = time.process_time() - started
    medians = clock.medians()
    return {
        **words,
        "nodes": module.bank.num_nodes,
        "parameters": module.federation.layout.num_parameters,
        "seconds": {name: medians[name] for name in ("wall", *VERBS, "rest")},
        "rounds_seconds": clock.rounds,
        "setup": seconds - sum(spent["wall"] for spent in clock.rounds),
        "before": before,
        "grown": resident("VmHWM") - before,
        "predicted": predicted_memory(module),
        "others": others.share(),
        "rank": module.bank.ranks.rank,
        "moved": moved,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
