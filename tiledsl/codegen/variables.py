"""SSA destruction.

Which values share one C++ variable, so that loops and in-place ops need no copies.

Liveness is exact on the structured control flow; values are merged along the copies that SSA form
implies (loop carries, branch results, in-place results) whenever their live ranges do not meet.
What cannot be merged is copied by the contexts of the ops.
Ref: Boissinot et al., "Revisiting Out-of-SSA Translation", CGO 2009.
"""

from __future__ import annotations

from collections import defaultdict

from tiledsl.codegen.registry import may_overwrite
from tiledsl.codegen.registry import ties_of
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

__all__ = ["Variables"]


class Variables:
    """Classes of values that share a variable.

    `root(v)` is equal for two values exactly when they share one; `is_mutable(v)` says whether the
    variable is written more than once.
    """

    def __init__(self, graph: TileGraph) -> None:
        ops = list(graph.walk())
        used = {v for op in ops for v in op.operands}
        self._forced = [pair for op in ops for pair in _forced_pairs(op)]
        self._wished = [pair for op in ops for pair in (*ties_of(op), *_wished_pairs(op, used))]
        self._assigned = {v for op in ops for v in _assigned_values(op)}
        pairs = [*self._forced, *self._wished]
        self._relevant = {v for pair in pairs for v in pair if _has_variable(v)}
        self._meets: dict[Value, set[Value]] = defaultdict(set)
        self._parent: dict[Value, Value] = {}
        self._members: dict[Value, list[Value]] = {}
        if self._relevant:
            self._walk(graph.body, set())
            for op in ops:
                self._keep_apart(op)
        for a, b in self._forced:
            self._union(a, b)
        for a, b in self._wished:
            if self._can_merge(a, b):
                self._union(a, b)

    def root(self, value: Value) -> Value:
        """The representative of a value's class."""
        while value in self._parent:
            value = self._parent[value]
        return value

    def is_mutable(self, value: Value) -> bool:
        """Whether the variable may be written more than once."""
        members = self._class(value)
        return len(members) > 1 or members[0] in self._assigned

    def members(self, value: Value) -> tuple[Value, ...]:
        """All values of a class."""
        return tuple(self._class(value))

    # ------------------------------------------------------------------ merging
    def _class(self, value: Value) -> list[Value]:
        root = self.root(value)
        return self._members.get(root, [root])

    def _can_merge(self, a: Value, b: Value) -> bool:
        if a not in self._relevant or b not in self._relevant or self.root(a) is self.root(b):
            return False
        if storage_key(a) != storage_key(b):
            return False
        others = set(self._class(b))
        return not any(self._meets[x] & others for x in self._class(a))

    def _union(self, a: Value, b: Value) -> None:
        a, b = self.root(a), self.root(b)
        if a is b:
            return
        merged = [*self._class(a), *self._class(b)]
        self._parent[b] = a
        self._members[a] = merged

    # ------------------------------------------------------------------ liveness
    def _walk(self, region: Region, live_out: set[Value]) -> set[Value]:
        """Values live at the top of a region; notes which values meet on the way."""
        live = set(live_out)
        for op in reversed(region.ops):
            self._define(op.results, live)
            live -= set(op.results)
            if op.regions:
                live = self._walk_regions(op, live)
            live |= self._relevant.intersection(op.operands)
        return live

    def _define(self, values: tuple[Value, ...] | list[Value], live: set[Value]) -> None:
        """Values that come into being together, where `live` are live."""
        fresh = [v for v in values if v in self._relevant]
        for v in fresh:
            for other in (*live, *fresh):
                if other is not v:
                    self._meets[v].add(other)
                    self._meets[other].add(v)

    def _keep_apart(self, op: Op) -> None:
        """Results are not written over tile operands that are still being read."""
        if op.regions and isinstance(op, For | If | While):
            return
        results = [v for v in op.results if isinstance(v.type, TileType)]
        if not results:
            return
        tied = set(ties_of(op))
        operands = [v for v in op.operands if isinstance(v.type, TileType)]
        for result in results:
            for operand in operands:
                if (result, operand) not in tied and not may_overwrite(op, operand):
                    self._meets[result].add(operand)
                    self._meets[operand].add(result)

    def _walk_regions(self, op: Op, after: set[Value]) -> set[Value]:
        match op:
            case For():
                return self._walk_for(op, after)
            case While():
                return self._walk_while(op, after)
            case _:
                live = set(after)
                for region in op.regions:
                    live |= self._walk(region, after)
                return live

    def _walk_for(self, op: For, after: set[Value]) -> set[Value]:
        bounds = self._relevant.intersection((op.lower, op.upper, op.step))
        args = set(op.body.args)
        live = self._walk(op.body, after | bounds) - args
        live = self._walk(op.body, after | bounds | live) - args
        self._define(op.body.args, live)
        return live | after

    def _walk_while(self, op: While, after: set[Value]) -> set[Value]:
        before_args, body_args = set(op.before.args), set(op.body.args)
        top: set[Value] = set(after)
        body: set[Value] = set()
        for _ in range(2):
            body = self._walk(op.body, top) - body_args
            top = self._walk(op.before, after | body) - before_args
        self._define(op.before.args, top)
        self._define(op.body.args, body | after)
        return top | after


def storage_key(value: Value) -> tuple[str, ...]:
    """What has to agree for two values to share a variable."""
    match value.type:
        case TileType(shape=shape, dtype=dtype, layout=layout):
            regs = layout.num_regs if layout is not None else shape
            return ("tile", str(dtype), str(regs))
        case _:
            return ("scalar", str(value.type))


def _has_variable(value: Value) -> bool:
    """Whether a value is held in a variable of its own rather than written out as an expression."""
    if isinstance(value.type, TileType):
        return True
    if not isinstance(value.type, ScalarType):
        return False
    owner = value.owner
    if isinstance(owner, Region):
        parent = owner.parent
        return isinstance(parent, While) or (isinstance(parent, For) and value.index > 0)
    if owner.regions:
        return True
    is_math = owner.opcode.startswith(("elementwise.", "pointer.add"))
    return is_math and owner.opcode != "elementwise.constant"


def _forced_pairs(op: Op) -> list[tuple[Value, Value]]:
    """Values that are one variable by the way the op is written out."""
    match op:
        case For():
            return list(zip(op.results, op.carried, strict=True))
        case While():
            return list(zip(op.results, op.body.args, strict=True))
        case _:
            return []


def _assigned_values(op: Op) -> tuple[Value, ...]:
    """Values whose variables are assigned at the ends of regions."""
    match op:
        case For():
            return op.carried
        case If():
            return op.results
        case While():
            return (*op.before.args, *op.body.args)
        case _:
            return ()


def _wished_pairs(op: Op, used: set[Value]) -> list[tuple[Value, Value]]:
    """Copies that SSA form implies, most frequent first."""
    match op:
        case For():
            carried = op.carried
            return [
                *zip(carried, yielded(op.body), strict=True),
                *zip(carried, op.init, strict=True),
            ]
        case If():
            then, orelse = yielded(op.then), yielded(op.orelse)
            pairs = [*zip(op.results, then, strict=False), *zip(op.results, orelse, strict=False)]
            return [(result, value) for result, value in pairs if result in used]
        case While():
            return [
                *zip(op.body.args, yielded(op.before)[1:], strict=True),
                *zip(op.before.args, yielded(op.body), strict=True),
                *zip(op.before.args, op.init, strict=True),
            ]
        case _:
            return []
