"""The text of a function as an AST whose positions are those of the file."""

from __future__ import annotations

import ast
import inspect
import linecache
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from types import FunctionType
from typing import Any

from tiledsl.errors import SourceLoc
from tiledsl.errors import SyntaxNotSupported

_cache: weakref.WeakKeyDictionary[FunctionType, FunctionSource] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class FunctionSource:
    """A function and its AST.

    lines: the text of the function; lines[0] is line `first_line` of the file.
    signature: parameters with their defaults.  memo: results of analyses of the AST, by name.
    """

    name: str
    file: str
    first_line: int
    lines: tuple[str, ...]
    node: ast.FunctionDef
    signature: inspect.Signature
    memo: dict[str, Any] = field(default_factory=dict[str, Any])

    def loc(self, node: ast.AST, caller: SourceLoc | None = None) -> SourceLoc:
        """The span of a node; of a node over several lines, the part on the first."""
        line: int = getattr(node, "lineno", self.node.lineno)
        text = self._line(line)
        col = _characters(text, getattr(node, "col_offset", 0))
        end_line = getattr(node, "end_lineno", line)
        end = (
            _characters(text, getattr(node, "end_col_offset", 0)) if end_line == line else len(text)
        )
        return SourceLoc(self.file, line, col, end, self.name, caller)

    def _line(self, line: int) -> str:
        index = line - self.first_line
        return self.lines[index].rstrip() if 0 <= index < len(self.lines) else ""


def _characters(text: str, utf8_offset: int) -> int:
    """A column of the AST counts bytes; errors count characters."""
    return (
        utf8_offset if text.isascii() else len(text.encode()[:utf8_offset].decode(errors="replace"))
    )


def plain_function(fn: object) -> FunctionType | None:
    """The Python function behind a function or a `jit` object (its attribute `fn`), or None."""
    for _ in range(8):
        if isinstance(fn, FunctionType):
            return fn
        inner = getattr(fn, "fn", None)
        if inner is None:
            return None
        fn = inner
    return None


def source_of(fn: Callable[..., object]) -> FunctionSource:
    """The source of a function, parsed once per function.

    Raises: SyntaxNotSupported when there is no text, or it is not that of a `def`.
    """
    function = plain_function(fn)
    if function is None:
        raise SyntaxNotSupported(f"{fn!r} is not a Python function")
    found = _cache.get(function)
    if found is None:
        found = _cache[function] = _parse(function)
    return found


def place_of(fn: Callable[..., object]) -> SourceLoc | None:
    """Where a function is defined: its name, or its first line where there is no text."""
    function = plain_function(fn)
    if function is None:
        return None
    name, code = function.__name__, function.__code__
    try:
        found = source_of(function)
    except SyntaxNotSupported:
        return SourceLoc(code.co_filename, code.co_firstlineno, function=name)
    loc = found.loc(found.node)
    col = loc.col + len("def ")
    return replace(loc, col=col, end_col=col + len(name))


def _parse(function: FunctionType) -> FunctionSource:
    code = function.__code__
    if function.__name__ == "<lambda>":
        raise SyntaxNotSupported("a lambda cannot be part of a kernel", hint="write a def")
    file_lines = _lines_from(function)
    lines = _block(file_lines)
    try:
        body = _statements(lines, code.co_firstlineno)
    except SyntaxError:  # text that is less indented than the `def`, within brackets or a string
        lines = _exact_block(function, file_lines)
        try:
            body = _statements(lines, code.co_firstlineno)
        except SyntaxError as error:
            raise _no_text(function, f"its text does not parse ({error.msg})") from None
    node = body[0] if body else None
    if not isinstance(node, ast.FunctionDef) or node.name != function.__name__:
        raise _no_text(function, "the file has changed since it was imported")
    return FunctionSource(
        function.__name__,
        code.co_filename,
        code.co_firstlineno,
        tuple(lines),
        node,
        inspect.signature(function),
    )


def _statements(lines: list[str], first_line: int) -> list[ast.stmt]:
    """The statements of a text that begins at a line of its file. Raises SyntaxError."""
    # The block may be indented; under an `if` its columns stay those of the file.
    indented = lines[0][:1].isspace()
    before = first_line - 1 - indented
    tree = ast.parse("\n" * before + "if True:\n" * indented + "".join(lines))
    body: list[ast.stmt] = tree.body
    return body[0].body if indented and isinstance(body[0], ast.If) else body


def _block(lines: list[str]) -> list[str]:
    """The function at the top of some lines, by their indentation.

    Too few where a part of it is less indented than its `def`, and then these do not parse.
    """
    depth, end, in_def = len(lines[0]) - len(lines[0].lstrip()), 0, False
    for number, line in enumerate(lines, 1):
        text = line.lstrip()
        if not text:
            continue
        if in_def and len(line) - len(text) <= depth and text[0] not in ")]}":
            if text[0] == "#":
                continue
            break
        in_def = in_def or text.startswith(("def ", "async def "))
        end = number
    return lines[:end]


def _lines_from(function: FunctionType) -> list[str]:
    """The file of a function, from its first line on."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)[code.co_firstlineno - 1 :]
    if not lines:
        raise _no_text(function, f"{code.co_filename} cannot be read")
    return lines


def _exact_block(function: FunctionType, lines: list[str]) -> list[str]:
    """The function at the top of some lines, by their tokens."""
    try:
        return inspect.getblock(lines)
    except Exception:
        raise _no_text(function, "its text cannot be read") from None


def _no_text(function: FunctionType, why: str) -> SyntaxNotSupported:
    return SyntaxNotSupported(
        f"the source of {function.__name__!r} is not available: {why}",
        hint="define the function in a file or a notebook cell "
        "(text given to exec must be in linecache)",
    )
