"""What a kernel's code depends on beside its arguments: its text, helpers and captured values.

The digest is the part of the cache key that follows the source; the watched names tell a process
that a captured value was changed after the kernel was compiled.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType
from types import CellType
from types import CodeType
from types import FunctionType
from types import ModuleType
from typing import Any
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.errors import TileError
from tiledsl.frontend.source import plain_function
from tiledsl.frontend.source import source_of
from tiledsl.ir.markers import unwrap
from tiledsl.runtime.signature import dot_precision
from tiledsl.runtime.told import Watched
from tiledsl.runtime.told import changes_within

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class _Cell(dict[str, Any]):
    """A closure cell that is read like a namespace."""

    def __init__(self, cell: CellType) -> None:
        super().__init__()
        self.cell = cell

    def get(self, key: str, default: Any = None, /) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return default


class Precision(dict[str, Any]):
    """Torch's setting for float32 products, read like a namespace."""

    def get(self, key: str, default: Any = None, /) -> Any:
        return dot_precision()


@dataclass(frozen=True)
class Closure:
    """What code depends on beside its arguments.

    digest: of all texts and values.  watched: (namespace, name, value) of what was captured.
    has_dot: torch's setting for float32 products may matter. has_assert: there are assertions.
    """

    digest: str
    watched: tuple[Watched, ...]
    has_dot: bool = False
    has_assert: bool = False


def closure_of(fn: object) -> Closure:
    """The closure of a kernel. Raises TileError where there is no source text."""
    walk = _Walk()
    text = walk.function(fn)
    digest = hashlib.sha256("\0".join([text, *walk.texts]).encode()).hexdigest()
    found = [any(f"{name}(" in t for t in walk.texts) for name in ("dot", "device_assert")]
    return Closure(digest, tuple(walk.watched), *found)


def precision_watched() -> Watched:
    """Torch's setting for float32 products as something to watch."""
    return (Precision(), "", dot_precision())


def watched_in(constants: Iterable[object]) -> list[Watched]:
    """What code depends on beside constants themselves: what functions among them read."""
    walk = _Walk()
    for value in constants:
        walk.value(value)
    return walk.watched


def value_text(value: object) -> str:
    """A text that differs whenever two captured values or constants make different code."""
    walk = _Walk()
    text = walk.value(value)
    if not walk.texts:
        return text
    # A function: its text, and what it reaches.
    digest = hashlib.sha256("\0".join(walk.texts).encode()).hexdigest()
    return f"{text} {digest}"


class _Walk:
    """Collects texts and watched names over all functions that a kernel reaches."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []
        self.texts: list[str] = []
        self._seen: dict[FunctionType, str] = {}

    def function(self, fn: object) -> str:
        """A name for the function; its text and what it captures go to `texts`."""
        function = plain_function(fn)
        assert function is not None
        if function in self._seen:
            return self._seen[function]
        name = self._seen[function] = f"function {len(self._seen)} {function.__qualname__}"
        try:
            source = source_of(function)
        except TileError:
            self.texts.append(f"{name}: {function.__code__.co_code.hex()}")
            return name
        place = f"{source.file.rsplit('/', 1)[-1]}:{source.first_line}"
        self.texts.append(f"{name} at {place}\n{''.join(source.lines)}")
        for default in (function.__defaults__ or (), function.__kwdefaults__ or {}):
            self.texts.append(f"{name} defaults {self.value(default)}")
            for value in default.values() if isinstance(default, dict) else default:
                self.watched += changes_within(value)
        self._names(function, source.node, name)
        return name

    def _names(self, function: FunctionType, node: ast.FunctionDef, owner: str) -> None:
        """Captured names, in the order of the text."""
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        outside = _global_names(function.__code__)
        done: set[str] = set()
        for found, evaluated_before in _parts(node):
            chain = _chain(found)
            if chain is None or ".".join(chain) in done:
                continue
            root = chain[0]
            if root not in cells and root not in outside and not evaluated_before:
                continue
            done.add(".".join(chain))
            space = _Cell(cells[root]) if root in cells else function.__globals__
            if root in cells or root in space:
                self._captured(space, chain, owner)

    def _captured(self, space: Mapping[str, Any], chain: tuple[str, ...], owner: str) -> None:
        value: object = self
        found: list[Watched] = []
        for place, name in enumerate(chain):
            value = space.get(name, self)
            if value is self:
                return
            found.append((space, name, value))
            if not isinstance(value, ModuleType | type) or place + 1 == len(chain):
                break
            if isinstance(value, ModuleType) and value.__name__.split(".")[0] == "tiledsl":
                return
            space = cast("Mapping[str, Any]", vars(value))
        if isinstance(value, ModuleType):
            return
        self.texts.append(f"{owner} reads {'.'.join(chain)} = {self.value(value)}")
        self.watched += [*found, *changes_within(value)]

    def value(self, value: object) -> str:
        """The text of a value."""
        value = unwrap(value)
        if isinstance(value, Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, DType):
            return f"dtype {value.name}"
        if isinstance(value, tuple | list):
            items = cast("tuple[object, ...]", value)
            kind = type(items).__name__
            return f"{kind}({', '.join(map(self.value, items))})"
        if isinstance(value, dict):
            pairs = cast("dict[object, object]", value).items()
            return "{" + ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in pairs) + "}"
        if plain_function(value) is not None:
            return self.function(value)
        if isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        return _other(value)


def _other(value: object) -> str:
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return kind if " at 0x" in text else f"{kind} {text}"


def _global_names(code: CodeType, around: Set[str] = frozenset()) -> set[str]:
    """Names that a function may read from its module: those that are no variables of its own."""
    own = {*around, *code.co_varnames, *code.co_cellvars}
    found = {*code.co_names} - own
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= _global_names(inner, own)
    return found


def _parts(node: ast.FunctionDef) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes of a function without its decorators; whether they belong to an annotation.

    Annotations are evaluated outside of the function.
    """
    before: set[int] = set()
    for part in ast.walk(node):
        for name in ("annotation", "returns"):
            annotation: ast.AST | None = getattr(part, name, None)
            if annotation is not None:
                before |= {id(found) for found in ast.walk(annotation)}
    for part in (node.args, *node.body, *([node.returns] if node.returns else [])):
        for found in ast.walk(part):
            yield found, id(found) in before


def _chain(node: ast.AST) -> tuple[str, ...] | None:
    """`a.b.c` of a read name as ("a", "b", "c")."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return (node.id, *reversed(parts))
    return None
