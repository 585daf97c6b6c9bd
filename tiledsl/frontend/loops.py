"""`for` and `while`: expanded when asked for, else `control.for` and `control.while`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.dtypes import int64
from tiledsl.dtypes import promote
from tiledsl.dtypes import uint32
from tiledsl.errors import InternalError
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.branches import scalar_condition
from tiledsl.frontend.carry import Carried
from tiledsl.frontend.carry import Restart
from tiledsl.frontend.dispatch import Jump
from tiledsl.frontend.dispatch import Return
from tiledsl.frontend.dispatch import Signal
from tiledsl.frontend.dispatch import evaluate
from tiledsl.frontend.dispatch import run_block
from tiledsl.frontend.dispatch import statement
from tiledsl.frontend.liveness import assigned
from tiledsl.frontend.scope import Frame
from tiledsl.frontend.scope import Undefined
from tiledsl.frontend.statements import assign
from tiledsl.ir.analysis.range_ends import passes
from tiledsl.ir.markers import RangeSpec
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import common_dtype
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import literal_dtype
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.types import ScalarType

MAX_EXPANDED = 4096
MAX_ROUNDS = 8
MOST_AHEAD = 16
"""Iterations by which parts of a kernel are ahead of others."""

LoopOp = TypeVar("LoopOp", bound=Op)
R = TypeVar("R")


@statement(ast.For)
def run_for(frame: Frame, node: ast.For) -> Signal:
    """`for x in range(...)`, `tl.range(...)`, `tl.static_range(...)` or a tuple."""
    if node.orelse:
        raise SyntaxNotSupported("`for ... else` is not part of the language").at(
            frame.loc(node.orelse[0])
        )
    items = evaluate(frame, node.iter)
    if isinstance(items, RangeSpec):
        if not items.is_static:
            return _for_at_run_time(frame, node, items)
        return _expand(
            frame, node, range(*(cast("int", x) for x in (items.lower, items.upper, items.step)))
        )
    if isinstance(items, tuple | list | str):
        return _expand(frame, node, cast("Sequence[object]", items))
    raise TypeMismatch(
        f"a `for` loop needs a range or a tuple, got {describe(items)}",
        frame.loc(node.iter),
        hint="use range(...)",
    )


# ---------------------------------------------------------------------- expanded
def _expand(frame: Frame, node: ast.For, items: Sequence[object]) -> Signal:
    if len(items) > MAX_EXPANDED:
        raise TypeMismatch(
            f"the loop would be expanded {len(items)} times, at most {MAX_EXPANDED}",
            frame.loc(node.iter),
        )
    for item in items:
        assign(frame, node.target, item)
        with frame.loop(at_run_time=False):
            signal = run_block(frame, node.body)
        if isinstance(signal, Return):
            return signal
        if signal is Jump.BREAK:
            break
    return None


# ---------------------------------------------------------------------- for
def _for_at_run_time(frame: Frame, node: ast.For, spec: RangeSpec) -> Signal:
    if not isinstance(node.target, ast.Name):
        raise SyntaxNotSupported("the variable of a loop over a range must be a name").at(
            frame.loc(node.target)
        )
    builder = frame.mark(node)
    bounds = (spec.lower, spec.upper, spec.step)
    dtype = (
        common_dtype(bounds, "range()")
        if any(isinstance(x, Value) for x in bounds)
        else _widest(bounds)
    )
    counted = _held(bounds, dtype)
    lower, upper, step = (as_value(builder, x, counted) for x in bounds)
    name = node.target.id
    carried = Carried(frame, node, skip=(name,))

    def make() -> For:
        return For(lower, upper, step, carried.initial(), spec.unroll, body=Region())

    def fill(op: For) -> None:
        iv = op.body.add_arg(ScalarType(counted), name)
        if counted != dtype:
            with frame.builder.at(op.body):
                iv = frame.mark(node).value(Cast(iv, dtype), name)
        _body(frame, node.body, op.body, carried, {name: iv})

    op, _ = _settle(frame, node, carried, make, fill)
    _after(frame, node, carried, op.results)
    return None


def _widest(bounds: tuple[object, ...]) -> DType:
    """The dtype of a loop over numbers: signed, so that it may count below zero."""
    held = functools.reduce(promote, (literal_dtype(cast("int", x)) for x in bounds))
    return int64 if held == uint32 else held


def _held(bounds: tuple[object, ...], dtype: DType) -> DType:
    """What a loop counts in: int64 where known bounds go past its integers a few steps on.

    Roles and loads are that many iterations ahead.
    """
    if any(isinstance(x, Value) for x in bounds) or dtype.bits > 32:
        return dtype
    lower, upper, step = (cast("int", x) for x in bounds)
    return int64 if passes(lower, upper, step, dtype, MOST_AHEAD) else dtype


def _settle(
    frame: Frame,
    node: ast.stmt,
    carried: Carried,
    make: Callable[[], LoopOp],
    fill: Callable[[LoopOp], R],
) -> tuple[LoopOp, R]:
    """Lowers a loop, again when a carried value turned out to need a wider type."""
    for _ in range(MAX_ROUNDS * (1 + len(carried.slots))):
        op = make()
        frame.mark(node).add(op)
        try:
            return op, fill(op)
        except Restart:
            frame.builder.graph.erase(op)
    raise InternalError("the types of a loop's variables do not settle", frame.loc(node))


def _body(
    frame: Frame,
    body: list[ast.stmt],
    region: Region,
    carried: Carried,
    loop_variables: dict[str, object],
) -> None:
    """Lowers an iteration into a region, to which arguments for carried values are added."""
    before = frame.variables
    frame.variables = {**before, **loop_variables, **carried.arguments(region)}
    try:
        with frame.builder.at(region), frame.loop(at_run_time=True):
            run_block(frame, body)
            frame.builder.add(Yield(carried.ends(frame.variables)))
    finally:
        frame.variables = before


def _after(
    frame: Frame, node: ast.For | ast.While, carried: Carried, results: Sequence[Value]
) -> None:
    """Binds variables to the results of a loop; others that it assigns have no value after it."""
    for name in assigned([node]):
        if name not in carried.trees:
            frame.variables[name] = _undefined_after(frame, node, name)
    frame.variables.update(carried.after(results))


def _undefined_after(frame: Frame, node: ast.For | ast.While, name: str) -> Undefined:
    if isinstance(node, ast.For) and name in assigned([node.target]):
        return Undefined("a loop variable has no value after its loop", frame.loc(node.target))
    return Undefined(
        "it is assigned inside a loop only",
        frame.assignment_of(name) or frame.loc(node),
        hint=f"assign {name!r} before the loop, which may not run",
    )


# ---------------------------------------------------------------------- while
@statement(ast.While)
def run_while(frame: Frame, node: ast.While) -> Signal:
    """`while condition`, at run time."""
    if node.orelse:
        raise SyntaxNotSupported("`while ... else` is not part of the language").at(
            frame.loc(node.orelse[0])
        )
    carried = Carried(frame, node)

    def fill(op: While) -> bool | None:
        known = _condition(frame, node, op, carried)
        if known is None:
            _body(frame, node.body, op.body, carried, {})
        return known

    op, known = _settle(frame, node, carried, lambda: While(carried.initial()), fill)
    if known is None:
        _after(frame, node, carried, op.results)
        return None
    frame.builder.graph.erase(op)
    if not known:
        return None
    if any(isinstance(n, ast.Break) for stmt in node.body for n in ast.walk(stmt)):
        raise SyntaxNotSupported(
            "`while` with a condition that is always true and a `break` is not supported",
            frame.loc(node.test),
            hint="put what ends the loop after `while`: `while not done:`",
        )
    raise SyntaxNotSupported(
        "the condition of `while` is always true, and the loop would not end",
        frame.loc(node.test),
        hint="put the condition that ends the loop after `while`",
    )


def _condition(frame: Frame, node: ast.While, op: While, carried: Carried) -> bool | None:
    """Fills the region of the condition; returns it if it is known at compile time."""
    before = frame.variables
    frame.variables = {**before, **carried.arguments(op.before)}
    try:
        with frame.builder.at(op.before):
            condition = evaluate(frame, node.test)
            if not isinstance(condition, Value):
                return bool(condition)
            scalar = scalar_condition(frame, node.test, condition, "while")
            frame.mark(node).add(Yield((scalar, *op.before.args)))
    finally:
        frame.variables = before
    return None
