"""The steps of a program in the form in which one kind of run executes them, made once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.check_program import END
from tiledsl.ws.check_program import FOR
from tiledsl.ws.check_program import HANDLED
from tiledsl.ws.check_program import IF
from tiledsl.ws.check_program import SCALAR
from tiledsl.ws.check_program import WHILE
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import Step
from tiledsl.ws.check_scalars import bound

BOUND, WAITING = WHILE + 1, WHILE + 2
"""Kinds of steps: a function of the thread's values; an op with a rule at which it may wait."""
WAITS = (barrier.MbarrierWait, barrier.NamedSync, mma.ClusterReduce)
"""Ops at which a thread may have to wait; that of a single-thread role also pauses where its cursor
moves."""
Handlers = Mapping[type[Op], Callable[..., Any]]
Row = tuple[int, Any, Any]
"""A kind, what to call or to set, and what it is about."""


@dataclass(frozen=True)
class Loop:
    """A loop; of its carried values those that matter. args: of its body, behind its number."""

    op: For
    init: tuple[Value, ...]
    args: tuple[Value, ...]
    results: tuple[Value, ...]


class Table:
    """rows: by region, in order. straight: regions in which no thread waits or pauses."""

    def __init__(self, code: Program, handlers: Handlers, *, restless: bool) -> None:
        """restless: threads pause after every op, and everything is computed with its data."""
        self.rows: dict[Region, list[Row]] = {}
        self.straight: set[Region] = set()
        self._code = code
        self._restless = restless
        self._handlers = handlers
        for role in code.roles:
            self._add(role.body, single=role.single_thread)

    def _add(self, region: Region, *, single: bool) -> None:
        """The rows of a region and of those within."""
        rows: list[Row] = []
        straight = not self._restless
        for s in self._code.code.get(region, ()):
            if s.kind in (FOR, IF, WHILE):
                for r in s.op.regions:
                    self._add(r, single=single)
                straight &= s.kind == IF and self.straight.issuperset(s.op.regions)
            row = self._row(s, single=single)
            if row is not None:
                straight &= row[0] != WAITING
                rows.append(row)
        self.rows[region] = rows
        if straight:
            self.straight.add(region)

    def _row(self, step: Step, *, single: bool) -> Row | None:
        op: Any = step.op
        match step.kind:
            case kind if kind == HANDLED:
                waits = isinstance(op, WAITS) or (single and isinstance(op, barrier.CursorNext))
                how = WAITING if waits or self._restless else HANDLED
                return how, self._handlers[type(op)], op
            case kind if kind == SCALAR and not self._restless:
                if step.result is None:
                    return None
                if step.fast is not None:
                    return BOUND, bound(step.fast, step.operands, step.result), op
                return kind, None, step
            case kind if kind == FOR:
                made = [op.init, tuple(op.carried), op.results]
                return kind, None, Loop(op, *(self._kept(op.body, v) for v in made))
            case kind if kind == IF:
                return kind, self._kept(op.then, op.results), op
            case kind if kind == END:
                assert op.parent is not None
                return kind, None, self._kept(op.parent, step.operands)
            case kind:
                return kind, None, op if kind == WHILE else step

    def _kept(self, region: Region, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Of values that stand for what a region yields, those that matter."""
        parent = region.parent
        if self._restless or not isinstance(parent, For | If):
            return values
        carried = parent.carried if isinstance(parent, For) else parent.results
        pairs = zip(values, carried, parent.results, strict=True)
        return tuple(v for v, a, b in pairs if self._matters(a) or self._matters(b))

    def _matters(self, v: Value) -> bool:
        """Whether a value is more than a tile that is not in flight."""
        code = self._code
        is_data = isinstance(v.type, TileType | ScalarType)
        return v in code.needed or v in code.flight or not is_data
