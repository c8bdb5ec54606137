"""Filling of the page's templates with Jinja2, which escapes all texts for HTML."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@cache
def _environment() -> Environment:
    """Create the environment of the templates; a template that uses a value which it does not get raises."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("dfl_lightning.bench.report.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def fill(template: str, **values: Any) -> Markup:
    """Fill a template and return its HTML, which other templates do not escape again.

    Args:
        template: name of a file in this folder.
        values: values by their names in the template; texts are escaped, but not HTML that this function has returned.
    """
    from markupsafe import Markup

    return Markup(_environment().get_template(template).render(values))
