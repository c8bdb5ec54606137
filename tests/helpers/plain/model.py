"""The model of all cases: linear layers with tanh between them, softmax cross-entropy, as one row of numbers.

A row has, layer by layer, the weights [outputs, inputs] row by row, then the biases: torch's order.
"""

import itertools

import numpy as np

MODEL = {
    "layers": "widths of the network, inputs first: linear layers with bias, tanh between them; its loss is the mean "
    "cross-entropy of the softmax. A model is a row of P numbers: for each layer the weights [outputs, inputs] row by row, "
    "then the biases"
}


def size(layers):
    return sum(a * b + b for a, b in itertools.pairwise(layers))


def unpacked(row, layers):
    """(weights, biases) of each layer."""
    found, at = [], 0
    for inputs, outputs in itertools.pairwise(layers):
        weights = row[at : at + inputs * outputs].reshape(outputs, inputs)
        at += inputs * outputs
        found.append((weights, row[at : at + outputs]))
        at += outputs
    return found


def columns(layers, layer):
    """Return the columns of a layer's parameters in a row."""
    start = size(layers[: layer + 1])
    return list(range(start, size(layers[: layer + 2])))


def forward(row, x, layers):
    """Inputs of each layer, and the scores."""
    hidden, inputs = x, []
    for place, (weights, biases) in enumerate(unpacked(row, layers)):
        inputs.append(hidden)
        hidden = hidden @ weights.T + biases
        if place < len(layers) - 2:
            hidden = np.tanh(hidden)
    return inputs, hidden


def softmax(scores):
    raised = np.exp(scores - scores.real.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def loss(row, x, y, layers):
    """The mean cross-entropy over samples."""
    p = softmax(forward(row, x, layers)[1])
    return float(-np.log(p[np.arange(len(y)), y]).mean())


def grad(row, x, y, layers):
    """Compute the gradient of the mean cross-entropy, by backpropagation."""
    inputs, scores = forward(row, x, layers)
    error = softmax(scores)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    parts = []
    for place in reversed(range(len(layers) - 1)):
        weights, _ = unpacked(row, layers)[place]
        parts = [(error.T @ inputs[place]).ravel(), error.sum(0), *parts]
        if place:
            error = (error @ weights) * (1 - inputs[place] ** 2)
    return np.concatenate(parts)


def cosine(a, b):
    """0 with a vector of zeros."""
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / lengths) if lengths > 0 else 0.0
