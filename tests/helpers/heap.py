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
