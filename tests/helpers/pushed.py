"""Clients that push their models, by one event at a time from a heap: slow, plain, and without the library."""

import heapq

import numpy as np


def simulate_pushes(start, cost, senders, train, mix, until, travel):
    """Run clients that send each model to all that receive from them, and start again at once.

    At one instant all clients that finish send first (phase 0), then messages arrive (phase 1), then clients mix the
    last model of each other one that has arrived (phase 2).

    Args:
        start: first models, float [m] or [m, d].
        cost: duration of each client's training, int nanoseconds [m].
        senders: the clients that each client receives from.
        train: (client, model) -> the trained model.
        mix: (client, its count of trainings, instant, own model before training, own trained model, {j: the last model
            of j that has arrived}) -> the new model, and a number that is not used.
        until: events after this instant are not simulated.
        travel: nanoseconds of one message, int [receiver, sender].

    Returns:
        Models, numbers of trainings [m], numbers of messages sent [m], and by client the ages of what it mixed.
    """
    m = len(start)
    models, trained, inbox = np.array(start, float), {}, [{} for _ in range(m)]
    trainings, sent, ages = np.zeros(m, int), np.zeros(m, int), [[] for _ in range(m)]
    heap = [(int(cost[i]), 0, i, -1, None) for i in range(m)]
    heapq.heapify(heap)
    while heap[0][0] <= until:
        now, phase, i, j, message = heapq.heappop(heap)
        if phase == 0:
            trained[i] = train(i, models[i])
            for k in range(m):
                if i in senders[k]:
                    heapq.heappush(heap, (now + int(travel[k][i]), 1, k, i, (now, trained[i])))
                    sent[i] += 1
            heapq.heappush(heap, (now, 2, i, -1, None))
        elif phase == 1:
            inbox[i][j] = message
        else:
            known = {j: inbox[i][j][1] for j in sorted(inbox[i])}
            ages[i] += [now - inbox[i][j][0] for j in known]
            models[i], _ = mix(i, int(trainings[i]), now, models[i], trained[i], known)
            trainings[i] += 1
            heapq.heappush(heap, (now + int(cost[i]), 0, i, -1, None))
    return models, trainings, sent, ages
