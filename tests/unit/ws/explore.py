"""All interleavings of a small MACHINE program, by its ops alone and not by the checker's rules.

Barriers are the hardware's: a count of arrivals, a count of bytes, the parity of the phase. A copy
lands at any time after its start; a wgmma reads until its wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import Any

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import role
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma

Event = tuple[Any, ...]


class TooMany(Exception):
    """More states than were asked for."""


@dataclass
class Trace:
    """What one thread does, and the slots that its wgmmas may be reading before each event."""

    events: list[Event] = field(default_factory=list[Event])
    reading: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])


class Tracer:
    """The events of the roles for a number of trips."""

    def __init__(self, graph: TileGraph, trips: int) -> None:
        self.trips = trips
        self.bars: dict[Any, int] = {}
        self.counts: list[int] = []
        self.slots: dict[Any, int] = {}
        self.num_slots = 0
        for op in graph.body.ops:
            if isinstance(op, barrier.MbarrierArray):
                self.bars[op.result] = len(self.counts)
                self.counts += [op.arrivals] * op.depth
            elif isinstance(op, smem.Buffer):
                self.slots[op.result] = self.num_slots
                self.num_slots += op.slots
        self.traces = [self.trace(r) for r in graph.body.ops if isinstance(r, role.Role)]

    def trace(self, op: role.Role) -> Trace:
        self.env: dict[Any, Any] = {}
        self.out = Trace()
        self.open: list[int] = []
        self.groups: list[list[int]] = []
        self.warps = 1 if op.single_thread else 4
        self.region(op.body)
        self.event(("end",))
        return self.out

    def event(self, *events: Event) -> None:
        for event in events:
            self.out.events.append(event)
            self.out.reading.append(
                tuple(sorted({s for g in [*self.groups, self.open] for s in g}))
            )

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:  # noqa: C901 - a case per op
        env = self.env
        match op:
            case ew.Constant():
                env[op.result] = op.value
            case memory.Shape():
                env[op.result] = self.trips
            case ew.Compare():
                assert op.predicate == "gt"
                env[op.result] = env[op.a] > env[op.b]
            case control.For():
                for i in range(env[op.lower], env[op.upper], env[op.step]):
                    env[op.iv] = i
                    self.region(op.body)
            case control.If():
                self.region(op.then if env[op.condition] else op.orelse)
            case barrier.CursorCreate():
                env[op.result] = [op.depth, 0]
            case barrier.CursorNext():
                env[op.cursor][1] += 1
            case barrier.MbarrierWait():
                bar, parity = self.bar(op)
                self.event(("wait", bar, parity ^ op.invert))
            case barrier.ExpectTx():
                self.event(("expect", self.bar(op)[0], op.num_bytes))
            case barrier.Arrive():
                self.event(("arrive", self.bar(op)[0], self.warps))
            case barrier.NamedSync():
                self.event(("named", op.num_threads // 128), ("named_wait",))
            case smem.Slot():
                depth, n = env[op.cursor]
                env[op.result] = (self.slots[op.buffer] + n % depth, n)
            case tma.Load():
                slot, n = env[op.smem]
                self.event(("copy", slot, self.bar(op)[0], 8192, n))
            case smem.WriteScalars():
                self.event(("write", *env[op.smem]))
            case smem.ReadScalars():
                self.event(("read", *env[op.smem]))
            case mma.Issue():
                self.event(("read", *env[op.a]))
                self.open.append(env[op.a][0])
            case mma.Commit():
                self.groups.append(self.open)
                self.open = []
            case mma.Wait():
                self.event(("mma_wait",))
                del self.groups[: max(0, len(self.groups) - op.pending)]
            case _:
                pass

    def bar(self, op: Any) -> tuple[int, int]:
        depth, n = self.env[op.cursor]
        return self.bars[op.barriers] + n % depth, n // depth & 1


@dataclass(frozen=True)
class Finding:
    """What can go wrong, empty for nothing; and how many states there are."""

    problem: str
    states: int


def explore(graph: TileGraph, trips: int, *, limit: int = 100_000) -> Finding:
    """Whether some interleaving hangs, overflows a barrier, or lets two accesses collide.

    Raises TooMany.
    """
    made = Tracer(graph, trips)
    start = (
        (0,) * len(made.traces),
        tuple((0, n, 0) for n in made.counts),  # parity, arrivals missing, bytes missing
        (-1,) * made.num_slots,  # number of the put that a slot holds
        (),  # copies in flight: (slot, barrier, bytes, put)
        (0, (0,) * len(made.traces)),  # named barrier: warpgroups there, what each waits for
    )
    seen, work = {start}, [start]
    while work:
        for state in successors(made, work.pop()):
            if isinstance(state, str):
                return Finding(state, len(seen))
            if state not in seen:
                seen.add(state)
                work.append(state)
        if len(seen) > limit:
            raise TooMany
    return Finding("", len(seen))


def successors(made: Tracer, state: Any) -> list[Any]:
    """The states after any one step; a text in place of a state for what must not happen."""
    pcs, bars, slots, copies, named = state
    out: list[Any] = []
    for i, copy in enumerate(copies):
        slot, bar, num_bytes, put = copy
        rest = (*copies[:i], *copies[i + 1 :])
        tx = told(made, bars, bar, 0, -num_bytes)
        landed = (*slots[:slot], put, *slots[slot + 1 :])
        out.append((pcs, tx, landed, rest, named))
    for t, trace in enumerate(made.traces):
        event = trace.events[pcs[t]]
        if event[0] != "end":
            out += step(made, state, t, event)
    if not out and any(tr.events[pc][0] != "end" for tr, pc in zip(made.traces, pcs, strict=True)):
        return ["deadlock"]
    if copies and all(tr.events[pc][0] == "end" for tr, pc in zip(made.traces, pcs, strict=True)):
        return ["the block ends while a copy is in flight"]
    return out


def step(  # noqa: C901 - a case per event
    made: Tracer, state: Any, t: int, event: Event
) -> list[Any]:
    """What a thread's next event makes of a state: nothing when it has to wait."""
    pcs, bars, slots, copies, named = state
    after = (*pcs[:t], pcs[t] + 1, *pcs[t + 1 :])
    match event:
        case ("wait", bar, parity):
            return [(after, bars, slots, copies, named)] if bars[bar][0] != parity else []
        case ("expect", bar, num_bytes):
            found = told(made, bars, bar, 1, num_bytes)
            return [found if isinstance(found, str) else (after, found, slots, copies, named)]
        case ("arrive", bar, count):
            found = told(made, bars, bar, count, 0)
            return [found if isinstance(found, str) else (after, found, slots, copies, named)]
        case ("copy", slot, bar, num_bytes, put):
            if clash(made, pcs, copies, slot, t):
                return ["a copy starts while its slot is read or written"]
            flying = tuple(sorted((*copies, (slot, bar, num_bytes, put))))
            return [(after, bars, slots, flying, named)]
        case ("write", slot, put):
            if clash(made, pcs, copies, slot, t):
                return ["a slot is written while it is read or written"]
            return [(after, bars, (*slots[:slot], put, *slots[slot + 1 :]), copies, named)]
        case ("read", slot, put):
            if any(c[0] == slot for c in copies):
                return ["a slot is read while a copy is in flight"]
            if slots[slot] != put:
                return [f"a slot holds put {slots[slot]}, put {put} is read"]
            return [(after, bars, slots, copies, named)]
        case ("named", wanted):
            there, waits = named
            if waits[t]:
                return ["a warpgroup is twice in one round of a named barrier"]
            held = (*waits[:t], 1, *waits[t + 1 :])
            full = there + 1 == wanted
            now = (0, (0,) * len(waits)) if full else (there + 1, held)
            return [(after, bars, slots, copies, now)]
        case ("mma_wait",):
            return [(after, bars, slots, copies, named)]
        case _:
            return [] if named[1][t] else [(after, bars, slots, copies, named)]


def clash(made: Tracer, pcs: Any, copies: Any, slot: int, own: int) -> bool:
    """Whether a slot is being written by a copy or read by a wgmma."""
    del own
    reading = any(slot in tr.reading[pc] for tr, pc in zip(made.traces, pcs, strict=True))
    return reading or any(c[0] == slot for c in copies)


def told(made: Tracer, bars: Any, bar: int, arrivals: int, num_bytes: int) -> Any:
    """The barriers after arrivals and bytes; a text where more arrive than a phase counts."""
    parity, missing, tx = bars[bar]
    missing, tx = missing - arrivals, tx + num_bytes
    if missing < 0:
        return "more arrivals than a phase counts"
    if missing == 0 and tx == 0:
        parity, missing = parity ^ 1, made.counts[bar]
    return (*bars[:bar], (parity, missing, tx), *bars[bar + 1 :])
