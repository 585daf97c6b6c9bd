"""Programmatic dependent launch of kernels with a single role: when the next one may start.

Ref: PTX ISA, griddepcontrol.
"""

from __future__ import annotations

from math import prod

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops.barrier import CtaSync
from tiledsl.ir.ops.barrier import GridDependency
from tiledsl.ir.ops.barrier import LaunchDependents
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.pointer import LoadLanes
from tiledsl.ir.ops.pointer import StoreLanes
from tiledsl.ir.ops.pointer_copy import FetchLanes
from tiledsl.ir.types import TileType

LAST_BLOCKS, STARTED_BYTES = 8, 8192
"""CTAs an SM, of the last ones of a grid, that let the next kernel start; and bytes that a CTA
moves in more time than starting it takes."""
Access = LoadLanes | StoreLanes | FetchLanes | Load | Store


def accessed_bytes(op: Access) -> int:
    """Bytes of the tile that an op loads or stores."""
    if not isinstance(op, Load | Store):
        return prod(op.shape) * op.dtype.bytes
    type_ = (op.result if isinstance(op, Load) else op.value).type
    assert isinstance(type_, TileType)
    return type_.num_elements * type_.dtype.bytes


def last_ctas(region: Region, num_sms: int, blocks: int) -> int:
    """CTAs at the end of a grid that let the next kernel start; 0 where all of them do.

    Those before the last ones have to end first. That costs what their time overlaps, and saves
    some only where CTAs have so little to move that starting them takes as long. blocks: on an SM.
    """
    accesses = [op for op in region.ops if isinstance(op, Access)]
    if sum(map(accessed_bytes, accesses)) >= STARTED_BYTES:
        return 0
    return num_sms * min(blocks, LAST_BLOCKS)


def end_of_loops(region: Region) -> Op | None:
    """The barrier behind the last loop of a region, or that loop; None where there is none."""
    places = [n for n, op in enumerate(region.ops) if isinstance(op, For)]
    if not places:
        return None
    rest = region.ops[places[-1] :]
    return next((op for op in rest if isinstance(op, CtaSync)), rest[0])


def wait_first(graph: TileGraph, region: Region, last: int, after: Op | None) -> None:
    """Puts the wait for the kernel before in front of a role's body.

    last: CTAs that let the next kernel start, 0 for all. after: the op behind which they do, if
    not in front of the wait.
    """
    if after is not None:
        graph.insert_after(after, LaunchDependents(last=last))
    wait = GridDependency(last=last, waits_only=after is not None)
    graph.insert_before(region.ops[0], wait)
