"""Names of classes, their options, and the sentences about wrong ones."""

import inspect

import pytest
import torch

from dfl_lightning import UserError, callbacks, data, models
from dfl_lightning.cli.registry import (
    FAMILIES,
    GROUPS,
    LIBRARY_GROUPS,
    check_class,
    check_option,
    class_of,
    first_line,
    may_be_null,
    options_of,
    parameters_of,
    shipped_classes,
)


@pytest.mark.parametrize("group", [*GROUPS, *LIBRARY_GROUPS])
def test_every_short_name_of_a_group_is_a_concrete_class_of_it(group):
    classes = shipped_classes(group)
    assert classes
    for name, cls in classes.items():
        assert issubclass(cls, {**GROUPS, **LIBRARY_GROUPS}[group])
        assert not inspect.isabstract(cls)
        check_class(group, name)
        assert class_of(group, name) is cls


def test_every_exported_policy_belongs_to_a_group():
    bases = {*FAMILIES.values(), callbacks.Policy}
    exported = {getattr(callbacks, name) for name in callbacks.__all__} - bases
    assert exported == {cls for group in FAMILIES for cls in shipped_classes(group).values()}


@pytest.mark.parametrize("group", GROUPS)
def test_every_shipped_class_says_in_a_sentence_what_it_does_and_what_its_options_mean(group):
    for cls in shipped_classes(group).values():
        assert first_line(cls).endswith("."), cls
        own = inspect.signature(cls.__init__).parameters
        documented = inspect.getdoc(cls)
        bases = " ".join(inspect.getdoc(base) or "" for base in cls.__mro__)
        for option in options_of(cls):
            assert f"{option}:" in (documented if option in own else bases) or f"{option}:" in bases, (cls, option)


@pytest.mark.parametrize("group", [*FAMILIES, "data.partition", "model.network", "objective"])
def test_every_class_can_be_named_alone(group):
    needed = {callbacks.Trace: {"file"}}
    for cls in shipped_classes(group).values():
        required = {n for n, default in options_of(cls).items() if default is inspect.Parameter.empty}
        assert required == needed.get(cls, set()), cls


def test_options_go_up_the_bases_only_where_keywords_are_passed_on():
    assert next(iter(options_of(data.Digits))) == "test_fraction"
    assert options_of(data.Digits)["test_fraction"] == 0.25
    assert options_of(data.FashionMNIST)["test_fraction"] is None
    assert options_of(data.FashionMNIST)["num_clients"] == 20
    assert list(options_of(models.MLP)) == ["hidden", "input_shape", "num_classes"]
    assert list(options_of(callbacks.Bernoulli)) == ["rate", "full_first_round"]
    assert options_of(torch.optim.AdamW)["weight_decay"] == 0.01


def test_null_is_refused_where_a_value_is_needed():
    digits = parameters_of(data.Digits)
    assert not may_be_null(digits["num_clients"])
    assert may_be_null(digits["seed"])
    with pytest.raises(UserError, match=r"data\.num_clients=null; leave it out, or give it a value"):
        check_option("data", "Digits", "num_clients", None)
    check_option("data", "Digits", "seed", None)


class WithKeywords(torch.nn.Module):
    def __init__(self, width=3, **kwargs):
        super().__init__()


def test_keywords_of_a_users_class_are_left_to_the_parser():
    path = f"{__name__}.WithKeywords"
    check_option("model.network", path, "anything")
    with pytest.raises(UserError, match=r"model\.network MLP has no option 'anything'"):
        check_option("model.network", "MLP", "anything")


def test_a_network_may_be_made_by_a_function_and_a_policy_may_not():
    check_class("model.network", "torchvision.models.resnet18")
    check_option("model.network", "torchvision.models.resnet18", "weights")
    with pytest.raises(UserError, match="is not a class"):
        check_class("selection", "torchvision.models.resnet18")


@pytest.mark.parametrize(
    ("group", "name", "sentence"),
    [
        ("selection", "Gosip", r"^selection: there is no 'Gosip'; did you mean 'Gossip'\? \(selections are: AFIND, "),
        ("monitors", "Uniform", r"^monitors 'Uniform' is an aggregation; monitors are: "),
        ("aggregation", "FriendAccuracy", r"^aggregation 'FriendAccuracy' is a monitor; aggregations are: "),
        ("data", "MLP", r"^data 'MLP' is a network; data sets are: "),
        ("data.partition", "Digits", r"^data\.partition 'Digits' is a data set; partitions are: "),
        ("model.network", "dfl_lightning.callbacks.AFIND", r"is a selection; networks are: "),
        ("dropout", "torch.nn.Linear", r"is not a subclass of dfl_lightning\.callbacks\.Dropout$"),
        ("model.network", "torch.Tensor", r"is not a subclass of torch\.nn\.Module$"),
        ("model.optimizer", "sgd", r"did you mean 'SGD'\? \(optimizers are: SGD, Adam,"),
    ],
)
def test_a_class_of_the_wrong_kind_is_named_with_the_choices(group, name, sentence):
    with pytest.raises(UserError, match=sentence):
        check_class(group, name)
