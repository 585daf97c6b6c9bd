"""What runs: a cluster with its threads, barriers and slots, and the rules for ops."""

from __future__ import annotations

import functools
from typing import Any

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer_copy
from tiledsl.ir.ops import program
from tiledsl.ir.ops import role
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ws.check_data import NEVER
from tiledsl.ws.check_link import Linker
from tiledsl.ws.check_memory import MemoryRules
from tiledsl.ws.check_places import PlaceRules
from tiledsl.ws.check_places import gives
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import Step
from tiledsl.ws.check_program import loaded_factors
from tiledsl.ws.check_scalars import bound
from tiledsl.ws.check_scalars import function_of
from tiledsl.ws.check_scalars import scalar
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Cta
from tiledsl.ws.check_state import Cursor
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import NamedBarrier
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_state import Times
from tiledsl.ws.check_steps import Block
from tiledsl.ws.check_steps import Call
from tiledsl.ws.check_steps import Rule
from tiledsl.ws.check_teams import crews_of
from tiledsl.ws.check_teams import teams_of

RULES: dict[type[Op], tuple[str, ...]] = {
    barrier.CursorCreate: (),
    barrier.CursorNext: (),
    barrier.CursorSkip: ("count",),
    barrier.MbarrierWait: (),
    barrier.ExpectTx: (),
    barrier.Arrive: (),
    barrier.ArriveCopies: (),
    barrier.NamedSync: ("index",),
    barrier.NamedArrive: ("index",),
    barrier.AsyncFence: (),
    barrier.WarpSync: (),
    smem.Slot: ("group",),
    smem.View: (),
    smem.Write: (),
    smem.Read: (),
    smem.Arrived: (),
    smem.Clear: ("first",),
    smem.WriteScalars: ("values",),
    smem.ReadScalars: (),
    pointer_copy.CopyLanes: (),
    tma.Load: ("mask", "part"),
    tma.Store: (),
    tma.StoreWait: (),
    mma.Issue: (),
    mma.Fence: (),
    mma.Commit: (),
    mma.Wait: (),
    mma.Pin: (),
    mma.ClusterReduce: ("index", "rank"),
    role.WarpgroupIndex: (),
    role.ClusterRank: (),
    role.FirstTile: (),
    role.TileStep: (),
    role.NumTiles: (),
    role.Pause: (),
    role.DrawTile: (),
    role.NextTile: ("drawn", "count"),
    program.ProgramId: (),
    program.NumPrograms: (),
    program.OwnRow: (),
    program.TileToProgram: ("tile",),
    memory.Pick: (),
    memory.Shape: (),
    memory.Stride: (),
}
"""Ops that the checker executes, with the scalar operands that it needs of each."""


def _snake(cls: type[Op]) -> str:
    name = cls.__name__
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


@functools.cache
def rules_of(cls: type[Machine]) -> dict[type[Op], Rule]:
    """The rules of a kind of machine, by op."""
    found = {op: (f"calc_{_snake(op)}", f"link_{_snake(op)}", names) for op, names in RULES.items()}
    return {
        op: Rule(getattr(cls, calc, None), getattr(cls, link, None), names)
        for op, (calc, link, names) in found.items()
    }


class Machine(PlaceRules, MemoryRules):
    """A cluster that runs a program, at one launch point after the other.

    whole: with its data. crews: by thread, all that execute the same steps. teams: threads whose
    control flow is the same. given: scalars that a launch gives. reached: regions that any
    launch has run. forced: branches that are taken whatever their conditions are. way: how those
    that follow from data are. loaded: values of the scalars that the program loads.
    """

    whole = False

    def __init__(self, code: Program, cluster_size: int) -> None:
        self.code = code
        self.cluster_size = cluster_size
        self.ctas = [Cta(rank) for rank in range(cluster_size)]
        self.times = Times()
        self.threads: list[Thread] = []
        self.reached: set[Region] = set()
        self.forced: dict[Op, bool] = {}
        self.way = NEVER
        self.loaded: dict[Op, int] = {}
        self.box_sizes = {}
        self.given: dict[Value, Any] = {}
        self._blocks: dict[Thread, Block] = {}
        for cta in self.ctas:
            for r in code.roles:
                for g in range(1 if r.single_thread else r.num_warpgroups):
                    self.threads.append(Thread(len(self.threads), r, cta, g, self.times))
            self._make_objects(cta)
        self.crews = crews_of(self.threads, whole=self.whole)
        self.teams = teams_of(code, self.threads, whole=self.whole)

    def _make_objects(self, cta: Cta) -> None:
        times = self.times
        for o in self.code.graph.body.ops:
            if isinstance(o, barrier.MbarrierArray):
                cta.barriers[o.result] = [Barrier(o.result, i, times) for i in range(o.depth)]
            elif isinstance(o, smem.Buffer):
                cta.buffers[o.result] = [SlotState(o.result, i) for i in range(o.slots)]
        cta.named = {i: NamedBarrier(i, times) for i in sorted(self.code.named)}

    def start(self, point: LaunchPoint) -> None:
        """All as it is when a launch begins."""
        code = self.code
        self.point = point
        self.drawn = point.drawn
        self.loaded = {op: point.loaded_of(factor) for op, factor in loaded_factors(code).items()}
        self.given = {a: point.extent_of(code.symbols.get((a, -1), -1)) for a in code.graph.args}
        self.given.update(code.constants)
        for t in self.threads:
            t.env.clear()
            t.tile = 0

    def reset(self) -> None:
        """Nothing has happened yet."""
        self.times.last = 1
        for t in self.threads:
            t.reset()
        for cta in self.ctas:
            for items in (*cta.barriers.values(), *cta.buffers.values(), cta.named.values()):
                for item in items:
                    item.reset()
        for op in self.code.graph.body.ops:
            if isinstance(op, role.Setup):
                for inner in op.body.ops:
                    self._initialise(inner)

    def _initialise(self, op: Op) -> None:
        for cta in self.ctas:
            if isinstance(op, barrier.MbarrierInit):
                for b in cta.barriers[op.barriers]:
                    b.expected = op.arrivals
            elif isinstance(op, barrier.ExpectAll):
                for b in cta.barriers[op.barriers]:
                    b.expect(op.num_bytes, op)

    def block(self, team: list[Thread]) -> Block:
        """What a team executes, as all of its crew do."""
        crew = self.crews[team[0]]
        lead = crew[0]
        if lead not in self._blocks:
            linker = Linker(self, crew, rules_of(type(self)), whole=self.whole)
            self._blocks[lead] = linker.role(lead.role.body)
        return self._blocks[lead]

    def close(self) -> None:
        """Nothing more is run: what refers to itself is taken apart, not left to the collector."""
        self._blocks.clear()
        self.code.tables.clear()
        for t in self.threads:
            t.env.clear()
            t.cursors.clear()
            t.slots.clear()

    # ------------------------------------------------------------------ ops without a rule
    def link_scalar(self, t: Thread, step: Step) -> Call | None:
        """A scalar that decides something."""
        env, op, result = t.env, step.op, step.result
        if result is None:
            return None
        operands = op.operands
        if (function := function_of(op)) is not None:
            return bound(function, operands, result, env)
        if op.effect is Effect.READ:
            return gives(t, op, lambda: self.loaded[op] * (1 + t.tile % 3 * self.point.wobble))
        return gives(t, op, lambda: scalar(op, [env[v] for v in operands]))

    # ------------------------------------------------------------------ ends
    def finish(self, t: Thread) -> None:
        """What may not be left over when a thread ends."""
        if t.copying:
            what = f"{t.name} ends with copies of which it has told nobody"
            raise Fault("balance", what, t.copying[0].op)
        if t.groups or t.open:
            raise Fault("ordering", f"{t.name} ends with wgmmas in flight", t.where)
        if t.arriving:
            raise Fault("ordering", f"{t.name} ends with reads that nothing waits for", t.where)
        if t.stores:
            raise Fault(
                "staging", f"{t.name} ends while its bulk stores may read shared memory", t.where
            )

    def check_end(self) -> None:
        for cta in self.ctas:
            for slots in cta.barriers.values():
                for b in slots:
                    self._check_balance(b)
        for t in self.threads:
            for cursor in t.cursors.values() if t.loads else ():
                self._check_released(t, cursor)

    def _check_released(self, t: Thread, cursor: Cursor) -> None:
        """Every slot that was filled by copies has been given back."""
        if not any(b.receives for r in cursor.rings for b in t.cta.barriers[r]):
            return
        used = {r.name: sum(b.phases for b in t.cta.barriers[r]) for r in cursor.rings}
        if len(set(used.values())) > 1:
            counts = ", ".join(f"{name} {n}" for name, n in sorted(used.items()))
            raise Fault("balance", f"puts and releases differ: {counts} phases")

    def _check_balance(self, b: Barrier) -> None:
        if (b.tx or b.pending) and (b.used or b.receives):
            open_ = f"{b.pending} of {b.expected} arrivals, {b.tx} bytes open"
            raise Fault("balance", f"{b.name} ends in the middle of a phase: {open_}")
        if b.receives and b.seen < b.phases:
            raise Fault("balance", f"nobody waits for copies that {b.name} tells of")

    def stuck(self, threads: list[Thread]) -> str:
        """What threads wait for."""
        waits: list[str] = []
        for t in threads:
            op = t.where
            loc = f" at {op.loc.short}" if op is not None and op.loc else ""
            what = op.operands[0].name if op is not None and op.operands else ""
            waits.append(f"{t.name} (CTA {t.cta.rank}) waits for {what or 'a barrier'}{loc}")
        return "no thread can go on: " + "; ".join(waits)
