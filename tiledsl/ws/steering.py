"""Which numbers of a drawn tile decide where a warp goes.

Those pass a shuffle, which tells ptxas that they are the same in the warp: the slots of rings that
move inside such loops, and the matrix descriptors made of them, then stay in uniform registers.
The others do not, since uniform registers are few: held over the loops they push out the slots.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ws.check_program import needed_scalars


def mark_steering(graph: TileGraph, role: Role) -> None:
    """Says of each read of several scalars which of them loops and branches of the role follow."""
    reads = [o for o in role.body.walk() if isinstance(o, ReadScalars) and o.count > 1]
    if not reads:
        return
    steering = needed_scalars(conditions(role))
    for read in reads:
        uniform = tuple(i for i, v in enumerate(read.results) if v in steering)
        names = tuple(v.name for v in read.results)
        # One at least: what is equal in the warp has arrived in all lanes.
        new = ReadScalars(
            read.smem, count=read.count, uniform=uniform or (0,), signed=read.signed, names=names
        )
        new.loc = read.loc
        graph.replace_op(read, new)


def conditions(role: Role) -> list[Value]:
    """What decides how often loops of a role run, and which branches."""
    out: list[Value] = []
    for op in role.body.walk():
        match op:
            case For():
                out += [op.lower, op.upper, op.step]
            case If():
                out.append(op.condition)
            case While():
                end = op.before.terminator
                assert isinstance(end, Yield)
                out.append(end.values[0])
            case _:
                pass
    return out
