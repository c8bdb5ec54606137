"""A second process that draws: drawing holds the interpreter, so that a thread beside it would wait.

Both processes draw the same list of pictures from its two ends, and who first makes a picture's mark in their common
folder draws it. The second process is started anew: a copy of a process with threads can hang. What it leaves undone,
because it was killed for example, is done here, where an error in a picture is raised, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dfl_lightning.report.page.drawing import as_png
from dfl_lightning.report.page.scripts import packed, vega_script
from dfl_lightning.utils.cores import cores

_SCRIPT = "vega.txt"


class Helper:
    """The second process, from its start to the end of the `with` block; it begins with the page's script."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dfl-report-")
        self._process: subprocess.Popen[str] | None = None
        self._offered: list[dict[str, Any]] = []
        self._scale = 1.0
        if cores() > 1:
            pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
            command = [sys.executable, "-m", "dfl_lightning.report.page.helper", self._folder.name]
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, text=True)

    def __enter__(self) -> Helper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()

    def script(self) -> str:
        """The script that draws charts, packed for the page."""
        file = Path(self._folder.name) / _SCRIPT
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.readline()  # when it is written, or nothing where the process has ended
        return file.read_text(encoding="ascii") if file.exists() else packed(vega_script())

    def offer(self, specs: Sequence[dict[str, Any]], scale: float) -> None:
        """Name the pictures; the second process begins with them as soon as it has made the script.

        Args:
            specs: of Vega-Lite.
            scale: pixels for one of a chart.
        """
        self._offered, self._scale = list(specs), scale
        if self._process is not None:
            for at, spec in enumerate(specs):
                (Path(self._folder.name) / f"{at}.json").write_text(json.dumps(spec), encoding="utf-8")
            self._tell(f"{len(specs)} {scale!r}\n")

    def draw(self) -> list[bytes]:
        """PNGs of the charts that were offered, in their order."""
        folder, specs, scale = Path(self._folder.name), self._offered, self._scale
        drawn = {at: as_png(spec, scale) for at, spec in enumerate(specs) if _take(folder, at)}
        if self._process is not None:
            self._process.communicate()
        pictures = [folder / f"{at}.png" for at in range(len(specs))]
        return [
            drawn[at] if at in drawn else picture.read_bytes() if picture.exists() else as_png(specs[at], scale)
            for at, picture in enumerate(pictures)
        ]

    def _tell(self, words: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(words)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait()  # it has ended; the script and all pictures are made here


def _take(folder: Path, at: int) -> bool:
    """Whether a picture is not taken yet; then it is the caller's."""
    try:
        (folder / f"{at}.taken").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _write(file: Path, content: bytes) -> None:
    """A file that is there only when it is whole."""
    unfinished = file.with_suffix(".part")
    unfinished.write_bytes(content)
    unfinished.rename(file)


def main(folder: Path) -> None:
    """The second process: the script, then pictures from the last one on, where any are asked for."""
    _write(folder / _SCRIPT, packed(vega_script()).encode("ascii"))
    print("script", flush=True)
    words = sys.stdin.readline().split()
    if words:
        for at in reversed(range(int(words[0]))):
            if _take(folder, at):
                spec = json.loads((folder / f"{at}.json").read_text(encoding="utf-8"))
                _write(folder / f"{at}.png", as_png(spec, float(words[1])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
