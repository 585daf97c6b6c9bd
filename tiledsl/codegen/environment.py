"""The Jinja environment of the emitted text, and the device headers that go with it.

Templates write variables as `${ x }`: with Jinja's default, C++ text such as `{{0}}` would change
silently. An undefined variable is an error.
"""

from __future__ import annotations

import contextlib
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.bccache import BytecodeCache

__all__ = ["environment", "headers", "render", "template_root"]


@cache
def template_root() -> Path:
    """The folder of the templates: packaged in an installed wheel, else the repository's own."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_templates"
    return packaged if packaged.is_dir() else package.parent / "templates"


@cache
def environment() -> Environment:
    """The one environment of the process; templates are read and compiled on first use.

    What they are compiled to is kept as Python keeps its own modules'.
    """
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
        bytecode_cache=_bytecode_cache(template_root() / "__pycache__"),
    )


def _bytecode_cache(folder: Path) -> BytecodeCache:
    """Compiled templates in a folder, as Python keeps its modules: written where Python writes any.

    A file serves one version of Python and of Jinja, and one text of its template. One that is
    damaged is made again.
    """
    import jinja2
    from jinja2.bccache import Bucket
    from jinja2.bccache import FileSystemBytecodeCache

    class Cache(FileSystemBytecodeCache):
        def load_bytecode(self, bucket: Bucket) -> None:
            try:
                super().load_bytecode(bucket)
            except Exception:  # whatever unpickling a damaged file raises
                bucket.reset()

        def dump_bytecode(self, bucket: Bucket) -> None:
            if sys.dont_write_bytecode:
                return
            with contextlib.suppress(OSError):  # a folder that cannot be written
                Path(self.directory).mkdir(parents=True, exist_ok=True)
                super().dump_bytecode(bucket)

    if sys.pycache_prefix is not None:
        folder = Path(sys.pycache_prefix, *folder.parts[1:])
    tag = f"{sys.implementation.cache_tag}-jinja{jinja2.__version__}"
    return Cache(str(folder), f"%s.{tag}.bin")


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
