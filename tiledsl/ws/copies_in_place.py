"""Operands that threads copy to shared memory where they are loaded, under an if.

Nothing comes ahead of an iteration there, since the next one may not load at all. Asynchronous
copies to the place that the tensor core reads save the registers between, and the product of the
first of several operands starts while the others are on their way: each load is one group, for
which each thread waits before the first dot that reads it. The dot's own fence and barriers, as for
operands that threads write, order the rest: what all wrote is there, and read before the next copy.
"""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.pointer_copy import MOST_BYTES
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.ops.pointer_copy import CopyCommit
from tiledsl.ir.ops.pointer_copy import CopyWait
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.ops.smem_ring import RingSlot
from tiledsl.ir.types import TileType
from tiledsl.ws.copy_loop import RingLoad
from tiledsl.ws.copy_loop import dot_uses
from tiledsl.ws.dot_operands import is_promoted
from tiledsl.ws.free import VIEWS
from tiledsl.ws.free import is_index


def place_obstacle(graph: TileGraph, c: RingLoad) -> str:
    """Why a load cannot be copied where it stands; empty where it can."""
    dots = [dot for dot, _, _ in dot_uses(graph, c.load)]
    uses = [u.op for u in graph.users(c.load.result)]
    turned = [u for u in uses if isinstance(u, tile.Transpose)]
    others = sum(len(graph.users(u.result)) for u in turned) + len(uses) - len(turned)
    if not c.is_direct or len(dots) != others:
        return "not only the tensor core reads it"
    if any(dot.parent is not c.load.parent or is_promoted(dot) for dot in dots):
        return "a dot reads it elsewhere, or in parts"
    if c.width_bytes < MOST_BYTES:
        return f"it comes {c.width_bytes} bytes at once"
    return ""


def copy_in_place(graph: TileGraph, loads: list[RingLoad]) -> list[str]:
    """Rewrites loads; returns a line for each."""
    by_region: dict[Region, list[RingLoad]] = {}
    for c in loads:
        assert c.load.parent is not None
        by_region.setdefault(c.load.parent, []).append(c)
    lines = [_line(c) for c in loads]
    for region, found in by_region.items():
        _Region(graph, region, found).run()
    return lines


def _line(c: RingLoad) -> str:
    at = c.load.loc.short if c.load.loc else "?"
    return (
        f"{at}: {c.name or 'a tile'} through cp.async where it is loaded, {c.width_bytes} bytes "
        f"at once, to {c.memory.bytes} bytes, read by the tensor core"
    )


class _Region:
    """The loads of one block of the program, in its order."""

    def __init__(self, graph: TileGraph, region: Region, loads: list[RingLoad]) -> None:
        self.graph = graph
        self.region = region
        self.loads = sorted(loads, key=lambda c: region.ops.index(c.load))
        self.owned: dict[Value, Value] = {}
        self.slots: dict[Value, Value] = {}

    def run(self) -> None:
        """Copies at the loads, waits and reads in front of the dots."""
        numbers: dict[mma.Dot, int] = {}
        for n, c in enumerate(self.loads):
            numbers.update((dot, n) for dot, _, _ in dot_uses(self.graph, c.load))
        waited = -1
        for dot in sorted(numbers, key=self.region.ops.index):
            if numbers[dot] > waited:
                waited = numbers[dot]
                at = self.region.ops.index(dot)
                started = sum(self.region.ops.index(c.load) < at for c in self.loads)
                self.graph.insert_before(dot, CopyWait(pending=started - 1 - waited))
        for c in self.loads:
            slot = self.copy(c)
            self.read(c.load, slot, self.first_dot(c))
            self.graph.erase(c.load)

    def first_dot(self, c: RingLoad) -> mma.Dot:
        dots = [dot for dot, _, _ in dot_uses(self.graph, c.load)]
        return min(dots, key=self.region.ops.index)

    def copy(self, c: RingLoad) -> Value:
        """Starts the copies of a load, as a group; where they go."""
        load, name = c.load, c.name or "tile"
        top = Builder(self.graph, self.graph.body, 0, load.loc)
        ring = top.value(Ring(c.memory, 1, is_zeroed=c.is_zeroed, loc=load.loc), f"{name}_ring")
        b = Builder(self.graph, self.region, self.region.ops.index(load), load.loc)
        at, mask = self.own(b, load.pointer), None
        if load.mask is not None:
            mask = self.own(b, load.mask)
        only = b.value(ew.Constant(0, int32))
        slot = b.value(RingSlot(ring, only, needs_sync=True), f"{name}_to")
        b.add(Copy(slot, at, mask, loc=load.loc))
        b.add(CopyCommit())
        return slot

    def own(self, b: Builder, value: Value) -> Value:
        """Index math made anew: copies have layouts of their own."""
        op = value.defining_op
        if op is None or not isinstance(value.type, TileType):
            return value
        if value not in self.owned and (isinstance(op, VIEWS) or is_index(op)):
            for operand in op.operands:
                self.own(b, operand)
            b.add(clone_op(op, self.owned))
        return self.owned.get(value, value)

    def read(self, load: pointer.Load, slot: Value, dot: mma.Dot) -> None:
        """The tile in the slot, which may be padded, in each form in which dots take it."""
        b = Builder(self.graph, self.region, self.region.ops.index(dot), load.loc)
        for use in self.graph.users(load.result):
            if isinstance(use.op, tile.Transpose):
                turned = use.op
                view = b.value(smem.View(slot, turned.order))
                self.graph.replace_uses(turned.result, b.value(_part(view, turned.result)))
                self.graph.erase(turned)
        if self.graph.has_uses(load.result):
            self.graph.replace_uses(load.result, b.value(_part(slot, load.result)))


def _part(slot: Value, old: Value) -> Op:
    assert isinstance(old.type, TileType)
    return smem.Read(slot, shape=old.type.shape, names=(old.name,))
