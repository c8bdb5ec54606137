"""What leaves a client in the place of its model: sparse and rounded updates, and the attacks that draw nothing."""

import numpy as np

from plain.book import Method, Numbers
from plain.mixed import ROWS


def top_k(starts, trained, residual, share):
    update = trained - starts + residual
    count = max(1, round(share * update.shape[1]))
    kept = np.zeros_like(update)
    for row, new in zip(update, kept, strict=True):
        for place in sorted(range(len(row)), key=lambda place: (-abs(row[place]), place))[:count]:
            new[place] = row[place]
    return {"sent": starts + kept, "residual": update - kept}


def qsgd(starts, trained, draws, bits, bucket):
    levels, sent = 2 ** (bits - 1) - 1, starts.copy()
    for i, update in enumerate(trained - starts):
        for first in range(0, len(update), bucket):
            length = np.sqrt((update[first : first + bucket] ** 2).sum())
            for place in range(first, min(first + bucket, len(update))):
                a = levels * abs(update[place]) / length if length else 0.0
                level = np.floor(a) + (draws[i, place] < a - np.floor(a))
                sent[i, place] += length * np.sign(update[place]) * level / levels
    return {"sent": sent}


def sign_flip(starts, trained, adversaries, scale):
    return {"sent": np.where(adversaries[:, None], starts - scale * (trained - starts), trained)}


def a_little_is_enough(starts, trained, adversaries, z):
    rows = trained[adversaries]
    mean = rows.mean(0)
    deviation = np.sqrt(((rows - mean) ** 2).mean(0))
    return {"sent": np.where(adversaries[:, None], mean - z * deviation, trained)}


def made(seed, m=4, p=8, **more):
    numbers = Numbers(seed)
    return {"starts": numbers.floats(m, p), "trained": numbers.floats(m, p, size=2), **more}


def rounded(seed, m=4, p=10, **more):
    return {**made(seed, m, p), "draws": abs(Numbers(seed + 50).floats(m, p)) * 15 / 16, **more}


def who(m, *ids):
    return np.isin(np.arange(m), ids)


INPUTS = {"starts": f"models that training started from, {ROWS}", "trained": f"models after local training, {ROWS}"}
ADVERSARIES = {"adversaries": "who is one, [m]"}
SENT = {"sent": f"what others receive, {ROWS}: a model, that of honest clients is what they trained"}
TOP_K = Method(
    name="Sparsified updates with error feedback",
    configs=[],
    paper="Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, NeurIPS 2018, arXiv 1809.07599",
    equation="algorithm 1, on the updates of rounds",
    does="The largest entries of the update and what was kept so far, by absolute value, are sent; the rest is kept.",
    inputs={**INPUTS, "residual": f"what is kept from before, {ROWS}", "share": "of the entries that are sent"},
    outputs={**SENT, "residual": f"what is kept, {ROWS}"},
    readings=[
        ("How many entries are a share?", "the nearest whole number, at least one", "k is given as a number"),
        ("Which of equal entries?", "the first ones", "any choice of k largest is one"),
    ],
    cases=[
        ("a first round", made(301, residual=np.zeros((4, 8)), share=0.25)),
        ("with a residual", made(302, residual=Numbers(352).floats(4, 8), share=0.5)),
        ("less than one entry is one", made(303, residual=np.zeros((4, 8)), share=0.01)),
        ("everything is sent", made(304, residual=Numbers(354).floats(4, 8), share=1.0)),
        (
            "equal entries",
            {
                **made(305, residual=np.zeros((4, 8)), share=0.375),
                "trained": np.ones((4, 8)),
                "starts": np.zeros((4, 8)),
            },
        ),
    ],
    function=top_k,
)
QSGD = Method(
    name="QSGD",
    configs=[],
    paper="Alistarh, Grubic, Li, Tomioka and Vojnovic, QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS 2017, arXiv 1610.02132",
    equation="section 3.1, Q_s in buckets (section 4)",
    does="With a = s |v_i| / ||v|| of a bucket v of the update, entry i is sent as ||v|| sign(v_i) / s times floor(a), "
    "or times floor(a) + 1 if its draw is below a - floor(a).",
    inputs={
        **INPUTS,
        "draws": f"uniform numbers from 0 to 1, one for each entry, {ROWS}",
        "bits": "of an entry, its sign included: s = 2^(bits - 1) - 1",
        "bucket": "entries in a row that share a length; the last bucket may have fewer",
    },
    outputs=SENT,
    readings=[
        ("What is rounded?", "the update of a round", "as gradients are where gradients are sent"),
        ("How many levels s do b bits have?", "2^(b - 1) - 1", "one bit is the sign; the paper gives s"),
    ],
    cases=[
        ("8 bits, one bucket", rounded(331, bits=8, bucket=10)),
        ("4 bits, buckets of 4, 4 and 2", rounded(332, bits=4, bucket=4)),
        ("2 bits: the length, or nothing", rounded(333, bits=2, bucket=5)),
        ("buckets of one entry lose nothing", rounded(334, bits=3, bucket=1)),
        ("a client that learned nothing", {**rounded(335, bits=8, bucket=10), "trained": made(335, 4, 10)["starts"]}),
    ],
    function=qsgd,
)
SIGN_FLIP = Method(
    name="Sign flip",
    configs=[],
    paper="Li, Xu, Chen, Giannakis and Ling, RSA: Byzantine-Robust Stochastic Aggregation Methods, AAAI 2019, arXiv 1811.03761",
    equation="the sign-flipping attack",
    does="Adversaries send start - scale (trained - start).",
    inputs={**INPUTS, **ADVERSARIES, "scale": "how many times as long the flipped update is"},
    outputs=SENT,
    readings=[("What is flipped, the model or the update?", "the update", "as gradients are where gradients are sent")],
    cases=[
        ("one of four", made(311, adversaries=who(4, 2), scale=1.0)),
        ("two, longer", made(312, adversaries=who(4, 0, 3), scale=5.0)),
    ],
    function=sign_flip,
)
A_LITTLE = Method(
    name="A little is enough",
    configs=[],
    paper="Baruch, Baruch and Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS 2019, arXiv 1902.06635",
    equation="the attack that prevents convergence",
    does="Adversaries all send mean - z std of their models, in each parameter.",
    inputs={**INPUTS, **ADVERSARIES, "z": "standard deviations"},
    outputs=SENT,
    readings=[
        ("Of what are mean and deviation?", "of the adversaries' models", "clients without a server start apart"),
        ("Which deviation?", "that of a population", "the authors' code"),
    ],
    cases=[
        ("two of four", made(321, adversaries=who(4, 0, 2), z=1.5)),
        ("three of five", made(322, m=5, adversaries=who(5, 1, 2, 4), z=0.25)),
        ("equal models have no deviation", {**made(323, adversaries=who(4, 1, 3), z=2.0), "trained": np.ones((4, 8))}),
    ],
    function=a_little_is_enough,
)
