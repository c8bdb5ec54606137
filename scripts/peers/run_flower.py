"""Flower's simulation engine (Ray): FedAvg as ServerApp and ClientApp, the client as in its PyTorch quickstart."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # type: ignore[import-not-found]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found]
from flwr.serverapp import Grid, ServerApp  # type: ignore[import-not-found]
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found]
from flwr.simulation import run_simulation  # type: ignore[import-not-found]
from peer_job import Clock, Job, main
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def client_app(job: Job) -> ClientApp:
    """Make the app with which each of Flower's virtual nodes handles messages."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        network = job.new_network()
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = job.client(int(context.node_config["partition-id"]))
        loader = DataLoader(TensorDataset(x, y), job.batch_size, shuffle=True)
        optimizer = torch.optim.SGD(network.parameters(), lr=job.lr)
        loss_of, steps = nn.CrossEntropyLoss(), 0
        network.train()
        for _ in range(job.local_epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_of(network(inputs), labels).backward()
                optimizer.step()
                steps += 1
        counts = {"num-examples": len(y), "steps": steps, "threads": torch.get_num_threads(), "process": os.getpid()}
        content = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord(counts)}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def run(job: Job) -> dict[str, Any]:
    """Run with one CPU per client, so that there are as many actors as cores; Flower's default of two halves them."""
    clock, found = Clock(), {"steps": 0, "threads": 0}
    processes: set[int] = set()
    final: dict[str, Any] = {}

    def add_up(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        for reply in replies:
            found["steps"] += int(reply["metrics"]["steps"])
            found["threads"] = int(reply["metrics"]["threads"])
            processes.add(int(reply["metrics"]["process"]))
        return MetricRecord({})

    def after_round(number: int, arrays: ArrayRecord) -> None:
        if number:
            clock.lap()
        else:
            clock.start()

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=job.participants / job.num_clients,
            fraction_evaluate=0.0,
            min_train_nodes=job.participants,
            min_available_nodes=job.num_clients,
            train_metrics_aggr_fn=add_up,
        )
        initial = ArrayRecord(job.new_network().state_dict())
        result = strategy.start(grid, initial, num_rounds=job.rounds, evaluate_fn=after_round)
        final["state"] = result.arrays.to_torch_state_dict()

    run_simulation(
        server_app=server,
        client_app=client_app(job),
        num_supernodes=job.num_clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"_node_ip_address": "127.0.0.1", "include_dashboard": False},
        },
    )
    return {
        "seconds": clock.seconds,
        "accuracy": job.mean_accuracy([final["state"]]),
        "version": f"flwr {version('flwr')}",
        "processes": len(processes),
        **found,
    }


if __name__ == "__main__":
    main(run)
