"""Writes docs/language.md from the docstrings of the language.

python scripts/language_reference.py [--check]: with --check nothing is written, and the exit status
says whether the page is current.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import tiledsl.language as tl
from tiledsl.dtypes import ALL
from tiledsl.dtypes import FOREIGN
from tiledsl.ir import builtin
from tiledsl.ir.builtin import Builtin
from tiledsl.ir.op import registry
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType

PAGE = Path(__file__).parents[1] / "docs" / "language.md"
WIDTH = 100

# Section titles by the module that defines a function; modules of one title share a section.
SECTIONS = {
    "program": "Programs and compile time",
    "host_functions": "Programs and compile time",
    "control": "Loops",
    "tile": "Making and reshaping tiles",
    "tile_functions": "Making and reshaping tiles",
    "pointer_functions": "Pointers",
    "block_functions": "Block pointers and descriptors",
    "atomic_functions": "Atomics",
    "elementwise_functions": "Elementwise",
    "elementwise_library": "Elementwise",
    "elementwise_hints": "Hints",
    "reduce_functions": "Reductions",
    "scan": "Scans and sorts",
    "sort": "Scans and sorts",
    "mma": "Matrix products",
    "mma_scaled": "Matrix products",
    "elementwise_random": "Random numbers",
    "tile_asm": "Assembly and functions of scalars",
    "debug": "Debugging",
}
INTRODUCTION = """# Language reference

Made from the docstrings by `scripts/language_reference.py`; change them, not this page. What the
values mean is in [semantics.md](semantics.md), how kernels are written in [guide.md](guide.md).

Names are those of `import tiledsl.language as tl`. A function marked *method* can be written
`x.name(...)`, with the tile (or scalar, or tensor) as its first argument.
"""


def main() -> int:
    """Writes or checks the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """The whole page."""
    sections: dict[str, list[str]] = {title: [] for title in SECTIONS.values()}
    names = importlib.import_module("tiledsl.language.names")
    for name in names.__all__:
        found = getattr(names, name)
        if isinstance(found, Builtin):
            sections[_section(found)].append(_entry(f"tl.{name}", found))
    parts = [INTRODUCTION, _dtypes(), _tensors()]
    parts += [f"## {title}\n\n" + "\n".join(entries) for title, entries in sections.items()]
    parts += [_listed("tl.math", "tiledsl.language.math", set(names.__all__))]
    parts += [_listed("tl.extra.cuda", "tiledsl.language.extra.cuda", set())]
    parts += [_library()]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _section(function: Builtin[..., object]) -> str:
    return SECTIONS[function.fn.__module__.rpartition(".")[2]]


def _entry(spelled: str, function: Builtin[..., object]) -> str:
    kinds = _method_of(function)
    note = f" *method of {kinds}*" if kinds else ""
    return f"### `{spelled}{_signature(function)}`{note}\n\n{_text(function)}\n"


def _signature(function: Builtin[..., object]) -> str:
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters))


def _method_of(function: Builtin[..., object]) -> str:
    """Kinds of values that have the function as a method."""
    names = {TileType: "tiles", ScalarType: "scalars", TensorType: "tensors"}
    methods = builtin._METHODS
    kinds = {type_ for (type_, _), made in methods.items() if made is function}
    return ", ".join(text for type_, text in names.items() if type_ in kinds)


def _text(documented: object) -> str:
    """A docstring as markdown: code in backticks stays, lines are joined into paragraphs."""
    doc = inspect.getdoc(documented) or ""
    return "\n\n".join(" ".join(block.split()) for block in re.split(r"\n\s*\n", doc))


def _dtypes() -> str:
    rows = [f"| `tl.{d.user_name}` | {d.kind} | {d.bits} |" for d in ALL]
    foreign = ", ".join(f"`tl.{d.user_name}`" for d in FOREIGN)
    return "\n".join(
        [
            "## Types\n",
            "| name | kind | bits |",
            "| --- | --- | --- |",
            *rows,
            f"\n{foreign} exist as names only: they are formats of other hardware. Pointers have",
            "the type `tl.pointer_type(element)`.",
        ]
    )


def _tensors() -> str:
    registry()
    out = ["## Tensor parameters\n", _text(tl.Tensor), ""]
    for name in ("load", "store", "stride"):
        found = builtin._METHODS[TensorType, name]
        out.append(
            f"### `a.{name}{_signature(found).replace('tensor, ', '', 1)}`\n\n{_text(found)}\n"
        )
    constants = f"{_text(tl.constexpr)}\n\n{_text(type(tl.auto))}"
    out.append(f"## `tl.constexpr`, `tl.auto`\n\n{constants}\n")
    return "\n".join(out)


def _listed(title: str, module_name: str, known: set[str]) -> str:
    """Functions of a module that are not on the page yet; the others by name."""
    module = importlib.import_module(module_name)
    new = [n for n in module.__all__ if n not in known and not _is_module(getattr(module, n))]
    library = importlib.import_module("tiledsl.language.extra.libdevice")
    own = [n for n in new if getattr(library, n, None) is not getattr(module, n)]
    entries = [
        _entry(f"{title}.{n}", getattr(module, n))
        for n in own
        if isinstance(getattr(module, n), Builtin)
    ]
    same = [f"`{n}`" for n in module.__all__ if n not in own and not _is_module(getattr(module, n))]
    lead = f"Also here: {', '.join(same)}.\n" if same else ""
    return f"## `{title}`\n\n{lead}\n" + "\n".join(entries)


def _functions(module: ModuleType) -> list[str]:
    return [n for n, x in vars(module).items() if isinstance(x, Builtin)]


def _is_module(x: object) -> bool:
    return isinstance(x, ModuleType)


def _library() -> str:
    module = importlib.import_module("tiledsl.language.extra.libdevice")
    names = ", ".join(f"`{n}`" for n in sorted(_functions(module)))
    return f"## `libdevice`\n\n{_text(module)}\n\n{names}.\n"


if __name__ == "__main__":
    sys.exit(main())
