"""Random small MACHINE programs: roles joined by one to three channels, most of them broken somewhere.

A program is a text of steps per role; `graph_of` makes the graph that the checker reads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from tiledsl import dtypes as dt
from tiledsl.codegen.module import GridSpec
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.op import Level
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import role
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops import tma
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType

I32 = ScalarType(dt.int32)
TILE = SmemType((64, 64), dt.bfloat16, 1)
WORD = SmemType((1,), dt.int32, 0, 0)
NAMED_THREADS = 256

Step = tuple[str, int]
"""What is done, and with which channel (of `mma_wait`: the groups left in flight)."""


@dataclass(frozen=True)
class Channel:
    """full, empty: arrivals of a phase. kind: a `copy` read by wgmmas, or a `word` read by threads."""

    kind: str
    depth: int
    full: int
    empty: int


@dataclass(frozen=True)
class Actor:
    """A role: a single thread or one warpgroup. after: steps behind the loop."""

    is_single: bool
    loop: tuple[Step, ...]
    after: tuple[Step, ...] = ()


@dataclass(frozen=True)
class ChannelProgram:
    """trips: of every role's loop; -1: an extent of the launch. rounds: how often it is run."""

    channels: tuple[Channel, ...]
    actors: tuple[Actor, ...]
    trips: int
    rounds: int = 1
    faults: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        lines = [
            f"trips {self.trips}, rounds {self.rounds}, faults: {', '.join(self.faults) or 'none'}"
        ]
        lines += [f"channel {i}: {c}" for i, c in enumerate(self.channels)]
        lines += [f"role {i}: {a}" for i, a in enumerate(self.actors)]
        return "\n".join(lines)


# ---------------------------------------------------------------------- drawing
def draw(rng: random.Random, *, any_trips: bool) -> ChannelProgram:
    """A program that is right but for the order in which roles take their channels, then broken."""
    count = rng.choice((1, 1, 2, 2, 3))
    num_actors = rng.choice((2, 2, 3))
    singles = [True] + [rng.random() < 0.15 for _ in range(num_actors - 1)]
    loops: list[list[Step]] = [[] for _ in range(num_actors)]
    afters: list[list[Step]] = [[] for _ in range(num_actors)]
    channels: list[Channel] = []
    for c in range(count):
        source = rng.choice((0, 0, rng.randrange(num_actors)))
        others = [i for i in range(num_actors) if i != source]
        targets = [i for i in others if rng.random() < 0.5] or [rng.choice(others)]
        is_copy = singles[source] and not any(singles[t] for t in targets) and rng.random() < 0.7
        full = 1 if singles[source] else 4
        empty = sum(1 if singles[t] else 4 for t in targets)
        channels.append(Channel("copy" if is_copy else "word", rng.randint(1, 3), full, empty))
        put = (
            ["wait_empty", "expect", "load", "next"]
            if is_copy
            else ["wait_empty", "write", "arrive_full", "next"]
        )
        insert(rng, loops[source], [(s, c) for s in put])
        for t in targets:
            get, after = take(rng, c, is_copy=is_copy, may_lag=any_trips)
            insert(rng, loops[t], get)
            afters[t] += after
    if singles.count(False) == 2 and rng.random() < 0.3:
        for i in range(num_actors):
            if not singles[i]:
                loops[i].insert(rng.randint(0, len(loops[i])), ("named_sync", 0))
    actors = tuple(
        Actor(s, tuple(a), tuple(b)) for s, a, b in zip(singles, loops, afters, strict=True)
    )
    trips = -1 if any_trips else rng.randint(2, 3)
    made = ChannelProgram(tuple(channels), actors, trips, rng.choice((1, 1, 2)))
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        made = broken(rng, made)
    return made


def take(
    rng: random.Random, c: int, *, is_copy: bool, may_lag: bool
) -> tuple[list[Step], list[Step]]:
    """How a consumer takes a slot and gives it back, in the loop and behind it."""
    if not is_copy:
        return [("wait_full", c), ("read", c), ("release", c), ("next", c), ("next_done", c)], []
    issue: list[Step] = [("wait_full", c), ("issue", c), ("next", c)]
    give: list[Step] = [("release", c), ("next_done", c)]
    if not may_lag or rng.random() < 0.7:
        return [*issue, ("mma_wait", 0), *give], []
    return [*issue, ("mma_wait", 1), ("if_later", len(give)), *give], [
        ("mma_wait", 0), ("if_any", len(give)), *give,
    ]  # fmt: skip


def insert(rng: random.Random, steps: list[Step], new: list[Step]) -> None:
    """Puts a channel's steps before or behind those of the others."""
    at = rng.choice((0, len(steps)))
    steps[at:at] = new


FAULTS = ("drop", "double", "swap", "move", "depth", "full", "empty", "other", "pending", "order")


def broken(rng: random.Random, p: ChannelProgram) -> ChannelProgram:
    """One random change; most of them matter."""
    kind = rng.choice(FAULTS)
    p = replace(p, faults=(*p.faults, kind))
    if kind in ("depth", "full", "empty"):
        at = rng.randrange(len(p.channels))
        old = p.channels[at]
        value = getattr(old, kind) + rng.choice((-1, 1))
        new = replace(old, **{kind: max(1, value)})
        return replace(p, channels=(*p.channels[:at], new, *p.channels[at + 1 :]))
    at = rng.randrange(len(p.actors))
    steps = list(p.actors[at].loop)
    if not steps:
        return p
    i = rng.randrange(len(steps))
    j = rng.randrange(len(steps))
    match kind:
        case "drop":
            del steps[i]
        case "double":
            steps.insert(i, steps[i])
        case "swap":
            k = min(i + 1, len(steps) - 1)
            steps[i], steps[k] = steps[k], steps[i]
        case "move" | "order":
            steps.insert(j, steps.pop(i))
        case "other":
            name, c = steps[i]
            if name not in ("mma_wait", "if_later", "if_any", "named_sync"):
                same = [n for n, x in enumerate(p.channels) if x.kind == p.channels[c].kind]
                steps[i] = (name, rng.choice(same))
        case _:
            steps = [(n, c + 1) if n == "mma_wait" else (n, c) for n, c in steps]
    made = replace(p.actors[at], loop=tuple(steps))
    return replace(p, actors=(*p.actors[:at], made, *p.actors[at + 1 :]))


# ---------------------------------------------------------------------- graphs
class GraphMaker:
    """The MACHINE graph of a program."""

    def __init__(self, p: ChannelProgram) -> None:
        self.p = p
        self.graph = TileGraph("channels", Level.MACHINE)
        self.b = Builder(self.graph)
        self.arg = self.graph.body.add_arg(TensorType(2, dt.bfloat16, 1, True, 16), "x")
        self.rings: list[tuple[Value, Value, Value]] = []
        self.at: dict[tuple[str, int], Value] = {}
        self.map = self.b.value(tma.TensorMap(self.arg, (), (1, 0), (64, 64)))
        self.layout = mma_accumulator(64, 64)

    def make(self) -> TileGraph:
        b, top = self.b, 0
        for i, c in enumerate(self.p.channels):
            type_ = TILE if c.kind == "copy" else WORD
            ring = b.value(smem.Buffer(type_, c.depth, top), f"ring_{i}")
            top += -(-c.depth * type_.bytes // 1024) * 1024
            full = b.value(barrier.MbarrierArray(c.depth, c.full, top), f"c{i}_full")
            empty = b.value(barrier.MbarrierArray(c.depth, c.empty, top + 64), f"c{i}_empty")
            top += 1024
            self.rings.append((ring, full, empty))
        setup = b.add(role.Setup())
        with b.at(setup.body):
            for c, (_, full, empty) in zip(self.p.channels, self.rings, strict=True):
                b.add(barrier.MbarrierInit(full, c.full))
                b.add(barrier.MbarrierInit(empty, c.empty))
            b.add(barrier.InitFence())
        b.add(barrier.CtaSync())
        for i, actor in enumerate(self.p.actors):
            made = b.add(role.Role(f"r{i}", i, 1, single_thread=actor.is_single))
            with b.at(made.body):
                self.actor(actor)
        self.graph.facts.update(smem_bytes=top, cluster_size=1, grid=GridSpec(), arg_names=("x",))
        self.graph.facts["num_threads"] = 128 * len(self.p.actors)
        return self.graph

    def number(self, n: int) -> Value:
        return self.b.value(ew.Constant(n, dt.int32))

    def actor(self, actor: Actor) -> None:
        for i, c in enumerate(self.p.channels):
            for name in ("at", "done"):
                self.at[name, i] = self.b.value(barrier.CursorCreate(c.depth), f"{name}_{i}")
        zero, one = self.number(0), self.number(1)
        shape = memory.Shape(self.arg, 0)
        trips = self.b.value(shape) if self.p.trips < 0 else self.number(self.p.trips)
        for _ in range(self.p.rounds):
            loop = self.b.add(control.For(zero, trips, one, ()))
            i = loop.body.add_arg(I32, "i")
            with self.b.at(loop.body):
                self.steps(actor.loop, i, zero, trips)
                self.b.add(control.Yield(()))
            self.steps(actor.after, i, zero, trips)

    def steps(self, steps: tuple[Step, ...], i: Value, zero: Value, trips: Value) -> None:
        at = 0
        while at < len(steps):
            name, c = steps[at]
            at += 1
            if name in ("if_later", "if_any"):
                value = i if name == "if_later" else trips
                branch = control.If(self.b.value(ew.Compare("gt", value, zero)))
                self.b.add(branch)
                with self.b.at(branch.then):
                    self.steps(steps[at : at + c], i, zero, trips)
                    self.b.add(control.Yield(()))
                with self.b.at(branch.orelse):
                    self.b.add(control.Yield(()))
                at += c
            else:
                self.step(name, c)

    def step(self, name: str, c: int) -> None:  # noqa: C901 - a case per step
        b = self.b
        if name == "mma_wait":
            b.add(mma.Wait((), pending=c))
            return
        if name == "named_sync":
            b.add(barrier.NamedSync(base=1, num_threads=NAMED_THREADS))
            return
        ring, full, empty = self.rings[c]
        at, done = self.at["at", c], self.at["done", c]
        single = b.region.parent is not None and self.is_single()
        match name:
            case "wait_empty":
                b.add(barrier.MbarrierWait(empty, at, invert=True))
            case "wait_full":
                b.add(barrier.MbarrierWait(full, at))
            case "expect":
                b.add(barrier.ExpectTx(full, at, TILE.bytes))
            case "load":
                slot = b.value(smem.Slot(ring, at), "slot")
                zero = self.number(0)
                b.add(tma.Load(self.map, slot, full, at, (zero, zero)))
            case "write":
                slot = b.value(smem.Slot(ring, at), "slot")
                b.add(smem.WriteScalars(slot, (self.number(1),)))
            case "arrive_full":
                b.add(barrier.Arrive(full, at, single_thread=single))
            case "release":
                b.add(barrier.Arrive(empty, done, single_thread=single))
            case "read":
                b.add(smem.ReadScalars(b.value(smem.Slot(ring, at), "slot")))
            case "issue":
                slot = b.value(smem.Slot(ring, at), "slot")
                acc = b.value(tile.Undef((64, 64), dt.float32), "acc")
                self.graph.set_type(acc, acc.type.with_layout(self.layout))
                b.add(mma.Fence())
                b.value(mma.Issue(slot, slot, acc))
                b.add(mma.Commit())
            case "next":
                b.add(barrier.CursorNext(at))
            case _:
                b.add(barrier.CursorNext(done))

    def is_single(self) -> bool:
        region = self.b.region
        while region.parent is not None:
            if isinstance(region.parent, role.Role):
                return region.parent.single_thread
            assert region.parent.parent is not None
            region = region.parent.parent
        return False


def graph_of(p: ChannelProgram) -> TileGraph:
    return GraphMaker(p).make()
