"""Policies that look at others' models, one event at a time: a heap, and each policy's rule in numpy alone."""

import heapq

import numpy as np


class Regressions:
    """Clients whose model is a vector w, trained by one gradient step of length `rate` on the mean of (x w - y)^2.

    Args:
        train: inputs [n, d] and targets [n] of each client.
        val: the same of validation data.
        rate: length of the step.
    """

    def __init__(self, train, val, rate):
        self.data, self.rate = {"train": train, "val": val}, rate

    def trained(self, i, w):
        x, y = self.data["train"][i]
        return w - self.rate * 2 / len(y) * x.T @ (x @ w - y)

    def loss(self, i, w, split="train"):
        x, y = self.data[split][i]
        return np.mean((x @ w - y) ** 2)


def simulate(clients, start, cost, senders, mix, until, transfer):
    """Run the clients; at one instant all that finish publish first (phase 0), and then they mix (phase 1).

    Args:
        clients: how they train, and their losses.
        start: first models, float [m, d].
        cost: duration of each client's training, int nanoseconds [m].
        senders: the clients that each client may receive from.
        mix: (client, its count of trainings, instant, own model before training, own trained model, {j: the last
            model that j has published}) -> the new model, and the number of models that it has received.
        until: events after this instant are not simulated.
        transfer: nanoseconds of one message.

    Returns:
        Models [m, d], and numbers of trainings [m].
    """
    m = len(start)
    models, trained, published, trainings = np.array(start, float), {}, {}, np.zeros(m, int)
    heap = [(int(cost[i]), 0, i) for i in range(m)]
    heapq.heapify(heap)
    while heap[0][0] <= until:
        now, phase, i = heapq.heappop(heap)
        if phase == 0:
            trained[i] = published[i] = clients.trained(i, models[i])
            heapq.heappush(heap, (now, 1, i))
            continue
        known = {j: published[j] for j in senders[i] if j in published}
        models[i], received = mix(i, int(trainings[i]), now, models[i], trained[i], known)
        trainings[i] += 1
        heapq.heappush(heap, (now + received * transfer + int(cost[i]), 0, i))
    return models, trainings


# --- rules, each as `mix` -----------------------------------------------------------------------------------------
def afind(clients, nu, tau, temperature):
    """AFIND+ by cosines about the neighbourhood's mean, its adaptive threshold, and the Boltzmann average."""

    def mix(i, count, now, before, own, known):
        ids = sorted(known)
        chosen = []
        if ids:
            middle = np.mean([own, *known.values()], axis=0)
            cosines = np.array([cosine(own - middle, known[j] - middle) for j in ids])
            powers = np.exp(cosines / nu)
            e = np.clip((cosines + 1) / 2, np.exp(-1), None)
            theta = tau * np.mean(-np.e * e * np.log(e))
            chosen = [j for j, p in zip(ids, powers / powers.sum(), strict=True) if len(ids) * p >= theta]
        models = [own, *(known[j] for j in chosen)]
        weights = np.exp(-np.array([clients.loss(i, w) for w in models]) / temperature)
        return weights @ np.array(models) / weights.sum(), len(ids)

    return mix


def similarity_weighted(clients, alpha, first):
    """pFedGraph: the point of the simplex that is nearest to p - S / (2 alpha)."""
    samples = np.array([len(y) for _, y in clients.data["train"]])

    def mix(i, count, now, before, own, known):
        ids = sorted([i, *known])
        models = np.array([own if j == i else known[j] for j in ids])
        pairs = zip(ids, models, strict=True)
        cosines = np.array([1.0 if j == i else cosine(own - first[i], w - first[j]) for j, w in pairs])
        wanted = samples[ids] / samples[ids].sum() + cosines / (2 * alpha)
        return onto_simplex(wanted) @ models, len(known)

    return mix


def krum(kept):
    """Krum without adversaries: the mean of the `kept` models that are nearest to their n - 2 nearest ones."""

    def mix(i, count, now, before, own, known):
        ids = sorted([i, *known])
        models = np.array([own if j == i else known[j] for j in ids])
        if len(ids) < 3:
            return own, len(known)
        squares = ((models[:, None] - models[None]) ** 2).sum(-1)
        scores = [np.sort(np.delete(row, at))[: len(ids) - 2].sum() for at, row in enumerate(squares)]
        best = np.argsort(scores, kind="stable")[:kept]
        return models[best].mean(axis=0), len(known)

    return mix


class PENS:
    """The two stages of PENS; the clients that it draws are those that `drawn` recorded.

    Args:
        clients: how they train, and their losses.
        drawn: {(client, count of its trainings): the clients drawn in that training}.
        sampled, top, k: as of the policy.
        ends: instant at which stage one ends.
    """

    def __init__(self, clients, drawn, sampled, top, k, ends):
        self.clients, self.drawn, self.sampled, self.top, self.k, self.ends = clients, drawn, sampled, top, k, ends
        self.chosen, self.expected = {}, {}

    def __call__(self, i, count, now, before, own, known):
        drawn = self.drawn.get((i, count), [])
        if now <= self.ends:
            assert set(drawn) <= set(known)
            assert len(drawn) == min(self.sampled, len(known))
            best = sorted(drawn, key=lambda j: (self.clients.loss(i, known[j]), j))[: self.top]
            for j in known:
                chance = min(self.top, len(drawn)) / len(known)
                self.expected[i, j] = self.expected.get((i, j), 0) + chance
            for j in best:
                self.chosen[i, j] = self.chosen.get((i, j), 0) + 1
            received = len(drawn)
        else:
            peers = [j for a, j in self.chosen if a == i and self.chosen[a, j] > self.expected[a, j] + 1e-9]
            reach = [j for j in (peers or known) if j in known]
            assert set(drawn) <= set(reach)
            assert len(drawn) == min(self.k, len(reach))
            best, received = drawn, len(drawn)
        return np.mean([own, *(known[j] for j in best)], axis=0), received


class FedFomo:
    """FedFomo without exploring; how ties are broken is taken from `drawn`, and must be one of the best choices."""

    def __init__(self, clients, drawn, k):
        self.clients, self.drawn, self.k, self.affinity = clients, drawn, k, {}

    def __call__(self, i, count, now, before, own, known):
        drawn = self.drawn.get((i, count), [])
        affinity = {j: self.affinity.get((i, j), 0.0) for j in known}
        assert set(drawn) <= set(known)
        assert len(drawn) == min(self.k, len(known))
        left = [affinity[j] for j in known if j not in drawn]
        assert not left or min(affinity[j] for j in drawn) >= max(left) - 1e-12
        if not drawn:
            return own, 0
        loss = self.clients.loss(i, before, "val")
        models = {i: own, **{j: known[j] for j in drawn}}
        gains = {
            j: (loss - self.clients.loss(i, w, "val")) / np.linalg.norm(w - before) if (w != before).any() else 0.0
            for j, w in models.items()
        }
        for j in drawn:
            self.affinity[i, j] = affinity[j] + gains[j] / abs(sum(gains.values()))
        positive = {j: max(0, gain) for j, gain in gains.items()}
        total = sum(positive.values())
        return sum(positive[j] * models[j] for j in models) / total if total else before, len(drawn)


def cosine(a, b):
    """Return the cosine of two vectors; 0 if one of them is zero."""
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return a @ b / lengths if lengths else 0.0


def onto_simplex(point):
    """Return the point of the simplex that is nearest to `point` (Duchi et al. 2008)."""
    down = np.sort(point)[::-1]
    over = (down.cumsum() - 1) / np.arange(1, len(point) + 1)
    last = np.nonzero(down > over)[0][-1]
    return np.maximum(point - over[last], 0)
