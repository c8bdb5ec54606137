"""Every method on the same toy: 20 clients in two clusters that call the same digits by different names.

All rows have the data, network and training of `toy.yaml`: 30 rounds of 5 local epochs, with 5 neighbours in a round
where the method takes a number. Everything else is the shipped config's.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from comparisons.spread import spread
from dfl_lightning.functional import neighbour_precision_recall
from dfl_lightning.links import AllPairs, Links

SETTING = Path(__file__).with_name("toy.yaml")

FIVE_PEERS = '--topology {"generator":"random_regular_graph","args":{"d":5}}'
METHODS = {
    "Oracle, all 9": "gossip --selection.k all --selection.within cluster",
    "Oracle(5)": "gossip --selection.within cluster",
    "AFIND+": "afind",
    "AFIND+ as printed": "afind_literal",
    "PANMLoss": "panm_loss --selection.k 5 --selection.l 10",
    "PANMGrad": "panm_grad --selection.k 5 --selection.l 10",
    "PANM as printed": "panm_literal --selection.k 5 --selection.l 10",
    "DPFL": "dpfl --trainer.max_rounds 29",  # 10 epochs and 28 rounds of 5 are the 150 of the others
    "PENS": "pens --selection.k 5 --selection.sampled 10 --selection.top 5",
    "FedeRiCo": "federico",
    "FedeRiCo, EM": "federico_em",
    "FedFomo": "fedfomo",
    "pFedGraph": "pfedgraph",
    "PACFL": "pacfl",
    "Dis-PFL": "dispfl",
    "IFCA, 2 servers": 'ifca --topology {"generator":"server","args":{"servers":2}}',
    "Local": "gossip --selection.k 0",
    "Gossip(5)": "gossip",
    "D-SGD": f"dsgd {FIVE_PEERS}",
    "Gradient tracking": f"gradient_tracking {FIVE_PEERS}",
    "One-peer exponential": "one_peer",
    "Base-2 graph": "base_graph",
    "EL-Local(5)": "epidemic",
    "EL-Oracle(5)": 'epidemic --topology {"generator":"el_oracle","args":{"s":5}}',
    "CHOCO-SGD": f"choco {FIVE_PEERS}",
    "D2": f"d2 {FIVE_PEERS}",
    "QG-DSGDm": f"qg_dsgdm {FIVE_PEERS}",
    "DFedSAM": f"dfedsam {FIVE_PEERS}",
    "Push-sum": "push_sum --selection.k 5",
    "FedAvg": "fedavg",
    "FedAvg-FT": "fedavg_ft --model.finetune_epochs 2",
    "FedProx": "fedavg --objective FedProx",
    "Ditto": "ditto",
    "MOON": "moon",
    "FedProto": "fedproto",
    "APFL": "apfl",
    "Per-FedAvg": "per_fedavg",
    "FedRep": "fedrep --model.local_epochs 3 --objective.head_epochs 2",  # 5 in all
    "kNN-Per": "knn_per",
}
"""A row's config and its options. FL-FDMS has none: while no client drops out, it is FedAvg."""


COLUMNS = ("last round", "best on validation", "precision", "recall", "models a round", "models", "MB")


def command(name: str) -> list[str]:
    """Return the arguments of `dfl-fit` of a row."""
    config, *options = METHODS[name].split()
    return ["--config", config, "--config", str(SETTING), *options]


def found(run: Path) -> tuple[float, float] | None:
    """Compute precision and recall of the selected clients in the last round; None if no client selected another.

    Recall counts all clients of the receiver's cluster, reachable or not. Servers select clients, but do not count.
    """
    with np.load(run / "split.npz") as split, np.load(run / "graphs.npz") as graphs:
        clusters = torch.from_numpy(split["clusters"]).long()
        now = graphs["selected"] & (graphs["round"] == graphs["round"].max())
        receivers, senders = graphs["receiver"][now], graphs["sender"][now]
    m = len(clusters)
    if not len(receivers) or receivers.max() >= m:
        return None
    selected = Links.of(torch.from_numpy(receivers).long(), torch.from_numpy(senders).long(), m)
    return neighbour_precision_recall(selected, clusters, AllPairs.of_nodes(m))


def cells(summaries: list[dict[str, Any]]) -> dict[str, str]:
    """Format a row's cells by column, from the summaries of its seeds."""
    accuracies = [summary["test_accuracy"] for summary in summaries]
    chosen = [pair for summary in summaries if (pair := found(summary["folder"]))]
    received = [summary["received_per_client"] for summary in summaries]
    rounds = [summary["rounds"] for summary in summaries]
    texts = (
        spread([accuracy["acc_last"] for accuracy in accuracies], 1),
        spread([accuracy["acc_best_val"] for accuracy in accuracies], 1),
        *((f"{mean(values):.2f}" for values in zip(*chosen, strict=True)) if chosen else ("", "")),
        f"{mean(r['models'] / n for r, n in zip(received, rounds, strict=True)):.1f}",
        f"{mean(r['models'] for r in received):.0f}",
        f"{mean(r['bytes'] for r in received) / 1e6:.1f}",
    )
    return dict(zip(COLUMNS, texts, strict=True))
