"""TileGraph: a kernel as a graph of ops; the sole owner of networkx.

A node is an op id, an edge is a use, keyed by operand index, from the op that defines a value (or
whose region has it as an argument) to the op that uses it. The order of effects is the order of ops
in their regions.
"""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from tiledsl.errors import InternalError
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.types import Type


@functools.cache
def _networkx() -> Any:
    """The library, imported with the first graph: programs found on disk need none."""
    return importlib.import_module("networkx")


@dataclass(frozen=True)
class Use:
    """Operand `index` of `op`."""

    op: Op
    index: int


@dataclass(frozen=True)
class Argument:
    """A kernel argument: its user-visible name and the value that stands for it."""

    name: str
    value: Value


def graph_of(op: Op) -> TileGraph | None:
    """The graph that holds an op."""
    region = op.parent
    while region is not None and region.parent is not None:
        region = region.parent.parent
    return region.graph if region is not None else None


@dataclass
class TileGraph:
    """One kernel at one level.

    body: the top region; its arguments are the kernel's run-time arguments in order.
    constants: constexpr arguments by name, for the report.  facts: plan and other frozen results of
    analyses by name.
    """

    name: str
    level: Level = Level.TILE
    body: Region = field(default_factory=Region)
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.body.graph = self
        self._nx: Any = _networkx().MultiDiGraph()
        self._ops: dict[int, Op] = {}
        # How many ops of each class there are: most searches are for what a kernel has not.
        self._count: Counter[type[Op]] = Counter()
        for op in self.body.walk():
            self._register(op)

    # ------------------------------------------------------------------ reading
    @property
    def args(self) -> tuple[Value, ...]:
        return tuple(self.body.args)

    def walk(self) -> Iterator[Op]:
        """All ops, outer before inner, in program order."""
        return self.body.walk()

    def users(self, value: Value) -> list[Use]:
        """Uses of a value in order of op id, then operand index."""
        source = self._source(value)
        if source not in self._nx:
            return []
        found = [
            (target, index)
            for target, keys in self._nx._succ[source].items()
            for vid, index in keys
            if vid == value.id
        ]
        return [Use(self._ops[t], i) for t, i in sorted(found)]

    def has_uses(self, value: Value) -> bool:
        """Whether any op reads the value."""
        source = self._source(value)
        if source not in self._nx:
            return False
        uses = self._nx._succ[source].values()
        return any(vid == value.id for keys in uses for vid, _ in keys)

    @property
    def num_ops(self) -> int:
        """How many ops the graph holds, nested ones included."""
        return len(self._ops)

    def has_uses_of(self, op: Op) -> bool:
        """Whether the graph's edges into an op are exactly its operands.

        False for an op that the graph does not hold.
        """
        if self._ops.get(op.id) is not op:
            return False
        sources = self._nx._pred[op.id]
        operands = op.operands
        if sum(map(len, sources.values())) != len(operands):
            return False
        return all((v.id, i) in sources.get(self._source(v), ()) for i, v in enumerate(operands))

    def find(self, cls: type[Op]) -> list[Any]:
        """Ops of a class in program order."""
        if not any(issubclass(kind, cls) for kind in self._count):
            return []
        return [op for op in self.walk() if isinstance(op, cls)]

    def enclosing(self, op: Op) -> list[Op]:
        """Region ops around `op`, innermost first."""
        out: list[Op] = []
        region = op.parent
        while region is not None and region.parent is not None:
            out.append(region.parent)
            region = region.parent.parent
        return out

    def topological(self) -> list[Op]:
        """Ops so that definitions precede uses; ties broken by id."""
        order = _networkx().lexicographical_topological_sort(self._nx.subgraph(self._ops))
        return [self._ops[i] for i in order]

    # ------------------------------------------------------------------ editing
    def append(self, region: Region, op: Op) -> Op:
        """Adds an op at the end of a region."""
        return self.insert(region, len(region.ops), op)

    def insert(self, region: Region, index: int, op: Op) -> Op:
        """Adds an op at a position of a region."""
        region.ops.insert(index, op)
        op.parent = region
        self._register(op)
        for r in op.regions:
            for inner in r.walk():
                self._register(inner)
        return op

    def insert_before(self, anchor: Op, op: Op) -> Op:
        return self.insert(_parent(anchor), _parent(anchor).ops.index(anchor), op)

    def insert_after(self, anchor: Op, op: Op) -> Op:
        return self.insert(_parent(anchor), _parent(anchor).ops.index(anchor) + 1, op)

    def erase(self, op: Op) -> None:
        """Removes an op (and what it contains) whose results have no uses."""
        for r in op.results:
            if self.has_uses(r):
                raise InternalError(f"erase of {op!r}, whose result {r!r} is used", op.loc)
        inner = [o for r in op.regions for o in r.walk()]
        for o in (op, *inner):
            self._nx.remove_node(o.id)
            del self._ops[o.id]
            self._forget(o)
        _parent(op).ops.remove(op)
        op.parent = None

    def set_operand(self, op: Op, index: int, value: Value) -> None:
        """Makes operand `index` of `op` read `value`."""
        old = op.operands[index]
        self._nx.remove_edge(self._source(old), op.id, key=(old.id, index))
        op.set_operand(index, value)
        self._add_edge(op, index, value)

    def replace_uses(self, old: Value, new: Value, *, keep: Iterable[Op] = ()) -> int:
        """Makes every use of `old` (except in `keep`) read `new`; returns how many changed."""
        skip = {o.id for o in keep}
        uses = [u for u in self.users(old) if u.op.id not in skip]
        for use in uses:
            self.set_operand(use.op, use.index, new)
        return len(uses)

    def replace_op(self, old: Op, new: Op) -> None:
        """Puts `new` in the place of `old`; results correspond by position."""
        self.insert_before(old, new)
        for a, b in zip(old.results, new.results, strict=True):
            b.name = b.name or a.name
            self.replace_uses(a, b)
        self.erase(old)

    def supersede(self, old: Op, new: Op, results: Mapping[Value, Value]) -> None:
        """Puts `new`, which took over regions of `old`, in its place.

        results: old results to new. Regions that `new` did not take are erased with `old`.
        """
        self.insert_before(old, new)
        for a, b in results.items():
            b.name = b.name or a.name
            self.replace_uses(a, b)
        old.regions = tuple(r for r in old.regions if r.parent is old)
        self.erase(old)

    def move_before(self, anchor: Op, op: Op) -> None:
        """Moves an op (and what it contains) in front of another, possibly into another region."""
        _parent(op).ops.remove(op)
        op.parent = _parent(anchor)
        op.parent.ops.insert(op.parent.ops.index(anchor), op)

    def move_to(self, op: Op, region: Region) -> None:
        """Moves an op (and what it contains) to the end of a region."""
        _parent(op).ops.remove(op)
        op.parent = region
        region.ops.append(op)

    def set_type(self, value: Value, type_: Type) -> None:
        """Changes a value's type (layout assignment)."""
        value.type = type_

    def clone(self) -> TileGraph:
        """A deep copy: new ops and values, shared types and attributes."""
        mapping: dict[Value, Value] = {}
        body = clone_region(self.body, mapping)
        facts = dict(self.facts)
        return TileGraph(self.name, self.level, body, dict(self.constants), facts)

    # ------------------------------------------------------------------ networkx
    def _source(self, value: Value) -> int:
        owner = value.owner
        return owner.id if isinstance(owner, Op) else -owner.id

    def _register(self, op: Op) -> None:
        if op.id in self._ops:
            return
        self._ops[op.id] = op
        self._count[type(op)] += 1
        self._nx.add_node(op.id)
        for index, value in enumerate(op.operands):
            self._add_edge(op, index, value)

    def _forget(self, op: Op) -> None:
        self._count[type(op)] -= 1
        if not self._count[type(op)]:
            del self._count[type(op)]

    def _add_edge(self, op: Op, index: int, value: Value) -> None:
        self._nx.add_edge(self._source(value), op.id, key=(value.id, index))


def _parent(op: Op) -> Region:
    if op.parent is None:
        raise InternalError(f"{op!r} is in no region", op.loc)
    return op.parent


def clone_op(op: Op, mapping: dict[Value, Value], **changes: Any) -> Op:
    """A copy of an op and its regions; `mapping` gives the new values and is extended."""
    regions = tuple(clone_region(r, mapping) for r in op.regions)
    new = op.rebuild(mapping, regions, **changes)
    for a, b in zip(op.results, new.results, strict=True):
        b.type = a.type
        mapping[a] = b
    return new


def clone_region(region: Region, mapping: dict[Value, Value]) -> Region:
    """A copy of a region; arguments are new values entered into `mapping`."""
    new = Region()
    for a in region.args:
        mapping[a] = new.add_arg(a.type, a.name)
    for op in region.ops:
        copy = clone_op(op, mapping)
        copy.parent = new
        new.ops.append(copy)
    return new


def mapped(values: Iterable[Value], mapping: Mapping[Value, Value]) -> tuple[Value, ...]:
    """Values through a mapping; those not in it stay."""
    return tuple(mapping.get(v, v) for v in values)
