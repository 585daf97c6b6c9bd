"""The Jinja environment of the emitted text, and the device headers that go with it.

Templates write variables as `${ x }`: with Jinja's default, C++ text such as `{{0}}` would change
silently. An undefined variable is an error.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["environment", "headers", "render", "template_root"]


@cache
def template_root() -> Path:
    """The folder of the templates: packaged in an installed wheel, else the repository's own."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_templates"
    return packaged if packaged.is_dir() else package.parent / "templates"


@cache
def environment() -> Environment:
    """The one environment of the process; templates are read and compiled on first use."""
    from jinja2 import Environment  # deferred: a launch from the cache never renders
    from jinja2 import FileSystemLoader
    from jinja2 import StrictUndefined

    return Environment(
        loader=FileSystemLoader(template_root()),
        undefined=StrictUndefined,
        variable_start_string="${",
        variable_end_string="}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        autoescape=False,
    )


@cache
def headers(*, debug: bool = False) -> tuple[tuple[str, str], ...]:
    """Include name and text of every device header, sorted: `("tiledsl/fence.cuh", "...")`.

    debug: as a debug build has them.
    """
    include = template_root() / "include"
    paths = sorted((include / "tiledsl").glob("*.cuh"))
    texts = {p.relative_to(include).as_posix(): p.read_text(encoding="utf-8") for p in paths}
    if debug:
        texts["tiledsl/build.cuh"] += "#define TDSL_DEBUG 1\n"
    return tuple(texts.items())


def render(template: str, **variables: object) -> str:
    """Renders a template by its path below the root, such as `generated/wgmma.cuh.j2`."""
    return environment().get_template(template).render(**variables)
