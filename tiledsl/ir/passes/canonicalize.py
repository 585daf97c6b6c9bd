"""Simplifies ops: constants, identities, shape ops on uniform tiles, known control flow.

Nothing here changes a bit of a floating-point result: no reassociation, no `x * 0`, no `x + 0.0`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign
from math import inf
from math import isnan
from typing import Any

from tiledsl.dtypes import DType
from tiledsl.ir.analysis.constants import constant_op
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import int_limits
from tiledsl.ir.analysis.constants import is_int_valued
from tiledsl.ir.analysis.constants import is_lossless
from tiledsl.ir.analysis.constants import splat_source
from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.analysis.extremes import compared
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops import tile_moves
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

MAX_SWEEPS = 16

Number = bool | int | float
# A rule gives the value that stands for the op's only result, or None.
Rule = Callable[["Rewriter", Any], Value | None]
_RULES: dict[str, Rule] = {}


@register_pass("canonicalize", consumes=Level.ALL, produces=Level.ALL)
def canonicalize(graph: TileGraph, target: Target) -> PassReport:
    """Applies the rules in program order until nothing changes, at most MAX_SWEEPS times."""
    del target
    rewriter = Rewriter(graph)
    for _ in range(MAX_SWEEPS):
        before = rewriter.changes
        rewriter.sweep(graph.body)
        if rewriter.changes == before:
            break
    return PassReport("canonicalize", rewriter.changes)


def rule(*classes: type[Op]) -> Callable[[Rule], Rule]:
    """Registers a rule for ops of some classes."""

    def register(function: Rule) -> Rule:
        _RULES.update({cls.opcode: function for cls in classes})
        return function

    return register


class Rewriter:
    """Edits one graph and counts the changes."""

    def __init__(self, graph: TileGraph) -> None:
        self.graph = graph
        self.changes = 0

    def sweep(self, region: Region) -> None:
        """Visits the ops of a region, inner ones after the op around them."""
        for op in list(region.ops):
            if op.parent is not region or self.fold_control(op) or self.simplify(op):
                continue
            for inner in op.regions:
                self.sweep(inner)

    def simplify(self, op: Op) -> bool:
        """Replaces an op by what a rule or constant folding gives."""
        if len(op.results) != 1 or op.regions or op.effect is not Effect.PURE:
            return False
        found = _RULES.get(op.opcode)
        new = found(self, op) if found else None
        if new is None:
            new = self.fold_constant(op)
        if new is None or new.type != op.result.type:
            return False
        self.replace(op.result, new)
        self.graph.erase(op)
        return True

    def replace(self, old: Value, new: Value) -> None:
        """Makes the users of a value read another, which takes over its name if it has none."""
        new.name = new.name or old.name
        self.graph.replace_uses(old, new)
        self.changes += 1

    def insert(self, before: Op, op: Op, type_: Type) -> Value:
        """Adds an op in front of another, at its location; the result gets `type_`, with layout."""
        op.loc = before.loc
        self.graph.insert_before(before, op)
        self.graph.set_type(op.result, type_)
        return op.result

    def constant(self, before: Op, number: Number, type_: Type) -> Value:
        """A constant of a scalar or tile type."""
        if isinstance(type_, TileType):
            scalar = self.constant(before, number, ScalarType(type_.dtype))
            return self.insert(before, tile.Splat(scalar, type_.shape), type_)
        assert isinstance(type_, ScalarType)
        return self.insert(before, ew.Constant(number, type_.dtype), type_)

    def splat(self, op: Op, a: Value) -> Value | None:
        """Replaces a shape op on a uniform tile by a uniform tile."""
        type_ = op.result.type
        if splat_source(a) is a or not isinstance(type_, TileType):
            return None
        return self.insert(op, tile.Splat(splat_source(a), type_.shape), type_)

    def fold_constant(self, op: Op) -> Value | None:
        """Evaluates an op whose operands are scalar constants."""
        type_ = op.result.type
        if not op.operands or not isinstance(type_, ScalarType):
            return None
        constants = [constant_op(v) for v in op.operands if isinstance(v.type, ScalarType)]
        known = [c.evaluate() for c in constants if c is not None]
        if len(known) != len(op.operands):
            return None
        return self.constant(op, _number(op.evaluate(*known), type_.dtype), type_)

    # ------------------------------------------------------------------ control flow
    def fold_control(self, op: Op) -> bool:
        """Simplifies control flow; True when the op is gone."""
        if isinstance(op, control.If):
            return self.fold_if(op)
        if isinstance(op, control.For):
            return self.fold_for(op)
        return False

    def fold_if(self, op: control.If) -> bool:
        taken = constant_value(op.condition)
        if taken is None:
            for then, other, result in zip(
                yielded(op.then), yielded(op.orelse), op.results, strict=True
            ):
                is_same = then is other and then.type == result.type
                if is_same and self.graph.has_uses(result):
                    self.replace(result, then)
            return False
        region = op.then if taken else op.orelse
        for inner in list(region.ops):
            if not inner.is_terminator:
                self.graph.move_before(op, inner)
        for result, value in zip(op.results, yielded(region), strict=True):
            self.replace(result, value)
        self.graph.erase(op)
        self.changes += 1
        return True

    def fold_for(self, op: control.For) -> bool:
        if trip_count(op) == 0:
            for result, init in zip(op.results, op.init, strict=True):
                self.replace(result, init)
            self.graph.erase(op)
            self.changes += 1
            return True
        rows = zip(op.carried, op.init, yielded(op.body), op.results, strict=True)
        for carried, init, following, result in rows:
            if following in (carried, init) and carried.type == init.type == result.type:
                for value in (carried, result):
                    keep = [
                        u.op
                        for u in self.graph.users(value)
                        if u.op.is_terminator and u.op.parent is op.body
                    ]
                    if self.graph.replace_uses(value, init, keep=keep):
                        self.changes += 1
        return False


def _number(array: Any, dtype: DType) -> Number:
    if dtype.kind == "bool":
        return bool(array)
    return float(array) if dtype.is_float else int(array)


def _is_zero(number: Number, *, negative: bool = False) -> bool:
    return number == 0 and (copysign(1.0, number) < 0) == negative


def _either(op: Any, test: Callable[[Number], bool]) -> Value | None:
    """The operand beside a constant that passes `test`, on either side."""
    for constant, other in ((op.b, op.a), (op.a, op.b)):
        number = constant_value(constant)
        if number is not None and test(number):
            return other
    return None


def _constant_side(op: Any, number: Number) -> Value | None:
    """The operand that is this constant."""
    return next((v for v in (op.a, op.b) if constant_value(v) == number), None)


@rule(ew.Add)
def _add(_: Rewriter, op: ew.Add) -> Value | None:
    if is_int_valued(op.a):
        return _either(op, lambda n: n == 0)
    return _either(op, lambda n: _is_zero(n, negative=True))


@rule(ew.Sub)
def _sub(rw: Rewriter, op: ew.Sub) -> Value | None:
    number = constant_value(op.b)
    if number is not None and _is_zero(number):
        return op.a
    if op.a is op.b and is_int_valued(op.a):
        return rw.constant(op, 0, op.result.type)
    return None


@rule(ew.Mul)
def _mul(_: Rewriter, op: ew.Mul) -> Value | None:
    if is_int_valued(op.a) and (zero := _constant_side(op, 0)) is not None:
        return zero
    return _either(op, lambda n: n == 1)


@rule(ew.Div, ew.FloorDiv)
def _div(_: Rewriter, op: ew.Div | ew.FloorDiv) -> Value | None:
    return op.a if constant_value(op.b) == 1 else None


@rule(ew.Mod)
def _mod(rw: Rewriter, op: ew.Mod) -> Value | None:
    if is_int_valued(op.a) and constant_value(op.b) == 1:
        return rw.constant(op, 0, op.result.type)
    return None


@rule(ew.Min, ew.Max)
def _min_max(_: Rewriter, op: ew.Min | ew.Max) -> Value | None:
    """`min(x, x)`, `min(x, largest)`, and on integers `min(x, smallest)`."""
    if op.a is op.b:
        return op.a
    is_min = isinstance(op, ew.Min)
    if is_int_valued(op.a):
        low, high = int_limits(ew.element_dtype(op.a, "min"))
        neutral, absorbing = (high, low) if is_min else (low, high)
        return _either(op, lambda n: n == neutral) or _constant_side(op, absorbing)
    neutral = inf if is_min else -inf
    if op.propagate_nan:
        return _either(op, lambda n: n == neutral)
    return _either(op, isnan)


@rule(ew.And, ew.Or)
def _and_or(_: Rewriter, op: ew.And | ew.Or) -> Value | None:
    if op.a is op.b:
        return op.a
    zero, ones = _zero_and_ones(ew.element_dtype(op.a, "and"))
    neutral, absorbing = (ones, zero) if isinstance(op, ew.And) else (zero, ones)
    return _either(op, lambda n: n == neutral) or _constant_side(op, absorbing)


@rule(ew.Xor)
def _xor(rw: Rewriter, op: ew.Xor) -> Value | None:
    zero, _ = _zero_and_ones(ew.element_dtype(op.a, "xor"))
    if op.a is op.b:
        return rw.constant(op, zero, op.result.type)
    return _either(op, lambda n: n == zero)


def _zero_and_ones(dtype: DType) -> tuple[Number, Number]:
    if dtype.kind == "bool":
        return False, True
    return 0, (-1 if dtype.kind == "int" else int_limits(dtype)[1])


@rule(ew.Shl, ew.Shr)
def _shift(_: Rewriter, op: ew.Shl | ew.Shr) -> Value | None:
    return op.a if constant_value(op.b) == 0 else None


@rule(ew.Not, ew.Neg)
def _involution(_: Rewriter, op: ew.Not | ew.Neg) -> Value | None:
    inner = op.a.defining_op
    return inner.a if isinstance(inner, ew.Not | ew.Neg) and type(inner) is type(op) else None


@rule(ew.Compare)
def _compare(rw: Rewriter, op: ew.Compare) -> Value | None:
    if op.a is op.b and is_int_valued(op.a):
        return rw.constant(op, op.predicate in ("eq", "le", "ge"), op.result.type)
    known = compared(op.predicate, op.a, op.b)
    if known is not None:
        return rw.constant(op, known, op.result.type)
    a, b = _before_widening(op.a), _before_widening(op.b)
    if a is not None and b is not None and a.type == b.type:
        return rw.insert(op, ew.Compare(op.predicate, a, b), op.result.type)
    for x, y, is_left in ((a, op.b, True), (b, op.a, False)):
        number = constant_value(y)
        if x is None or number is None:
            continue
        low, high = int_limits(ew.element_dtype(x, "compare"))
        if low <= number <= high:
            same = rw.constant(op, number, x.type)
            sides = (x, same) if is_left else (same, x)
            return rw.insert(op, ew.Compare(op.predicate, *sides), op.result.type)
    return None


def _before_widening(value: Value) -> Value | None:
    """The integers that a cast makes wider integers of, which are the same numbers."""
    op = value.defining_op
    if not isinstance(op, ew.Cast) or not op.dtype.is_int:
        return None
    source = ew.element_dtype(op.a, "compare")
    return op.a if source.is_int and is_lossless(source, op.dtype) else None


@rule(ew.Select)
def _select(_: Rewriter, op: ew.Select) -> Value | None:
    if op.a is op.b:
        return op.a
    condition = constant_value(op.condition)
    if condition is not None:
        return op.a if condition else op.b
    if constant_value(op.a) is True and constant_value(op.b) is False:
        return op.condition
    return None


@rule(ew.Cast)
def _cast(rw: Rewriter, op: ew.Cast) -> Value | None:
    middle = ew.element_dtype(op.a, "cast")
    if middle == op.dtype:
        return op.a
    inner = op.a.defining_op
    if not isinstance(inner, ew.Cast):
        return None
    source = ew.element_dtype(inner.a, "cast")
    if not is_lossless(source, middle):
        return None
    # Through a float, integers saturate; directly, they wrap.
    if middle.is_float and source.is_int and op.dtype.is_int and not is_lossless(source, op.dtype):
        return None
    if source == op.dtype:
        return inner.a
    return rw.insert(op, ew.Cast(inner.a, op.dtype), op.result.type)


@rule(ew.Bitcast)
def _bitcast(rw: Rewriter, op: ew.Bitcast) -> Value | None:
    if ew.element_dtype(op.a, "bitcast") == op.dtype:
        return op.a
    inner = op.a.defining_op
    if isinstance(inner, ew.Bitcast):
        return rw.insert(op, ew.Bitcast(inner.a, op.dtype), op.result.type)
    return None


@rule(tile.ExpandDims)
def _expand_dims(rw: Rewriter, op: tile.ExpandDims) -> Value | None:
    return rw.splat(op, op.a)


@rule(tile_moves.Join)
def _join(rw: Rewriter, op: tile_moves.Join) -> Value | None:
    """A tile joined with itself is repeated, which moves nothing between threads."""
    type_ = op.result.type
    if op.a is not op.b or not isinstance(type_, TileType) or type_.layout is not None:
        return None
    one = TileType((*type_.shape[:-1], 1), type_.dtype)
    twice = rw.insert(op, tile.ExpandDims(op.a, type_.rank - 1), one)
    return rw.insert(op, tile.Broadcast(twice, type_.shape), type_)


@rule(tile.Broadcast, tile.Reshape)
def _broadcast_reshape(rw: Rewriter, op: tile.Broadcast | tile.Reshape) -> Value | None:
    if op.a.type == op.result.type:
        return op.a
    inner = op.a.defining_op
    if isinstance(inner, tile.Broadcast | tile.Reshape) and type(inner) is type(op):
        return rw.insert(op, type(op)(inner.a, op.shape), op.result.type)
    return rw.splat(op, op.a)


@rule(tile.Transpose)
def _transpose(rw: Rewriter, op: tile.Transpose) -> Value | None:
    if op.order == tuple(range(len(op.order))):
        return op.a
    inner = op.a.defining_op
    if isinstance(inner, tile.Transpose):
        order = tuple(inner.order[i] for i in op.order)
        return rw.insert(op, tile.Transpose(inner.a, order), op.result.type)
    return rw.splat(op, op.a)
