"""The words of a command line before they are parsed, and the parser's errors as sentences."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.cli.arguments import (
    bare_flag,
    dropped_options,
    find_configs,
    options_of_words,
    run_name,
    settle_choices,
    take_flag,
)
from dfl_lightning.cli.error_messages import lightnings_sentence, sentence_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.shipped_files import shipped
from dfl_lightning.utils.yaml_files import DoubledKeyError, parse

AFIND = str(shipped("configs")["afind"])
words = st.lists(st.sampled_from(["--a", "--b=1", "3", "-1", "x", "--c", "--d.init_args.e"]), max_size=8)


@given(words)
def test_words_that_choose_nothing_pass_unchanged(argv):
    assert settle_choices(argv) == argv
    assert take_flag(argv, "--explain") == (argv, False)
    assert find_configs(argv) == (argv, [])


def test_options_come_with_their_values_and_without_init_args():
    argv = ["--a", "1", "--b=2", "--c", "--d", "-3", "stray", "--e.init_args.f", "x"]
    assert list(options_of_words(argv)) == [("a", "1"), ("b", "2"), ("c", ""), ("d", "-3"), ("e.f", "x")]


@pytest.mark.parametrize(
    ("argv", "after"),
    [
        (["--fork"], ["--fork=true"]),
        (["--fork", "false"], ["--fork", "false"]),
        (["--fork=false"], ["--fork=false"]),
        (["--x", "--fork", "--y"], ["--x", "--fork=true", "--y"]),
        ([], []),
    ],
)
def test_a_flag_alone_means_true(argv, after):
    assert bare_flag(argv, "--fork") == after


def test_configs_are_found_in_both_forms():
    argv, paths = find_configs(["--config", "afind", "--x", "1", "--config=gossip", "-c", "fdms"])
    assert paths == [str(shipped("configs")[name]) for name in ("afind", "gossip", "fdms")]
    assert argv == ["--config", paths[0], "--x", "1", f"--config={paths[1]}", "-c", paths[2]]


def test_a_run_is_called_like_its_config(tmp_path):
    assert run_name([]) == "run"
    assert run_name(["a/one.yaml", "b/two.yaml"]) == "two"
    folder = tmp_path / "afind" / "2026-01-01_00-00-00"
    folder.mkdir(parents=True)
    config = folder / "config.yaml"
    assert run_name([str(config)]) == "config"
    (folder / "metrics.csv").touch()
    assert run_name([str(config)]) == "afind"


@pytest.mark.parametrize(
    ("argv", "added"),
    [
        ([], []),
        (["--selection", "AFIND"], ["--selection.k=5"]),  # instead of Gossip, whose k is 10
        (["--selection", "Gossip"], []),
        (["--selection", "AFIND", "--selection", "Gossip"], ["--selection.k=5", "--selection.k=10"]),
        (["--selection.k", "4", "--selection", "AFIND"], []),
        (["--config", AFIND, "--selection", "Gossip"], ["--selection.k=5", "--selection.k=10"]),
        (["--config", AFIND, "--threshold", "null"], ["--selection.k=5"]),
        (["--data", "Digits", "--data", "MNIST"], ["--data.test_fraction=null"]),
        (["--data", "Digits", "--data.test_fraction", "0.1", "--data", "MNIST"], []),
        (["--data", "Digits", "--data", "null", "--data", "MNIST"], []),
        (
            ["--model.optimizer", "AdamW", "--model.optimizer", "Adam"],
            ["--model.optimizer.weight_decay=0.01", "--model.optimizer.weight_decay=0"],
        ),
        (["--monitors", "FriendAccuracy", "--monitors+=NeighbourAccuracy"], []),
    ],
)
def test_a_class_that_replaces_another_brings_its_own_defaults(argv, added):
    asked = {word.partition("=")[0] for word in argv}
    assert [word for word in settle_choices(argv) if "=" in word and word.partition("=")[0] not in asked] == added


def test_a_default_stands_before_what_is_said_later():
    argv = ["--selection", "AFIND", "--selection.k", "3"]
    chosen = "--selection=dfl_lightning.callbacks.AFIND"
    assert settle_choices(argv) == [chosen, "--selection.k=5", "--selection.k", "3"]


def test_a_part_of_a_config_may_be_a_file_of_its_own(tmp_path):
    (tmp_path / "part.yaml").write_text("class_path: AFIND\ninit_args: {nuu: 3}\n")
    with pytest.raises(UserError, match="selection AFIND has no option 'nuu'; did you mean 'nu'"):
        settle_choices(["--selection", str(tmp_path / "part.yaml")])


def test_dropped_options_are_found_at_every_depth(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "selection: {class_path: AFIND, init_args: {nu: 1, k: 3}}\n"
        "data: {class_path: Digits, init_args: {partition: {class_path: Dirichlet, init_args: {alpha: 1}}}}\n"
        "threshold: {class_path: AdaptiveThreshold, init_args: {tau: 1}}\n"
    )
    resolved = {
        "selection": {"class_path": "Gossip", "init_args": {"k": 3}},
        "data": {"class_path": "Digits", "init_args": {"partition": {"class_path": "IID"}}},
        "threshold": None,
    }
    assert dropped_options([str(config)], resolved) == ["selection.nu", "data.partition.alpha"]
    assert dropped_options([str(config), str(config)], resolved) == ["selection.nu", "data.partition.alpha"]


def test_a_classs_own_refusal_is_found_behind_the_parsers_errors():
    def refuse():
        try:
            raise UserError("selection.nu=-1; above 0, please")
        except UserError as inner:
            raise ValueError("Parser key 'selection': many\nlines") from inner

    with pytest.raises(ValueError, match="many") as caught:
        refuse()
    assert sentence_of(caught.value) == "selection.nu=-1; above 0, please"


def test_a_long_message_is_cut():
    assert len(sentence_of(ValueError("word " * 1000))) < 400


def test_only_known_refusals_of_lightning_count_as_a_users_mistake():
    assert lightnings_sentence("list index out of range") is None
    assert "--trainer.logger true" in lightnings_sentence(
        "Cannot use `LearningRateMonitor` callback with `Trainer` that has no logger."
    )


BASE = ["--data", "Digits", "--data.partition", "FlippedLabels"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data.partition.base", "Shard"], "data.partition.base: there is no 'Shard'; did you mean 'Shards'"),
        (["--data.partition.base", "Shards", "--data.partition.base.per_clients", "3"], "did you mean 'per_client'"),
        (["--data.partition.base.alpha", "3"], "no data.partition.base is chosen; name one with --data.partition.base"),
        (["--data.partition.base", "{class_path: Dirichlet, init_args: {alfa: 1}}"], "Dirichlet has no option 'alfa'"),
    ],
)
def test_a_partition_inside_a_partition_is_checked_like_any_class(words, sentence):
    with pytest.raises(UserError, match=sentence):
        settle_choices([*BASE, *words])


def test_a_partition_that_replaces_the_inner_one_starts_from_its_own_defaults():
    words = [*BASE, "--data.partition.base", "Dirichlet", "--data.partition.base", "Pathological"]
    assert settle_choices(words)[-2:] == [
        "--data.partition.base=dfl_lightning.data.Pathological",
        "--data.partition.base.alpha=null",
    ]


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["--selection", "Gossip"], "--selection=dfl_lightning.callbacks.Gossip"),
        (["--selection=Gossip"], "--selection=dfl_lightning.callbacks.Gossip"),
        (["--selection.class_path", "Gossip"], "--selection.class_path=dfl_lightning.callbacks.Gossip"),
        (["--data.init_args.partition", "IID"], "--data.init_args.partition=dfl_lightning.data.IID"),
        (["--model.optimizer", "Adam"], "--model.optimizer=torch.optim.Adam"),
        (["--trainer.callbacks+=Timer"], "--trainer.callbacks+=lightning.pytorch.callbacks.Timer"),
        (["--trainer.logger", "CSVLogger"], "--trainer.logger=lightning.pytorch.loggers.CSVLogger"),
        (["--model.loss", "NLLLoss"], "--model.loss=torch.nn.NLLLoss"),
        (["--model.metrics+=MulticlassRecall"], "--model.metrics+=torchmetrics.classification.MulticlassRecall"),
    ],
)
def test_a_short_name_becomes_the_import_path_of_the_shipped_class(argv, meant):
    assert settle_choices(argv) == [meant]


@pytest.mark.parametrize(
    "argv",
    [
        ["--trainer.logger", "false"],
        ["--trainer.callbacks", "null"],
        ["--trainer.callbacks+=lightning.pytorch.callbacks.timer.Timer"],
        ["--topology", "Gossip"],
        ["--selection.within", "Gossip"],
        ["--selection.help"],
    ],
)
def test_what_is_no_short_name_of_its_group_stays_as_it_is(argv):
    assert settle_choices(argv) == argv


def settled(argv):
    """The content of the first word."""
    return yaml.safe_load(settle_choices(argv)[0].partition("=")[2])


def test_short_names_inside_values_become_import_paths():
    assert settled(["--monitors", "[FriendAccuracy, {class_path: NeighbourAccuracy}]"]) == [
        "dfl_lightning.callbacks.FriendAccuracy",
        {"class_path": "dfl_lightning.callbacks.NeighbourAccuracy"},
    ]
    words = "{callbacks: [Timer, {class_path: EarlyStopping, init_args: {monitor: val_acc}}], logger: CSVLogger}"
    assert settled(["--trainer", words]) == {
        "callbacks": [
            "lightning.pytorch.callbacks.Timer",
            {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val_acc"}},
        ],
        "logger": "lightning.pytorch.loggers.CSVLogger",
    }


def test_short_names_in_a_config_become_import_paths_and_everything_else_stays(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "data: {class_path: Digits, init_args: {root: '1e-3', partition: {class_path: FlippedLabels, "
        "init_args: {base: Shards}}}}\n"
        "model: {network: MLP, optimizer: {class_path: SGD, init_args: {lr: 1e-3}}}\n"
        "aggregation: Metropolis\nselection: {init_args: {k: all}}\nmonitors: FriendAccuracy\ntopology: ring\n"
    )
    partition = {
        "class_path": "dfl_lightning.data.FlippedLabels",
        "init_args": {"base": "dfl_lightning.data.Shards"},
    }
    assert settled(["--config", str(config)]) == {
        "data": {"class_path": "dfl_lightning.data.Digits", "init_args": {"root": "1e-3", "partition": partition}},
        "model": {
            "network": "dfl_lightning.models.MLP",
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.001}},
        },
        "aggregation": "dfl_lightning.callbacks.Metropolis",
        "selection": {"init_args": {"k": "all"}},
        "monitors": "dfl_lightning.callbacks.FriendAccuracy",
        "topology": "ring",
    }


def test_parts_of_a_config_in_files_of_their_own_are_found_beside_it_or_from_here(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.yaml").write_text("model: m.yaml\nselection: s.yaml\n")
    (tmp_path / "deep" / "m.yaml").write_text("network: n.yaml\n")
    (tmp_path / "deep" / "n.yaml").write_text("class_path: MLP\n")
    (tmp_path / "s.yaml").write_text("class_path: AFIND\n")
    monkeypatch.chdir(tmp_path)
    network = {"network": {"class_path": "dfl_lightning.models.MLP"}}
    selection = {"class_path": "dfl_lightning.callbacks.AFIND"}
    assert settled(["--config", "deep/c.yaml"]) == {"model": network, "selection": selection}
    assert settled(["--selection", "s.yaml"]) == selection
    monkeypatch.chdir(tmp_path / "deep")
    assert settled(["--model", "m.yaml"]) == network
    with pytest.raises(UserError, match="there is no 'Gosip'"):
        settled(["--trainer", "{callbacks: []}", "--selection", "Gosip"])


@pytest.mark.parametrize(
    "option", ["--selection", "--topology", "--trainer.logger.nested", "--data.partition", "--model.network.hidden"]
)
def test_a_doubled_key_on_the_command_line_is_refused_whatever_the_option(option):
    with pytest.raises(UserError, match=f"^{option}: the key 'k' is there twice; keep one$"):
        settle_choices([option, "{init_args: {k: 3, k: 4}}"])


def test_a_doubled_key_in_a_config_is_refused_with_its_line(tmp_path):
    (tmp_path / "my.yaml").write_text("data: Digits\nselection: Gossip\nmodel: {network: MLP}\nselection: AFIND\n")
    with pytest.raises(
        UserError, match=r"my\.yaml, line 4: the key 'selection' is there twice, first in line 2; keep one$"
    ):
        settle_choices(["--config", str(tmp_path / "my.yaml")])
    (tmp_path / "part.yaml").write_text("class_path: Gossip\ninit_args:\n  k: 3\n  k: 4\n")
    with pytest.raises(UserError, match=r"part\.yaml, line 4: the key 'k' is there twice, first in line 3"):
        settle_choices(["--selection", str(tmp_path / "part.yaml")])


@pytest.mark.parametrize(
    "text", ["{1: a, 0x1: b}", "{yes: 1, true: 2}", "{<<: {a: 1}, <<: {b: 2}}", "[{a: {b: 1, b: 1}}]"]
)
def test_keys_are_the_same_when_they_mean_the_same(text):
    with pytest.raises(DoubledKeyError, match="is there twice"):
        parse(text)


def test_a_merged_key_may_be_replaced():
    assert parse("a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}\nc: {<<: [*x, {l: 4, m: 5}]}") == {
        "a": {"k": 1, "l": 2},
        "b": {"k": 3, "l": 2},
        "c": {"k": 1, "l": 2, "m": 5},
    }
