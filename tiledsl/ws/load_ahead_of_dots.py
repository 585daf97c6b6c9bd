"""Loads in front of the product of the iteration before, in a single role that multiplies.

What copies cannot bring to shared memory (ws/copy_rings.py), as elements of two bytes that lie far
apart, is loaded into registers and written from there. Where the registers hold it, the loop
carries it: the loads of an iteration are on their way while the product before is computed, and
while other CTAs of the SM wait for theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.access_layouts import wanted_shape
from tiledsl.ws.load_ahead import candidates
from tiledsl.ws.load_ahead import carry_ahead
from tiledsl.ws.load_ahead import obstacle_to_order

REGISTER_BYTES = 4
MOST_REGISTERS = 128
"""Of a thread for accumulators and what is on its way; addresses take as many again at most."""
ADDRESS_REGISTERS = 56
"""Of a thread for all else, where several CTAs are to share an SM."""


@dataclass(frozen=True)
class LoadedAhead:
    """What was done. registers: of a thread in the loop that takes the most; 0 without one."""

    notes: tuple[str, ...] = ()
    registers: int = 0

    def blocks(self, num_threads: int, target: Target) -> int:
        """CTAs on an SM whose registers suffice: they compute while others wait for their loads."""
        if not self.registers:
            return 1
        each = (self.registers + ADDRESS_REGISTERS) * num_threads
        return max(1, min(target.registers_per_sm // each, target.max_blocks_per_sm))


def load_ahead_of_dots(graph: TileGraph, region: Region, num_threads: int) -> LoadedAhead:
    """Rewrites the innermost loops with dots under `region`; a line for each with loads left."""
    notes: list[str] = []
    most = 0
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        ops = list(loop.body.walk())
        if any(isinstance(op, For | While | Copy) for op in ops):
            continue
        if not any(isinstance(op, mma.Dot) for op in ops):
            continue
        found = [c for c in candidates(loop) if isinstance(c.load.result.type, TileType)]
        if not found:
            continue
        where = loop.loc.short if loop.loc else "?"
        facts = axis_facts(region, graph.facts.get("divisors", {}))
        held = sum(_share(v, num_threads) for v in loop.carried)
        loads = sum(_registers(c.load, facts, num_threads) for c in found)
        why = obstacle_to_order(loop, found)
        if held + loads > MOST_REGISTERS:
            why = f"{held} registers of a thread are taken, the loads take {loads}"
        if why:
            notes.append(f"{where}: no loads ahead of their iteration: {why}")
            continue
        carry_ahead(graph, loop, found)
        most = max(most, held + loads)
        notes.append(f"{where}: loads of the next iteration before the product of each")
    return LoadedAhead(tuple(notes), most)


def _share(value: Value, num_threads: int) -> int:
    """Registers of a thread for a tile."""
    type_ = value.type
    if not isinstance(type_, TileType):
        return 1
    return -(-type_.num_elements * type_.dtype.bits // (8 * REGISTER_BYTES * num_threads))


def _registers(load: pointer.Load, facts: AxisFacts, num_threads: int) -> int:
    """Registers that a thread's loads arrive in: no less than one for each."""
    type_ = load.result.type
    assert isinstance(type_, TileType)
    vector = wanted_shape(load, facts).vector
    loads = -(-type_.num_elements // (num_threads * vector))
    return max(loads, _share(load.result, num_threads))


def sink_loads(graph: TileGraph, region: Region) -> int:
    """Moves loads of the next iteration's operands behind the barrier that makes operands visible.

    What was loaded before is then written, and its registers are free. Indexes that are loaded for
    copies stay in front: copies wait for them. Returns how many there are.
    """
    count = 0
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        end = loop.body.terminator
        if not any(isinstance(op, mma.Issue) for op in loop.body.ops) or not isinstance(end, Yield):
            continue
        for op in [op for op in reversed(loop.body.ops) if isinstance(op, pointer.LoadLanes)]:
            ops = loop.body.ops
            after = ops[ops.index(op) :]
            meeting = next((o for o in after if isinstance(o, barrier.CtaSync)), None)
            if meeting is None or [u.op for u in graph.users(op.results[0])] != [end]:
                continue
            carried = loop.carried[end.values.index(op.results[0])]
            if not any(isinstance(u.op, smem.Write) for u in graph.users(carried)):
                continue
            graph.move_before(ops[ops.index(meeting) + 1], op)
            count += 1
    return count
