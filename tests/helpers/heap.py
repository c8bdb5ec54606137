"""Asynchronous gossip by one event at a time, from a heap: slow, plain, and without the library."""

import heapq

import numpy as np


def simulate(start, targets, cost, senders, mix, until, transfer=None):
    """Run clients with scalar models; a training takes a model half of the way to the client's target.

    At one instant all clients that finish publish first (phase 0), and then they mix (phase 1).

    Args:
        start: first models, float [m].
        targets: float [m].
        cost: duration of each client's training, int nanoseconds [m].
        senders: the clients that each client receives from.
        mix: (own model, models received in the order of their senders) -> the new model.
        until: events after this instant are not simulated.
        transfer: nanoseconds of one message, int [receiver, sender]; default: 0.

    Returns:
        Models [m], numbers of trainings [m], and the instants of all mixes, (time, client).
    """
    m = len(start)
    models, trained, published = np.array(start, float), np.zeros(m), {}
    trainings, mixes = np.zeros(m, int), []
    heap = [(int(cost[i]), 0, i) for i in range(m)]
    heapq.heapify(heap)
    while heap and heap[0][0] <= until:
        now, phase, i = heapq.heappop(heap)
        if phase == 0:
            trained[i] = published[i] = (models[i] + targets[i]) / 2
            trainings[i] += 1
            heapq.heappush(heap, (now, 1, i))
            continue
        known = [j for j in senders[i] if j in published]
        models[i] = mix(trained[i], [published[j] for j in known])
        mixes.append((now, i))
        waiting = 0 if transfer is None else sum(int(transfer[i][j]) for j in known)
        heapq.heappush(heap, (now + waiting + int(cost[i]), 0, i))
    return models, trainings, mixes


def simulate_pairs(start, targets, cost, partner, until, transfer=0):
    """Run AD-PSGD: a client that finishes averages with a neighbour, adds its update, and starts again.

    Args:
        start: first models, float [m].
        targets: float [m]; a training takes a model half of the way to the client's target.
        cost: duration of each client's training, int nanoseconds [m].
        partner: (client, number of its training) -> the neighbour, or None.
        until: events after this instant are not simulated.
        transfer: nanoseconds that the client then waits for its neighbour's model.

    Returns:
        Models [m], and numbers of trainings [m].
    """
    m = len(start)
    models, begun, trainings = np.array(start, float), np.array(start, float), np.zeros(m, int)
    heap = [(int(cost[i]), i) for i in range(m)]
    heapq.heapify(heap)
    while heap[0][0] <= until:
        now, i = heapq.heappop(heap)
        update = (targets[i] - begun[i]) / 2
        j = partner(i, int(trainings[i]))
        if j is not None:
            models[i] = models[j] = (models[i] + models[j]) / 2
        models[i] += update
        begun[i] = models[i]
        trainings[i] += 1
        heapq.heappush(heap, (now + (0 if j is None else transfer) + int(cost[i]), i))
    return models, trainings


def simulate_server(start, targets, cost, until, k, step, power, transfer=0, of_models=False):
    """Run FedBuff, or with `of_models` and k = 1 FedAsync; arguments are those of `simulate_pairs`.

    An event is the arrival of a client's model at the server; `transfer` is the time of an upload and of a download.

    Returns:
        The server's model, the models that clients train from [m], and the server's versions.
    """
    m, model, buffer = len(start), float(start[0]), []
    begun, version, known = np.array(start, float), 0, np.zeros(m, int)
    heap = [(int(cost[i]) + transfer, i) for i in range(m)]
    heapq.heapify(heap)
    while heap[0][0] <= until:
        now, i = heapq.heappop(heap)
        trained = (begun[i] + targets[i]) / 2
        factor = (1 + version - known[i]) ** -power
        buffer.append((factor, trained if of_models else trained - begun[i]))
        if len(buffer) == k:
            if of_models:
                model += step / k * sum(factor * (row - model) for factor, row in buffer)
            else:
                model += step / k * sum(factor * change for factor, change in buffer)
            buffer, version = [], version + 1
        begun[i], known[i] = model, version
        heapq.heappush(heap, (now + 2 * transfer + int(cost[i]), i))
    return model, begun, version
