"""Pages of the documentation site in addition to docs/: README as its start, the reference, and the notebook.

A hook of mkdocs (`mkdocs.yml`). The reference of the configuration comes from the classes that a config names, that of
Python from docstrings, so that neither can say something else than the code.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that lie at the top of the checkout, by their place on the site."""

NOTEBOOK = "example.ipynb"
"""The notebook in docs/."""

PYTHON = {
    "dfl_lightning": [
        *("module.DFLModule", "trainer.DFLTrainer", "runs.reading.read_run", "bench.study.reading.read_study"),
    ],
    "callbacks": ["callbacks"],
    "objectives": ["objectives", "engines.local_work"],
    "round": ["round", "round.fields.RoundFields", "round.messages.RoundMessages", "round.federation.Federation"],
    "functional": ["functional"],
    "data": ["data"],
    "models": ["models"],
    "topology": ["topology"],
    "report": ["bench.report"],
}
"""Pages of the Python reference, and what they explain; of a package its public names."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, place in MOVED.items():
        _add(files, config, place, page_of((ROOT / source).read_text(encoding="utf-8")))
    for name, content in PYTHON.items():
        _add(files, config, f"reference/{name}.md", python_page(name, content))
    _add(files, config, "reference/configuration.md", configuration_page())
    text, pictures = notebook_page(json.loads((ROOT / "docs" / NOTEBOOK).read_text(encoding="utf-8")))
    _add(files, config, NOTEBOOK.replace(".ipynb", ".md"), text)
    for name, picture in pictures.items():
        files.append(File.generated(config, name, content=picture))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links to the notebook by links to its page."""
    return markdown.replace(f"]({NOTEBOOK})", f"]({NOTEBOOK.replace('.ipynb', '.md')})")


def notebook_page(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Convert a notebook to a page with the outputs of its cells, and its pictures by file name.

    Args:
        notebook: of nbformat 4.
    """
    parts, pictures = [], {}
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = output.get("data", {})
            if "image/png" in shown:
                name = f"images/notebook-{number}.png"
                pictures[name] = base64.b64decode("".join(shown["image/png"]))
                parts.append(f"![{source.splitlines()[-1]}]({name})")
            else:
                parts.append(f"```text\n{''.join(shown.get('text/plain', output.get('text', '')))}\n```")
    parts.insert(1, f'<a href="../{NOTEBOOK}" download>The notebook as a file</a>')
    return "\n\n".join(parts) + "\n", pictures


def page_of(text: str) -> str:
    """Adapt the links of a page from the top of the checkout to the site."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, place in MOVED.items():
        text = text.replace(f"]({source}", f"]({place}")
    return text


def python_page(name: str, content: list[str]) -> str:
    """Write the source of a page for mkdocstrings: each public name by itself."""
    lines = [f"# {name if name == 'dfl_lightning' else f'dfl_lightning.{name}'}", ""]
    for path in content:
        lines += [f"::: dfl_lightning.{found}\n" for found in _public(path)]
    return "\n".join(lines)


def _public(path: str) -> Iterator[str]:
    """List a class or function itself, or all exports of a package, by the path that users import."""
    if path.rpartition(".")[2][0].isupper() or "read_" in path:
        yield path
        return
    package = importlib.import_module(f"dfl_lightning.{path}")
    names = getattr(package, "__all__", None)
    for name in names if names is not None else vars(package):
        home = getattr(getattr(package, name), "__module__", "")
        if home.startswith("dfl_lightning.") if names is not None else home == package.__name__ and name[0] != "_":
            yield f"{path}.{name}"


def configuration_page() -> str:
    """Write the page of all keys of a config, with type, default and meaning."""
    from dfl_lightning.cli.arguments import SECTIONS
    from dfl_lightning.cli.classes.registry import GROUPS, first_line, parameters_of, shipped_classes
    from dfl_lightning.cli.help.options import descriptions, options_of
    from dfl_lightning.cli.keys import KEYS
    from dfl_lightning.module import DFLModule
    from dfl_lightning.topology.reading.spec import KEYS as TOPOLOGY_KEYS
    from dfl_lightning.trainer import DFLTrainer
    from dfl_lightning.trainer_options import NO_MEANING

    lines = [
        "# Configuration",
        "",
        "Every key of a config. The same names are options of the command line: `trainer: {max_rounds: 30}` is",
        "`--trainer.max_rounds 30`, and `selection: {class_path: AFIND, init_args: {nu: 0.5}}` is",
        "`--selection AFIND --selection.nu 0.5`. `dfl-fit --print_config` prints what a run would use.",
        "",
        "| key | what |",
        "|---|---|",
        *(f"| {_linked(name)} | {key.about} |" for name, key in KEYS.items()),
        "",
    ]
    for section, owner in (("trainer", DFLTrainer), ("model", DFLModule)):
        own = descriptions(owner, bases=False)
        lines += [f"## {section}", "", first_line(owner), ""]
        lines += _table(options_of({n: p for n, p in SECTIONS[section].items() if n in own}, owner))
        others = [name for name in SECTIONS[section] if name not in own and name not in NO_MEANING]
        lines += [f"Lightning's own: {', '.join(f'`{name}`' for name in others)}.", ""] if others else []
    lines += ["## topology", "", "A file, the name of a shipped topology, or a mapping with these keys", ""]
    lines += [f"([topologies](../topologies.md)): {', '.join(f'`{key}`' for key in TOPOLOGY_KEYS)}.", ""]
    for group in GROUPS:
        lines += [f"## {group}", ""]
        for name, cls in shipped_classes(group).items():
            lines += [f"### {group}: {name}", "", first_line(cls), ""]
            lines += _table(options_of(parameters_of(cls), cls)) or ["It has no options.", ""]
    return "\n".join(lines)


def _linked(key: str) -> str:
    """Format a top-level key, with a link to its section if it has one."""
    return f"`{key}`" if key in ("seed_everything", "engine") else f"[`{key}`](#{key})"


def _table(options: list[Any]) -> list[str]:
    if not options:
        return []
    lines = ["| option | takes | default | meaning |", "|---|---|---|---|"]
    for option in options:
        default = "required" if option.required else "" if option.default is None else f"`{option.default}`"
        kind = f"`{option.kind}`" if option.kind else ""
        cells = (f"`{option.name}`", kind, default, option.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _add(files: Files, config: MkDocsConfig, place: str, text: str) -> None:
    files.append(File.generated(config, place, content=text))
