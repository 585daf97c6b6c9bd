"""Loops over rows that reduce them and carry sums: what a thread holds, how many CTAs share a row.

Rows come through shared memory (ws/fetch_loop.py). An iteration ends when the last warp has the
sums of its row, and a program with its last row: short parts of rows, which still fill the time of
an exchange, leave an SM idle for the shortest time.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.types import TileType
from tiledsl.target import Target

LOOP_REGISTERS = {24: 64, 48: 128}
"""Elements that a thread may hold of what a loop carries and its largest tile, and the registers
that they take."""
PART_BYTES = 16384
"""Bytes of a row for each CTA: longer parts end late, shorter ones do not fill an exchange."""


def held_elements(graph: TileGraph) -> int:
    """Elements that a loop holds: of its largest tile, and of carried ones of about that size.

    0 where no loop carries such a tile.
    """
    return max((_held(loop) for loop in graph.find(For)), default=0)


def _held(loop: For) -> int:
    tiles = [r.type for op in loop.body.walk() for r in op.results]
    most = max((t.num_elements for t in tiles if isinstance(t, TileType)), default=0)
    carried = [v.type for v in loop.init if isinstance(v.type, TileType)]
    large = [t.num_elements for t in carried if 2 * t.num_elements > most]
    return most + sum(large) if large else 0


def reduces(loop: For) -> bool:
    """Whether a loop reduces a tile in each iteration."""
    return any(isinstance(op, Reduce) for op in loop.body.ops)


def row_loops(graph: TileGraph) -> list[For]:
    """Loops that reduce a tile in each iteration and carry some."""
    return [loop for loop in graph.find(For) if _held(loop) and reduces(loop)]


def parts_of_rows(graph: TileGraph, most: int) -> int:
    """CTAs that each have a part of a row in each iteration, up to `most`."""
    largest = 0
    for loop in row_loops(graph):
        for op in loop.body.ops:
            if isinstance(op, pointer.Load) and isinstance(op.result.type, TileType):
                type_ = op.result.type
                largest = max(largest, type_.num_elements * type_.dtype.bytes)
    ctas = 1
    while ctas < most and largest > PART_BYTES * ctas:
        ctas *= 2
    return ctas


def resident_blocks(graph: TileGraph, num_threads: int, num_ctas: int, target: Target) -> int:
    """CTAs of row loops whose registers an SM has; 0 for other programs."""
    if not row_loops(graph):
        return 0
    held = held_elements(graph)
    for elements, registers in LOOP_REGISTERS.items():
        if held <= elements * num_threads * num_ctas:
            places = target.registers_per_sm // (registers * num_threads)
            return max(1, min(target.max_blocks_per_sm, places))
    return 1
