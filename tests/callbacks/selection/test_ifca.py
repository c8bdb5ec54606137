"""IFCA: several servers, the best of which each client trains."""

import pytest
import torch

from dfl_lightning.bank.references import References
from dfl_lightning.callbacks import FDMS, IFCA, Bernoulli, Gossip, Uniform
from dfl_lightning.cli.exports.export import export
from dfl_lightning.data import Digits
from dfl_lightning.data.partitions import RotatedClusters
from dfl_lightning.evaluation import reported_models
from dfl_lightning.models import MLP
from dfl_lightning.utils.errors import UserError


def servers(number):
    return {"generator": "server", "args": {"servers": number}}


@pytest.fixture
def federation(start):
    def _start(*policies, number=3, **settings):
        settings = {"topology": servers(number), "init": "independent", "batch_size": 6, **settings}
        return start(*(policies or (IFCA(), Uniform())), **settings)

    return _start


def test_clients_report_the_server_with_the_least_training_loss(federation):
    run = federation().go(2)
    references = reported_models(run.module)
    for i in range(6):
        losses = [run.loss(run.models[6 + k], i) for k in range(3)]
        assert int(references.terms[0].which[i]) == 6 + losses.index(min(losses))


def test_all_servers_models_are_downloaded_and_one_is_uploaded(federation):
    metrics = federation(number=4).go().rounds[0].metrics
    assert metrics["models_received"] == 4 + 1


def test_ifca_with_one_server_equals_fedavg(federation):
    one = federation(number=1).go(3)
    fedavg = federation(Gossip(k="all"), Uniform(), number=1).go(3)
    assert torch.equal(one.models, fedavg.models)


def test_clients_find_their_clusters_from_a_near_start(federation, start):
    """The servers start from what one client of each rotation has learned alone."""
    data = {"data": Digits(num_clients=8, samples_per_client=40, partition=RotatedClusters([0, 180])), "clients": 8}
    settings = {**data, "network": MLP(hidden=[16]), "local_epochs": 3}
    alone = start(Gossip(k=0), Uniform(), **settings).go(8)
    run = federation(number=2, **settings)
    clusters = run.module.federation.clusters
    for k in range(2):
        models = run.models.clone()
        models[8 + k] = alone.models[int(torch.nonzero(clusters == k)[0])]
        run.write(models)
    for round in run.go(3).rounds:
        assert torch.equal(round.selected[8:, :8].long().argmax(0), clusters)


def test_only_active_clients_take_part(federation):
    run = federation(IFCA(), Uniform(), Bernoulli(0.5)).go(6)
    assert any(round.dropped.any() for round in run.rounds)
    for round in run.rounds:
        assert torch.equal(round.jobs.owners, torch.nonzero(round.active[:6]).flatten())
        if round.selected is not None:
            assert torch.equal(round.selected[6:, :6].any(0), round.active[:6])
            assert (round.selected.sum(0) <= 1).all()


def test_personal_parameters_complete_the_servers_models(federation):
    run = federation(shared=["features.*"]).go(2)
    references = reported_models(run.module)
    rows = run.bank.materialise(references).cpu()
    personal = run.module.federation.layout.personal.mask(run.module.federation.layout.width)
    assert torch.equal(rows[:, personal], run.models[:6, personal])
    assert torch.equal(rows[:, ~personal], run.models[references.terms[0].which][:, ~personal])
    which, owners = torch.arange(6, 9).repeat(6), torch.arange(6).repeat_interleave(3)
    losses = run.module.engine.evaluate(References.rows("models", which, owners), "train").losses.view(6, 3)
    assert torch.equal(references.terms[0].which, 6 + losses.argmin(1))


@pytest.mark.parametrize(
    ("policies", "settings", "sentence"),
    [
        ([IFCA(), Uniform()], {"topology": "complete"}, "IFCA assigns clients to servers"),
        ([IFCA(), Uniform()], {"init": "common"}, "with model.init=common they do; set model.init to independent"),
        ([IFCA(), Uniform(), Bernoulli(), FDMS()], {}, "use --substitution null"),
        ([Gossip(k="all"), Uniform()], {}, "several servers need a selection that assigns clients to them; use --sel"),
    ],
)
def test_incompatible_policies_are_refused(policies, settings, sentence, federation):
    with pytest.raises(UserError, match=sentence):
        federation(*policies, **settings)


class Forgetful(IFCA):
    """IFCA that keeps no losses and evaluates all models again."""

    _known = property(lambda self: None, lambda self, value: None)


def left_of(run):
    """Return the numbers and models of a run as bytes, without times."""
    metrics = run.trainer.run.metrics
    arrays = {**metrics, **run.trainer.run.clients, "models": run.rows.numpy()}
    return {name: values.tobytes() for name, values in arrays.items() if name != "seconds"}


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*number of training batches")
@pytest.mark.parametrize(("every", "rate"), [(1, 0.5), pytest.param(2, 0.0, marks=pytest.mark.slow)])
def test_losses_kept_from_an_evaluation_change_nothing(small_run, tmp_path, every, rate):
    """Kept losses, no kept losses, and a run that is resumed after each evaluation, which has none to begin with."""

    def of(selection, place, rounds=4):
        policies = [selection, Uniform(), *([Bernoulli(rate)] if rate else [])]
        settings = {"module": {"init": "independent"}, "topology": servers(3), "check_val_every_n_epoch": every}
        return small_run(rounds=rounds, policies=policies, root=tmp_path / place, **settings)

    whole = of(IFCA(), "whole").fit()
    assert left_of(of(Forgetful(), "forgetful").fit()) == left_of(whole)
    part = of(IFCA(), "parts", every).fit()
    for rounds in range(2 * every, 5, every):
        part = of(IFCA(), "parts", rounds).fit(part.folder)
    assert left_of(part) == left_of(whole)


@pytest.mark.cpu_bits  # between two fits rows go to the CPU: they are others then
@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*number of training batches")
def test_evaluation_and_next_round_share_the_servers_losses(small_run):
    policies = [IFCA(), Uniform()]
    run = small_run(rounds=1, policies=policies, module={"init": "independent"}, topology=servers(2)).fit()
    tried, evaluate = [], run.module.engine.evaluate

    def counted(references, split):
        tried.append((run.module.bank.boundary.round, split))
        return evaluate(references, split)

    run.trainer.fit_loop.max_epochs = 4
    set_up = type(run.module).setup

    def watched(module, stage):
        set_up(module, stage)
        nonlocal evaluate
        evaluate, module.engine.evaluate = module.engine.evaluate, counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(run.module), "setup", watched)
        run.trainer.fit(run.module, datamodule=run.data)
    assert [number for number, split in tried if split == "train"] == [2, 3, 4]


def test_loaded_models_are_evaluated_anew(federation):
    run = federation().go(2)
    before, state = reported_models(run.module).terms[0].which, run.bank.state_dict()
    models = state["rows.models"]
    run.bank.load_state_dict({**state, "rows.models": torch.cat([models[:6], models[6:].roll(1, 0)])}, {})
    assert torch.equal(reported_models(run.module).terms[0].which, 6 + (before - 6 + 1) % 3)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*number of training batches")
def test_run_is_evaluated_and_its_models_cannot_be_exported(small_run):
    policies = [IFCA(), Uniform()]
    run = small_run(rounds=2, policies=policies, module={"init": "independent"}, topology=servers(2)).fit()
    accuracy = run.trainer.run.clients["test_acc"][-1]
    assert accuracy.shape == (6,)
    assert "global_test_acc" not in run.trainer.run.clients
    assert sum(run.module.bank.boundary.metrics[f"server_{k}_clients"] for k in range(2)) == 6
    with pytest.raises(UserError, match=r"several servers.*a single model for each client cannot be exported"):
        export(run.folder)
