"""JAX without a simulator: a round is one compiled function, which trains the clients one after the other."""

from __future__ import annotations

import os
from typing import Any

if os.environ.get("OMP_NUM_THREADS") == "1":  # XLA has threads of its own; it reads this when it is imported
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=1"

import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
import torch
from peer_job import Clock, Job, main

Weights = dict[str, Any]


def scores(network: str, w: Weights, x: Any) -> Any:
    """Compute the scores of a batch; the networks are those of `peer_job.build_network`."""
    if network == "mlp":
        hidden = jax.nn.relu(x.reshape(len(x), -1) @ w["1.weight"].T + w["1.bias"])
        return hidden @ w["3.weight"].T + w["3.bias"]
    for layer in ("0", "3"):
        x = jax.lax.conv_general_dilated(
            x, w[f"{layer}.weight"], (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        x = jax.nn.relu(x + w[f"{layer}.bias"][:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = x.reshape(len(x), -1)
    for layer in ("7", "9"):
        x = jax.nn.relu(x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"])
    return x @ w["11.weight"].T + w["11.bias"]


def batches(rng: np.random.Generator, clients: int, samples: int, epochs: int, size: int) -> np.ndarray:
    """Draw the batches of a round, int32 [clients, steps, size]; -1 fills the last one of an epoch."""
    steps = -(-samples // size)
    drawn = np.full((clients, epochs, steps * size), -1, dtype=np.int32)
    orders = np.broadcast_to(np.arange(samples, dtype=np.int32), (clients, epochs, samples))
    drawn[..., :samples] = rng.permuted(orders, axis=-1)
    return drawn.reshape(clients, epochs * steps, size)


def trainer(job: Job) -> Any:
    """Make the compiled local training of all clients: (weights, images, labels, batches) -> weights."""

    def loss(w: Weights, x: Any, y: Any, counts: Any) -> Any:
        log_p = jax.nn.log_softmax(scores(job.network, w, x))
        of_label = jnp.take_along_axis(log_p, y[:, None], axis=1)[:, 0]
        return -(of_label * counts).sum() / counts.sum()

    def one_client(arguments: tuple[Weights, Any, Any, Any]) -> Weights:
        start, images, labels, order = arguments

        def step(w: Weights, batch: Any) -> tuple[Weights, None]:
            gradients = jax.grad(loss)(w, images[batch], labels[batch], (batch >= 0).astype(jnp.float32))
            return {name: value - job.lr * gradients[name] for name, value in w.items()}, None

        return jax.lax.scan(step, start, order)[0]

    return jax.jit(lambda *stacked: jax.lax.map(one_client, stacked))


def run(job: Job) -> dict[str, Any]:
    """Run FedAvg with a server, or synchronous gossip with one random other."""
    clock, rng = Clock(), np.random.default_rng(job.seed)
    clients = [job.client(i) for i in range(job.num_clients)]
    images = jnp.asarray(np.stack([x.numpy() for x, _ in clients]))
    labels = jnp.asarray(np.stack([y.numpy() for _, y in clients]).astype(np.int32))
    samples, fedavg = images.shape[1], job.work == "fedavg"
    server = {name: jnp.asarray(value.numpy()) for name, value in job.new_network().state_dict().items()}
    train, everyone = trainer(job), np.arange(job.num_clients)
    spread = jax.jit(lambda w, k: jax.tree.map(lambda v: jnp.broadcast_to(v, (k, *v.shape)), w), static_argnums=1)
    mean = jax.jit(lambda stacked: jax.tree.map(lambda v: v.mean(0), stacked))
    mix = jax.jit(lambda stacked, others: jax.tree.map(lambda v: (v + v[others]) / 2, stacked))
    models, steps = spread(server, job.num_clients), 0
    clock.start()
    for _ in range(job.rounds):
        chosen = np.sort(rng.choice(everyone, job.participants, replace=False)) if fedavg else everyone
        order = batches(rng, len(chosen), samples, job.local_epochs, job.batch_size)
        starts = spread(server, len(chosen)) if fedavg else models
        all_take_part = len(chosen) == job.num_clients
        data = (images, labels) if all_take_part else (images[chosen], labels[chosen])
        trained = train(starts, *data, order)
        if fedavg:
            server = mean(trained)
        else:
            others = (everyone + rng.integers(1, job.num_clients, job.num_clients)) % job.num_clients
            models = mix(trained, others)
        jax.block_until_ready(server if fedavg else models)
        steps += order.shape[0] * order.shape[1]
        clock.lap()
    final = [server] if fedavg else [jax.tree.map(lambda v, i=i: v[i], models) for i in range(job.num_clients)]
    states = [{name: torch.tensor(np.asarray(value)) for name, value in state.items()} for state in final]
    return {**clock.read(), "steps": steps, "accuracy": job.mean_accuracy(states), "version": f"jax {jax.__version__}"}


if __name__ == "__main__":
    main(run)
