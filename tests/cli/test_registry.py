"""Names of classes, their options, and the sentences about wrong ones."""

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch

from dfl_lightning import UserError, callbacks, data, models
from dfl_lightning.cli.classes.registry import (
    FAMILIES,
    GROUPS,
    LIBRARY_GROUPS,
    class_of,
    first_line,
    leaves_keywords_open,
    may_be_null,
    parameters_of,
    shipped_classes,
)


@pytest.mark.parametrize("group", [*GROUPS, *LIBRARY_GROUPS])
def test_short_names_of_a_group_are_its_concrete_classes(group):
    classes = shipped_classes(group)
    assert classes
    for name, cls in classes.items():
        assert issubclass(cls, {**GROUPS, **LIBRARY_GROUPS}[group])
        assert not inspect.isabstract(cls)
        assert class_of(group, name) is cls


def test_every_exported_policy_belongs_to_a_group():
    bases = {*FAMILIES.values(), callbacks.Policy}
    exported = {getattr(callbacks, name) for name in callbacks.__all__} - bases
    assert exported == {cls for group in FAMILIES for cls in shipped_classes(group).values()}


@pytest.mark.parametrize("group", GROUPS)
def test_shipped_classes_describe_themselves_and_their_options(group):
    for cls in shipped_classes(group).values():
        assert first_line(cls).endswith("."), cls
        own = inspect.signature(cls.__init__).parameters
        documented = inspect.getdoc(cls)
        bases = " ".join(inspect.getdoc(base) or "" for base in cls.__mro__)
        for option in parameters_of(cls):
            assert f"{option}:" in (documented if option in own else bases) or f"{option}:" in bases, (cls, option)


def test_families_are_named_like_their_keys():
    assert {base.family for base in FAMILIES.values()} == {*FAMILIES} - {"monitors"} | {"monitor"}
    assert all(FAMILIES[name].family == name for name in FAMILIES if name != "monitors")
    assert GROUPS["objective"].family == "objective"


@pytest.mark.parametrize("group", [*FAMILIES, "data.partition", "model.network", "objective"])
def test_every_class_can_be_named_alone(group):
    needed = {callbacks.Trace: {"file"}, models.HuggingFace: {"config"}, models.LoRA: {"base"}}
    for cls in shipped_classes(group).values():
        required = {n for n, parameter in parameters_of(cls).items() if parameter.default is parameter.empty}
        assert required == needed.get(cls, set()), cls


def test_options_include_those_of_bases_that_receive_keywords():
    digits, fashion = parameters_of(data.Digits), parameters_of(data.FashionMNIST)
    assert next(iter(digits)) == "test_fraction"
    assert digits["test_fraction"].default == 0.25
    assert fashion["test_fraction"].default is None
    assert fashion["num_clients"].default == 20
    assert list(parameters_of(models.MLP)) == ["hidden", "input_shape", "num_classes"]
    assert list(parameters_of(callbacks.Bernoulli)) == ["rate", "full_first_round"]
    assert parameters_of(torch.optim.AdamW)["weight_decay"].default == 0.01


def test_types_of_options_are_evaluated():
    assert parameters_of(models.MLP)["hidden"].annotation == Sequence[int]
    assert parameters_of(callbacks.Gossip)["k"].annotation == int | Literal["all"]


class Typed:
    def __init__(
        self,
        number: int,
        perhaps: int | None,
        text: "int | None",
        anything: Any,
        untyped,
        mapping: "dict[str, Any]",
        unset: int = None,  # noqa: RUF013
    ):
        pass


def test_null_is_accepted_if_type_or_default_allows_it():
    taken = [name for name, parameter in parameters_of(Typed).items() if may_be_null(parameter)]
    assert taken == ["perhaps", "text", "anything", "untyped", "unset"]
    digits = parameters_of(data.Digits)
    assert not may_be_null(digits["num_clients"])
    assert may_be_null(digits["seed"])


class WithKeywords(torch.nn.Module):
    def __init__(self, width=3, **kwargs):
        super().__init__()


@pytest.mark.parametrize("group", GROUPS)
def test_shipped_classes_name_all_their_options(group):
    assert not any(map(leaves_keywords_open, shipped_classes(group).values()))


def test_users_classes_and_functions_may_take_open_keywords():
    assert leaves_keywords_open(WithKeywords)
    assert leaves_keywords_open(class_of("model.network", "torchvision.models.resnet18"))


def test_functions_may_make_networks_but_not_policies():
    assert "weights" in parameters_of(class_of("model.network", "torchvision.models.resnet18"))
    with pytest.raises(UserError, match="is not a class"):
        class_of("selection", "torchvision.models.resnet18")
