"""The commands `dfl-fit`, `dfl-validate` and `dfl-test`: LightningCLI with named groups.

A config reads like the method section of a paper; every group is a top-level key whose class and arguments can be
swapped from the command line.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from jsonargparse import ArgumentError, set_dumper
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.enums import StrEnum

from dfl_lightning.bank.card import out_of_memory
from dfl_lightning.callbacks import Dropout
from dfl_lightning.checkpoints.io import checkpoint_of, look_at_checkpoint
from dfl_lightning.checkpoints.own_code import CODE, code_in
from dfl_lightning.cli.arguments import (
    PLAIN,
    SECTIONS,
    TOP_LEVEL,
    Argument,
    Settings,
    run_name,
    split,
    take_flag,
    with_configs,
)
from dfl_lightning.cli.classes.class_folders import find_class_folders
from dfl_lightning.cli.classes.config_objects import check_objects
from dfl_lightning.cli.classes.registry import FAMILIES, GROUPS, MANY
from dfl_lightning.cli.ending import write_ending
from dfl_lightning.cli.error_messages import is_unreachable, lightnings_sentence, sentence_of
from dfl_lightning.cli.exports.bundle_format import SPLIT
from dfl_lightning.cli.exports.unpacking import manifest_of, remarks_on_bundles, require_code
from dfl_lightning.cli.help.options import options_page
from dfl_lightning.cli.help.screens import page_without_torch
from dfl_lightning.cli.keys import KEYS
from dfl_lightning.cli.runs import (
    command_to_go_on,
    config_of_run,
    no_run,
    remarks_on_history,
    remarks_on_place,
    take_run,
)
from dfl_lightning.cli.streams import drop_output, refused_output
from dfl_lightning.data import FederatedData
from dfl_lightning.distributed import notices
from dfl_lightning.distributed.connection import LostProcess, Overdue
from dfl_lightning.distributed.environment import check_environment
from dfl_lightning.distributed.launcher import (
    EndAtOnce,
    end_the_first,
    launched_by_another,
    lost_child,
    wait_for_the_first_to_leave,
    watch_the_first,
)
from dfl_lightning.loop import RunStopped
from dfl_lightning.module import DFLModule
from dfl_lightning.objectives import Objective
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.runs.reading import PAGE
from dfl_lightning.runs.summary import versions
from dfl_lightning.terminal.explain import explain
from dfl_lightning.terminal.framing import name_no_page
from dfl_lightning.terminal.observing import only_warns
from dfl_lightning.terminal.per_client import per_client_table
from dfl_lightning.topology import MovingTopology
from dfl_lightning.trainer import DFLTrainer
from dfl_lightning.trainer_callbacks import default_monitors
from dfl_lightning.utils.code.users_code import exits_refused, where_in_users_code
from dfl_lightning.utils.errors import UserError, is_out_of_memory, one_line
from dfl_lightning.utils.lightning_warnings import quiet_lightning
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS, WRITER, as_yaml, dump_yaml, load_dumped
from dfl_lightning.utils.wrapping import for_terminal

# enumerations of Lightning, such as a default of the callback Timer, are written to YAML as texts
for _writer in (yaml.SafeDumper, WRITER):
    _writer.add_multi_representer(StrEnum, lambda dumper, choice: dumper.represent_str(choice.value))
set_dumper("yaml", dump_yaml)


_ABOUT = {
    **{name: key.about for name, key in KEYS.items()},
    CLASS_FOLDERS: "where else to look for classes; a config's own folder is looked through anyway",
    "ckpt_path": "a run folder or a checkpoint",
    "fork": "begin a new run from the checkpoint",
}


class DFLCLI(LightningCLI):
    """A command of LightningCLI, with the groups of a round as top-level keys.

    Args:
        command: `fit`, `validate` or `test`.
        settings: settings of the command line; the last config names the run folder.
        stop_at: `config`: read the arguments; `objects`: also make the trainer, the module and the data; `end`: run.
        watcher: another callback; with it, the table of an evaluation is not printed.
        typed: the arguments as they were typed.
        report: True if the page of `dfl-report` is made at the end of the run.
        live: True if it is also made during the run.
    """

    trainer: DFLTrainer

    def __init__(
        self,
        command: str,
        settings: Settings,
        stop_at: Literal["config", "objects", "end"] = "end",
        watcher: Callback | None = None,
        typed: Sequence[str] = (),
        report: bool = False,
        live: bool = False,
    ) -> None:
        self._command, self._settings, self._stop_at, self._watcher = command, settings, stop_at, watcher
        self._typed, self._report, self._live = typed, report, live
        super().__init__(
            DFLModule,
            FederatedData,
            subclass_mode_data=True,
            trainer_class=DFLTrainer,
            seed_everything_default=0,
            save_config_callback=None,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={"prog": f"dfl-{command}", "exit_on_error": False},
            run=False,
        )
        if stop_at == "end":
            self._run()

    # --- the parser --------------------------------------------------------------------------------------------------
    _made: ClassVar[dict[str, LightningArgumentParser]] = {}
    """Parsers by command; they are slow to make, and equal for all command lines of a process."""

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Reuse or make the parser; one that has to print something is kept only afterwards."""
        made = self._made.pop(self._command, None) if self._only_settings else None
        if made is None:
            super().setup_parser(add_subcommands, main_kwargs, subparser_kwargs)
        else:
            self.parser = made
        if not self._settings.rest:
            self._made[self._command] = self.parser

    @property
    def _only_settings(self) -> bool:
        return all(argument.startswith("--print_config") for argument in self._settings.rest)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the arguments of trainer, model and data, without those that have a top-level key of their own."""
        options: dict[str, Any] = {"fail_untyped": False, "sub_configs": True}
        top_level_keys = {"topology", "run_name", "engine", "defaults"}
        parser.add_class_arguments(DFLTrainer, "trainer", skip=top_level_keys, instantiate=False, **options)
        parser.add_class_arguments(DFLModule, "model", skip={"objective"}, **options)
        parser.add_subclass_arguments(FederatedData, "data", fail_untyped=False, required=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the groups of a round and the other top-level keys."""
        defaults = {"topology": "complete", "engine": "auto", "fork": False}
        for key in TOP_LEVEL:
            base: Any = GROUPS.get(key)
            if key in ("seed_everything", "trainer", "model", "data"):
                continue  # added above, or by Lightning
            elif key in FAMILIES and key not in MANY:
                parser.add_lightning_class_args(base, key, subclass_mode=True, required=False)
            elif base is not None and key not in MANY:
                parser.add_subclass_arguments(base, key, fail_untyped=False, required=False)
            else:
                kind = PLAIN[key] if base is None else list[base] | base | None
                parser.add_argument(f"--{key}", type=kind, default=defaults.get(key), help=_ABOUT.get(key))
        parser.set_defaults({"model.optimizer": None})  # since `Settings` always names one

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the settings instead of `sys.argv`.

        Raises:
            UserError: the parser refuses them.
        """
        try:
            config, rest = self._settings.config, self._settings.rest
            self.config = (
                parser.parse_args([f"--config={as_yaml(config)}", *rest]) if rest else parser.parse_object(config)
            )
        except ArgumentError as error:
            raise UserError(sentence_of(error, self._settings)) from error
        except SystemExit:
            if self._only_settings and not hasattr(parser, "print_config"):  # it has printed, and can be used again
                self._made[self._command] = parser
            raise
        except (UserError, OSError):
            raise
        except Exception as error:  # the parser itself failed, since no other code has run yet
            raise UserError(f"the configuration cannot be read ({' '.join(str(error).split())})") from error

    def _set_seed(self) -> None:
        """Seed the global generators, for users' own classes; the simulation has separate streams."""
        seed = self._get(self.config, "seed_everything")
        if seed is None or not 0 <= seed < 2**32:
            raise UserError(
                f"seed_everything={'null' if seed is None else seed}; it is a whole number from 0 to {2**32 - 1}"
            )
        if self._stop_at != "config":  # else no object is made, and nothing is drawn
            seed_everything(int(seed) if not isinstance(seed, bool) else 0, verbose=False)

    def _parse_ckpt_path(self) -> None:
        """Check the checkpoint before objects are made; settings are never read from it."""
        options = self.config
        if options.get("ckpt_path") == "":
            raise UserError("--ckpt_path needs a value, a run folder or a checkpoint")
        if options.get("ckpt_path") is not None:
            options["ckpt_path"] = str(checkpoint_of(options["ckpt_path"]))
            look_at_checkpoint(options["ckpt_path"])
        elif self._command != "fit" and self._stop_at == "end":
            raise no_run(self._command)
        elif options.get("fork"):
            raise UserError("--fork starts a new run from another one; name it with --ckpt_path RUN")
        if options.get("fork") and self._command != "fit":
            raise UserError(f"--fork is an option of dfl-fit: dfl-{self._command} starts no run; leave it out")

    # --- what it makes -----------------------------------------------------------------------------------------------
    def instantiate_classes(self) -> None:
        """Make the objects, and then set the parts that are not arguments of their constructors."""
        if self._stop_at == "config":
            return
        check_config(vars(self.config))
        try:
            super().instantiate_classes()
        except (UserError, MisconfigurationException):
            raise
        except (ValueError, TypeError) as error:  # a constructor of torch or of the user refused its arguments
            raise UserError(sentence_of(error)) from error
        objective = self._get(self.config_init, "objective")
        if objective is not None:
            self.model.objective = objective
        written = load_dumped(self.parser.dump(self.config, format="yaml", skip_unset=False, skip_validation=True))
        self.trainer.config = {key: written.get(key) for key in KEYS}
        if written.get(CLASS_FOLDERS):
            self.trainer.config[CLASS_FOLDERS] = written[CLASS_FOLDERS]
        if self.config["ckpt_path"] is None:  # else the checkpoint has the hashes of the code
            self.trainer.repeated_code = {
                path: code_in(content, path) for path, content in self._settings.configs if CODE in content
            }
        self.trainer.command = shlex.join([f"dfl-{self._command}", *self._typed])
        if self._command == "fit":
            checkpoint, forks = self.config["ckpt_path"], self.config["fork"]
            self.trainer.remarks += remarks_on_bundles(self._settings.configs, str(self.trainer.strategy.root_device))
            self.datamodule.expected = expected_split(self._settings.arguments)
            self.trainer.remarks += remarks_on_history(self._settings.configs, checkpoint, forks)
            if checkpoint is not None and not forks:
                self.trainer.remarks += remarks_on_place(self._settings.arguments, checkpoint)
        if self._settings.dropped:
            dropped = ", ".join(dict.fromkeys(self._settings.dropped))
            self.trainer.remarks.append(f"options of the config that the swapped classes do not have: {dropped}")
        for (former, made), options in self._settings.left.items():
            self.trainer.remarks.append(
                f"data {made} takes the place of the config's {former}; dropped with it: {', '.join(options)}; "
                f"those of {made} are given by --data.NAME"
            )
        self.trainer.replaced_monitors = self._settings.replaced_monitors

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Any]) -> DFLTrainer:
        monitors = self._listed("monitors")
        monitors = default_monitors() if monitors is None else monitors
        stock = config.pop("callbacks", None) or []
        stock = stock if isinstance(stock, list) else [stock]
        return DFLTrainer(
            **config,
            callbacks=[*stock, *self._in_order(callbacks), *monitors, *self._live_pages()],
            topology=self._get(self.config_init, "topology"),
            engine=self._get(self.config_init, "engine"),
            defaults=False,  # the settings already have the defaults, which `null` switches off
            run_name=run_name([path for path, _ in self._settings.configs]),
        )

    def _listed(self, group: str) -> list[Any] | None:
        """Return the objects of a group that takes several classes; None if none is given."""
        chosen = self._get(self.config_init, group)
        return chosen if chosen is None or isinstance(chosen, list) else [chosen]

    def _in_order(self, policies: list[Any]) -> list[Any]:
        """Return policies and watcher in the order of a round: dropout, outgoing policies, the others."""
        callbacks = [callback for callback in (*policies, self._watcher) if callback is not None]
        dropout = [callback for callback in callbacks if isinstance(callback, Dropout)]
        others = [callback for callback in callbacks if not isinstance(callback, Dropout)]
        return [*dropout, *(self._listed("outgoing") or []), *others]

    def _run(self) -> None:
        about: dict[str, Any] = {"datamodule": self.datamodule, "ckpt_path": self.config["ckpt_path"]}
        if self._command == "fit":
            if self._report or self._live:
                name_no_page(self.trainer.callbacks)  # type: ignore[attr-defined]
            self.trainer.fit(self.model, **about, fork=self.config["fork"])
        else:  # not verbose, since our table has all clients' scores in addition to Lightning's means
            evaluate = self.trainer.validate if self._command == "validate" else self.trainer.test
            evaluate(self.model, **about, verbose=False)
        if not self.trainer.is_global_zero:
            return
        if self._report and self.trainer.run.path is not None:  # also after a live page, whose name is printed
            self._report_page(self.trainer.run.path)
        if self._command != "fit" and self._watcher is None:
            for line in per_client_table(self.model):
                print(line)

    def _live_pages(self) -> list[RoundCallback]:
        """Make the callback that writes the run's page while it trains, if `--live` asks for it."""
        if not self._live:
            return []
        from dfl_lightning.bench.report.live import LivePage

        return [LivePage()]

    def _report_page(self, folder: Path) -> None:
        """Write the page of a finished run, unless it was written during the run, and print its path."""
        page = folder / PAGE
        if not self._live:
            again = f"the run is finished, and dfl-report {shlex.quote(str(folder))} makes its page again"
            with only_warns("the page of the run", again):
                from dfl_lightning.bench.report.writing import write_report

                page = write_report([folder])
        if page.is_file():
            print(f"page: {page}", flush=True)


def check_config(config: dict[str, Any]) -> None:
    """Check a parsed config for objects and functions that are not allowed, before they are made."""
    groups = {**FAMILIES, "objective": Objective, "data": FederatedData, "topology": MovingTopology}
    for key, values in config.items():
        if key in SECTIONS:
            for option, value in vars(values).items():
                check_objects(value, f"{key}.{option}", SECTIONS[key][option].annotation)
        else:
            check_objects(values, key, groups.get(key, str))


def run(command: str, argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 2 a user's mistake, 1 a bug, 128 + number of a signal.

    Args:
        command: `fit`, `validate` or `test`.
        argv: the arguments; default: those of the process.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    with quiet_lightning(), EndAtOnce():
        try:
            check_environment()
        except UserError as error:
            write_ending(2, str(error), error)
            _say(command, str(error))
            return 2
        if launched_by_another():
            watch_the_first()
            warnings.showwarning = lambda message, *where, **more: None  # since the first process prints the same
        elif not _debug():
            warnings.showwarning = lambda message, *where, **more: _say(command, f"warning: {message}")
        try:
            code = _run(command, argv)
            sys.stdout.flush()  # here, where an output that is no longer read can be handled
            return code
        except SystemExit as left:  # the parser's --print_config and --GROUP.help
            return left.code if isinstance(left.code, int) else 0
        except RunStopped as stop:
            if launched_by_another():
                return 0  # since the first process reports it
            lost = "; no checkpoint was kept (trainer.enable_checkpointing=false)" if stop.rounds else ""
            then = f"; continue with: {command_to_go_on(stop.run)}" if stop.run else lost
            _say(command, str(stop), then)
            return 128 + stop.signum
        except KeyboardInterrupt:
            if not launched_by_another():
                _say(command, "stopped at once")
            return 130
        except BrokenPipeError:  # the reader of the output, such as `head`, has ended
            drop_output()
            return 128 + signal.SIGPIPE
        except Exception as error:
            if _debug():
                raise
            return _report_failure(command, error)


PATIENCE = 10.0
"""Seconds that the first process gets to end by itself, if processes can no longer exchange messages."""


def _report_failure(command: str, error: Exception) -> int:
    """Report an error in one of the run's processes only, and return the exit code."""
    sentence = refused_output(error) or users_mistake(error)
    code = 1 if sentence is None else 2
    if sentence is None:
        about = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sentence = f"a bug of dfl_lightning: {about} (DFL_DEBUG=1 shows where)"
    late = isinstance(error, Overdue)
    if not late and (isinstance(error, LostProcess) or is_unreachable(error)):
        if launched_by_another():
            return 0  # since the first process knows the cause
        notice = notices.told()
        code, sentence = (2, lost_child(seconds=1.0) or sentence) if notice is None else notice
    elif notices.all_stop() and launched_by_another():
        return 0  # since the first process stops too, and reports it
    elif not notices.all_stop():
        delivered = notices.tell(code, sentence, about_itself=not late)
        if launched_by_another():
            if delivered and not late:
                return code  # since the first process reports it
            if wait_for_the_first_to_leave(PATIENCE):
                return 0  # since it has reported the error
            sentence = sentence if late else f"process {os.environ['LOCAL_RANK']} of the run: {sentence}"
    write_ending(code, sentence, error)
    _say(command, sentence)
    if late:
        end_the_first()
    return code


def evaluate_again(checkpoint: Path, config: Path, watcher: Callback) -> None:
    """Evaluate a checkpoint as `dfl-test` does, in one process, for a callback; nothing is printed.

    Args:
        checkpoint: path of the checkpoint.
        config: path of the run's own config.
        watcher: callback whose `on_test_end` is called with the state of the evaluation after the checkpoint's round.
    """
    quiet = ["--trainer.devices=1", "--trainer.num_nodes=1", "--trainer.logger=false"]
    argv = [f"--config={config}", f"--ckpt_path={checkpoint}", "--trainer.enable_progress_bar=false", *quiet]
    find_users_classes()
    with exits_refused():
        DFLCLI("test", read(split(argv)), watcher=watcher)


_USUAL = (
    *("--data=Digits", "--data.partition=Dirichlet", "--data.partition.alpha=0.3", "--model.network=MLP"),
    *("--selection=AFIND", "--threshold=AdaptiveThreshold", "--aggregation=Boltzmann"),
)
"""Typical settings, for a parse whose result is not used."""


def prepare_forks() -> None:
    """Make the parser, its caches and the versions, so that forks of this process start quickly.

    It does not change the results of a run: no number is drawn or computed.
    """
    with quiet_lightning():
        DFLCLI("fit", Settings(split(_USUAL)), stop_at="config")
    versions()


def read(arguments: Sequence[Argument]) -> Settings:
    """Read the settings of arguments, including configs and the folders of classes next to them."""
    complete = find_class_folders(with_configs(arguments))
    for each in complete:
        if each.content is not None:
            require_code(str(each.value))
    return Settings(complete)


def expected_split(arguments: Sequence[Argument]) -> tuple[Path, bool] | None:
    """Find the split file of a bundle among the arguments.

    Args:
        arguments: options and configs, in their order.

    Returns:
        The file, and True if the other arguments leave data and seed as they are in the bundle; None without a file.
    """
    file, same_draw = None, True
    for each in arguments:
        if each.content is not None and manifest_of(str(each.value)) is not None:
            split_file = Path(str(each.value)).with_name(SPLIT)
            file, same_draw = (split_file if split_file.is_file() else None), True
        elif each.content is not None or each.option.partition(".")[0] in ("data", "seed_everything"):
            same_draw = False
    return None if file is None else (file, same_draw)


def find_users_classes() -> None:
    """Add the working folder to Python's search path, for the user's own classes."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _run(command: str, argv: list[str]) -> int:
    page = page_without_torch(command, argv)
    if page is not None:
        print(for_terminal(page, sys.stdout))
        return 0
    find_users_classes()
    page = options_page(argv)
    if page is not None:
        print(for_terminal(page, sys.stdout))
        return 0
    typed = argv
    argv, explain_only = take_flag(argv, "--explain")
    report = live = False
    if command == "fit":
        argv, report = take_flag(argv, "--report")
        argv, live = take_flag(argv, "--live")
        if report or live:
            from dfl_lightning.bench.report.writing import check_report

            check_report()
    with exits_refused():
        _build_and_run(command, argv, explain_only, typed, report or live, live)
    return 0


def _build_and_run(
    command: str, argv: list[str], explain_only: bool, typed: list[str], report: bool, live: bool
) -> None:
    arguments = take_run(command, split(argv))
    settings = read([*config_of_run(arguments), *arguments])
    cli = DFLCLI(command, settings, stop_at="objects" if explain_only else "end", typed=typed, report=report, live=live)
    if explain_only:
        checkpoint = cli.config["ckpt_path"] if command == "fit" else None
        for line in explain(cli.trainer, cli.model, cli.datamodule, checkpoint, cli.config["fork"]):
            print(for_terminal(line, sys.stdout))


def users_mistake(error: Exception) -> str | None:
    """Return the message about a user's mistake; None if the error is a bug of this library."""
    if isinstance(error, (UserError, MisconfigurationException, ArgumentError)):
        return sentence_of(error)
    if is_out_of_memory(error):
        return out_of_memory(error)
    if isinstance(error.__cause__, UserError):
        return str(error.__cause__)
    where = where_in_users_code(error)
    sentence = where and f"{where[:300]} (DFL_DEBUG=1 shows the way there)"
    return lightnings_sentence(" ".join(str(error).split())) or sentence


def _say(command: str, sentence: str, verbatim: str = "") -> None:
    """Print a message, then a command to copy verbatim."""
    with suppress(OSError):  # a standard error that cannot be written must not end a run
        line = f"dfl-{command}: {' '.join(one_line(sentence).split())}{one_line(verbatim)}"
        print(for_terminal(line, sys.stderr), file=sys.stderr, flush=True)


def _debug() -> bool:
    return os.environ.get("DFL_DEBUG", "") not in ("", "0")
