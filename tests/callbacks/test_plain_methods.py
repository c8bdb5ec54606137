"""Whole rounds of the papers' methods on tasks without classes, against plain modules and loops.

Clients are of unequal size, some drop out, and both tasks have a score that is better where it is lower. The references
take nothing from a run but its data, its first model and DPFL's draws.
"""

import itertools
import math
import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from game.networks import CODES, Words
from plain.fdms import fdms
from plain.panm import same_cluster
from plain_clients import EPOCHS, LR, MOMENTUM, UP, Plain, combined
from torch import nn
from torch.utils.data import TensorDataset
from turns import in_turn

from dfl_lightning import callbacks as cb
from dfl_lightning import objectives
from dfl_lightning.data import FromDataset, Text
from dfl_lightning.links.draws import uniform
from dfl_lightning.utils.randomness.random_streams import stream_seed

SIZES = (16, 8, 12, 20, 8)
ROUNDS = [[client for client, up in enumerate(line) if up == "1"] for line in UP[:3]]
HELD_OUT = {"val_fraction": 0.25}


def numbers(folder):
    """Make data of a linear function, and of its opposite for every other client."""
    g = torch.Generator().manual_seed(1)
    x, w = torch.randn(sum(SIZES), 5, generator=g), torch.randn(5, 1, generator=g)
    signs = torch.cat([torch.full((size, 1), (-1.0) ** client) for client, size in enumerate(SIZES)])
    parts = [part.tolist() for part in torch.arange(len(x)).split(SIZES)]
    return FromDataset(TensorDataset(x, signs * (x @ w)), parts=parts, test_fraction=0.25, **HELD_OUT)


def letters(folder):
    """Make texts of four letters that mostly follow each other in turn, in reverse for every other client."""
    for client, size in enumerate(SIZES):
        draw, line = random.Random(client), [0]
        while len(line) <= 4 * size:
            line.append((line[-1] + (-1) ** client * draw.choice([1, 1, 1, 2])) % 4)
        (folder / f"{client}.txt").write_text("".join("abcd"[letter] for letter in line))
    return Text(str(folder), length=4, characters=CODES, num_clients=len(SIZES), held_out=0.25, **HELD_OUT)


def of_tokens(outputs, y):
    return F.cross_entropy(outputs.flatten(0, 1), y.flatten(), ignore_index=-1)


TASKS = {
    "Regression": (numbers, lambda: [nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)], F.mse_loss, math.sqrt),
    "NextToken": (letters, lambda: [Words(3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, CODES)], of_tokens, math.exp),
}
"""Data, network, mean loss, and the score of a mean loss."""


# --- plain methods: round after round, the clients' models (or a server's), and those that are judged -----------------
def vector(model, layer=None):
    parts = [parameter.detach().flatten() for parameter in (layer or (lambda whole: whole))(model).parameters()]
    return torch.cat(parts)


def first_layer(model):
    return next(layer for layer in model if isinstance(layer, nn.Linear))


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def averaged(models, shares):
    """Average the clients' models by shares, {client: share}."""
    return combined([models[client] for client in shares], [share / sum(shares.values()) for share in shares.values()])


def rounds_of(plain, mix, judged=lambda models: models, **training):
    """Train locally and mix the trained models of active clients by `mix`, round by round."""
    models = [plain.first] * len(SIZES)
    for number, up in enumerate(ROUNDS):
        trained = [plain.trained(model, i, **training) if i in up else model for i, model in enumerate(models)]
        others = {i: [j for j in up if j != i] for i in up}
        mixed = mix(SimpleNamespace(number=number, up=up, others=others, before=models, trained=trained))
        models = [mixed.get(i, model) for i, model in enumerate(models)]
        yield models, judged(models)


def afind(plain, nu=0.2, tau=0.5, temperature=0.5):
    """Perform algorithm 1; eq. 7, 8, 14 and 16; n p and the threshold of docs/afind.md."""

    def mix(now):
        proxies = {i: vector(now.trained[i], first_layer) - vector(plain.first, first_layer) for i in now.up}
        centre, found = sum(proxies.values()) / len(now.up), {}
        for i, others in now.others.items():
            similar = {j: cosine(proxies[i] - centre, proxies[j] - centre) for j in others}
            raised = {j: math.exp(s / nu) for j, s in similar.items()}
            entropies = [-math.e * e * math.log(e) for s in similar.values() for e in [max((s + 1) / 2, 1 / math.e)]]
            theta = tau * sum(entropies) / len(others)
            chosen = [j for j in others if len(others) * raised[j] / sum(raised.values()) >= theta]
            losses = {j: plain.loss(now.trained[j], i) for j in [*chosen, i]}
            found[i] = averaged(now.trained, {j: math.exp(-loss / temperature) for j, loss in losses.items()})
            plain.chosen[now.number, i] = chosen
        return found

    return rounds_of(plain, mix)


def panm(plain, metric, k=2, stage_one=1):
    """Perform algorithms 1 to 3, where all active clients are compared; dropped clients stay on the lists."""
    lists, last = [set() for _ in SIZES], [{} for _ in SIZES]

    def similarity(now, i, j):
        if metric == "loss":
            return 1 / plain.loss(now.trained[j], i)
        starts = now.before, [plain.first] * len(SIZES)
        return sum(cosine(*(vector(now.trained[c]) - vector(s[c]) for c in (i, j))) for s in starts) / 2

    def mix(now):
        found = {}
        for i, others in now.others.items():
            similar = {j: similarity(now, i, j) for j in others}
            last[i] |= similar
            ranked = sorted(others, key=lambda j: -similar[j])
            if now.number < stage_one:
                chosen = ranked[:k]
                away = lists[i] - set(others)
                lists[i] = set(sorted({*chosen, *away}, key=lambda j: -last[i][j])[:k])
            else:
                known = lists[i] & set(others)
                own = same_cluster(similar, known, "oriented") if known else set(ranked[:k])
                lists[i] = (lists[i] - known) | own or lists[i]
                chosen = sorted(lists[i] & set(others))
                assert len(chosen) <= k  # of more, k would be drawn
            found[i] = averaged(now.trained, dict.fromkeys([*chosen, i], 1))
            plain.chosen[now.number, i] = chosen
        return found

    return rounds_of(plain, mix)


def pens(plain, top=2, stage_one=2):
    """Perform algorithm 1 with all active clients evaluated; clients chosen more often than by chance are peers."""
    counts, chance = (dict.fromkeys(itertools.product(range(len(SIZES)), repeat=2), 0) for _ in range(2))

    def mix(now):
        found = {}
        for i, others in now.others.items():
            if now.number < stage_one:
                chosen = sorted(others, key=lambda j: plain.loss(now.trained[j], i))[:top]
                for j in others:
                    counts[i, j] += j in chosen
                    chance[i, j] += top / len(others)
            else:
                peers = [j for j in range(len(SIZES)) if counts[i, j] > chance[i, j] + 1e-9]
                chosen = [j for j in others if j in peers or not peers]
            found[i] = averaged(now.trained, dict.fromkeys([*chosen, i], 1))
            plain.chosen[now.number, i] = chosen
        return found

    return rounds_of(plain, mix)


def dpfl(plain, budget=2):
    """Perform algorithms 1 and 2, with sets of models; later candidates are those of the first choice."""
    first, best = {}, [(math.inf, plain.first) for _ in SIZES]
    samples = [len(y) for _, y in plain.parts["train"]]

    def greedy(now, k, candidates):
        def drawn(j, what):
            return float(uniform(torch.tensor(k), torch.tensor(j), stream_seed(0, f"DPFL {what}", now.number)))

        def error(members):
            return plain.loss(averaged(now.trained, {i: samples[i] for i in members}), k, "val")

        def gain(before, after):
            return before - after if before - after > 1e-6 * max(1, before) else 0.0

        order = sorted(candidates, key=lambda j: drawn(j, "order"))
        x, y = {k}, {k, *order}
        for j in order:
            if len(x) - 1 >= budget:
                break
            a, b = gain(error(x), error(x | {j})), gain(error(y), error(y - {j}))
            if drawn(j, "coins") < (a / (a + b) if a + b > 0 else 1):
                x |= {j}
            else:
                y -= {j}
        return x - {k}

    def mix(now):
        found = {}
        for i, others in now.others.items():
            score = plain.score(plain.loss(now.trained[i], i, "val"))
            if score <= best[i][0]:
                best[i] = score, now.trained[i]
                plain.kept[i] = now.number
            candidates = [j for j in others if j in first[i]] if i in first else others
            chosen = greedy(now, i, candidates)
            first.setdefault(i, chosen)
            found[i] = averaged(now.trained, {j: samples[j] for j in [*chosen, i]})
            plain.chosen[now.number, i] = chosen
        return found

    return rounds_of(plain, mix, judged=lambda models: [model for _, model in best])


def friends(plain):
    """Perform FL-FDMS, algorithm 1: friends by the mean cosine of updates replace dropped clients at the server."""
    m = len(SIZES)
    server, scores, counts = plain.first, torch.zeros(m, m).double().numpy(), torch.zeros(m, m).long().numpy()
    for number, up in enumerate(ROUNDS):
        row = vector(server)
        updates = torch.zeros(m, len(row)).double()
        for i in up:
            updates[i] = vector(plain.trained(server, i)) - row
        active = [i in up for i in range(m)]
        found = fdms(row.numpy(), updates.numpy(), torch.tensor(active).numpy(), scores, counts, 1.0)
        scores, counts = found["scores"], found["counts"]
        plain.chosen |= {(number, i): [int(j)] for i, j in enumerate(found["substitute"]) if i not in up}
        server = combined([server], [1.0])
        nn.utils.vector_to_parameters(torch.tensor(found["model"]), server.parameters())
        yield [server], [server] * m


def ditto(plain, lam=0.5):
    """Perform algorithm 1 without a server: w is averaged over active clients, v is held near w's start."""
    personal = [plain.first] * len(SIZES)

    def mix(now):
        for i in now.up:
            personal[i] = plain.trained(personal[i], i, lam=lam, anchor=now.before[i])
        return dict.fromkeys(now.up, averaged(now.trained, dict.fromkeys(now.up, 1)))

    return rounds_of(plain, mix, judged=lambda models: list(personal))


METHODS = {
    "AFIND+": (afind, [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann(temperature=0.5)], {}),
    "PANM": (lambda plain: panm(plain, "grad"), [cb.PANM("grad", 2, 4, 1, 1), cb.Uniform()], {}),
    "PANM, losses": (lambda plain: panm(plain, "loss"), [cb.PANM("loss", 2, 4, 1, 1), cb.Uniform()], {}),
    "PENS": (pens, [cb.PENS(k=4, sampled=4, top=2, stage_one=2), cb.Uniform()], {}),
    "DPFL": (dpfl, [cb.DPFL(budget=2, initial_epochs=EPOCHS), cb.SampleWeighted()], {}),
    "FL-FDMS": (friends, [cb.Gossip(k="all"), cb.FDMS(), cb.Uniform()], {"topology": "server"}),
    "Ditto": (ditto, [cb.Gossip(k="all"), cb.Uniform()], {"objective": objectives.Ditto(lam=0.5)}),
}


@pytest.fixture
def plain_run(start, tmp_path):
    """Make a run in float64 with whole batches and clients that drop out, and plain clients to compare it with."""
    (tmp_path / "up").write_text("\n".join(" ".join(line) for line in UP[:3]))
    (tmp_path / "texts").mkdir()

    def _run(task, policies, **options):
        make_data, layers, mean, score = TASKS[task]
        with torch.random.fork_rng():
            torch.manual_seed(3)
            network = nn.Sequential(*layers())
        run = start(
            *[cb.Trace(str(tmp_path / "up")), *policies],
            clients=len(SIZES),
            rounds=len(ROUNDS),
            data=make_data(tmp_path / "texts"),
            trainer={"precision": "64-true"},
            network=network,
            batch_size=100,
            local_epochs=EPOCHS,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM),
            **options,
        )
        assert type(run.module.federation.task).__name__ == task
        plain = Plain(run, mean)
        plain.score, plain.chosen, plain.kept = score, {}, [0] * len(SIZES)
        return run, plain

    return _run


@pytest.mark.parametrize(("task", "method"), in_turn(TASKS, METHODS))
def test_whole_rounds_are_those_of_plain_modules(method, task, plain_run):
    reference, policies, options = METHODS[method]
    run, plain = plain_run(task, policies, **options)
    assert len({len(y) for _, y in plain.parts["train"]}) > 2
    run.go(len(ROUNDS))
    wanted = list(reference(plain))
    for round, (models, _) in zip(run.rounds, wanted, strict=True):
        found = round.after[-1:] if method == "FL-FDMS" else round.after
        torch.testing.assert_close(found, torch.stack([*map(vector, models)]), rtol=1e-9, atol=1e-9)
    _, judged = wanted[-1]
    scores = [plain.score(plain.loss(model, i, "test")) for i, model in enumerate(judged)]
    found = run.module.evaluate()[f"test_{run.module.federation.task.score}"]
    assert found.tolist() == pytest.approx(scores, rel=1e-9)
    assert method == "Ditto" or len(set(map(str, plain.chosen.values()))) > 1
    assert method != "DPFL" or len(set(plain.kept)) > 1  # the lowest score is not that of the same round for all
