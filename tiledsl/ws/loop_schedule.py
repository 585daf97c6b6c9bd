"""The schedule of a flow loop: a modulo schedule of tiles over tensor core and CUDA cores.

Each dot gets a pipeline distance: at distance 1 it runs one iteration behind the rest, under the
tile math of the next iteration. All assignments are tried; each is list-scheduled against two units
and priced, with its live registers; the cheapest that fits wins. Steps are in issue order: `issue`
starts a dot, `wait` makes everything but the youngest `pending` groups readable, `release` gives
slots back, `op` is tile or scalar math.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import TileType
from tiledsl.ws.analysis import operand_load
from tiledsl.ws.flow import FlowLoop

ELEMENT_CLOCKS = {"exp": 16.0, "exp2": 8.0, "log": 16.0, "tanh": 20.0, "erf": 30.0, "div": 12.0}
"""Issue clocks of one operation on the 128 elements of a warpgroup's register (4 sub-cores)."""


@dataclass(frozen=True)
class Step:
    """One step of an iteration.

    kind: issue, wait, op or release. late: it belongs to the iteration before. group: of a release.
    """

    kind: str
    op: Op | None = None
    late: bool = False
    pending: int = 0
    group: int = -1


@dataclass(frozen=True)
class LoopSchedule:
    """The chosen schedule of one loop.

    distance: pipeline distance of each dot. steps: the steady state; first: an iteration's own part
    (distance 0) alone; last: the late part alone. clocks: of one iteration of one warpgroup.
    registers: of the tiles that live at once, per thread.
    """

    distance: tuple[int, ...]
    steps: tuple[Step, ...]
    first: tuple[Step, ...]
    last: tuple[Step, ...]
    clocks: float
    registers: int

    @property
    def is_rotated(self) -> bool:
        return any(self.distance)

    def table(self) -> str:
        """The steady state as text: step, unit, distance."""
        rows: list[str] = []
        for s in self.steps:
            unit = {"issue": "tensor core", "wait": "", "op": "CUDA cores", "release": ""}[s.kind]
            what = s.kind if s.op is None else f"{s.kind} {s.op.opcode} {_name(s.op)}"
            if s.kind == "wait":
                what = f"wait pending {s.pending}"
            elif s.kind == "release":
                what = f"release channel {s.group}"
            rows.append(f"    {what:<40} {unit:<12} {'i-1' if s.late else 'i'}")
        return "\n".join(rows)


def _name(op: Op) -> str:
    return op.results[0].name if op.results else ""


def dot_clocks(dot: Dot) -> float:
    """Tensor-core clocks of a dot, over all warpgroups."""
    a, b = dot.a.type, dot.b.type
    assert isinstance(a, TileType)
    assert isinstance(b, TileType)
    return a.shape[0] * a.shape[1] * b.shape[1] * a.dtype.bytes / 4096


def op_clocks(op: Op, warpgroups: int) -> float:
    """CUDA-core clocks of one warpgroup's part of a tile op."""
    types = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, TileType)]
    if not types or isinstance(op, Splat | Transpose):
        return 0.0
    elements = max(t.num_elements for t in types) / warpgroups
    per = ELEMENT_CLOCKS.get(op.opcode.split(".")[-1], 1.0)
    return elements / 128 * per


class _Body:
    """The ops of a loop body with what depends on what."""

    def __init__(self, flow: FlowLoop, distance: tuple[int, ...]) -> None:
        self.flow = flow
        loop = flow.loop
        self.loads = {o.op.id for g in flow.groups for o in g}
        self.ops = [o for o in region_ops(loop.body) if not self._is_operand(o)]
        self.made = {r: op for op in self.ops for r in op.results}
        late_dots = {d.dot.id for d, n in zip(flow.dots, distance, strict=True) if n}
        self.late: set[int] = set()
        for op in self.ops:
            if op.id in late_dots or any(self._is_late(v) for v in self.uses(op)):
                self.late.add(op.id)
        yields = flow.yields
        self.carried = dict(zip(loop.carried, yields, strict=True))

    def _is_operand(self, op: Op) -> bool:
        """Loads, and transposes between a load and its dot: the dot's descriptor covers them."""
        return op.id in self.loads or (
            isinstance(op, Transpose) and operand_load(op.result) is not None
        )

    def uses(self, op: Op) -> list[Value]:
        """Values that an op and what it contains read."""
        out = list(op.operands)
        for r in op.regions:
            out += [v for inner in r.walk() for v in inner.operands]
        return out

    def _is_late(self, v: Value) -> bool:
        op = self.made.get(v)
        return op is not None and op.id in self.late

    def steady_needs(self, op: Op, *, rotated: bool) -> Iterator[Op]:
        """Ops of the same steady-state iteration that must come before."""
        for v in self.uses(op):
            source = self.made.get(v)
            if source is not None and (source.id in self.late) == (op.id in self.late):
                yield source
            if v in self.carried and rotated and op.id not in self.late:
                following = self.made.get(self.carried[v])
                if following is not None and following.id in self.late:
                    yield following


def list_schedule(
    flow: FlowLoop, body: _Body, ops: list[Op], *, rotated: bool, warpgroups: int
) -> tuple[tuple[Step, ...], float]:
    """Issue order of some ops of a body, and the clocks until the last has finished."""
    wanted = {o.id for o in ops}
    needs = {
        o.id: [n for n in body.steady_needs(o, rotated=rotated) if n.id in wanted] for o in ops
    }
    if rotated:
        _keep_registers(flow, body, ops, needs)
    done: set[int] = set()
    flight: list[Op] = []
    left = list(ops)
    steps: list[Step] = []
    groups = _last_readers(flow, body, ops)
    clock, tensor_free = 0.0, 0.0
    finish: dict[int, float] = {}

    def ready(op: Op) -> bool:
        return all(n.id in done for n in needs[op.id])

    while left or flight:
        issuable = [o for o in left if isinstance(o, Dot) and ready(o)]
        issuable.sort(key=lambda o: (o.id in body.late, ops.index(o)))
        for dot in issuable:
            steps.append(Step("issue", dot, dot.id in body.late))
            # The other warpgroups use the tensor core too: a dot takes as long as all of theirs.
            tensor_free = max(clock, tensor_free) + dot_clocks(dot)
            finish[dot.id] = tensor_free
            flight.append(dot)
            left.remove(dot)
        math = next((o for o in left if not isinstance(o, Dot) and ready(o)), None)
        if math is not None:
            steps.append(Step("op", math, math.id in body.late))
            clock += op_clocks(math, warpgroups)
            done.add(math.id)
            left.remove(math)
            continue
        if issuable:
            continue
        if not flight:
            raise AssertionError("a loop body with a cycle")
        oldest = flight.pop(0)
        steps.append(Step("wait", oldest, oldest.id in body.late, len(flight)))
        clock = max(clock, finish[oldest.id])
        done.add(oldest.id)
        late, done_with = oldest.id in body.late, groups.get(oldest.id, ())
        steps += [Step("release", None, late, 0, group) for group in done_with]
    return tuple(steps), clock


def _keep_registers(flow: FlowLoop, body: _Body, ops: list[Op], needs: dict[int, list[Op]]) -> None:
    """A register operand may be rewritten only after the dot that reads its old value has finished.

    Ref: ptxas C7513.
    """
    for d in flow.dots:
        if d.dot.id not in body.late or not d.register_a:
            continue
        writer = body.made.get(d.dot.a)
        if writer is not None and writer.id in needs and writer.id not in body.late:
            needs[writer.id].append(d.dot)
    del ops


def _last_readers(flow: FlowLoop, body: _Body, ops: list[Op]) -> dict[int, list[int]]:
    """For each dot, the channels whose slot nobody reads after it."""
    out: dict[int, list[int]] = {}
    present = [o for o in ops if isinstance(o, Dot)]
    for index, group in enumerate(flow.groups):
        ids = {o.op.id for o in group}
        readers = [d.dot for d in flow.dots if any(o.op.id in ids for o in d.loads)]
        readers = [r for r in readers if r in present]
        if readers:
            last = max(readers, key=lambda r: (r.id not in body.late, ops.index(r)))
            if len({r.id in body.late for r in readers}) == 1:
                last = max(readers, key=ops.index)
            out.setdefault(last.id, []).append(index)
    return out


def schedule_with(
    flow: FlowLoop, distance: tuple[int, ...], warpgroups: int
) -> LoopSchedule | None:
    """The schedule for one assignment of distances, or None when it is not legal."""
    body = _Body(flow, distance)
    late = [o for o in body.ops if o.id in body.late]
    early = [o for o in body.ops if o.id not in body.late]
    if any(distance) and (not early or not late):
        return None
    for index, group in enumerate(flow.groups):
        ids = {o.op.id for o in group}
        sides = {d.dot.id in body.late for d in flow.dots if any(o.op.id in ids for o in d.loads)}
        if len(sides) > 1:
            return None
        del index
    if any(not isinstance(o, Dot) and o.regions for o in late):
        return None
    rotated = any(distance)
    ordered = late + early
    steps, span = list_schedule(flow, body, ordered, rotated=rotated, warpgroups=warpgroups)
    first, _ = list_schedule(flow, body, early, rotated=False, warpgroups=warpgroups)
    last, _ = list_schedule(flow, body, late, rotated=False, warpgroups=warpgroups)
    clocks = max(span, sum(dot_clocks(d.dot) for d in flow.dots))
    return LoopSchedule(
        distance, steps, first, last, clocks, live_registers(flow, body, warpgroups)
    )


def live_registers(flow: FlowLoop, body: _Body, warpgroups: int) -> int:
    """Registers of the tiles that live across the loop or at its fullest point, roughly."""
    per = 128 * warpgroups

    def regs(v: Value) -> int:
        t = v.type
        if not isinstance(t, TileType) or t.rank < 2:
            return 2 if isinstance(t, TileType) else 0
        return t.num_elements * t.dtype.bytes // 4 // per

    carried = sum(regs(v) for v in flow.loop.carried)
    extra = 0
    for d in flow.dots:
        if d.dot.id in body.late and d.register_a:
            extra += regs(d.dot.a)
    products = [regs(d.dot.result) for d in flow.dots if d.zero_acc]
    return carried + extra + sum(products)


def schedule_loop(flow: FlowLoop, warpgroups: int, limit: int) -> tuple[LoopSchedule, list[str]]:
    """The cheapest legal schedule, and a line per assignment that was priced.

    limit: registers that tiles may take per thread.
    """
    found: list[LoopSchedule] = []
    lines: list[str] = []
    for distance in product((0, 1), repeat=len(flow.dots)):
        if all(distance) and len(flow.dots) > 1:
            continue
        made = schedule_with(flow, distance, warpgroups)
        if made is None:
            lines.append(f"distances {distance}: not legal")
            continue
        fits = made.registers <= limit
        lines.append(
            f"distances {distance}: {made.clocks:.0f} clocks, {made.registers} registers"
            + ("" if fits else f" (over {limit})")
        )
        if fits or not any(distance):
            found.append(made)
    best = min(found, key=lambda s: (s.clocks, sum(s.distance)))
    return best, lines


def region_ops(region: Region) -> list[Op]:
    """The ops of a region without its terminator."""
    return [o for o in region.ops if not isinstance(o, Yield)]
