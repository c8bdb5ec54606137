"""Run folders written by hand."""

import json

import numpy as np
import yaml


def write_run(
    folder,
    accuracy,
    links=(),
    seed=0,
    clusters=None,
    received=1e6,
    config=None,
    adversaries=None,
    status="finished",
    test_images=None,
    **arrays,
):
    """A run folder as `dfl-fit` leaves it.

    Args:
        folder: made here.
        accuracy: test accuracy, [rounds, clients].
        links: (round, receiver, sender, weight, selected, probed) each.
        seed: of the run.
        clusters: of the clients.
        received: bytes a round.
        config: config.yaml; None: of a run from Python.
        adversaries: marked clients.
        status: in summary.json; None: no such file.
        test_images: indices, the same number for each client.
        arrays: further files: `dropouts=[(round, client)]`, `diverged`, `substitutes`, `commands`.
    """
    folder.mkdir(parents=True)
    accuracy = np.asarray(accuracy, dtype=np.float64)
    rounds, m = accuracy.shape
    honest = np.ones(m, dtype=bool) if adversaries is None else ~np.asarray(adversaries, dtype=bool)
    lines = ["round,train_loss,test_acc,neighbours,active,bytes_received,seconds"]
    for r in range(rounds):
        mean = "" if np.isnan(accuracy[r]).all() else repr(float(np.nanmean(accuracy[r, honest])))
        lines.append(f"{r},{1 / (r + 1)!r},{mean},2,{m},{received!r},0.5")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    np.savez(folder / "clients.npz", rounds=np.arange(rounds), test_acc=accuracy)
    names = {"round": "i4", "receiver": "i4", "sender": "i4", "weight": "f4", "selected": "?", "probed": "?"}
    columns = list(zip(*links, strict=True)) or [()] * len(names)
    graph = {name: np.array(c, dtype=kind) for (name, kind), c in zip(names.items(), columns, strict=True)}
    np.savez(folder / "graphs.npz", **(graph if len(links) else {}))
    images = np.arange(10 * m) if test_images is None else np.asarray(test_images)
    each = len(images) // m
    offsets = np.arange(0, len(images) + 1, each)
    split = {"test_indices": images, "test_offsets": offsets, "train_indices": images, "train_offsets": offsets}
    split["clusters"] = np.empty(0) if clusters is None else np.asarray(clusters)
    split["adversaries"] = np.empty(0) if adversaries is None else np.asarray(adversaries, dtype=bool)
    np.savez(folder / "split.npz", **split)
    for name, keys in (
        ("dropouts", ("round", "client")),
        ("diverged", ("round", "client")),
        ("substitutes", ("round", "receiver", "client", "substitute")),
    ):
        if arrays.get(name):
            found = zip(keys, zip(*arrays[name], strict=True), strict=True)
            np.savez(folder / f"{name}.npz", **{key: np.array(column, dtype=np.int32) for key, column in found})
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump({"seed_everything": seed, **config}))
    if status is not None:
        last = accuracy[-1][~np.isnan(accuracy[-1]) & honest]
        worst = np.sort(last)[: -(-len(last) // 10)]
        test = {"mean": last.mean(), "worst10": worst.mean()} if len(last) else {}
        summary = {
            "status": status,
            "clients": m,
            "data": arrays.get("data", "Drawn, 4 images a client"),
            "seeds": {"run": seed},
            "test_accuracy": test,
            "received_per_client": {"bytes": received * rounds},
            "seconds": {"rounds": 0.5 * rounds, "train": 0.4 * rounds},
            "versions": {"python": "3", "torch": "2"},
            "policies": arrays.get("policies", []),
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    if arrays.get("commands"):
        rows = "".join(f'{r},"{command}"\n' for r, command in arrays["commands"])
        (folder / "commands.csv").write_text("round,command\n" + rows)
    return folder


def drawn_links(rng, rounds, m, k, probes=0, every=1):
    """k random senders for each receiver and round, and as many that are only probed."""
    found = []
    for r in range(rounds):
        if (r + 1) % every:
            continue
        for i in range(m):
            others = rng.permutation([j for j in range(m) if j != i])
            found.append((r, i, i, 1 / (k + 1), False, False))
            found += [(r, i, j, 1 / (k + 1), True, False) for j in others[:k]]
            found += [(r, i, j, 0.0, False, True) for j in others[k : k + probes]]
    return found
