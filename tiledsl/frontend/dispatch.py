"""One handler per AST node: registration, evaluation of expressions, execution of blocks."""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from tiledsl.errors import SourceLoc
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.liveness import assigned
from tiledsl.frontend.scope import POISON
from tiledsl.frontend.scope import Frame
from tiledsl.frontend.scope import Poisoned
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_sequence


@dataclass(frozen=True, eq=False)
class Return:
    """A block ended in a return statement."""

    value: object
    loc: SourceLoc | None = None


class ReturnsEarly(Exception):
    """A return was reached in a branch at run time; the `if` has to be lowered in another way."""


class Jump(Enum):
    """A block ended in a break or continue of a loop that is being expanded."""

    BREAK = "break"
    CONTINUE = "continue"


Signal = Return | Jump | None
T = TypeVar("T")
N = TypeVar("N", bound=ast.AST)

_EXPRESSIONS: dict[type[ast.AST], Callable[[Frame, ast.AST], object]] = {}
_STATEMENTS: dict[type[ast.AST], Callable[[Frame, ast.AST], Signal]] = {}

# What messages call the nodes that have no handler.
_CONSTRUCTS = {
    "AsyncFor": "async for",
    "AsyncFunctionDef": "async def",
    "AsyncWith": "async with",
    "Await": "await",
    "ClassDef": "a class definition",
    "Delete": "del",
    "Dict": "a dict",
    "DictComp": "a dict comprehension",
    "FunctionDef": "a nested function",
    "GeneratorExp": "a generator expression",
    "Global": "global",
    "Import": "import",
    "ImportFrom": "import",
    "Lambda": "lambda",
    "ListComp": "a list comprehension",
    "Match": "match",
    "NamedExpr": "the operator :=",
    "Nonlocal": "nonlocal",
    "Set": "a set",
    "SetComp": "a set comprehension",
    "Starred": "a starred expression",
    "Try": "try",
    "TryStar": "try",
    "With": "with",
    "Yield": "yield",
    "YieldFrom": "yield from",
}
_HINTS = {
    "ClassDef": "define it outside the kernel",
    "Dict": "use a tuple, or constexpr parameters",
    "FunctionDef": "define the helper at module level; kernels inline the functions they call",
    "GeneratorExp": "use a tuple, or a loop over tl.static_range",
    "Import": "import at module level",
    "ImportFrom": "import at module level",
    "Lambda": "define a function at module level; kernels inline the functions they call",
    "ListComp": "use a tuple, or a loop over tl.static_range",
    "Match": "use if and elif",
    "NamedExpr": "assign in a statement of its own",
    "Try": "a kernel raises no exceptions; use tl.static_assert for compile-time conditions",
}


def expression(
    kind: type[N],
) -> Callable[[Callable[[Frame, N], object]], Callable[[Frame, N], object]]:
    """Registers the handler of an expression node."""

    def register(handler: Callable[[Frame, N], object]) -> Callable[[Frame, N], object]:
        _EXPRESSIONS[kind] = handler  # type: ignore[assignment]
        return handler

    return register


def statement(
    kind: type[N],
) -> Callable[[Callable[[Frame, N], Signal]], Callable[[Frame, N], Signal]]:
    """Registers the handler of a statement node."""

    def register(handler: Callable[[Frame, N], Signal]) -> Callable[[Frame, N], Signal]:
        _STATEMENTS[kind] = handler  # type: ignore[assignment]
        return handler

    return register


def evaluate(frame: Frame, node: ast.expr) -> object:
    """The value of an expression: a `Value`, or a Python object known at compile time."""
    try:
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            raise not_supported(node)
        return handler(frame, node)
    except TileError as error:
        error.at(frame.loc(node))
        raise


def evaluate_all(frame: Frame, nodes: list[ast.expr]) -> tuple[object, ...]:
    """Values of expressions, those of a starred one each."""
    out: list[object] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            value = evaluate(frame, node.value)
            if not is_sequence(value):
                raise TypeMismatch(f"* needs a tuple, got {describe(value)}")
            out.extend(value)
        else:
            out.append(evaluate(frame, node))
    return tuple(out)


def run_block(frame: Frame, body: Sequence[ast.stmt]) -> Signal:
    """Executes statements in order until one leaves the block.

    A faulty statement is reported and leaves its variables poisoned, so that later independent
    faults show too.
    """
    for index, stmt in enumerate(body):
        frame.pending.append(body[index + 1 :])
        try:
            signal = _run(frame, stmt)
        except Poisoned:
            signal = _give_up(frame, stmt)
        except TileError as error:
            frame.session.report(error.at(frame.loc(stmt)))
            signal = _give_up(frame, stmt)
        finally:
            frame.pending.pop()
        if signal is not None:
            return signal
    return None


def _run(frame: Frame, stmt: ast.stmt) -> Signal:
    handler = _STATEMENTS.get(type(stmt))
    if handler is None:
        raise not_supported(stmt)
    return handler(frame, stmt)


def _give_up(frame: Frame, stmt: ast.stmt) -> Signal:
    frame.poison(assigned([stmt]))
    return Return(POISON) if isinstance(stmt, ast.Return) else None


def not_supported(node: ast.AST) -> SyntaxNotSupported:
    """The error for a construct outside the language."""
    kind = type(node).__name__
    return SyntaxNotSupported(
        f"{_CONSTRUCTS.get(kind, kind)} is not part of the language", hint=_HINTS.get(kind)
    )


def fold(function: Callable[..., T], *args: object) -> T:
    """Runs Python on compile-time values; what it raises becomes a TypeMismatch."""
    try:
        return function(*args)
    except TileError:
        raise
    except Exception as error:
        raise TypeMismatch(
            f"a compile-time expression fails: {type(error).__name__}: {error}"
        ) from None
