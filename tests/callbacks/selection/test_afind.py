from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch

from dfl_lightning import models
from dfl_lightning.bank.layout import Layout
from dfl_lightning.callbacks import AFIND, AdaptiveThreshold, Boltzmann, GaussianNoise, Gossip, Stale, Uniform
from dfl_lightning.cli.classes.registry import shipped_classes
from dfl_lightning.models import MLP
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

GOLDEN = torch.tensor([[7.0, 1, 0], [7, 0, 1], [6, -1, 0], [5, -1, 1]])


def afind_plus(tau=0.5, **settings):
    return [AFIND(**settings), AdaptiveThreshold(tau), Boltzmann()]


def close(tensor, numbers, atol=5e-7):
    np.testing.assert_allclose(tensor.tolist(), numbers, rtol=0, atol=atol)


@pytest.fixture
def of_given_layers(start, make_data):
    """Run a round of clients that do not train and whose feature layers hold these numbers."""

    def _of(proxies, *policies, **settings):
        clients = len(proxies)
        run = start(*policies, clients=clients, data=make_data(clients), local_epochs=0, **settings)
        layer = run.module.federation.layout.module_columns("features.fc1").mask(run.module.federation.layout.width)
        models, rows = run.models.clone(), torch.zeros_like(run.models[:, layer])
        rows[:, : proxies.shape[1]] = proxies
        models[:, layer] = rows
        run.write(models)
        return run.go().rounds[0]

    return _of


# --- the default rule -------------------------------------------------------------------------------------------------
def test_the_golden_round_with_centred_proxies(of_given_layers):
    round = of_given_layers(GOLDEN, *afind_plus(nu=0.2))
    close(round.similarity[0, 1:], [0.433555, -0.606977, -0.894737])
    close(round.scores[0, 1:], [2.979717, 0.016394, 0.003889])
    close(round.threshold[:1], [0.441466])
    assert round.selected[0].tolist() == [False, True, False, False]


def test_the_golden_round_with_the_proxies_as_they_are(of_given_layers):
    round = of_given_layers(GOLDEN, *afind_plus(nu=0.2, proxy="weight", center=False))
    close(round.similarity[0, 1:], [0.98, 0.953231, 0.925363])
    close(round.scores[0, 1:], [1.138228, 0.995636, 0.866136])
    close(round.threshold[:1], [0.031565])
    assert round.selected[0].tolist() == [False, True, True, True]


def test_without_a_threshold_the_k_best_are_chosen(of_given_layers):
    assert of_given_layers(GOLDEN, AFIND(k=2), Uniform()).selected[0].tolist() == [False, True, True, False]


def test_the_budget_of_a_client_comes_before_k(of_given_layers):
    graph = nx.complete_graph(4)
    nx.set_node_attributes(graph, {0: 1, 1: 3, 2: 0, 3: 2}, "budget")
    round = of_given_layers(GOLDEN, AFIND(k=2), Uniform(), topology=graph)
    assert round.selected.sum(1).tolist() == [1, 3, 0, 2]


def test_budget_takes_the_best_neighbours_above_the_threshold(of_given_layers):
    graph, policies = nx.complete_graph(4), lambda: afind_plus(nu=0.2, proxy="weight", center=False)
    every = of_given_layers(GOLDEN, *policies()).selected
    nx.set_node_attributes(graph, {0: 2, 1: 3, 2: 0, 3: 1}, "budget")
    round = of_given_layers(GOLDEN, *policies(), topology=graph)
    assert round.selected[0].tolist() == [False, True, True, False]
    assert (round.selected <= every).all()
    assert round.selected.sum(1).tolist() == torch.minimum(every.sum(1), torch.tensor([2, 3, 0, 1])).tolist()


def test_tau_0_selects_all_neighbours_like_gossip(start):
    ours = start(*afind_plus(tau=0.0)).go(3)
    theirs = start(Gossip(k="all"), Boltzmann()).go(3)
    assert all(torch.equal(round.selected, round.reachable) for round in ours.rounds)
    assert torch.equal(ours.models, theirs.models)


def test_huge_tau_selects_no_client_and_equals_local_training(start):
    ours = start(*afind_plus(tau=1e6)).go(3)
    theirs = start(Gossip(k=0), Uniform()).go(3)
    assert not any(round.selected.any() for round in ours.rounds)
    assert torch.equal(ours.models, theirs.models)


def test_identical_clients_select_each_other(start, make_data):
    run = start(*afind_plus(), data=make_data(6, same=True)).go(3)
    assert torch.equal(run.rounds[2].trained, run.rounds[2].trained[:1].expand(6, -1))
    for round in run.rounds:
        assert torch.equal(round.selected, round.reachable)
        close(round.scores[round.reachable], [1.0] * 30)


def test_literal_rule_drops_identical_clients(start, make_data):
    literal = AFIND(rule="literal", proxy="weight", center=False), AdaptiveThreshold(rule="literal"), Uniform()
    run = start(*literal, data=make_data(6, same=True)).go(3)
    assert [int(round.selected.sum()) for round in run.rounds] == [30, 0, 0]


# --- drawn with p_ij --------------------------------------------------------------------------------------------------
def test_neighbours_are_drawn_with_their_probabilities_and_without_a_threshold(of_given_layers):
    """n p_ij of client 0 is 1.138, .996, .866, as above: of 3 neighbours the shares .379, .332, .289."""
    drawn = torch.zeros(3)
    settings = {"nu": 0.2, "k": 1, "choose": "sampled", "proxy": "weight", "center": False}
    run = of_given_layers(GOLDEN, AFIND(**settings), AdaptiveThreshold(1e6), Uniform()).record
    candidates, scores = run.candidates, run.scores
    for index in range(4000):
        run.index = index
        keys = scores.log() - (-run.draw_uniform(candidates, "afind sampled").log()).log()
        drawn += torch.nn.functional.one_hot(keys[:3].argmax(), 3)
    np.testing.assert_allclose(drawn / 4000, [0.379409, 0.331879, 0.288712], atol=0.03)
    run.index = 0
    first = scores.log() - (-run.draw_uniform(candidates, "afind sampled").log()).log()
    assert run.selected.senders.tolist() == [
        candidates.heard_by(i)[int(first[3 * i : 3 * i + 3].argmax())] for i in range(4)
    ]


def test_draws_do_not_depend_on_cohorts_or_resuming(start, go_on):
    def policies():
        return AFIND(k=2, choose="sampled"), Uniform()

    whole = start(*policies()).go(4)
    split = start(*policies(), trainer={"cohorts": 3}).go(4)
    resumed = go_on(start(*policies()).go(2), *policies()).go(2)
    for ours, theirs in zip(whole.rounds, split.rounds, strict=True):
        assert torch.equal(ours.selected, theirs.selected)
        assert ours.selected.sum(1).tolist() == [2] * 6
    for ours, theirs in zip(whole.rounds[2:], resumed.rounds, strict=True):
        assert torch.equal(ours.selected, theirs.selected)
    assert not torch.equal(whole.rounds[0].selected, whole.rounds[1].selected)


def test_budget_is_the_number_of_drawn_neighbours(start):
    graph = nx.complete_graph(4)
    nx.set_node_attributes(graph, {0: 1, 1: 3, 2: 0, 3: 2}, "budget")
    run = start(AFIND(k=2, choose="sampled", rule="literal"), Uniform(), clients=4, topology=graph).go(2)
    assert all(round.selected.sum(1).tolist() == [1, 3, 0, 2] for round in run.rounds)


# --- as printed -------------------------------------------------------------------------------------------------------


def test_literal_rule_receives_proxies_only_from_selected_neighbours(start, make_data):
    literal = AFIND(rule="literal", proxy="weight", center=False), AdaptiveThreshold(rule="literal"), Uniform()
    run = start(*literal, data=make_data(6, same=True)).go(2)
    assert [round.metrics["proxies_received"] for round in run.rounds] == [5, 0]


# --- proxies ----------------------------------------------------------------------------------------------------------
def naive_cosines(proxies, reachable, centre):
    proxies = proxies.double().numpy()
    cosines = np.full(reachable.shape, np.nan)
    for i, j in np.argwhere(reachable.numpy()):
        members = np.flatnonzero(reachable[i].numpy() | (np.arange(len(proxies)) == i))
        origin = proxies[members].mean(0) if centre else 0
        a, b = proxies[i] - origin, proxies[j] - origin
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        cosines[i, j] = a @ b / norms if norms else 0
    return cosines


def first_batch_gradients(run, round):
    """Compute gradients by autograd, of each client's first batch of the round at its model before the round."""
    rows, data = [], run.data
    for i, row in enumerate(round.before):
        order = drawn_order(len(data.train[i]), 0, "local", round.index, i, 0)
        x, y = data.batch(data.train[i][order][: run.module.batch_size])
        state = {name: value.requires_grad_() for name, value in run.module.federation.layout.state_dict(row).items()}
        loss = torch.nn.functional.cross_entropy(torch.func.functional_call(run.module.network, state, x), y)
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(state.values()))]))
    return torch.stack(rows)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("init", ["common", "independent"])
@pytest.mark.parametrize("proxy", ["cumdelta", "delta", "weight", "grad_batch"])
def test_proxies_hold_the_named_values(proxy, init, centre, start):
    ring = nx.circulant_graph(6, [1, 2])
    run = start(*afind_plus(proxy=proxy, center=centre), init=init, topology=ring, network=MLP(hidden=[6, 8])).go(3)
    layout = run.module.federation.layout
    layer = layout.module_columns("features.fc2").mask(layout.width)  # the last one before the head
    initial = run.rounds[0].before
    for round in run.rounds:
        proxies = {
            "cumdelta": lambda r: r.trained - initial,
            "delta": lambda r: r.trained - r.before,
            "weight": lambda r: r.trained,
            "grad_batch": lambda r: first_batch_gradients(run, r),
        }[proxy](round)[:, layer]
        expected = naive_cosines(proxies, round.reachable, centre)
        np.testing.assert_allclose(round.similarity.numpy(), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("init", "centre", "kept"),
    [("common", True, False), ("independent", True, True), ("common", False, True), ("independent", False, True)],
)
def test_first_models_are_kept_only_where_they_do_not_cancel(init, centre, kept, start):
    run = start(*afind_plus(center=centre), init=init)
    assert ("initial" in run.bank.boundary.rows) == kept
    first = run.models.clone()
    run.go(2)
    if kept:
        assert torch.equal(run.rows("initial"), first)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(("centre", "similarity"), [(True, "cosine"), (False, "distance")])
def test_activations_are_mean_head_inputs_over_training_data(centre, similarity, engine, start, make_data):
    policies = afind_plus(proxy="activations", center=centre, similarity=similarity)
    data = make_data(sizes=[6, 4, 9, 6, 5, 7])
    run = start(*policies, network=MLP(hidden=[6, 8]), data=data, trainer={"engine": engine}, topology="ring").go(2)
    network = run.module.network
    for round in run.rounds:
        means = []
        for i in range(6):
            x, _ = run.data.batch(run.data.train[i])
            found = []
            hook = network.head.register_forward_pre_hook(lambda _, inputs, found=found: found.append(inputs[0]))
            torch.func.functional_call(network.eval(), run.module.federation.layout.state_dict(round.trained[i]), x)
            hook.remove()
            means.append(found[0].double().mean(0))
        if similarity == "cosine":
            expected = naive_cosines(torch.stack(means).detach(), round.reachable, centre)
            np.testing.assert_allclose(round.similarity.numpy(), expected, atol=2e-5)
        else:
            for i in range(6):
                near = [(i - 1) % 6, (i + 1) % 6]
                apart = np.array([float((means[i] - means[j]).norm()) for j in near])
                np.testing.assert_allclose(round.similarity[i, near], 1 - 2 * apart / apart.max(), atol=2e-5)
        mixed, width = int(round.selected.sum()), run.module.federation.layout.width
        assert round.metrics["proxies_received"] == 2
        assert round.metrics["bytes_received"] == pytest.approx(4 * (mixed * width + 12 * 8) / 6)


@pytest.mark.parametrize(
    ("options", "company", "settings", "sentence"),
    [
        ({"proxy_layer": "head"}, [], {}, "compares the inputs of the head; drop it, or use another proxy"),
        ({}, [GaussianNoise()], {}, "sends features, which no Outgoing policy changes; use another proxy, or"),
        ({}, [], {"network": MLP(hidden=[])}, "has none; use a network with hidden layers, or"),
        ({"proxy_noise": 1.0}, [], {}, "grad_at_receiver, not for activations; drop it"),
    ],
)
def test_unavailable_activations_are_refused(options, company, settings, sentence, start):
    with pytest.raises(UserError, match=sentence):
        start(AFIND(proxy="activations", **options), Uniform(), *company, **settings)


def gradient_at(run, round, receiver, sender):
    """Compute the gradient of a sender's first batch at the receiver's shared and its own personal parameters."""
    personal = run.module.federation.layout.personal.mask(run.module.federation.layout.width)
    row = torch.where(personal, round.before[sender], round.before[receiver])
    order = drawn_order(len(run.data.train[sender]), 0, "local", round.index, sender, 0)
    x, y = run.data.batch(run.data.train[sender][order][: run.module.batch_size])
    state = {name: value.requires_grad_() for name, value in run.module.federation.layout.state_dict(row).items()}
    loss = torch.nn.functional.cross_entropy(torch.func.functional_call(run.module.network, state, x), y)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(state.values()))])


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("shared", [["*"], ["features.*"]])
@pytest.mark.parametrize(("centre", "similarity"), [(True, "cosine"), (False, "cosine"), (False, "distance")])
def test_gradients_at_the_receiver_are_all_taken_at_its_model(centre, similarity, shared, engine, start):
    """Lines 7 and 11 of algorithm 1; eq. 7 for distances."""
    ring = nx.circulant_graph(7, [1, 2])
    policies = afind_plus(proxy="grad_at_receiver", center=centre, similarity=similarity)
    settings = {"clients": 7, "topology": ring, "shared": shared, "trainer": {"engine": engine}}
    run = start(*policies, network=MLP(hidden=[6, 8]), **settings).go(2)
    layout = run.module.federation.layout
    layer = layout.module_columns("features.fc2").mask(layout.width)
    for round in run.rounds:
        for i in range(7):
            near = torch.nonzero(round.reachable[i]).squeeze(1).tolist()
            gradients = {j: gradient_at(run, round, i, j)[layer].double().numpy() for j in [*near, i]}
            origin = np.mean(list(gradients.values()), 0) if centre else 0
            if similarity == "cosine":
                expected = [
                    (gradients[i] - origin) @ (gradients[j] - origin)
                    / np.linalg.norm(gradients[i] - origin) / np.linalg.norm(gradients[j] - origin)
                    for j in near
                ]  # fmt: skip
            else:
                apart = np.array([np.linalg.norm(gradients[i] - gradients[j]) for j in near])
                expected = 1 - 2 * apart / apart.max()
            np.testing.assert_allclose(round.similarity[i, near].numpy(), expected, atol=2e-5)


def test_gradients_at_the_receiver_charge_model_and_returned_layer(start):
    run = start(*afind_plus(proxy="grad_at_receiver"), topology="ring").go(2)
    layer = 5 * 4 + 4
    width = layer + 4 * 3 + 3
    for round in run.rounds:
        mixed = int(round.selected.sum())
        assert round.metrics["proxies_received"] == 2 + 2
        assert round.metrics["models_received"] == pytest.approx(mixed / 6)
        assert round.metrics["bytes_received"] == pytest.approx(4 * (mixed * width + 12 * layer + 12 * width) / 6)


def test_dropped_clients_answer_no_receiver(start, trace):
    up = trace("1 1 1 1 1 1", "1 1 0 1 1 1")
    round = start(*afind_plus(proxy="grad_at_receiver"), up, rounds=2).go(2).rounds[1]
    assert round.similarity[:, 2].isnan().all()
    assert not round.selected[:, 2].any()
    assert round.similarity[0, [1, 3, 4, 5]].isfinite().all()
    assert round.metrics["proxies_received"] == pytest.approx(2 * 5 * 4 / 6)


def test_distances_order_neighbours_whatever_the_length_of_their_proxies(of_given_layers):
    """(3, 4) from the origin is 5 away, (6, 8) from it 10, and its own copy 0: 1 - 2 d / 10."""
    proxies = torch.tensor([[0.0, 0], [3, 4], [6, 8], [0, 0]])
    settings = {"proxy": "weight", "similarity": "distance"}
    for centre in (True, False):
        round = of_given_layers(proxies, AFIND(k=1, center=centre, **settings), Uniform())
        close(round.similarity[0, 1:], [0.0, -1.0, 1.0])
        assert round.selected[0].tolist() == [False, False, False, True]
        close(round.similarity[1, [0, 2, 3]], [-1.0, -1.0, -1.0])  # all are 5 away


PROXY_LAYERS = [  # the layer, and how many percent of the model it is
    (models.MLP(), (1, 28, 28), "features.fc2", 20),
    (models.MLP(hidden=[64]), (1, 8, 8), "features.fc1", 86),
    (models.MNISTCNN(), (1, 28, 28), "features.fc1", 73),
    (models.LeNet(), (3, 32, 32), "features.fc2", 16),
    (models.FEMNISTCNN(), (1, 28, 28), "features.fc2", 32),
    (models.PENSCNN(), (3, 32, 32), "features.fc1", 22),
    (models.CNN4(), (3, 32, 32), "features.fc1", 97),
    (models.ResNet18(), (3, 32, 32), "features.layer4.1.conv2", 21),
    (models.ResNet18(norm="batch"), (3, 32, 32), "features.layer4.1.conv2", 21),
]


@pytest.mark.parametrize(("network", "shape", "layer", "percent"), PROXY_LAYERS)
def test_default_proxy_is_the_last_layer_before_the_head(network, shape, layer, percent):
    layout = Layout(network.build(shape, 10))
    columns = AFIND().columns(SimpleNamespace(layout=layout))
    assert columns == layout.module_columns(layer)
    parameters = sum(p.numel() for p in network.parameters())
    assert round(100 * len(columns) / parameters) == percent


def test_proxy_layers_of_all_image_networks_are_tested():
    others = {"CharLSTM", "CharTransformer", "HuggingFace", "LoRA", "TCN", "Tabular"}
    assert {type(network).__name__ for network, *_ in PROXY_LAYERS} == set(shipped_classes("model.network")) - others


def test_another_layer_can_be_compared(start):
    run = start(*afind_plus(proxy_layer="head", proxy="weight", center=False)).go()
    layout = run.module.federation.layout
    expected = naive_cosines(
        run.rounds[0].trained[:, layout.module_columns("head").mask(layout.width)], run.rounds[0].reachable, False
    )
    np.testing.assert_allclose(run.rounds[0].similarity.numpy(), expected, atol=2e-5)


def test_proxies_are_charged_to_every_receiver_that_compares(start):
    run = start(*afind_plus(), topology="ring").go(2)
    layer = 5 * 4 + 4
    width = layer + 4 * 3 + 3
    for round in run.rounds:
        mixed = int(round.selected.sum())
        assert round.metrics["proxies_received"] == 2
        assert round.metrics["models_received"] == pytest.approx(mixed / 6)
        assert round.metrics["bytes_received"] == pytest.approx(4 * (mixed * width + 12 * layer) / 6)


# --- dropout ----------------------------------------------------------------------------------------------------------
def test_substitution_keeps_the_last_similarity_of_dropped_neighbours(start, trace):
    up = trace("1 1 1 1 1 1", "1 1 0 1 1 1", "1 1 1 1 1 1")
    run = start(*afind_plus(tau=0.0), up, Stale(), rounds=3).go(3)
    first, second, third = run.rounds
    assert torch.equal(second.similarity[[0, 1, 3, 4, 5], 2], first.similarity[[0, 1, 3, 4, 5], 2])
    assert second.selected[[0, 1, 3, 4, 5], 2].all()
    assert second.similarity[2].isnan().all()  # it compared no client
    assert not torch.equal(third.similarity[[0, 1, 3, 4, 5], 2], first.similarity[[0, 1, 3, 4, 5], 2])


def test_substitution_gives_unseen_neighbours_an_average_score(start, trace):
    round = start(*afind_plus(), trace("1 1 0 1 1 1"), Stale(), rounds=1).go().rounds[0]
    assert (round.scores[[0, 1, 3, 4, 5], 2] == 1).all()
    assert round.similarity[:, 2].isnan().all()


def test_without_a_substitution_dropped_neighbours_are_left_out(start, trace):
    round = start(*afind_plus(tau=0.0), trace("1 1 1 1 1 1", "1 1 0 1 1 1"), rounds=2).go(2).rounds[1]
    assert round.similarity[:, 2].isnan().all()
    assert not round.selected[:, 2].any()


# --- refusals ---------------------------------------------------------------------------------------------------------
def test_another_shared_layer_is_accepted(start):
    run = start(*afind_plus(proxy_layer="head"), shared=["head.*"]).go()
    assert run.rounds[0].similarity[0, 1:].isfinite().all()


def test_a_network_without_a_featurizer_is_refused(start):
    with pytest.raises(UserError, match="no featurizer"):
        start(*afind_plus(), network=MLP(hidden=[]))


def test_noise_on_the_proxy_is_that_of_the_appendix(start):
    """Each client sends delta / max(1, |delta| / C) + sigma C / L N(0, I), by a draw of its own."""
    sigma, clip, batch = 0.7, 0.05, 3
    run = start(AFIND(k=2, proxy_noise=sigma, proxy_clip=clip, center=False), Uniform())
    w0 = run.models.clone()
    run.go(1)
    seen, layout = run.rounds[0], run.module.federation.layout
    columns = layout.module_columns(layout.last_feature_layer())
    sent = []
    for i in range(run.clients):
        delta = torch.cat([(seen.trained[i] - w0[i])[a:b] for a, b in columns.ranges])
        delta = delta / max(1.0, float(delta.norm()) / clip)
        noise = [
            torch.randn(b - a, generator=seen.record.generator("afind proxy noise", i, place), dtype=delta.dtype)
            for place, (a, b) in enumerate(columns.ranges)
        ]
        sent.append(delta + sigma * clip / batch * torch.cat(noise))
    for i in range(run.clients):
        for j in range(run.clients):
            if i != j:
                expected = torch.nn.functional.cosine_similarity(sent[i], sent[j], dim=0)
                assert abs(float(seen.similarity[i, j]) - float(expected)) < 1e-5
    quiet = start(AFIND(k=2, center=False), Uniform()).go(1).rounds[0]
    assert not torch.allclose(quiet.similarity.nan_to_num(), seen.similarity.nan_to_num())


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("proxy", ["grad_batch", "grad_at_receiver"])
def test_noise_on_a_batch_gradient_is_that_of_the_appendix(proxy, engine, start):
    """g / max(1, |g| / C) + 1/L N(0, sigma^2 C^2 I) of the layer's gradient, drawn for each message by itself."""
    sigma, clip, batch = 0.7, 0.05, 3
    policies = AFIND(k=2, proxy=proxy, proxy_noise=sigma, proxy_clip=clip, center=False), Uniform()
    run = start(*policies, trainer={"engine": engine}).go(1)
    (seen,), layout = run.rounds, run.module.federation.layout
    columns = layout.module_columns(layout.last_feature_layer())

    def sent(i, at, *to):
        gradient = gradient_at(run, seen, at, i)[columns.mask(layout.width)]
        gradient = gradient / max(1.0, float(gradient.norm()) / clip)
        if to == (i,):
            return gradient
        noise = [
            torch.randn(b - a, generator=seen.record.generator("afind proxy noise", i, place, *to))
            for place, (a, b) in enumerate(columns.ranges)
        ]
        return gradient + sigma * clip / batch * torch.cat(noise)

    for i in range(6):
        for j in range(6):
            if i != j:
                both = [sent(k, k) if proxy == "grad_batch" else sent(k, i, i) for k in (i, j)]
                expected = torch.nn.functional.cosine_similarity(*both, dim=0)
                assert abs(float(seen.similarity[i, j]) - float(expected)) < 1e-5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"proxy_noise": -1.0}, r"selection\.proxy_noise=-1\.0; it must be 0 or more"),
        ({"proxy_clip": 0.0}, r"selection\.proxy_clip=0\.0; it must be above 0"),
        (
            {"proxy_noise": 1.0, "proxy": "delta"},
            r"proxies cumdelta, weight, grad_batch, grad_at_receiver, not for delta",
        ),
    ],
)
def test_invalid_noise_is_refused(options, sentence, start):
    with pytest.raises(UserError, match=sentence):
        start(AFIND(**options), Uniform())


@pytest.mark.parametrize(
    ("company", "settings", "sentence"),
    [
        (
            [GaussianNoise()],
            {},
            "grad_at_receiver sends gradients, which no Outgoing policy changes; use another proxy",
        ),
        (
            [],
            {"topology": nx.DiGraph([(i, (i + 1) % 6) for i in range(6)])},
            "one way only; use an undirected topology",
        ),
    ],
)
def test_receivers_whose_model_cannot_be_sent_are_refused(company, settings, sentence, start):
    with pytest.raises(UserError, match=sentence):
        start(AFIND(proxy="grad_at_receiver"), Uniform(), *company, **settings)
