"""The rival for large networks: one client after the other, each step a replay of one recording, on several streams."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.federations import LEARNING_RATE, SETTINGS, Setting, built, federation, random_data
from benchmarks.tables import Table
from benchmarks.timing import Candidate, alternate
from torch import Tensor

from gpu.scope import Scope
from gpu.steps import STEPS

CASES = (("MLP", 100, 32), ("LeNet", 100, 16), ("CNN4", 100, 128), ("ResNet18", 8, 128))
SMALL = (("MLP", 3, 2),)
STREAMS = (1, 4)


def streams(scope: Scope) -> Table:
    """Measure a step of all clients, side by side and one client after the other, in milliseconds."""
    heads = ["stacked", *(f"one by one, {count} stream{'s' * (count > 1)}" for count in STREAMS)]
    table = Table("Side by side or one client after the other: milliseconds", ["network", "clients, batch", *heads])
    known = {setting.name: setting for setting in SETTINGS}
    for name, count, batch in SMALL if scope.small else CASES:
        setting = known[name].resized(count, STEPS * batch, batch)
        data = random_data(setting.shape, [setting.samples] * count, 0, scope.device)
        clients = federation(setting, "stacked", data)
        everyone = torch.arange(count)

        def stacked(clients=clients, everyone=everyone) -> int:  # type: ignore[no-untyped-def]
            clients.train(everyone)
            return STEPS

        candidates = {"stacked": Candidate(stacked)}
        models = clients.bank.rows("models")
        samples = torch.stack([part[: STEPS * batch] for part in data.train]).view(count, STEPS, batch)
        for head, number in zip(heads[1:], STREAMS, strict=True):
            workers = [_Worker(setting, scope.device) for _ in range(number)]
            candidates[head] = Candidate(_one_by_one(workers, models, samples, data.batch))
        found = alternate(candidates, scope.repeats, scope.machine)
        table.rows.append([name, f"{count}, B {batch}", *(f"{1e3 * found.median(head):.3g}" for head in heads)])
        table.numbers.append({"network": name, "clients": count, "seconds": found.seconds})
    table.notes = [
        "One by one: plain modules with plain SGD, each with a recorded step, which take the clients in turns; models "
        "and batches are copied into the recording's memory."
    ]
    return table


class _Worker:
    """One plain module with a recorded step, on a stream of its own.

    Args:
        setting: network and batch size.
        device: where it computes; without CUDA nothing is recorded, and the step is called instead.
    """

    def __init__(self, setting: Setting, device: str) -> None:
        self._module = built(setting).to(device).train()
        self._parameters = list(self._module.parameters())
        self._loss = setting.task.mean_loss()
        self.inputs = torch.zeros(setting.batch_size, *setting.shape, device=device)
        self.labels = torch.zeros(setting.batch_size, dtype=torch.long, device=device)
        self.stream = torch.cuda.Stream() if device.startswith("cuda") else None
        self.replay = self._step if self.stream is None else self._record()

    def load(self, row: Tensor) -> None:
        """Copy a client's parameters into the module."""
        torch.nn.utils.vector_to_parameters(row, self._parameters)

    def _step(self) -> None:
        loss = self._loss(self._module(self.inputs), self.labels)
        gradients = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=LEARNING_RATE)

    def _record(self) -> Callable[[], object]:
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self._step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._step()
        return graph.replay


def _one_by_one(
    workers: list[_Worker], models: Tensor, samples: Tensor, batch: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Callable[[], int]:
    def run() -> int:
        present = None if workers[0].stream is None else torch.cuda.current_stream()
        for worker in workers:
            if worker.stream is not None and present is not None:
                worker.stream.wait_stream(present)
        for client, steps_of_client in enumerate(samples):
            worker = workers[client % len(workers)]
            with torch.cuda.stream(worker.stream):
                worker.load(models[client, : sum(p.numel() for p in worker._parameters)])
                for some in steps_of_client:
                    inputs, labels = batch(some)
                    worker.inputs.copy_(inputs)
                    worker.labels.copy_(labels)
                    worker.replay()
        for worker in workers:
            if worker.stream is not None and present is not None:
                present.wait_stream(worker.stream)
        return len(samples[0])

    return run
