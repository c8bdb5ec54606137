"""Messages are for people: nothing in the package decides by the words of another module's message."""

import ast
from pathlib import Path

import dfl_lightning

PACKAGE = Path(dfl_lightning.__file__).parent
OTHERS = {
    "utils/errors.py": "torch's errors about memory and GPUs have no types",
    "engines/trials/trial.py": "torch's error about BatchNorm and a batch of one has no type",
    "cli/error_messages.py": "refusals of Lightning's and of the parser",
    "trainer_options.py": "torch's error about a gradient that is NaN has no type",
    "data/readers/arrays.py": "numpy's refusal of an archive with objects has no type",
    "models/fitting.py": "errors of torch and transformers about a network's inputs have no types",
}
"""Files that look into the messages of other libraries, and why."""
TEXT_OF_AN_ERROR = ("error", "refusal", "why", "sentence", "message", "printed", "said", "stdout", "stderr")
MATCHING = ("search", "match", "fullmatch", "findall", "startswith", "endswith", "find", "index", "count")


def test_no_module_matches_the_text_of_a_message():
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if any(map(matches_a_message, ast.walk(ast.parse(file.read_text(encoding="utf-8")))))
    }
    assert found == set(OTHERS)


def matches_a_message(node):
    """Return True if an expression searches the text of a message."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        contains = any(isinstance(sign, ast.In | ast.NotIn) for sign in node.ops)
        equal = any(isinstance(sign, ast.Eq | ast.NotEq) for sign in node.ops)
        return (contains and is_message(sides[-1])) or (equal and any(map(is_str_of_error, sides)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MATCHING:
        return any(map(is_message, [node.func.value, *node.args]))
    return False


def is_message(node):
    """`str(error)`, a part of it, or a variable that is called like a message."""
    return is_str_of_error(node) or (isinstance(node, ast.Name) and node.id in TEXT_OF_AN_ERROR)


def is_str_of_error(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "str"
        and any(isinstance(part, ast.Name) and part.id in TEXT_OF_AN_ERROR for part in node.args)
    )


def test_such_code_is_found():
    for line in (
        'if "not there" in str(error): pass',
        "PATTERN.search(str(error))",
        'sentence.startswith("data")',
        "if str(error) == UNREACHABLE: pass",
        "if PREVIOUS in sentence: pass",
    ):
        assert any(map(matches_a_message, ast.walk(ast.parse(line)))), line
