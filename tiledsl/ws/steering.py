"""Which numbers of a drawn tile decide where a warp goes.

Those pass a shuffle, which tells ptxas that they are the same in the warp: the slots of rings that
move inside such loops, and the matrix descriptors made of them, then stay in uniform registers.
The others do not, since uniform registers are few: held over the loops they push out the slots.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.control import steering_scalars
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ws.check_program import needed_scalars


def mark_steering(graph: TileGraph, role: Role) -> None:
    """Says of each read of several scalars which of them loops and branches of the role follow."""
    reads = [o for o in role.body.walk() if isinstance(o, ReadScalars) and o.count > 1]
    if not reads or role.single_thread:
        return
    steering = needed_scalars([v for op in role.body.walk() for v in steering_scalars(op)])
    for read in reads:
        uniform = tuple(i for i, v in enumerate(read.results) if v in steering)
        names = tuple(v.name for v in read.results)
        # One at least: what is equal in the warp has arrived in all lanes.
        new = ReadScalars(
            read.smem, count=read.count, uniform=uniform or (0,), signed=read.signed, names=names
        )
        new.loc = read.loc
        graph.replace_op(read, new)
