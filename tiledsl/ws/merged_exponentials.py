"""Softmax in clusters with one exchange: each warp takes exponentials relative to its own maximum.

A row that CTAs share is reduced twice, for its maximum and for the sum of exp(x - maximum), and
twice all of them wait for each other. Maximum and sum of each warp can be merged at once; what the
warp has computed is then multiplied by exp(its own maximum - that of the row). A quotient by the
sum takes that product in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from math import prod

from tiledsl.dtypes import float32
from tiledsl.dtypes import int1
from tiledsl.ir.axis_plan import AxisPlan
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.reduce import MergeExponentials
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.ws.async_exchange import MOST_VALUES

_SHAPES = tile.Broadcast | tile.ExpandDims | tile.Splat


def merge_exponentials(graph: TileGraph, region: Region, num_ctas: int) -> int:
    """Merges what it finds in loops under `region`, whose tiles have layouts; returns how often.

    num_ctas: of the clusters, whose CTAs share all reduced rows.
    """
    found = 0
    for loop in [op for op in region.walk() if isinstance(op, While)]:
        for op in [op for op in loop.body.ops if isinstance(op, Reduce)]:
            row = _row(graph, op, num_ctas)
            if row is not None:
                row.rewrite()
                found += 1
    return found


def _row(graph: TileGraph, first: Reduce, num_ctas: int) -> _Row | None:
    """A maximum whose differences are summed as exponentials, where nothing reads either before."""
    if first.kind != "max" or not _is_shared(first, num_ctas) or first.parent is None:
        return None
    ops = first.parent.ops
    for total in ops[ops.index(first) + 1 :]:
        if not isinstance(total, Reduce) or total.kind != "sum" or total.axes != first.axes:
            continue
        power = total.inputs[0].defining_op
        if not isinstance(power, ew.Exp) or not _is_shared(total, num_ctas):
            continue
        minus = power.a.defining_op
        if not isinstance(minus, ew.Sub) or minus.a is not _input(first, minus.a):
            continue
        chain = _chain(minus.b, first.result)
        if chain is None:
            continue
        row = _Row(graph, first, chain, minus, power, total, num_ctas)
        if row.is_closed():
            return row
    return None


def _input(first: Reduce, a: Value) -> Value:
    """What a maximum is of: a tile, or the same as f32."""
    (x,) = first.inputs
    made = a.defining_op
    return a if x is a or (isinstance(made, ew.Cast) and made.a is x) else x


def _is_shared(op: Reduce, num_ctas: int) -> bool:
    """Whether all warps of a cluster hold parts of a row, and each lane the same of a warp's."""
    type_ = op.inputs[0].type
    if not isinstance(type_, TileType) or type_.layout is None or len(op.inputs) != 1:
        return False
    layout, plan = type_.layout, AxisPlan(type_.layout, op.axes)
    is_whole = layout.padded_shape == type_.shape and plan.num_lanes == 1
    count = prod(p.size for p in plan.along(Unit.WARP))
    is_f32, few = op.dtypes == (float32,), plan.result.num_regs <= MOST_VALUES
    return is_whole and is_f32 and few and count == layout.num_warps > num_ctas > 1


def _chain(value: Value, source: Value) -> list[Op] | None:
    """The ops that give a value from its source, which they only repeat; in order."""
    found: list[Op] = []
    while value is not source:
        op = value.defining_op
        if not isinstance(op, _SHAPES):
            return None
        found.insert(0, op)
        value = op.a
    return found


@dataclass(frozen=True)
class _Row:
    """`minus` takes `first` through `chain`, `power` is its exponential, and `total` sums that."""

    graph: TileGraph
    first: Reduce
    chain: list[Op]
    minus: ew.Sub
    power: ew.Exp
    total: Reduce
    num_ctas: int

    def is_closed(self) -> bool:
        """Whether maximum and exponentials are read behind the sum only, but by each other."""
        ops = self.total.parent.ops if self.total.parent else []
        own = [self.first, *self.chain, self.minus, self.power]
        if any(op not in ops for op in own):
            return False
        behind = ops[ops.index(self.total) + 1 :]
        steps = zip(own, [*own[1:], self.total], strict=True)
        return all(
            use.op is follower or self._is_behind(use.op, behind, op)
            for op, follower in steps
            for use in self.graph.users(op.results[0])
        )

    def _is_behind(self, user: Op, behind: list[Op], op: Op) -> bool:
        around = [user, *self.graph.enclosing(user)]
        return op is not self.minus and any(o in behind for o in around)

    def rewrite(self) -> None:
        """One exchange in the place of the sum."""
        first, total = self.first, self.total
        own = self._put(first, first.rebuild({}, (Region(),), within_warps=True), first.result.type)
        own = self._reference(own)
        shifted = self._repeated(own, self.chain, self.minus, self.minus.a.type)
        minus = self._put(self.minus, ew.Sub(self.minus.a, shifted), self.minus.result.type)
        power = self._put(self.power, clone_op(self.power, {self.minus.result: minus}), minus.type)
        part = total.rebuild({self.power.result: power}, (Region(),), within_warps=True)
        part_sum = self._put(total, part, total.result.type)
        layout = first.inputs[0].type.layout if isinstance(first.inputs[0].type, TileType) else None
        assert layout is not None
        names = (first.result.name, total.result.name, "factor")
        warps, num_ctas = layout.num_warps, self.num_ctas
        merged = MergeExponentials(own, part_sum, warps=warps, num_ctas=num_ctas, names=names)
        merged.loc = total.loc
        self.graph.insert_before(total, merged)
        for result in merged.results:
            self.graph.set_type(result, total.result.type)
        largest, whole, factor = merged.results
        self.graph.replace_uses(total.result, whole)
        for use in self.graph.users(self.power.result):
            if use.op is not total:
                self._scale(use.op, use.index, power, whole, factor)
        for op in (total, self.power, self.minus):
            self.graph.erase(op)
        self._hand_on(largest, merged)
        self.graph.replace_uses(first.result, largest)
        self.graph.erase(first)

    def _hand_on(self, largest: Value, merged: Op) -> None:
        """Who reads the repeated maximum reads that of all warps."""
        after = merged.parent.ops[merged.parent.ops.index(merged) + 1] if merged.parent else merged
        for op, follower in zip(self.chain, [*self.chain[1:], None], strict=True):
            type_ = op.results[0].type
            largest = self._put(after, clone_op(op, {op.operands[0]: largest}), type_)
            self.graph.replace_uses(op.results[0], largest, keep=[follower] if follower else [])
        for op in reversed(self.chain):
            self.graph.erase(op)

    def _reference(self, own: Value) -> Value:
        """0 for warps without an element over -inf, whose exponentials are then 0."""
        floor, zero = (self._constant(n, own.type) for n in (-inf, 0.0))
        is_empty = ew.Compare("eq", own, floor)
        flag = self._put(self.first, is_empty, _bools(own.type))
        return self._put(self.first, ew.Select(flag, zero, own), own.type)

    def _constant(self, number: float, type_: Type) -> Value:
        scalar = self._put(self.first, ew.Constant(number, float32), ScalarType(float32))
        if not isinstance(type_, TileType):
            return scalar
        return self._put(self.first, tile.Splat(scalar, type_.shape), type_)

    def _scale(self, user: Op, index: int, power: Value, whole: Value, factor: Value) -> None:
        """Multiplies what a user reads by the factor; a quotient by the sum takes it in."""
        made: Value | None = None
        if isinstance(user, ew.Div) and index == 0:
            chain = _chain(user.b, whole)
            if chain is not None:
                share = self._put(user, ew.Div(factor, whole), whole.type)
                made = self._repeated(share, chain, user, power.type)
                product = self._put(user, ew.Mul(power, made), user.result.type)
                product.name = user.result.name
                self.graph.replace_uses(user.result, product)
                self.graph.erase(user)
                return
        made = self._repeated(factor, self.chain, user, power.type)
        self.graph.set_operand(user, index, self._put(user, ew.Mul(power, made), power.type))

    def _repeated(self, value: Value, chain: list[Op], before: Op, type_: Type) -> Value:
        """A value through copies of the ops of a chain, as a tile that has the layout of others."""
        for op in chain:
            value = self._put(before, clone_op(op, {op.operands[0]: value}), op.results[0].type)
        self.graph.set_type(value, type_)
        return value

    def _put(self, before: Op, op: Op, type_: Type) -> Value:
        """Adds an op in front of another one, where that is or around it; its result has a type."""
        op.loc = op.loc or before.loc
        self.graph.insert_before(before, op)
        self.graph.set_type(op.results[0], type_)
        return op.results[0]


def _bools(type_: Type) -> Type:
    if isinstance(type_, TileType):
        return TileType(type_.shape, int1, type_.layout)
    return ScalarType(int1)
