"""Who knows an op: functions registered per opcode by the modules of `codegen/contexts/`.

A context function turns an op into a flat frozen dataclass for the macro of the op's name (or into
None when the op leaves no text); an enter function runs before the regions of an op are rendered.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from tiledsl.errors import CodegenError
from tiledsl.errors import SourceLoc
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value

__all__ = [
    "Builder", "Tie", "context_of", "emits", "enter_of", "enters", "may_overwrite", "overwrites",
    "reads_at_its_own_place", "ties_of", "yield_of", "yields_to",
]  # fmt: skip

F = TypeVar("F")
G = TypeVar("G", bound=Callable[..., object])
Ties = TypeVar("Ties", bound=Callable[..., "tuple[Tie, ...]"])
Test = TypeVar("Test", bound=Callable[..., bool])
Builder = Callable[..., object]
Tie = tuple[Value, Value]

_contexts: dict[str, Builder] = {}
_enters: dict[str, Builder] = {}
_yields: dict[str, Builder] = {}
_ties: dict[str, Callable[..., tuple[Tie, ...]]] = {}
_safe: dict[str, Callable[..., bool]] = {}


def emits(*opcodes: str) -> Callable[[G], G]:
    """Registers `f(op, emission, *bodies) -> context | None` for opcodes."""

    def register(f: G) -> G:
        _register(_contexts, opcodes, f)
        return f

    return register


def enters(*opcodes: str) -> Callable[[G], G]:
    """Registers `f(op, emission)`, run before the regions of the op are rendered."""

    def register(f: G) -> G:
        _register(_enters, opcodes, f)
        return f

    return register


def yields_to(*opcodes: str) -> Callable[[G], G]:
    """Registers `f(yield_op, emission) -> context | None` for ends of these ops' regions."""

    def register(f: G) -> G:
        _register(_yields, opcodes, f)
        return f

    return register


def overwrites(*opcodes: str) -> Callable[[Ties], Ties]:
    """Registers `f(op) -> ((result, operand), ...)`.

    Results that live in an operand's registers.
    """

    def register(f: Ties) -> Ties:
        _register(_ties, opcodes, f)
        return f

    return register


def reads_at_its_own_place(*opcodes: str) -> Callable[[Test], Test]:
    """Registers `f(op, operand) -> bool`.

    Register i of the operand is only read before result i is written.
    """

    def register(f: Test) -> Test:
        _register(_safe, opcodes, f)
        return f

    return register


def context_of(op: Op) -> Builder:
    """The context function of an op.

    Raises:
        CodegenError: the op has no CUDA form.
    """
    return context_function(op.opcode, op.loc)


def context_function(opcode: str, loc: SourceLoc | None = None) -> Builder:
    """The context function of an opcode. Raises CodegenError where there is none."""
    _load()
    if opcode not in _contexts:
        raise CodegenError(f"{opcode} has no CUDA form", loc)
    return _contexts[opcode]


def enter_of(op: Op) -> Builder | None:
    """The function to run before an op's regions, if any."""
    _load()
    return _enters.get(op.opcode)


def yield_of(op: Op) -> Builder | None:
    """What a yield does in a region of `op`."""
    _load()
    return _yields.get(op.opcode)


def ties_of(op: Op) -> tuple[Tie, ...]:
    """(result, operand) pairs that have to share registers."""
    _load()
    return _ties[op.opcode](op) if op.opcode in _ties else ()


def may_overwrite(op: Op, operand: Value) -> bool:
    """Whether a result of `op` may take the registers of a tile operand that dies here."""
    _load()
    return op.opcode in _safe and _safe[op.opcode](op, operand)


def _register(table: dict[str, F], opcodes: tuple[str, ...], f: F) -> None:
    for opcode in opcodes:
        table[opcode] = f


@cache
def _load() -> None:
    package = importlib.import_module("tiledsl.codegen.contexts")
    for info in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{info.name}")
