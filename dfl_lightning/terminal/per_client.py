"""The table of clients' scores that `dfl-validate` and `dfl-test` print."""

from __future__ import annotations

from dfl_lightning.callbacks.base import honest_clients
from dfl_lightning.functional import of_clients, over_clients, undefined_counts, without_mean
from dfl_lightning.round.run.hosts import RunModule
from dfl_lightning.utils.score import Score


def per_client_table(module: RunModule) -> list[str]:
    """Return the table of the last evaluation: a line for each client, then mean, standard deviation and worst tenth.

    With an attack, the last three are over the honest clients only. A number that is undefined for some clients has a
    line with their count.
    """
    results = {k: v.cpu() for k, v in module.bank.boundary.evaluation.items()}
    names = [name for name in results if not name.startswith("global_")]
    widths = [max(14, len(name) + 2) for name in names]

    def row(label: str, numbers: list[float]) -> str:
        pairs = zip(numbers, widths, strict=True)
        return f"{label:>6}" + "".join(f"{number:{width}.4f}" for number, width in pairs)

    heads = "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    lines = [f"after round {module.bank.boundary.round}", f"client{heads}"]
    clients = range(module.federation.num_clients)
    lines += [row(str(client), [float(results[name][client]) for name in names]) for client in clients]

    score = Score.of(module.federation.task)
    is_honest = honest_clients(module.federation)
    honest = of_clients(results, is_honest)
    hidden = without_mean(honest, score.name)
    statistics = {name: over_clients(honest[name], name in hidden, score.higher_is_better) for name in names}
    if is_honest is not None:
        lines.append(f"the following are over the {int(is_honest.sum())} honest clients of {len(is_honest)}")
    lines.append(row("mean  ", [statistics[name].mean for name in names]))
    lines.append(row("std   ", [statistics[name].std for name in names]))
    counts = undefined_counts(honest, score.name)
    lines += [f"{name}: {count} of {among} clients undefined" for name, (count, among) in counts.items() if count]
    tested = f"test_{score.name}"
    if tested in statistics and tested not in hidden:
        lines.append(f"worst 10 % of clients, test {score.label}: {statistics[tested].worst10:.4f}")
    lines += [f"{name}: {float(results[name][0]):.4f}" for name in results if name.startswith("global_")]
    return lines
