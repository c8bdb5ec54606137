"""The commands `dfl-fit`, `dfl-validate` and `dfl-test`: LightningCLI with named groups.

A config reads like the method section of a paper; every group is a top-level key whose class and arguments can be
swapped from the command line.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from dfl_lightning import callbacks
from dfl_lightning.arguments import DEFAULT_CLASSES, check_names, dropped_options, find_configs, sentence_of, take_flag
from dfl_lightning.checkpoints import read_checkpoint
from dfl_lightning.data import FederatedData
from dfl_lightning.errors import UserError
from dfl_lightning.loop import RunStopped
from dfl_lightning.module import DFLModule
from dfl_lightning.objectives import Objective
from dfl_lightning.registry import FAMILIES
from dfl_lightning.report.explain import explain
from dfl_lightning.report.help import help_page, list_page
from dfl_lightning.report.per_client import per_client_table
from dfl_lightning.trainer import DFLTrainer

KEYS = "seed_everything trainer model data topology dropout selection threshold substitution aggregation objective monitors".split()
"""Top-level keys of a config, in the order in which they are saved."""


class DFLCLI(LightningCLI):
    """One command of LightningCLI, with the groups of a round as top-level keys.

    Args:
        command: `fit`, `validate` or `test`.
        argv: the command line's words.
        configs: paths of the configs among them; the last one names the run folder.
        explain_only: say what would run instead of running it.
    """

    def __init__(self, command: str, argv: list[str], configs: list[str], explain_only: bool = False) -> None:
        self._command, self._argv, self._explain_only = command, argv, explain_only
        self._configs = configs
        kwargs = {"prog": f"dfl-{command}", "exit_on_error": False}
        super().__init__(
            DFLModule,
            FederatedData,
            subclass_mode_data=True,
            trainer_class=DFLTrainer,
            seed_everything_default=0,
            save_config_callback=None,
            auto_configure_optimizers=False,
            parser_kwargs={**kwargs, command: dict(kwargs)},
        )

    # --- the parser --------------------------------------------------------------------------------------------------
    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Only the one command: the others' parsers would be built for nothing."""
        skip = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders", "verbose", "weights_only"}
        return {self._command: skip}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Trainer, model and data; what has a top-level key of its own is left out."""
        options: dict[str, Any] = {"fail_untyped": False, "sub_configs": True}
        parser.add_class_arguments(DFLTrainer, "trainer", skip={"topology", "run_name"}, instantiate=False, **options)
        parser.add_class_arguments(DFLModule, "model", skip={"objective"}, **options)
        parser.add_subclass_arguments(FederatedData, "data", fail_untyped=False, required=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The groups of a round."""
        parser.add_argument("--topology", type=str | dict[str, Any], default="complete", help="a topology file, or a shipped one's name")
        for key, base in FAMILIES.items():
            if key != "monitors":
                parser.add_lightning_class_args(base, key, subclass_mode=True, required=False)
        parser.add_subclass_arguments(Objective, "objective", fail_untyped=False, required=False)
        parser.add_argument("--monitors", type=list[callbacks.Monitor] | None, default=None, help="what else is measured")
        parser.set_defaults({key: {"class_path": name} for key, name in DEFAULT_CLASSES.items() if key in FAMILIES})

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Read the words; `sys.argv` stays as it is."""
        self.config = parser.parse_args([self._command, *self._argv])

    def _parse_ckpt_path(self) -> None:
        """Look at the checkpoint before anything is built; settings never come out of it."""
        checkpoint = self.config[self._command].get("ckpt_path")
        if checkpoint is not None:
            read_checkpoint(checkpoint)

    # --- what it makes -----------------------------------------------------------------------------------------------
    def instantiate_classes(self) -> None:
        """Everything, then the parts that live outside their class's own arguments."""
        super().instantiate_classes()
        objective = self._get(self.config_init, "objective")
        if objective is not None:
            self.model.objective = objective
        self._dump_config()
        dumped = {key: self.config_dump.get(key) for key in KEYS}
        self.trainer.config = dumped
        dropped = dropped_options(self._configs, dumped)
        if dropped:
            self.trainer.remarks.append(f"options of the config that the swapped classes do not have: {', '.join(dropped)}")

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Any]) -> DFLTrainer:
        chosen = self._get(self.config_init, "monitors")
        monitors = default_monitors() if chosen is None else chosen
        stock = config.pop("callbacks", None) or []
        stock = stock if isinstance(stock, list) else [stock]
        return DFLTrainer(
            **config,
            callbacks=[*stock, *(c for c in callbacks if c is not None), *monitors],
            topology=self._get(self.config_init, "topology"),
            run_name=Path(self._configs[-1]).stem if self._configs else "run",
        )

    def _run_subcommand(self, subcommand: str) -> None:
        if self._explain_only:
            for line in explain(self.trainer, self.model, self.datamodule):
                print(line)
            return
        super()._run_subcommand(subcommand)
        if subcommand in ("validate", "test"):
            for line in per_client_table(self.model):
                print(line)


def default_monitors() -> list[callbacks.Monitor]:
    """What is measured unless a config says otherwise."""
    return [callbacks.NeighbourAccuracy(), callbacks.FriendAccuracy()]


def run(command: str, argv: list[str] | None = None) -> int:
    """A command from its words to its exit code: 0 done, 2 a user's mistake, 1 our bug, 128 + signal."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("DFL_DEBUG", "") not in ("", "0")
    quieten_lightning()
    try:
        if argv and argv[0] in ("-h", "--help"):
            print(help_page(command))
            return 0
        if argv and argv[0] == "--help_all":
            argv[0] = "--help"
        if argv == ["--list"]:
            print(list_page())
            return 0
        sys.path.insert(0, os.getcwd())  # a user's own classes, by import path, from the folder they work in
        argv, explain_only = take_flag(argv, "--explain")
        argv, configs = find_configs(argv)
        check_names(argv, configs)
        DFLCLI(command, argv, configs, explain_only)
        return 0
    except RunStopped as stop:
        print(f"dfl-{command}: {stop}; go on with --ckpt_path of the run's checkpoints/last.ckpt", file=sys.stderr)
        return 128 + stop.signum
    except KeyboardInterrupt:
        print(f"dfl-{command}: stopped at once", file=sys.stderr)
        return 130
    except (UserError, MisconfigurationException, ArgumentError) as error:
        if debug:
            raise
        print(f"dfl-{command}: {sentence_of(error, argv)}", file=sys.stderr)
        return 2
    except (torch.OutOfMemoryError, MemoryError) as error:
        if debug:
            raise
        print(f"dfl-{command}: out of memory ({error}); lower data.num_clients, model.batch_size or the network", file=sys.stderr)
        return 2
    except Exception as error:
        if debug:
            raise
        cause = error.__cause__ if isinstance(error.__cause__, UserError) else None
        if cause is not None:
            print(f"dfl-{command}: {cause}", file=sys.stderr)
            return 2
        print(f"dfl-{command}: a bug of dfl_lightning: {type(error).__name__}: {error} (DFL_DEBUG=1 shows where)", file=sys.stderr)
        return 1


def quieten_lightning() -> None:
    """Silence, by name, advice of Lightning's that does not apply here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)  # "GPU available", "Trainer.fit stopped": the banner says it
    for message in (
        ".*does not have many workers.*",  # data are resident; there are no workers
        ".*number of training batches.*",  # one batch is one round
        ".*is deprecated, use `isinstance.treespec.*",  # Lightning 2.6 on newer torch
        ".*`weights_only` was not set.*",  # our checkpoints are read with weights_only
        ".*GPU available but not used.*",  # the user chose the CPU
        ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run goes on in its folder
    ):
        warnings.filterwarnings("ignore", message)


def fit() -> None:
    """`dfl-fit`: train."""
    sys.exit(run("fit"))


def validate() -> None:
    """`dfl-validate`: evaluate a checkpoint."""
    sys.exit(run("validate"))


def test() -> None:
    """`dfl-test`: evaluate a checkpoint."""
    sys.exit(run("test"))


