"""Parts of a file of cases."""

import random
from dataclasses import dataclass, field

import numpy as np

MAIN = ("model", "models", "body", "heads", "sent", "probabilities")


@dataclass
class Method:
    """A method's description and examples; `outputs` come from `function`.

    `main` are the outputs that an implementation must give to be compared; by default what is trained or sent.
    """

    name: str
    configs: list
    paper: str
    equation: str
    does: str
    inputs: dict
    outputs: dict
    readings: list  # (question, chosen, why)
    cases: list  # (name, inputs)
    function: object
    tolerance: float = 1e-9
    main: list = field(default_factory=list)

    def document(self, method):
        """Return the content of a method's file."""
        cases = []
        for name, inputs in self.cases:
            assert set(inputs) == set(self.inputs), (method, name, set(inputs) ^ set(self.inputs))
            outputs = self.function(**inputs)
            assert list(outputs) == list(self.outputs), (method, name)
            cases.append({"name": name, "inputs": listed(inputs), "outputs": listed(outputs)})
        return {
            "method": method,
            **{
                key: getattr(self, key) for key in ("name", "configs", "paper", "equation", "does", "inputs", "outputs")
            },
            "main": self.main or [name for name in self.outputs if name in MAIN],
            "readings": [dict(zip(("question", "chosen", "why"), reading, strict=True)) for reading in self.readings],
            "tolerance": self.tolerance,
            "cases": cases,
        }


def listed(value):
    """Arrays as lists, NaN as None."""
    if isinstance(value, dict):
        return {name: listed(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return listed(value.tolist())
    if isinstance(value, list | tuple):
        return [listed(part) for part in value]
    return None if isinstance(value, float) and value != value else value


class Numbers:
    """Sixteenths between -size and size, which every binary format holds exactly."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def floats(self, *shape, size=1.0):
        return np.array(
            [self.random.randint(-int(16 * size), int(16 * size)) / 16 for _ in range(int(np.prod(shape)))]
        ).reshape(shape)

    def classes(self, *shape, number=2):
        return np.array([self.random.randrange(number) for _ in range(int(np.prod(shape)))]).reshape(shape)


def others(m):
    """A complete graph."""
    return ~np.eye(m, dtype=bool)
