"""How a program gets from its number to its share of the work: what it multiplies the number by.

A constexpr whose values lead to different factors says how much of the work a program does, and so
how many programs there have to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.atomic import Rmw
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Div
from tiledsl.ir.ops.elementwise import FloorDiv
from tiledsl.ir.ops.elementwise import Fma
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.elementwise import Shl
from tiledsl.ir.ops.elementwise import Shr
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.elementwise import element_dtype
from tiledsl.ir.ops.elementwise_library import Function
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

PRODUCTS = (Mul, Shl, Fma, Function)
QUOTIENTS = (FloorDiv, Div, Mod, Shr, And)
SUMS = (Add, Sub, pointer.Add)

Factor = tuple[str, ...]
"""Constants and opcodes by which a number is computed, in a fixed order."""
Axes = frozenset[int]
NONE: Axes = frozenset()
TICKET = -1
"""The axis of numbers that programs draw."""


@dataclass(frozen=True)
class Shares:
    """How programs share out the work.

    factors: what numbers of programs are multiplied by, and indexes of programs are divided by, and
    integers of which they pick one, where a constant is part of it, along axes that programs do not
    walk along.
    suits_any: programs walk along all axes of the grid in steps of `tl.num_programs`, so that any
    number of them does all the work.
    constants: all of the graph, in order. accesses: how many elements they have, in order.
    """

    factors: frozenset[tuple[str, Factor]]
    suits_any: bool
    constants: tuple[str, ...]
    accesses: tuple[int, ...]


def shares_of(graph: TileGraph) -> Shares:
    """How the programs of a graph, as the frontend leaves it, share out the work."""
    counts = _reached(graph, {op.result: (op.axis,) for op in graph.find(NumPrograms)})
    seeds = _program_numbers(graph)
    numbers, indexes = _reached(graph, seeds), _reached(graph, seeds, counts)
    walked = _walked(graph, numbers, counts, indexes)
    axes = {axis for found in seeds.values() for axis in found}
    constants = sorted(str(op.value) for op in graph.find(Constant))
    accesses = [_elements(op) for op in graph.walk() if op.effect in (Effect.READ, Effect.WRITE)]
    return Shares(
        _factors(graph, numbers, indexes, walked),
        bool(axes) and axes <= walked,
        tuple(constants),
        tuple(sorted(accesses)),
    )


def _elements(op: Op) -> int:
    """Elements that an access reads or writes."""
    types = [v.type for v in (*op.operands, *op.results)]
    return max((t.num_elements for t in types if isinstance(t, TileType)), default=1)


def _program_numbers(graph: TileGraph) -> dict[Value, tuple[int, ...]]:
    """What tells programs apart, with the axes of the grid: their numbers, and tickets.

    A ticket is what an atomic counter gives to a program that draws one; in a loop programs draw
    until all is done.
    """
    found = {op.result: (op.axis,) for op in graph.find(ProgramId)}
    for op in graph.find(Rmw):
        if isinstance(op.result.type, ScalarType) and not any(
            o.is_loop for o in graph.enclosing(op)
        ):
            found[op.result] = (TICKET,)
    return found


def _factors(
    graph: TileGraph,
    numbers: Mapping[Value, Axes],
    indexes: Mapping[Value, Axes],
    walked: Axes,
) -> frozenset[tuple[str, Factor]]:
    found: set[tuple[str, Factor]] = set()
    for op in graph.walk():
        if isinstance(op, Select | If):
            if not numbers.get(op.condition, NONE) <= walked:
                found |= {(op.opcode, made) for v in _choices(op) if (made := _factor(v))}
            continue
        scaled = numbers if isinstance(op, PRODUCTS) else indexes
        if not isinstance(op, PRODUCTS + QUOTIENTS) or _is_rounding(op) or _is_logical(op):
            continue
        for at, value in enumerate(op.operands):
            if scaled.get(value, NONE) <= walked:
                continue
            others = [v for i, v in enumerate(op.operands) if i != at]
            found |= {(op.opcode, made) for v in others if (made := _factor(v))}
    return frozenset(found)


def _choices(op: Select | If) -> Iterator[Value]:
    """Integers of which the number of a program picks one: where it begins, maybe.

    Scalars: a tile's elements are picked by what lies in bounds.
    """
    found = (op.a, op.b) if isinstance(op, Select) else (*_yielded(op.then), *_yielded(op.orelse))
    for value in found:
        if isinstance(value.type, ScalarType) and value.type.dtype.is_int:
            yield value


def _factor(value: Value) -> Factor:
    """How a value is computed without reading memory; empty where no constant is part of it."""
    ops = [v.defining_op for v in _sources(value)]
    if not any(isinstance(op, Constant) for op in ops):
        return ()
    texts = (str(o.value) if isinstance(o, Constant) else o.opcode for o in ops if o is not None)
    return tuple(sorted(texts))


def _sources(value: Value) -> set[Value]:
    """A value and all that it is computed by without reading memory."""
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        made = waiting.pop()
        if made not in seen:
            seen.add(made)
            op = made.defining_op
            waiting += op.operands if op is not None and op.effect is Effect.PURE else ()
    return seen


def _is_rounding(op: Op) -> bool:
    """Whether a product is `x // n * n`: x itself but for what is left over."""
    if not isinstance(op, Mul):
        return False
    quotient = op.a.defining_op
    return isinstance(quotient, FloorDiv) and _factor(quotient.b) == _factor(op.b)


def _is_logical(op: Op) -> bool:
    """Whether an op joins conditions, such as masks."""
    return isinstance(op, And) and element_dtype(op.a, "&").kind == "bool"


def _walked(
    graph: TileGraph,
    numbers: Mapping[Value, Axes],
    counts: Mapping[Value, Axes],
    indexes: Mapping[Value, Axes],
) -> Axes:
    """Axes along which programs share out the work by how many they are.

    In steps of loops, in what an iteration adds to a carried value, or as a divisor of the work. A
    number of programs that an index of programs is multiplied by only numbers them through.
    """
    found = NONE
    for op in graph.walk():
        if isinstance(op, For):
            found |= counts.get(op.step, NONE)
        if isinstance(op, FloorDiv) and op.a not in indexes:
            found |= counts.get(op.b, NONE)
        for arg, after in _carried(op):
            step = after.defining_op
            if isinstance(step, SUMS) and arg in step.operands:
                for value in step.operands:
                    if value is not arg and value not in numbers:
                        found |= counts.get(value, NONE)
    return found


def _carried(op: Op) -> Iterator[tuple[Value, Value]]:
    """Arguments of a loop's body with their next values."""
    if isinstance(op, For | While) and (last := op.body.terminator) is not None:
        args = op.carried if isinstance(op, For) else op.body.args
        yield from zip(args, last.operands, strict=True)


# ---------------------------------------------------------------------- what follows from what
def _reached(
    graph: TileGraph,
    seeds: Mapping[Value, tuple[int, ...]],
    counts: Mapping[Value, Axes] | None = None,
) -> dict[Value, Axes]:
    """Values that are computed from seeds, with the axes of the grid.

    Not from memory, and not the index of a loop to an end that all programs share: they meet there,
    however many they are. counts: where given, only indexes of programs, not multiples of them;
    those with a number of programs number them through.
    """
    found = {value: frozenset(axes) for value, axes in seeds.items()}

    def give(value: Value, *sources: Value) -> bool:
        before = found.get(value, NONE)
        after = before.union(*(found.get(v, NONE) for v in sources))
        if after != before:
            found[value] = after
        return after != before

    changed = bool(found)
    while changed:
        changed = False
        for op in graph.walk():
            if counts is not None and _is_no_index(op, counts):
                continue
            for value, sources in _edges(op, found):
                changed |= give(value, *sources)
    return found


def _is_no_index(op: Op, counts: Mapping[Value, Axes]) -> bool:
    """Whether what an op makes of an index of programs is none: a multiple, or a condition."""
    if isinstance(op, PRODUCTS):
        return not any(v in counts for v in op.operands)
    return isinstance(op, Compare)


def _edges(op: Op, found: Mapping[Value, Axes]) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """Values that an op sets, with what they are computed from."""
    match op:
        case For():
            if op.upper in found:
                yield op.iv, (op.lower, op.step)
            for at, (arg, after) in enumerate(_carried(op)):
                yield arg, (op.init[at], after)
                yield op.results[at], (op.init[at], after)
        case While():
            yield from _while_edges(op, found)
        case If():
            for at, result in enumerate(op.results):
                ends = [_yielded(r)[at] for r in (op.then, op.orelse)]
                yield result, (op.condition, *ends)
        case _ if op.effect is Effect.PURE:
            for result in op.results:
                yield result, op.operands
        case _:
            pass


def _while_edges(
    op: While, found: Mapping[Value, Axes]
) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    condition, *handed = _yielded(op.before)
    again = _yielded(op.body)
    for at, arg in enumerate(op.before.args):
        if not _ends_alike(condition, arg, found):
            yield arg, (op.init[at], again[at])
        yield op.body.args[at], (handed[at],)
        yield op.results[at], (handed[at],)


def _ends_alike(condition: Value, arg: Value, found: Mapping[Value, Axes]) -> bool:
    """Whether a loop ends where a carried value gets to a number that all programs share."""
    todo = [condition]
    while todo:
        op = todo.pop().defining_op
        if isinstance(op, And):
            todo += (op.a, op.b)
        elif isinstance(op, Compare):
            sides = [(op.a, op.b), (op.b, op.a)]
            if any(arg in _sources(mine) and end not in found for mine, end in sides):
                return True
    return False


def _yielded(region: Region) -> tuple[Value, ...]:
    return () if region.terminator is None else region.terminator.operands
