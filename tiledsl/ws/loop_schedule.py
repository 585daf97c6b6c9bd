"""The schedule of a flow loop: a modulo schedule of tiles over tensor core and CUDA cores.

Each dot gets a pipeline distance: at distance 1 it runs one iteration behind the rest, under the
tile math of the next iteration. All assignments are tried; each is list-scheduled against two units
and priced, with its live registers; the cheapest that fits wins. Steps are in issue order: `stage`
writes a computed operand to shared memory, `issue` starts a dot, `wait` makes everything but the
youngest `pending` groups readable, `release` gives slots back, `op` is tile or scalar math.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from itertools import product

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import TileType
from tiledsl.ws.flow import FlowDot
from tiledsl.ws.flow import FlowLoop
from tiledsl.ws.schedule_table import table

ELEMENT_CLOCKS = {"exp": 16.0, "exp2": 8.0, "log": 16.0, "tanh": 20.0, "erf": 30.0, "div": 12.0}
"""Issue clocks of one operation on the 128 elements of a warpgroup's register (4 sub-cores)."""


@dataclass(frozen=True)
class Step:
    """One step of an iteration.

    kind: stage, issue, wait, op or release. late: it belongs to the iteration before. group: of a
    release. start: clocks from the start of the iteration.
    """

    kind: str
    op: Op | None = None
    late: bool = False
    pending: int = 0
    group: int = -1
    start: float = 0.0


@dataclass(frozen=True)
class LoopSchedule:
    """The chosen schedule of one loop.

    distance: pipeline distance of each dot. steps: the steady state; first: an iteration's own part
    (distance 0) alone; last: the late part alone. clocks: of one iteration of one warpgroup.
    registers: of the tiles that live at once, per thread. table: the steady state as text.
    """

    distance: tuple[int, ...]
    steps: tuple[Step, ...]
    first: tuple[Step, ...]
    last: tuple[Step, ...]
    clocks: float
    registers: int
    table: str = ""

    @property
    def is_rotated(self) -> bool:
        return any(self.distance)


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


def math_clocks(flow: FlowLoop, warpgroups: int) -> float:
    """CUDA-core clocks of the tile math of an iteration, over all warpgroups."""
    body = Body(flow, (0,) * len(flow.dots))
    return warpgroups * sum(op_clocks(o, warpgroups) for o in body.ops if not isinstance(o, Dot))


STAGE_CLOCKS = 60.0
"""Clocks of the two barriers around an operand that is written to shared memory."""


def stage_clocks(dot: FlowDot) -> float:
    """Clocks in which the computed operands of a dot are written to shared memory."""
    return sum(STAGE_CLOCKS + s.smem.bytes / 128 for s in dot.staged)


class Body:
    """The ops of a loop body with what depends on what."""

    def __init__(self, flow: FlowLoop, distance: tuple[int, ...]) -> None:
        self.flow = flow
        loop = flow.loop
        self.loads = {o.op.id for g in flow.groups for o in g}
        self.operands = self.loads | {o.op.id for d in flow.dots for o in d.loads}
        self.dots = {d.dot.id: d for d in flow.dots}
        self._uses: dict[int, list[Value]] = {}
        self.selects = {b.select.id for d in flow.dots for b in d.bounds}
        self.ops = [o for o in region_ops(loop.body) if not self._is_operand(o)]
        self.made = {r: op for op in self.ops for r in op.results}
        late_dots = {d.dot.id for d, n in zip(flow.dots, distance, strict=True) if n}
        self.late: set[int] = set()
        for op in self.ops:
            if op.id in late_dots or any(self._is_late(v) for v in self.uses(op)):
                self.late.add(op.id)
        yields = flow.yields
        self.carried = dict(zip(loop.carried, yields, strict=True))
        self.quiet = {o.id for o in self.ops if self._reads_accumulator(o)}

    def _is_operand(self, op: Op) -> bool:
        """Loads through channels, and transposes up to a dot, which its descriptor covers."""
        if op.id in self.flow.math:
            return False
        if op.id in self.loads or op.id in self.selects:
            return True
        source = op
        while isinstance(source, Transpose):
            source = source.a.defining_op
        return isinstance(op, Transpose) and (
            source is not None and source.id in (self.operands | self.selects)
        )

    def uses(self, op: Op) -> list[Value]:
        """Values that an op and what it contains read in registers."""
        out = self._uses.get(op.id)
        if out is None:
            dot = self.dots.get(op.id)
            out = list(dot.inputs if dot is not None else op.operands)
            for r in op.regions:
                out += [v for inner in r.walk() for v in inner.operands]
            self._uses[op.id] = out
        return out

    def _reads_accumulator(self, op: Op) -> bool:
        """Whether tile math reads what a dot of the iteration before has left in its registers.

        With a wgmma in flight that was issued since, ptxas injects a wait. Ref: ptxas C7517.
        """
        if op.id in self.dots:
            return False
        following = [self.made.get(self.carried[v]) for v in self.uses(op) if v in self.carried]
        return any(o is not None and o.id in self.dots for o in following)

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
    flow: FlowLoop, body: Body, ops: list[Op], *, rotated: bool, warpgroups: int
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
    readers = _readers(flow, body, ops)
    clock, tensor_free = 0.0, 0.0
    finish: dict[int, float] = {}

    def ready(op: Op) -> bool:
        return all(n.id in done for n in needs[op.id])

    while left or flight:
        quiet = next((o for o in left if o.id in body.quiet and ready(o)), None)
        if quiet is not None and not flight:
            steps.append(Step("op", quiet, quiet.id in body.late, start=clock))
            clock += op_clocks(quiet, warpgroups)
            done.add(quiet.id)
            left.remove(quiet)
            continue
        issuable = [o for o in left if isinstance(o, Dot) and ready(o)]
        issuable.sort(key=lambda o: (o.id in body.late, ops.index(o)))
        for dot in issuable:
            if body.dots[dot.id].staged:
                steps.append(Step("stage", dot, dot.id in body.late, start=clock))
                clock += stage_clocks(body.dots[dot.id])
            steps.append(Step("issue", dot, dot.id in body.late, start=clock))
            # The other warpgroups use the tensor core too: a dot takes as long as all of theirs.
            tensor_free = max(clock, tensor_free) + dot_clocks(dot)
            finish[dot.id] = tensor_free
            flight.append(dot)
            left.remove(dot)
        kept = body.quiet if flight else set[int]()
        math = next(
            (o for o in left if not isinstance(o, Dot) and o.id not in kept and ready(o)), None
        )
        if math is not None:
            steps.append(Step("op", math, math.id in body.late, start=clock))
            clock += op_clocks(math, warpgroups)
            done.add(math.id)
            left.remove(math)
            steps += _released(readers, math, done, clock, late=math.id in body.late)
            continue
        if issuable:
            continue
        if not flight:
            raise AssertionError("a loop body with a cycle")
        oldest = flight.pop(0)
        steps.append(Step("wait", oldest, oldest.id in body.late, len(flight), start=clock))
        clock = max(clock, finish[oldest.id])
        done.add(oldest.id)
        steps += _released(readers, oldest, done, clock, late=oldest.id in body.late)
    return tuple(steps), clock


def _released(
    readers: dict[int, set[int]], op: Op, done: set[int], clock: float, *, late: bool
) -> list[Step]:
    """Releases of the channels that an op was the last one to read."""
    over = [g for g, ids in readers.items() if op.id in ids and ids <= done]
    return [Step("release", None, late, 0, group, clock) for group in over]


def _keep_registers(flow: FlowLoop, body: Body, ops: list[Op], needs: dict[int, list[Op]]) -> None:
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


def _readers(flow: FlowLoop, body: Body, ops: list[Op]) -> dict[int, set[int]]:
    """Per channel, what reads its slot among some ops: dots, and reads for tile math."""
    out: dict[int, set[int]] = {}
    present = {o.id for o in ops}
    for index, group in enumerate(flow.groups):
        ids = {o.op.id for o in group}
        everywhere = {d.dot.id for d in flow.dots if any(o.op.id in ids for o in d.loads)}
        dots, math = everywhere & present, ids & flow.math & present
        if dots or (math and not everywhere):
            out[index] = dots | math
    return out


def schedule_with(
    flow: FlowLoop, distance: tuple[int, ...], warpgroups: int
) -> LoopSchedule | None:
    """The schedule for one assignment of distances, or None when it is not legal."""
    body = Body(flow, distance)
    late = [o for o in body.ops if o.id in body.late]
    early = [o for o in body.ops if o.id not in body.late]
    if any(distance) and (not early or not late):
        return None
    if any(d.dot.id in body.late and not n for d, n in zip(flow.dots, distance, strict=True)):
        return None  # it waits for a late one
    for group in flow.groups:
        ids = {o.op.id for o in group}
        sides = {d.dot.id in body.late for d in flow.dots if any(o.op.id in ids for o in d.loads)}
        if ids & flow.math:
            sides.add(False)  # tile math reads the slot in its own iteration
        if len(sides) > 1:
            return None
    if any(r.ops for o in late for r in o.regions):
        return None
    if len({o.id in body.late for o in body.ops if o.effect is Effect.WRITE}) > 1:
        return None  # stores keep their order
    rotated = any(distance)
    ordered = late + early
    steps, span = list_schedule(flow, body, ordered, rotated=rotated, warpgroups=warpgroups)
    first, _ = list_schedule(flow, body, early, rotated=False, warpgroups=warpgroups)
    last, _ = list_schedule(flow, body, late, rotated=False, warpgroups=warpgroups)
    clocks = max(span, sum(dot_clocks(d.dot) for d in flow.dots))
    return LoopSchedule(
        distance, steps, first, last, clocks, live_registers(flow, body, warpgroups)
    )


def live_registers(flow: FlowLoop, body: Body, warpgroups: int) -> int:
    """Registers of the tiles that live across the loop or at its fullest point, roughly."""
    per = 128 * warpgroups

    def regs(v: Value) -> int:
        t = v.type
        if not isinstance(t, TileType) or t.rank < 2:
            return 2 if isinstance(t, TileType) else 0
        return t.num_elements * t.dtype.bytes // 4 // per

    carried = sum(regs(v) for v in flow.loop.carried)
    late = {d.dot.a for d in flow.dots if d.dot.id in body.late and d.register_a}
    extra = sum(regs(v) for v in late)
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
    shown = table(Body(flow, best.distance), best.steps, warpgroups)
    return replace(best, table=shown), lines


def region_ops(region: Region) -> list[Op]:
    """The ops of a region without its terminator."""
    return [o for o in region.ops if not isinstance(o, Yield)]
