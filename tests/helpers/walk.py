"""A page, walked: its commands and its Python, in the order in which they stand there, each in a process of its own."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shlex
import sys
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

import forked

PROGRAMS = {
    **{f"dfl-{name}": f"dfl_lightning.cli.main:{name}" for name in ("fit", "test", "validate", "export")},
    "dfl-report": "dfl_lightning.bench.report.main:report",
    "dfl-study": "dfl_lightning.bench.study.main:study",
    "python": f"{__file__}:run_python",
}
"""The function that a shell would start, by the first word of a command."""

SMALL = "--trainer.max_rounds 2 --data.samples_per_client 30 --model.local_epochs 1 --trainer.accelerator cpu"
"""Options that make a run small; they come right after the config, so that those of the page replace them."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DATED = re.compile(r"runs/(\w+)/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")


@dataclass(frozen=True)
class Step:
    """Something on a page that can be done or compared.

    Attributes:
        kind: `command`, `python`, `yaml` or `text`.
        text: a command without its comment, or a whole block.
        line: its number in the page.
    """

    kind: str
    text: str
    line: int


def steps_of(page):
    """List the steps of a page's text: blocks of code, and whole commands of `dfl-fit` in backticks."""
    found = []
    for match in _BLOCK.finditer(page):
        language, block = match.groups()
        line = page[: match.start()].count("\n") + 2
        if language in ("python", "yaml"):
            found.append(Step(language, block, line))
        elif any(is_command(text) for text in block.splitlines()):
            found += [Step("command", without_comment(t), line + at) for at, t in enumerate(block.splitlines()) if t]
        else:
            found.append(Step("text", block, line))
    outside = _BLOCK.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), page)
    for match in re.finditer(r"`(dfl-fit\s--config\s[^`…]+)`", outside):
        found.append(Step("command", " ".join(match[1].split()), outside[: match.start()].count("\n") + 1))
    return sorted(found, key=lambda step: step.line)


def is_command(line):
    return re.match(r"(dfl-\w+|python|pip|git|make|(\.venv|\$venv)/bin/\S+) ", line) is not None


def without_comment(line):
    return re.sub(r"\s+#\s.*$", "", line).strip()


@dataclass
class Said:
    """A process's output and its exit code."""

    code: int
    out: str
    err: str


class Walk:
    """A folder in which the steps of a page are taken, each by a process of its own.

    They are forks of a process that has imported everything and read a shipped config, which takes a second; its
    module search path is as before.

    Args:
        folder: an empty one.
        small: run few samples and rounds.

    Attributes:
        run: what the page means by RUN.
        former: run folders of which the page says that they are there.
    """

    def __init__(self, folder, small):
        self.folder, self.small = folder, small
        self.run, self.former = "", set()
        self._beside = folder.with_name(f"{folder.name}.log")
        self._connection, theirs = Pipe()
        self._server = forked.Forked(f"{__file__}:serve", ["walk"], folder.parent, self._beside, (theirs,))
        theirs.close()

    def close(self):
        self._connection.send(None)
        out, err = self._server.communicate()
        assert (self._server.returncode, out + err) == (0, "")
        self._connection.close()

    def command(self, text, more=""):
        """Run a command of a page, with more options at its end; what it says."""
        program, *words = shlex.split(text)
        if program == "dfl-fit" and words[:1] == ["--config"]:
            words[2:2] = shlex.split(SMALL) if self.small else []
            words += shlex.split(more)
        elif self.small and words[:1] == ["--ckpt_path"]:  # of a run with a tenth of the page's rounds
            words = [str(self.rounds(int(word))) if word.isdigit() else word for word in words]
        words = [found for word in words for found in self._expanded(word)]
        return self._done(PROGRAMS[program], [program, *words])

    def rounds(self, number):
        """The rounds of a continued run: small ones do a tenth."""
        return number // 10 if self.small else number

    def python(self, text):
        """Run a block as a script; what it says. Numbers in comments after `print(…)` are compared."""
        file = self.folder / "block.py"
        text = re.sub(r"runs/(\w+)/…", lambda match: self._expanded(f"runs/{match[1]}/*")[0], text)
        lines = [line for line in text.splitlines(keepends=True) if not needs_more(line)]
        text = "".join(lines)
        text = re.sub(r"\bmax_rounds=\d+", "max_rounds=2", text) if self.small else text
        file.write_text(text, encoding="utf-8")
        said = self._done(f"{__file__}:run_python", ["python", "block.py"])
        file.unlink()
        if said.code == 0:
            compare_prints(text, said.out)
        return said

    def _done(self, place, words):
        files = [f"{self._beside}.{name}" for name in ("said", "complained")]
        self._connection.send((place, words, str(self.folder), files))
        assert self._connection.poll(3600), f"{words} works after an hour still"
        code = self._connection.recv()
        out, err = (Path(file).read_text(encoding="utf-8") for file in files)
        return Said(code, out, err)

    def _expanded(self, word):
        """A word as a shell passes it, with the run that the page means by RUN."""
        word = re.sub(r"\bRUN\b", self.run, word)
        found = sorted(glob.glob(word, root_dir=self.folder)) if set("*") & set(word) else []
        return found or [word]


def needs_more(line):
    """Tell whether a line of Python says that it needs a package that is not installed."""
    needed = re.search(r"#.*\bneeds (\w+)\s*$", line)
    return needed is not None and importlib.util.find_spec(needed[1]) is None


def dated_runs(page):
    """Name the run folders that a page names, with their configs."""
    return {match[0]: match[1] for match in _DATED.finditer(page)}


def compare_prints(code, out):
    """Compare what `print` printed with the number that the comment behind it begins with, to its last digit."""
    shown = [
        re.match(r"-?\d+(?:\.\d+)?", comment.strip())
        for line in code.splitlines()
        if line.startswith("print(")
        for _, _, comment in [line.rpartition("  # ")]
    ]
    lines = out.splitlines()
    assert len(lines) >= len(shown), "the block prints less than it shows"
    for number, line in zip(shown, lines, strict=False):
        if number is not None:
            printed = float(re.search(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", line)[0])
            digits = len(number[0].partition(".")[2])
            assert round(printed, digits) == float(number[0]), f"the page says {number[0]}, and printed is {line}"


def serve(connection):
    """Start a fork for each request, and say how it has ended."""
    from dfl_lightning.cli.resolve import resolve

    places = list(sys.path)
    resolve(["--config=afind"])
    sys.path[:] = places
    while request := connection.recv():
        pid = os.fork()
        if pid == 0:
            connection.close()
            forked._begin(*request, dict(os.environ), ())
        connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def run_python():
    """`python FILE` and `python -m MODULE …` in this process."""
    import runpy

    sys.path.insert(0, os.getcwd())
    if sys.argv[1] == "-m":
        name, sys.argv = sys.argv[2], sys.argv[2:]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
