"""Options that people know from other programs are answered with those of this one."""

import pytest

from dfl_lightning.cli.arguments import _FLAGS, SECTIONS, TOP_LEVEL, Settings, split, with_configs
from dfl_lightning.cli.classes.registry import CLASSES, class_of, names_of, parameters_of
from dfl_lightning.cli.other_names import OTHER_NAMES, meant
from dfl_lightning.utils.errors import UserError


def refusal(*argv):
    with pytest.raises(UserError) as caught:
        Settings(with_configs(split(["--config", "afind", *argv])))
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("--rounds 4", "'--trainer.max_rounds'"),
        ("--num-server-rounds 4", "'--trainer.max_rounds'"),
        ("--lr .1", "'--model.optimizer.lr'"),
        ("--learning-rate=.1", "'--model.optimizer.lr'"),
        ("--optimizer.lr .1", "'--model.optimizer.lr'"),
        ("--model.lr .1", "'--model.optimizer.lr'"),
        ("--clients 10", "'--data.num_clients'"),
        ("--n_clients 10", "'--data.num_clients'"),
        ("--epochs 5", "'--model.local_epochs' or '--trainer.max_rounds'"),
        ("--trainer.epochs 5", "'--trainer.max_rounds'"),
        ("--batch-size 8", "'--model.batch_size'"),
        ("-b 8", "'--model.batch_size'"),
        ("--gpus 1", "'--trainer.devices' or '--trainer.accelerator'"),
        ("--seed 3", "'--seed_everything'"),
        ("--alpha .1", "'--data.partition.alpha'"),
        ("--data.alpha .1", "'--data.partition.alpha'"),
        ("--dataset MNIST", "'--data'"),
        ("--Dataset MNIST", "'--data'"),
        ("--mu .1", "'--objective.mu'"),
        ("--method AFIND", "'--config' or '--selection'"),
        ("--resume runs", "'--ckpt_path'"),
        ("--precision 32", "'--trainer.precision'"),  # Lightning's own name, without the section
        ("--optimizer Adam", "'--model.optimizer'"),
        ("--lr-scheduler StepLR", "'--model.lr_scheduler'"),
    ],
)
def test_option_of_another_program_suggests_ours(words, ours):
    assert f"; did you mean {ours}?" in refusal(*words.split())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lr: 0.1", "unknown key 'lr'; did you mean 'model.optimizer.lr'?"),
        ("model: {lr: 0.1}", "model has no option 'lr'; did you mean 'model.optimizer.lr'?"),
        ("data: {class_path: Digits, init_args: {alpha: 1}}", "has no option 'alpha'; did you mean 'data.partition.a"),
        ("trainer: {rounds: 3}", "trainer has no option 'rounds'; did you mean 'max_rounds'?"),
    ],
)
def test_key_of_another_programs_config_suggests_ours(text, sentence, tmp_path):
    (tmp_path / "theirs.yaml").write_text(text)
    assert sentence in refusal("--config", str(tmp_path / "theirs.yaml"))


def exists(option):
    """Return True if a class of the group, or the section, has the option."""
    group, _, name = option.rpartition(".")
    if not group:
        return option in (*TOP_LEVEL, "config", *_FLAGS)
    if group in SECTIONS:
        return name in SECTIONS[group] or option in CLASSES
    return option in CLASSES or any(name in parameters_of(class_of(group, known)) for known in names_of(group))


@pytest.mark.parametrize("option", sorted({one for ours in OTHER_NAMES.values() for one in ours}))
def test_every_option_that_is_named_exists(option):
    assert exists(option)


def test_our_options_are_not_taken_for_other_programs_options():
    assert not set(OTHER_NAMES) & {*TOP_LEVEL, *_FLAGS}
    for section, options in SECTIONS.items():
        for name in options:
            hint = meant(f"{section}.{name}")
            assert not hint or f"{section}." in hint, name


def test_unknown_words_have_no_hint():
    assert meant("qwertz") == meant("") == meant("--") == ""
    assert refusal("--qwertz", "3") == "unknown option --qwertz"
