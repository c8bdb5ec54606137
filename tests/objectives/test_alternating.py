"""One factor of the adapters is trained in a round, the other one in the next."""

import pytest

from dfl_lightning import UserError
from dfl_lightning import callbacks as cb
from dfl_lightning.models import MLP, LoRA
from dfl_lightning.objectives import Alternating


class Moved(cb.Monitor):
    """Keeps the names of the parameters that each round's training changes."""

    def __init__(self):
        self.rounds = []

    def on_weigh(self, round):
        changed = (round.bank.rows("trained") != round.bank.rows("models")).any(0)
        self.rounds.append([e.name for e in round.bank.layout.entries if changed[e.start : e.stop].any()])


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(("every", "turns"), [(1, "BABA"), (2, "BBAA")])
def test_factors_take_turns_and_the_head_is_always_trained(small_run, engine, every, turns):
    kept = Moved()
    module = {"network": LoRA(MLP(hidden=[7]), rank=2, targets=["features.*"], trained=["head.*"])}
    options = {"objective": Alternating(every=every)}
    policies = [cb.Gossip(k=2), cb.Uniform()]
    run = small_run(4, policies=policies, callbacks=[kept], module={**module, **options}, engine=engine).fit()
    assert kept.rounds == [[f"features.fc1.lora_{turn}", "head.weight", "head.bias"] for turn in turns]
    assert len(run.module.federation.layout.shared) == run.rows.shape[1]  # all of it is exchanged


def test_parts_must_be_there(small_run):
    with pytest.raises(UserError, match=r"objective.parts=\*lora_A; give two patterns of names or more"):
        Alternating(parts="*lora_A")
    with pytest.raises(UserError, match=r"objective.every=0; it must be 1 or more"):
        Alternating(every=0)
    run = small_run(1, policies=[cb.Gossip(k=2), cb.Uniform()], module={"objective": Alternating()})
    with pytest.raises(UserError, match=r"objective.parts: no trained parameter matches '\*lora_B'"):
        run.fit()
