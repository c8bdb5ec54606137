"""QSGD."""

import numpy as np

from plain.book import Method, Numbers
from plain.neighbours import ROWS
from plain.sent import INPUTS, SENT, made


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


def rounded(seed, m=4, p=10, **more):
    return {**made(seed, m, p), "draws": abs(Numbers(seed + 50).floats(m, p)) * 15 / 16, **more}


METHOD = Method(
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
        ("seven entries in buckets of 5 and 2", rounded(336, p=7, bits=4, bucket=5)),
        ("three entries, a bucket larger than they are", rounded(337, m=3, p=3, bits=3, bucket=512)),
        ("buckets of one entry lose nothing", rounded(334, bits=3, bucket=1)),
        ("a client that learned nothing", {**rounded(335, bits=8, bucket=10), "trained": made(335, 4, 10)["starts"]}),
    ],
    function=qsgd,
)
