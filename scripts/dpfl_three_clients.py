"""DPFL, appendix A: three clients, of which two help the first one only together, measured over seeds.

    DFL_DATA_ROOT=FOLDER_WITH_CIFAR10 python scripts/dpfl_three_clients.py --seeds 10

Client 0 has 50 images of each of four CIFAR-10 classes; clients 1 and 2 have 1,000 images each and share two classes
with it. By the paper, federated averaging with either of them lowers client 0's accuracy by about 11 % of training
alone, and with both raises it by about 6 %. The script trains each group by FedAvg with fine-tuning and prints client
0's test accuracy in the last round, paired by seed, with t-tests that Holm's method adjusts. Its test images are
official ones of its four classes: all when it is alone, about a seventh, its share of the training images, in a group.
The last row is DPFL without a budget among all three; the script counts the seeds in which client 0 ends with both.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from scipy.stats import t, ttest_rel

from dfl_lightning.cli.command import run
from dfl_lightning.data.partitions.counts import DPFL_TOY

GROUPS = {"alone": (0,), "with client 1": (0, 1), "with client 2": (0, 2), "with both": (0, 1, 2)}
COMMON = (
    "--model.network LeNet --model.local_epochs 5 --model.batch_size 16 --data CIFAR10 --data.normalise true "
    "--data.partition ClassCounts --model.optimizer.init_args.lr 0.01"
)


def main() -> None:
    words = parser().parse_args()
    accuracies: dict[str, list[float]] = {}
    both = 0
    for seed in range(words.seeds):
        for name in [*GROUPS, "DPFL"]:
            folder = one(command(name, words), seed, words.out / name.replace(" ", "_") / str(seed))
            with np.load(folder / "clients.npz") as clients:
                accuracies.setdefault(name, []).append(100 * float(clients["test_acc"][-1, 0]))
            both += name == "DPFL" and chosen_by_first(folder) == {1, 2}
        latest = ", ".join(f"{name} {values[-1]:.1f}" for name, values in accuracies.items())
        print(f"seed {seed}: {latest}", flush=True)
    print("\n".join(["", *table(accuracies), ""]))
    print(f"DPFL: client 0 ends with both others in {both} of {words.seeds} seeds")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=10, help="number of seeds, each a split and first models")
    options.add_argument("--rounds", type=int, default=20, help="communication rounds of five local epochs")
    options.add_argument("--out", type=Path, default=Path("runs/dpfl_three_clients"), help="folder of the runs")
    return options


def command(name: str, words: argparse.Namespace) -> list[str]:
    """Return the arguments of `dfl-fit` of a row, without seed and folder."""
    members = GROUPS.get(name, (0, 1, 2))
    counts = json.dumps([{str(c): n for c, n in DPFL_TOY[i].items()} for i in members])
    shared = [*COMMON.split(), "--data.partition.counts", counts, "--data.num_clients", str(len(members))]
    shared += ["--data.test_fraction", "null", "--trainer.max_rounds", str(words.rounds)]
    if name != "DPFL":
        shared += ["--trainer.check_val_every_n_epoch", str(words.rounds)]
    if name == "DPFL":
        return ["--config", "dpfl", *shared, "--selection.budget", "all"]
    if len(members) == 1:
        shared += ["--topology", "complete", "--selection.k", "0", "--aggregation", "Uniform"]
    return ["--config", "fedavg_ft", *shared]


def one(argv: list[str], seed: int, out: Path) -> Path:
    """Run one command, unless an earlier call finished it; return its folder."""
    for summary in out.rglob("summary.json"):
        if json.loads(summary.read_text())["status"] == "finished":
            return summary.parent
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run("fit", [*argv, "--seed_everything", str(seed), "--trainer.default_root_dir", str(out)])
    if code:
        sys.exit(f"dfl-fit {' '.join(argv)} ended with {code}")
    return max(out.rglob("summary.json"), key=lambda file: file.stat().st_mtime).parent


def chosen_by_first(folder: Path) -> set[int]:
    """Return the clients that client 0 selects in the last round."""
    with np.load(folder / "graphs.npz") as graphs:
        last = (graphs["round"] == graphs["round"].max()) & graphs["selected"] & (graphs["receiver"] == 0)
        return set(graphs["sender"][last].tolist())


def table(accuracies: dict[str, list[float]]) -> list[str]:
    """Format means, paired differences to training alone with 95 % intervals, and Holm-adjusted p-values."""
    alone, groups = np.array(accuracies["alone"]), [name for name in accuracies if name != "alone"]
    ps = {name: float(ttest_rel(accuracies[name], alone).pvalue) for name in groups}
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(sorted(groups, key=ps.__getitem__)):
        largest = adjusted[name] = max(largest, min(1.0, ps[name] * (len(groups) - rank)))
    titles = ("client 0 learns", "accuracy", "difference to alone", "95 % interval", "p, adjusted")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, values in accuracies.items():
        row = [name, f"{mean(values):.1f} ± {stdev(values):.1f}"]
        if name in adjusted:
            apart = np.array(values) - alone
            half = t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / len(apart) ** 0.5
            row += [f"{apart.mean():+.1f}", f"{apart.mean() - half:+.1f} to {apart.mean() + half:+.1f}"]
            row += [f"{adjusted[name]:.3f}"]
        lines.append(f"| {' | '.join(row + [''] * (5 - len(row)))} |")
    return lines


if __name__ == "__main__":
    main()
