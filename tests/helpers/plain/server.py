"""Examples and words of methods with a server."""

import numpy as np

from plain.book import Numbers
from plain.model import MODEL, columns, size


def batches(x, y, epochs=1):
    return [batch for _ in range(epochs) for batch in zip(x, y, strict=True)]


def averaged(rows, x):
    """By numbers of samples."""
    counts = np.array([len(part) * part.shape[1] for part in x])
    return counts / counts.sum() @ np.array(rows)


def data(numbers, m, count, layers, samples=2):
    """[count, samples, inputs] of each client; `count` may be a list."""
    counts = [count] * m if isinstance(count, int) else count
    x = [numbers.floats(c, samples, layers[0], size=2) for c in counts]
    return {"x": x, "y": [numbers.classes(c, samples, number=layers[-1]) for c in counts]}


def made(seed, m=3, count=2, layers=(3, 2), lr=0.25, **more):
    numbers = Numbers(seed)
    start = {"layers": list(layers), "model": numbers.floats(size(layers))}
    return {**start, **data(numbers, m, count, layers), "lr": lr, **more}


def own_models(seed, m, layers):
    return Numbers(seed + 100).floats(m, size(layers))


def parted(seed, m=3, count=1, layers=(3, 2, 2), lr=0.25, **more):
    case = made(seed, m, count, layers, lr)
    head = columns(layers, len(layers) - 2)
    model = case.pop("model")
    return {**case, "body": model[: head[0]], "heads": own_models(seed, m, layers)[:, head], **more}


DATA = {
    "x": "training data of each client, [batches, samples, inputs]; batches are taken in this order, in each epoch again",
    "y": "their classes, [batches, samples]",
}
SERVER = {**MODEL, "model": "the server's before the round, [P]"}
RATE = {"lr": "learning rate of plain SGD; one step on each batch"}
EPOCHS = {"epochs": "how often a client takes its batches"}
ROUNDS = {"rounds": "how many rounds"}
AFTER = {"model": "the server's after the round, [P]: the mean by numbers of samples"}
NO_MOMENTUM = ("Does momentum last over rounds?", "there is none here", "the algorithm is written with plain steps")
PARTS = {
    **MODEL,
    "body": "the server's: all layers but the last one",
    "heads": "the last layer of each client, [m, numbers of the layer]",
    **DATA,
    **RATE,
}
AFTER_PARTS = {"body": "the server's after the round", "heads": "the heads after the round"}
