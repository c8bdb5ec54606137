"""The cases: made by references that do not know the library, in the wheel as they are made, and met by the library."""

import ast
import json
import math
import re
import runpy
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from conformance import own

from dfl_lightning.conformance import __main__ as command
from dfl_lightning.conformance.__main__ import main
from dfl_lightning.conformance.adapters import run_method
from dfl_lightning.conformance.cases import difference, read_all

ROOT = Path(__file__).parents[2]
MAKING = runpy.run_path(str(ROOT / "scripts" / "make_conformance.py"))
METHODS = read_all()
WITHOUT_CASES = {"fdms --topology complete": "it is this library's extension, in no paper"}
"""Methods of docs/methods.md that have no cases, and why."""


@pytest.fixture
def read_once(monkeypatch):
    """Give the command the cases that this file has read already."""
    monkeypatch.setattr(command, "read_all", lambda: METHODS)


def configs_of_the_page():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## What a message costs")[0]
    return set(re.findall(r"^\| .*?\| `--config ([^`]+)` \|", page, re.MULTILINE))


def test_every_method_of_the_page_has_cases_or_a_reason():
    covered = {config for method in METHODS.values() for config in method.configs}
    assert covered <= configs_of_the_page()
    assert not covered & set(WITHOUT_CASES)
    assert configs_of_the_page() - covered == set(WITHOUT_CASES)


def test_references_and_their_script_do_not_know_the_library():
    for file in (*sorted(MAKING["REFERENCES"].glob("*.py")), ROOT / "scripts" / "make_conformance.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"dfl_lightning", "torch"}, file.name


def test_the_files_are_what_the_references_make():
    made = MAKING["documents"]()
    assert set(made) == set(METHODS)
    for name, document in made.items():
        written = json.loads((MAKING["CASES"] / f"{name}.json").read_text(encoding="utf-8"))
        assert same(written, document), f"{name}: python scripts/make_conformance.py"


def same(a, b):
    """Compare values up to the last digits, which depend on the machine's functions."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    both = isinstance(a, float) and isinstance(b, float)
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12) if both else type(a) is type(b) and a == b


@pytest.mark.parametrize("name", METHODS)
def test_the_library_agrees(name):
    outcome = run_method(own, METHODS[name])
    assert outcome.agrees, [(case.case, case.failed, case.differences) for case in outcome.outcomes]
    assert len(outcome.offered) == len(METHODS[name].cases)


# --- what runs them ---------------------------------------------------------------------------------------------------
def adapter(**functions):
    return types.SimpleNamespace(**functions)


def fedfomo(change):
    def function(**inputs):
        case = next(c for c in METHODS["fedfomo"].cases if np.array_equal(c.inputs["before"], inputs["before"]))
        return change(dict(case.outputs))

    return adapter(fedfomo=function)


def moved(outputs):
    outputs["weights"] = outputs["weights"] + 1e-7
    return outputs


def test_a_difference_is_found_and_measured():
    cases = METHODS["fedfomo"]
    assert run_method(fedfomo(lambda outputs: outputs), cases).agrees
    outcome = run_method(fedfomo(moved), cases)
    assert not outcome.agrees
    assert outcome.worst.largest == pytest.approx(1e-7)
    assert run_method(fedfomo(moved), cases, tolerance=1e-6).agrees


def test_outputs_may_be_omitted_and_mistakes_are_reported():
    cases = METHODS["fedfomo"]
    some = run_method(fedfomo(lambda outputs: {"models": outputs["models"]}), cases)
    assert some.agrees
    assert some.outcomes[0].missing == ("asked", "worth", "weights", "affinity")
    for returned, sentence in (
        (None, "must return a dictionary of outputs, not NoneType; it must hold models, and may hold asked, worth"),
        ({}, "returned an empty dictionary of outputs; it must hold models, and may hold asked, worth"),
        ({"model": 1}, "no output model; it has asked, worth"),
        ({"asked": 1, "worth": 1}, "left out models; it must hold models, and may hold asked, worth"),
    ):
        assert sentence in run_method(fedfomo(lambda _, found=returned: found), cases).outcomes[0].failed
    broken = run_method(fedfomo(lambda _: 1 / 0), cases)
    assert broken.agrees is False
    assert broken.outcomes[0].failed.startswith("ZeroDivisionError")
    assert run_method(adapter(), cases).agrees is None


def test_every_method_has_main_outputs():
    for method in METHODS.values():
        assert method.main
        assert set(method.main) <= set(method.outputs)


NAMES = """
from functools import partial
from math import dist

from conformance.own import fdms_dropout

class FedAvg: pass

def _fedavgg(**inputs): pass

def helper(): pass
"""


def test_functions_that_are_not_methods_are_named(tmp_path, capsys):
    file = tmp_path / "names.py"
    file.write_text(NAMES)
    assert main([str(file)]) == 0
    assert capsys.readouterr().err == "not run, since there are no cases of that name: helper\n"


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(
    ("name", "method"), [("FedAvg", "fedavg"), ("fedfom", "fedfomo"), ("p_fed_graph", "pfedgraph"), ("krumm", "krum")]
)
def test_misnamed_methods_are_refused_with_the_right_name(name, method, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # The file changes within a second, and keeps its size.
    file, text = tmp_path / "misnamed.py", NAMES.replace("class FedAvg: pass", f"def {name}(**inputs): pass")
    file.write_text(text)
    assert main([str(file), "--methods", "fdms_dropout"]) == 2
    assert f"there are no cases of {name}, so nothing would run it; call it {method} if" in capsys.readouterr().err
    file.write_text(text.replace(name, method))
    assert main([str(file), "--methods", "fdms_dropout"]) == 0
    file.write_text(text.replace(name, f"_{name}"))
    assert main([str(file), "--methods", "fdms_dropout"]) == 0


def test_a_second_version_of_an_offered_method_is_a_helper(tmp_path, capsys):
    file = tmp_path / "versions.py"
    file.write_text(NAMES + "\n\ndef fdms_dropout2(**inputs): pass\n")
    assert main([str(file)]) == 0
    assert "no cases of that name: helper, fdms_dropout2\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expected", "found", "apart"),
    [
        (np.array([1.0, 2.0]), [1.0, 2.5], 0.25),
        (np.array([np.nan]), [0.0], math.inf),
        (np.array([0.0]), [math.inf], math.inf),
        (np.array([1, 2]), np.array([1.0, 2.0]), 0.0),
        (np.array([1, 2]), [1, 3], math.inf),
        (np.array([1.0]), "many", math.inf),
        (0.5, 0.25, 0.25),
    ],
)
def test_difference_measures_how_far_outputs_are_apart(expected, found, apart):
    assert difference(expected, found) == apart


ADAPTER = """
import numpy as np

def fdms_dropout(model, updates, active, server_step):
    if not active.any():
        raise NotImplementedError("a round without clients")
    return {"model": model + FACTOR * server_step * updates[active].mean(0)}
"""


@pytest.mark.parametrize(("factor", "code", "result"), [("1.0", 0, "agrees"), ("0.5", 1, "differs by 0.")])
def test_command_reports_agreement_and_exit_code(tmp_path, capsys, factor, code, result):
    file = tmp_path / "mine.py"
    file.write_text(ADAPTER.replace("FACTOR", factor))
    assert main([str(file)]) == code
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("Dropout (of FL-FDMS")]
    assert result in row
    assert "of 2, 1 not offered" in row
    assert sum("not offered" in line for line in lines) == len(METHODS)
    assert main([str(file), "--markdown", "--methods", "fdms_dropout"]) == code
    assert f"| {result}" in capsys.readouterr().out


FAILING = """
from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Step:
    size: float


def fdms_dropout(**inputs):
    raise ValueError("shapes [m, m] | [3]\\ndo not fit [/bold]")
"""


def test_adapter_with_dataclasses_shows_its_errors_unchanged(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(FAILING)
    assert main([str(file), "--methods", "fdms_dropout"]) == 1
    said = capsys.readouterr().out
    assert "ValueError: shapes [m, m] | [3]" in said
    assert "do not fit [/bold]" in said
    assert main([str(file), "--methods", "fdms_dropout", "--markdown"]) == 1
    row = capsys.readouterr().out.splitlines()[2]
    assert row.endswith(r": ValueError: shapes [m, m] \| [3] do not fit [/bold] |")


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.py"], "adapter nowhere.py: there is no such file"),
        (["no_such_module"], "adapter no_such_module: there is no such module; name an importable module, or a file"),
        (["no_such_package.adapter"], "adapter no_such_package.adapter: there is no such module; name an importable"),
        (["json"], "adapter json offers none of these methods: it has no function of the name of one"),
        ([], "name an adapter, or a method: --describe fedavg prints"),
        (["--describe", "fedavgg"], "there are no cases of fedavgg; there are cases of a_little_is_enough, "),
        (["json", "--methods", "fedavgg"], "there are no cases of fedavgg; there are cases of a_little_is_enough, "),
        (["json", "--tolerance", "-1"], "--tolerance -1.0: it must be 0 or more"),
    ],
)
def test_mistakes_end_with_a_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("name", METHODS)
def test_described_function_takes_the_inputs_of_every_case(name, capsys):
    assert main(["--describe", name]) == 0
    printed = capsys.readouterr().out
    function, made = printed[printed.index("def ") :].partition("\n\n")[0], {}
    exec(function, made)  # what an adapter's author pastes
    assert {case.refused for case in run_method(adapter(**{name: made[name]}), METHODS[name]).outcomes} == {"not yet"}
    exec(function.replace('    raise NotImplementedError("not yet")\n', ""), made)
    assert list(made[name](*[None] * len(METHODS[name].inputs))) == list(METHODS[name].outputs)
    assert (MAKING["CASES"] / f"{name}.json").samefile(printed.split()[-1])


def test_every_input_and_output_is_described():
    for method in METHODS.values():
        for case in method.cases:
            assert list(case.inputs) == list(method.cases[0].inputs)
            assert set(case.inputs) == set(method.inputs)
            assert list(case.outputs) == list(method.outputs)
        assert len({case.name for case in method.cases}) == len(method.cases)
        assert all(set(reading) == {"question", "chosen", "why"} for reading in method.readings)
