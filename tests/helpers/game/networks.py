"""Random networks for every task, with suitable data, losses, weights of samples, and other options of engines."""

import functools
import math
import random

import banks
import torch
import torch.nn.functional as F
from torch import nn

from dfl_lightning.models import TCN, CharTransformer, Tabular
from dfl_lightning.objectives import FedProx, Plain
from dfl_lightning.tasks import Classification, Forecast, MultiLabel, NextToken, Regression

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Hardtanh)
CODES = 7
"""Tokens, or categories of a column; 0 is the padding, or unknown."""


# --- networks ---------------------------------------------------------------------------------------------------------
class Residual(nn.Module):
    """The sum of a layer's output and its input."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return x + self.layer(x)


class Words(nn.Module):
    """Embedded tokens [B, T, width]; padding stays zero."""

    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(CODES, width, padding_idx=0)

    def forward(self, x):
        return self.table(x.long())


class Over(nn.Module):
    """A reduction over the places of a line."""

    def __init__(self, largest):
        super().__init__()
        self.largest = largest

    def forward(self, x):
        return x.amax(1) if self.largest else x.mean(1)


class Attention(nn.Module):
    """Causal attention, written out."""

    def __init__(self, width):
        super().__init__()
        self.inputs, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.inputs(x).chunk(3, -1)
        seen = query @ key.transpose(1, 2) / math.sqrt(x.shape[-1])
        future = torch.ones_like(seen).triu(1) > 0
        return self.out(seen.masked_fill(future, -torch.inf).softmax(-1) @ value)


class Past(nn.Module):
    """A causal convolution over the places of a line [B, T, width]."""

    def __init__(self, width, kernel, dilation):
        super().__init__()
        self.before, self.conv = (kernel - 1) * dilation, nn.Conv1d(width, width, kernel, dilation=dilation)

    def forward(self, x):
        return self.conv(F.pad(x.transpose(1, 2), (self.before, 0))).transpose(1, 2)


def maybe(draw, *layers):
    """A layer, or none."""
    chosen = draw.choice([None, *layers])
    return [] if chosen is None else [chosen()]


def activation(draw):
    return draw.choice(ACTIVATIONS)()


def mlp(draw, shape, outputs):
    layers, width = [nn.Flatten()], math.prod(shape)
    for _ in range(draw.randint(0, 3)):
        before, width = width, draw.randint(2, 7)
        layers += [nn.Linear(before, width, bias=draw.random() < 0.8)]
        layers += maybe(draw, lambda w=width: nn.LayerNorm(w), lambda w=width: nn.GroupNorm(1, w))
        layers += [activation(draw), *maybe(draw, lambda: nn.Dropout(0.3))]
        layers += maybe(draw, lambda w=width: Residual(nn.Linear(w, w)))
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def convolutions(draw, shape, outputs):
    """Draw a network of convolutions, for images [C, 6, 6]."""
    layers, channels, side = [], shape[0], shape[1]
    for _ in range(draw.randint(1, 2)):
        before, channels, stride = channels, 2 * draw.randint(1, 2), draw.choice([1, 1, 2])
        groups = before if channels % before == 0 and draw.random() < 0.5 else 1
        norm = maybe(draw, lambda c=channels: nn.GroupNorm(2, c), lambda c=channels: nn.BatchNorm2d(c))
        layers += [nn.Conv2d(before, channels, 3, stride, 1, groups=groups, bias=not norm), *norm, activation(draw)]
        layers += maybe(draw, lambda: nn.Dropout2d(0.3))
        side = -(-side // stride)
    layers += maybe(draw, lambda: nn.MaxPool2d(2, ceil_mode=True), lambda: nn.AvgPool2d(2, ceil_mode=True))
    side = -(-side // 2) if isinstance(layers[-1], nn.MaxPool2d | nn.AvgPool2d) else side
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side * side, outputs))


def over_time(draw, shape, outputs):
    """Draw a network of convolutions over time, for windows [C, T]."""
    width = draw.randint(1, 4)
    layers = [nn.Conv1d(shape[0], width, draw.choice([1, 3]), padding="same", bias=draw.random() < 0.8)]
    layers += maybe(draw, lambda: nn.GroupNorm(1, width), lambda: nn.InstanceNorm1d(width, affine=True))
    layers += [activation(draw), *maybe(draw, lambda: nn.MaxPool1d(2, 1), lambda: nn.AvgPool1d(3, 1, 1))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, outputs))


def causal(draw, shape, outputs):
    channels = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
    return TCN(channels, draw.randint(2, 3), input_shape=shape, num_classes=outputs)


def table(draw, shape, outputs):
    hidden = [draw.randint(2, 6) for _ in range(draw.randint(0, 2))]
    categories = [CODES] * draw.randint(0, 2)
    return Tabular(hidden, draw.randint(1, 4), categories, input_shape=shape, num_classes=outputs)


def words(draw, shape, outputs):
    width = draw.randint(2, 6)
    body = [activation(draw), *maybe(draw, lambda: nn.Dropout(0.3)), nn.Linear(width, outputs)]
    return nn.Sequential(Words(width), *maybe(draw, lambda: nn.LayerNorm(width)), Over(draw.random() < 0.5), *body)


def transformer(draw, shape, outputs):
    heads = draw.randint(1, 2)
    width, depth = heads * draw.randint(1, 3), draw.randint(1, 2)
    padding = draw.choice([None, 0])
    return CharTransformer(width, depth, heads, padding, input_shape=shape, num_classes=outputs)


def line(draw, shape, outputs):
    width, layers = draw.randint(2, 6), []
    for number in range(draw.randint(1, 2)):
        layers += maybe(draw, lambda: nn.LayerNorm(width))
        kernel = draw.randint(2, 3)
        layers += [Residual(draw.choice([Attention(width), Past(width, kernel, 2**number)])), activation(draw)]
    return nn.Sequential(Words(width), *layers, nn.Linear(width, outputs))


# --- tasks: targets for n samples, the task, losses that a user might give --------------------------------------------
def weighed(kind, weights):
    """The task, whose samples count unequally; some count for nothing."""

    class Weighed(kind):
        def weights(self, targets):
            return weights(targets).double()

        def losses(self, outputs, targets):
            return super().losses(outputs, targets) * self.weights(targets)

        def statistics(self, outputs, targets):
            own = self.weights(targets)
            return {name: value * own for name, value in super().statistics(outputs, targets).items()}

    return Weighed


def of_classes(draw, n, g):
    count = draw.randint(2, 5)
    weights = torch.rand(count, generator=g, dtype=torch.float64)
    losses = [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weights, label_smoothing=0.1), F.cross_entropy]
    task = draw.choice([Classification, weighed(Classification, lambda y: y % 3)])()
    return torch.randint(0, count, (n,), generator=g), task, losses


def of_numbers(draw, n, g):
    columns = draw.randint(1, 3)
    scale = tuple(draw.choice([1.0, 0.1, 30.0]) for _ in range(columns))
    task = draw.choice([Regression, weighed(Regression, lambda y: (y[..., 0] > 0) * 2.5)])(scale)
    return torch.randn(n, columns, generator=g, dtype=torch.float64), task, [nn.L1Loss(), nn.HuberLoss(), nn.MSELoss()]


def of_labels(draw, n, g):
    labels = draw.randint(1, 4)
    weights = 3 * torch.rand(labels, generator=g, dtype=torch.float64)
    losses = [nn.BCEWithLogitsLoss(pos_weight=weights), nn.MultiLabelSoftMarginLoss()]
    return torch.rand(n, labels, generator=g) < 0.4, MultiLabel(), losses


def of_lines(draw, n, g, length):
    targets = torch.randint(0, CODES, (n, length), generator=g)
    targets[torch.rand(n, length, generator=g) < 0.3] = -1
    targets[torch.rand(n, generator=g) < 0.2] = -1  # nothing counts
    return targets, NextToken(), [_of_all_places, _of_what_is_there]


def of_forecasts(draw, n, g):
    shape = (n, draw.randint(1, 4))
    values, scale = torch.randn(shape, generator=g).double(), 0.1 + 9 * torch.rand(shape, generator=g).double()
    return torch.stack([values, scale], 1), Forecast(), [nn.L1Loss(), nn.SmoothL1Loss()]


def _of_all_places(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten().clamp(min=0))


def _of_what_is_there(outputs, targets):
    """Compute a loss that vmap cannot: the number of remaining positions depends on the data."""
    there = targets >= 0
    return F.cross_entropy(outputs[there], targets[there]) if bool(there.any()) else 0 * outputs.sum()


TARGETS = {"classes": of_classes, "numbers": of_numbers, "labels": of_labels, "forecasts": of_forecasts}
NETWORKS = {
    "mlp": (mlp, "vectors", ("classes", "numbers", "labels")),
    "convolutions": (convolutions, "images", ("classes", "labels", "numbers")),
    "over time": (over_time, "windows", ("forecasts", "classes", "labels")),
    "mlp of windows": (mlp, "windows", ("forecasts", "numbers")),
    "TCN": (causal, "windows", ("forecasts", "numbers", "classes")),
    "Tabular": (table, "table", ("numbers", "labels", "classes")),
    "words": (words, "tokens", ("classes", "labels", "numbers")),
    "CharTransformer": (transformer, "tokens", ("lines",)),
    "line": (line, "tokens", ("lines",)),
}


def draw_federation(seed):
    """Return random arguments of `make_federation` except the engine; networks and tasks alternate."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    turn, place = divmod(seed, len(NETWORKS))
    make, inputs, tasks = list(NETWORKS.values())[place]
    kind = tasks[turn % len(tasks)]
    shape = {
        "vectors": (draw.randint(2, 7),),
        "images": (draw.randint(1, 2), 6, 6),
        "windows": (draw.randint(1, 3), draw.randint(4, 8)),
        "table": (draw.randint(2, 5),),
        "tokens": (draw.randint(2, 6),),
    }[inputs]
    sizes = tuple(draw.randint(1, 11) for _ in range(draw.randint(2, 6)))
    data = banks._data(sizes, shape)
    n, lines = len(data.images), kind == "lines"
    data.labels, task, losses = of_lines(draw, n, g, shape[0]) if lines else TARGETS[kind](draw, n, g)
    data.num_classes = CODES if lines else int(data.labels.max()) + 1 if kind == "classes" else 0
    outputs = data.num_classes or data.labels.shape[-1]
    if inputs in ("tokens", "table"):
        data.scale, data.shift = torch.tensor(1.0), torch.tensor(0.0)
    if inputs == "tokens":
        data.images = torch.randint(0, CODES, data.images.shape, generator=g).to(torch.uint8)
    if inputs == "table":
        data.images[:, :2] = torch.randint(0, CODES, (n, 2), generator=g).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make(draw, shape, outputs)
    own = draw.choice([None, None, *losses])
    momentum = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    first = next(name for name, _ in network.named_parameters()).rpartition(".")[0]
    return {
        "network": network,
        "data": data,
        "task": task,
        "loss": task.mean_loss() if own is None else task.users_loss(own),
        "shared": draw.choice([("*",), ("*",), (f"{first}.*",)]),
        "servers": 1,
        "batch_size": draw.randint(1, 5),
        "cohorts": draw.choice([None, 2]),
        "objective": draw.choice([Plain(), Plain(), FedProx(mu=0.3)]),
        # Adam would make a whole step of a gradient that is nothing but rounding, as that of a bias before a norm.
        "optimizer": functools.partial(torch.optim.SGD, lr=77.0, **draw.choice([{}, momentum])),
        **draw.choice([{}, {"clip_norm": 0.5}, {"clip_norm": 0.05}, {"clip_value": 0.02}]),
    }
