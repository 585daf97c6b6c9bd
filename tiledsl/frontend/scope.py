"""Names to values: the frame of a function being lowered, and what a kernel may capture."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from enum import Enum
from types import BuiltinFunctionType
from types import FunctionType
from types import ModuleType
from typing import NoReturn

from tiledsl.dtypes import DType
from tiledsl.errors import NameUnresolved
from tiledsl.errors import Note
from tiledsl.errors import SourceLoc
from tiledsl.errors import StaticFailure
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.hints import did_you_mean
from tiledsl.frontend.source import FunctionSource
from tiledsl.frontend.source import plain_function
from tiledsl.frontend.unsupported import capture_hint
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import Builtin
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.markers import constexpr
from tiledsl.ir.markers import unwrap
from tiledsl.ir.operands import is_sequence

MAX_ERRORS = 20
MAX_COPIES = 32

_CAPTURED: tuple[type, ...] = (
    Auto,
    BuiltinFunctionType,
    Builtin,
    DType,
    Enum,
    FunctionType,
    ModuleType,
    bool,
    constexpr,
    float,
    int,
    str,
    type,
)

# Python's own functions that kernels may use; what they mean is in calls.py.
PYTHON_BUILTINS = (
    "abs", "bool", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "pow",
    "print", "range", "reversed", "round", "str", "sum", "tuple", "zip",
)  # fmt: skip


class Poisoned(Exception):
    """A value that an earlier error left undefined was read; the statement is given up."""


class TooManyErrors(Exception):
    """Ends the run of the frontend."""


class _Poison:
    def __repr__(self) -> str:
        return "<poisoned>"


POISON = _Poison()


@dataclass(frozen=True)
class Undefined:
    """A variable that has no value here. reason: the sentence of the error on reading it."""

    reason: str
    loc: SourceLoc | None = None
    hint: str | None = None


@dataclass(frozen=True)
class LoopFrame:
    """A loop being lowered. branches: how many run-time `if`s of the function surround it."""

    at_run_time: bool
    branches: int


@dataclass
class Session:
    """One run of the frontend.

    captures: globals, closure variables and attributes of modules read, by (owner, name).
    copies: how often the rest of a function was lowered more than once.
    """

    graph: TileGraph
    builder: Builder
    errors: list[TileError] = field(default_factory=list[TileError])
    captures: dict[tuple[str, str], object] = field(default_factory=dict[tuple[str, str], object])
    copies: int = 0

    def count_copy(self) -> None:
        """Bounds how often the rest of a function is repeated because both branches go on."""
        self.copies += 1
        if self.copies > MAX_COPIES:
            raise SyntaxNotSupported(
                "too many paths lead to the rest of the function",
                hint="let a branch that returns do so at its end, or keep the result in a variable",
            )

    def capture(self, owner: str, name: str, value: object) -> object:
        """Notes a value from outside the kernel, on which the compiled code depends; returns it."""
        if not isinstance(value, ModuleType):
            self.captures[owner, name] = value
        return value

    def report(self, error: TileError) -> None:
        """Keeps an error; raises TooManyErrors when there are enough, or it is a StaticFailure."""
        if not any(e.message == error.message and e.loc == error.loc for e in self.errors):
            self.errors.append(error)
        if len(self.errors) >= MAX_ERRORS or isinstance(error, StaticFailure):
            raise TooManyErrors

    def raise_errors(self) -> None:
        """Raises the first error, if there is one, with the others as its notes."""
        if not self.errors:
            return
        first, *others = self.errors
        for other in others:
            hint = f"; hint: {other.hint}" if other.hint else ""
            first.notes.append(Note(f"also: {other.message}{hint}", other.loc))
        if len(self.errors) >= MAX_ERRORS:
            first.note(f"only the first {MAX_ERRORS} errors are shown")
        raise first


class Frame:
    """The lowering of one call of one function.

    variables: local names; a compile-time value is a plain Python object, a run-time one a `Value`.
    caller, parent: where and by whom the function was called (None for the kernel).
    pending: for each block around the current statement, outermost first, the statements that
    follow in it.
    loops: the loops around the current statement, outermost first.
    branches: how many run-time `if`s surround the current statement.
    may_return: whether a return statement may stand here; False in branches that are expected to
    join again.
    assigned_by: the target that last assigned a variable.
    """

    def __init__(
        self,
        function: FunctionType,
        source: FunctionSource,
        session: Session,
        *,
        caller: SourceLoc | None = None,
        parent: Frame | None = None,
    ) -> None:
        self.function = function
        self.source = source
        self.session = session
        self.builder = session.builder
        self.caller = caller
        self.parent = parent
        self.variables: dict[str, object] = {}
        self.pending: list[Sequence[ast.stmt]] = []
        self.loops: list[LoopFrame] = []
        self.branches = 0
        self.may_return = True
        self.assigned_by: dict[str, ast.AST] = {}
        self._locs: dict[ast.AST, SourceLoc] = {}

    def loc(self, node: ast.AST) -> SourceLoc:
        """The place of a node, with the calls that led to it."""
        found = self._locs.get(node)
        if found is None:
            found = self._locs[node] = self.source.loc(node, self.caller)
        return found

    def mark(self, node: ast.AST) -> Builder:
        """Gives ops made from now on the place of a node; returns the builder."""
        self.builder.loc = self.loc(node)
        return self.builder

    def read(self, name: str) -> object:
        """The value of a name. Raises NameUnresolved, or Poisoned."""
        found = self.variables.get(name, self)
        if found is self:
            return self._captured(name)
        if found is POISON:
            raise Poisoned
        if isinstance(found, Undefined):
            error = NameUnresolved(f"{name!r} is not defined here: {found.reason}", hint=found.hint)
            raise error.note("the last assignment is here", found.loc) if found.loc else error
        return found

    def in_run_time_loop(self) -> bool:
        """Whether a loop at run time surrounds the current statement."""
        return any(loop.at_run_time for loop in self.loops)

    @contextmanager
    def loop(self, *, at_run_time: bool) -> Generator[None]:
        """The body of a loop."""
        self.loops.append(LoopFrame(at_run_time, self.branches))
        try:
            yield
        finally:
            self.loops.pop()

    @contextmanager
    def branch(self, *, may_return: bool) -> Generator[None]:
        """A branch of a run-time `if`, with its own copy of the variables."""
        saved = (self.variables, self.may_return)
        self.variables, self.may_return = dict(self.variables), may_return
        self.branches += 1
        try:
            yield
        finally:
            self.branches -= 1
            self.variables, self.may_return = saved

    def assignment_of(self, name: str) -> SourceLoc | None:
        """Where a variable was last assigned."""
        node = self.assigned_by.get(name)
        return self.loc(node) if node is not None else None

    def is_defined(self, name: str) -> bool:
        """Whether a local variable has a value (or had one before an error)."""
        return name in self.variables and not isinstance(self.variables[name], Undefined)

    def poison(self, names: Iterable[str]) -> None:
        """Leaves variables without a value, so that reading them raises no second error."""
        for name in names:
            self.variables[name] = POISON

    # ------------------------------------------------------------------ outside the function
    def _captured(self, name: str) -> object:
        function = self.function
        code = function.__code__
        if name in code.co_freevars:
            cell = (function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                value: object = cell.cell_contents
            except ValueError:
                raise NameUnresolved(
                    f"{name!r} has no value yet in the function around this one"
                ) from None
        elif name in code.co_varnames:
            self._unassigned(name)
        elif name in function.__globals__:
            value = function.__globals__[name]
        elif name in PYTHON_BUILTINS:
            return getattr(builtins, name)
        else:
            self._unknown(name)
        return self._capture(name, value)

    def _capture(self, name: str, value: object) -> object:
        value = unwrap(value)
        if not may_capture(value):
            raise TypeMismatch(
                f"{name!r} is a {type(value).__name__}, which a kernel cannot capture",
                hint=capture_hint(value),
            )
        return self.session.capture(self.function.__qualname__, name, value)

    def _unassigned(self, name: str) -> NoReturn:
        raise NameUnresolved(f"{name!r} is read before it is assigned")

    def _unknown(self, name: str) -> NoReturn:
        if hasattr(builtins, name):
            raise NameUnresolved(f"Python's {name!r} cannot be used in a kernel")
        known = [
            *self.variables,
            *self.function.__code__.co_freevars,
            *self.function.__globals__,
            *PYTHON_BUILTINS,
        ]
        raise NameUnresolved(f"unknown name {name!r}", hint=did_you_mean(name, known))


def may_capture(value: object) -> bool:
    """Whether a value from outside the kernel may be used in it."""
    if is_sequence(value):
        return all(may_capture(v) for v in value)
    if value is None or isinstance(value, _CAPTURED):
        return True
    return plain_function(value) is not None
