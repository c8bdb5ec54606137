"""The worked example of docs/policies.md, run as it stands there."""

import copy
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dfl_lightning import LinkMemory, Links, callbacks
from dfl_lightning.cli.command import run
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
EXAMPLE, SENDING, PREDICTING, READING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MARGIN = 0.05


@pytest.fixture
def no_worse():
    scope: dict = {}
    exec(compile(EXAMPLE, "policies.md", "exec"), scope)
    return scope["NoWorse"]


class Judge(callbacks.Monitor):
    """Weights by the words of the example, with plain networks one after the other."""

    def __init__(self):
        self.expected, self.found, self.lone, self.substitute_rows = [], [], 0, 0

    def on_mix(self, round):
        network, n = copy.deepcopy(round.federation.network).eval(), round.num_nodes
        votes = round.voters.dense(round.votes, 0.0)
        expected = torch.zeros_like(votes)
        for i in range(n):
            x, y = round.data.batch(round.data.train[i])

            def loss(row, x=x, y=y):
                network.load_state_dict(round.federation.layout.state_dict(row))
                with torch.no_grad():
                    return float(torch.nn.functional.cross_entropy(network(x), y))

            def model(p, i=i):
                if p < n:
                    return round.bank.rows("trained")[p]
                stored = round.bank.rows(round.substitute_rows[0].rows)[p - n]
                return stored + round.bank.rows("models")[i] if round.substitute_rows[0].relative else stored

            voters = torch.nonzero(votes[i]).squeeze(1).tolist()
            good = [p for p in voters if loss(model(p)) <= loss(model(i)) + MARGIN]
            total = sum(float(votes[i, p]) for p in good)
            for p in good:
                expected[i, p] = float(votes[i, p]) / total
            self.lone += len(good) == 1 < len(voters)
            self.substitute_rows += any(p >= n for p in good)
        self.expected.append(expected)
        self.found.append(round.voters.dense(round.weights, 0.0))


@pytest.mark.parametrize("down", [False, True])
def test_aggregation_weighs_as_the_page_says(small_run, no_worse, down):
    judge = Judge()
    policies = [callbacks.Gossip(3), judge, no_worse(MARGIN)]  # the judge looks before the models are mixed
    policies += [callbacks.Bernoulli(0.4, full_first_round=True), callbacks.Stale()] if down else []
    small_run(4, policies=policies, data={"val_fraction": 0.0}).fit()
    assert len(judge.found) == 4
    for found, expected in zip(judge.found, judge.expected, strict=True):
        torch.testing.assert_close(found, expected)
        assert found.shape == (6, 12 if down else 6)
    assert judge.lone, "the neighbours of some client should all do worse"
    assert bool(judge.substitute_rows) == down


def test_client_without_votes_keeps_its_row(small_run, no_worse):
    kept = []

    class Look(callbacks.Monitor):
        def on_round_end(self, round):
            silent = round.voters.sum(round.votes) == 0
            assert not round.weights[silent[round.voters.receivers]].any()
            assert torch.equal(silent[:6], ~round.active[:6])
            before, after = round.bank.boundary.rows["models"], round.bank.next_rows()["models"]
            assert torch.equal(before[silent], after[silent])
            kept.append(int(silent.sum()))

    small_run(4, policies=[callbacks.Gossip(3), no_worse(), callbacks.Bernoulli(0.4), Look()]).fit()
    assert max(kept) > 0


def test_the_aggregation_refuses_a_server(small_run, no_worse):
    with pytest.raises(UserError, match="needs receivers with data"):
        small_run(1, policies=[callbacks.Gossip("all"), no_worse()], topology="server").fit()


def test_command_of_the_page_runs_the_users_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    (tmp_path / "mine.py").write_text(EXAMPLE, encoding="utf-8")
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    (words,) = re.findall(r"`(--aggregation mine[^`]*)`", PAGE)
    small = (
        "--config gossip --trainer.max_rounds 1 --data.num_clients 6 --model.local_epochs 1 --trainer.accelerator cpu"
    )
    assert run("fit", [*small.split(), *words.split()]) == 0, capsys.readouterr().err


def test_the_table_of_fields_has_fields():
    fields = {field.name for field in dataclasses.fields(Round)} | {"clusters"}  # of the federation, offered by both
    table = PAGE.split("| field | type | meaning |")[1].split("\n\n")[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    }
    assert len(named) > 12
    assert named <= fields


def test_types_are_as_the_table_says(small_run):
    seen = {}

    class Look(callbacks.Monitor):
        def on_round_end(self, round):
            sizes = {"m": [round.num_clients], "n": [round.num_nodes]}
            links_of = dict.fromkeys(("similarity", "scores"), round.candidates) | {"substitute": round.selected}
            for row in PAGE.split("| field | type | meaning |")[1].split("\n\n")[0].splitlines()[2:]:
                names, kind, _ = row.strip("|").split("|")
                for name in re.findall(r"`(\w+)`", names):
                    if not round.has(name):
                        continue
                    value = getattr(round, name)
                    seen[name] = value
                    if kind.strip() in ("links", "`LinkMemory`"):
                        assert isinstance(value, {"links": Links, "`LinkMemory`": LinkMemory}[kind.strip()]), name
                        continue
                    dtype, length = re.fullmatch(r" (\w+) \[(.*)\] ", kind).groups()
                    wanted = [len(links_of.get(name, round.voters))] if length == "E" else sizes[length]
                    assert (str(value.dtype), list(value.shape)) == (f"torch.{dtype}", wanted), name

    policies = [callbacks.AFIND(), callbacks.AdaptiveThreshold(), callbacks.Uniform(), callbacks.Bernoulli(0.3)]
    small_run(1, policies=[*policies, callbacks.Stale(), Look()]).fit()
    assert len(seen) >= 14


def test_outgoing_example_sends_and_charges_a_share_of_entries(small_run):
    scope: dict = {}
    exec(compile(SENDING, "policies.md", "exec"), scope)
    shares = []

    class Look(callbacks.Monitor):
        def on_trained(self, round):
            trained, sent = (round.bank.rows(name) - round.bank.rows("models") for name in ("trained", "sent"))
            shares.append(float((sent != 0).sum() / (trained != 0).sum()))
            kept = sent != 0
            torch.testing.assert_close(sent[kept], trained[kept] / 0.25, rtol=1e-3, atol=1e-6)

    run = small_run(2, policies=[callbacks.Gossip(2), callbacks.Uniform(), scope["SomeEntries"](0.25), Look()]).fit()
    assert shares == pytest.approx([0.25] * 2, abs=0.05)
    assert run.trainer.run.metrics["bytes_received"].tolist() == [2 * run.module.federation.layout.width] * 2


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_prediction_counts_classes(small_run, engine):
    """By plain networks and counts, one client after the other."""
    scope: dict = {}
    exec(compile(PREDICTING, "policies.md", "exec"), scope)
    policies = [callbacks.Gossip(k=2), callbacks.Uniform(), scope["ClassPrior"](smoothing=0.5)]
    run = small_run(2, policies=policies, precision="64-true", engine=engine).fit()
    data, network = run.module.federation.data, copy.deepcopy(run.module.network).double().eval()
    for client, row in enumerate(run.rows):
        torch.nn.utils.vector_to_parameters(row, network.parameters())
        x, y = data.batch(data.test[client], dtype=torch.float64)
        with torch.no_grad():
            found = network(x).softmax(1) * (torch.bincount(data.labels[data.train[client]], minlength=10) + 0.5)
        losses = -(found / found.sum(1, keepdim=True))[torch.arange(len(y)), y].log()
        assert run.trainer.run.clients["test_loss"][-1][client] == pytest.approx(losses.mean().item(), rel=1e-9)


def test_list_of_round_fields_is_up_to_date(load):
    """If it is not, run python scripts/list_round.py."""
    script = load("list_round")
    assert script.PAGE.read_text(encoding="utf-8") == PAGE == script.with_list(PAGE)
    public = {name for name in {*dir(Round), *(f.name for f in dataclasses.fields(Round))} if not name.startswith("_")}
    names = [re.match(r"`(\w+)", name)[1] for name in (*script.fields(), *script.values(), *script.verbs())]
    assert sorted(names) == sorted(public)
    for text in (*script.fields().values(), *script.values().values(), *script.verbs().values()):
        assert len(text) > 8


def test_the_list_changes_with_the_class(load, monkeypatch):
    def shuffle(self, links, *, times=1):
        """Something | new.

        More of it.
        """

    script = load("list_round")
    monkeypatch.setattr(Round, "shuffle", shuffle, raising=False)
    assert r"| `shuffle(links, *, times=1)` | Something \| new |" in script.with_list(PAGE)
    assert script.with_list(PAGE) != PAGE


# --- what it reads of its client's data
def test_the_selection_by_classes_finds_the_most_similar_ones(small_run):
    scope: dict = {}
    exec(compile(READING, "policies.md", "exec"), scope)
    run = small_run(1, policies=[scope["SimilarClasses"](k=2), callbacks.Uniform()]).fit()
    graphs = run.trainer.run.graphs
    data = run.module.federation.data
    shares = np.array([np.bincount(data.labels[own].numpy(), minlength=10) / len(own) for own in data.train])
    distances = np.abs(shares[:, None] - shares[None]).sum(2)
    np.fill_diagonal(distances, np.inf)
    for receiver in range(6):
        chosen = graphs["sender"][(graphs["receiver"] == receiver) & graphs["selected"]]
        assert len(chosen) == 2
        assert distances[receiver, chosen].max() <= np.sort(distances[receiver])[1]
    received = run.trainer.run.metrics["bytes_received"][0]
    width = len(run.module.federation.layout.shared)
    assert received == 2 * 4 * width + 5 * 40  # two models, and the ten counts of each of five neighbours
