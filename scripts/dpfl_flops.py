"""DPFL, appendix G: floating point operations of a client in a round, by the paper's formulas and by what is evaluated.

    python scripts/dpfl_flops.py                               # CIFAR-10: LeNet, 100 clients with 500 images each
    python scripts/dpfl_flops.py --clients 200 --images 900 --budgets 199 40 20 10            # CINIC-10

F, the operations of a forward pass, and B, those of a backward pass, are counted by torch.utils.flop_counter on the
shipped network and a batch; a multiplication and an addition are two operations, and only layers with weights count.
Appendix G has 2 B_c F + E (F + B) + B_c d for DPFL with E steps and d parameters, E (F + B) + N d for FedAvg among all,
and 2 E (F + B) + N d for Ditto and APFL. It does not say how many images the choice's F is of: a batch, like that of a
step, or all validation images of a client, which algorithm 2 evaluates. Both are printed. Round 0 is the preprocessing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import ceil

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dfl_lightning.models import FEMNISTCNN, LeNet

VALIDATION = 0.2
"""The share of a client's images that appendix H.3.1 keeps for validation."""
NETWORKS = {"LeNet": (LeNet, (3, 32, 32)), "FEMNISTCNN": (FEMNISTCNN, (1, 28, 28))}
"""The shipped networks of appendix H, each with the shape of an image."""


@dataclass(frozen=True)
class Costs:
    """Operations of a client in a round.

    Attributes:
        choice: of the greedy choice.
        training: of local training.
        average: of the average of models.
    """

    choice: int
    training: int
    average: int

    @property
    def total(self) -> int:
        """The sum of the three."""
        return self.choice + self.training + self.average


def main() -> None:
    words = parser().parse_args()
    kind, shape = NETWORKS[words.network]
    network = kind(input_shape=shape, num_classes=10)
    forward, backward = passes(network, torch.zeros(words.batch, *shape))
    size = sum(parameter.numel() for parameter in network.parameters())
    held_out = int(words.images * VALIDATION)
    of_all, _ = passes(network, torch.zeros(held_out, *shape))
    per_epoch = ceil((words.images - held_out) / words.batch)
    print(
        f"{words.network}: d = {size:,} parameters; F = {mega(forward)}, B = {mega(backward)} million operations for a"
    )
    print(f"batch of {words.batch}, F = {mega(of_all)} for the {held_out} validation images of a client")
    print(f"E = {words.epochs} x {per_epoch} = {words.epochs * per_epoch} steps of a client in a round\n")
    print("\n".join(table(words, forward, backward, of_all, per_epoch, size)))


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--network", choices=NETWORKS, default="LeNet", help="a shipped network")
    options.add_argument("--clients", type=int, default=100, help="number of clients N")
    options.add_argument("--images", type=int, default=500, help="images of a client, a fifth of them for validation")
    options.add_argument("--batch", type=int, default=16, help="images of a step")
    options.add_argument("--epochs", type=int, default=5, help="local epochs of a round")
    options.add_argument("--first", type=int, default=10, help="local epochs before the first choice")
    options.add_argument("--budgets", type=int, nargs="+", default=[99, 20, 10, 5], help="budgets B_c")
    return options


def passes(network: nn.Module, inputs: torch.Tensor) -> tuple[int, int]:
    """Count the operations of a forward and of a backward pass.

    Args:
        network: the network; all its parameters are trained.
        inputs: a batch of inputs, without gradients.
    """
    with FlopCounterMode(display=False) as counter:
        outputs = network(inputs)
        forward = counter.get_total_flops()
        outputs.sum().backward()
    return forward, counter.get_total_flops() - forward


def of_dpfl(candidates: int, mixed: int, evaluated: int, steps: int, step: int, size: int) -> Costs:
    """Return 2 c F + E (F + B) + B_c d, the sum of appendix G.2.

    Args:
        candidates: clients c that the choice is made among; B_c after the first round.
        mixed: number B_c of models that are averaged.
        evaluated: operations F of evaluating a model once.
        steps: local steps E.
        step: operations F + B of a step.
        size: number d of parameters.
    """
    return Costs(2 * candidates * evaluated, steps * step, mixed * size)


def of_average(models: int, clients: int, steps: int, step: int, size: int) -> Costs:
    """Return k E (F + B) + N d, the sums of appendix G.3: k = 1 for FedAvg, and 2 for Ditto and APFL.

    Args:
        models: number k of models that a client trains.
        clients: number N of clients.
        steps: local steps E.
        step: operations F + B of a step.
        size: number d of parameters.
    """
    return Costs(0, models * steps * step, clients * size)


def table(words: argparse.Namespace, forward: int, backward: int, of_all: int, per_epoch: int, size: int) -> list[str]:
    """Format a line for each method and budget, in millions of operations, with the total as a multiple of FedAvg's."""
    step, steps = forward + backward, words.epochs * per_epoch
    fedavg = of_average(1, words.clients, steps, step, size)
    costs = {"FedAvg": fedavg, "Ditto, APFL": of_average(2, words.clients, steps, step, size)}
    for reading, evaluated in (("a batch", forward), ("all validation images", of_all)):
        for budget in words.budgets:
            costs[f"DPFL, B_c = {budget}, F of {reading}"] = of_dpfl(budget, budget, evaluated, steps, step, size)
        others = words.clients - 1  # BGGC sums up all of them
        costs[f"DPFL, round 0, F of {reading}"] = of_dpfl(
            others, others, evaluated, words.first * per_epoch, step, size
        )
    lines = ["| | choice | training | average | total | total / FedAvg |", "|---" * 6 + "|"]
    for name, of in costs.items():
        numbers = [mega(value) for value in (of.choice, of.training, of.average, of.total)]
        lines.append(f"| {name} | {' | '.join(numbers)} | {of.total / fedavg.total:.2f} |")
    return lines


def mega(operations: int) -> str:
    """Format a number of operations in millions.

    Examples:
        >>> mega(6_409_000_000), mega(620_060)
        ('6,409.0', '0.6')
    """
    return f"{operations / 1e6:,.1f}"


if __name__ == "__main__":
    main()
