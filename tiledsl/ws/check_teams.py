"""Which threads have their steps, and which their control flow as well, in common."""

from __future__ import annotations

from tiledsl.ir.op import Value
from tiledsl.ir.ops.mma import ClusterReduce
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import ClusterRank
from tiledsl.ir.ops.role import DrawTile
from tiledsl.ir.ops.role import NextTile
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.ops.smem import Slot
from tiledsl.ir.ops.smem import WriteScalars
from tiledsl.ws.check_program import HANDLED
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import role_of
from tiledsl.ws.check_state import Thread

GIVE_SCALARS = (WriteScalars, ClusterReduce, NextTile, TileToProgram)
"""Ops with a rule that hand scalars on."""


def crews_of(threads: list[Thread], *, whole: bool) -> dict[Thread, list[Thread]]:
    """By thread all of its role, whose number tells them apart.

    whole: they work on data of their own, each for itself.
    """
    if whole:
        return {t: [t] for t in threads}
    crews: dict[Role, list[Thread]] = {}
    for t in threads:
        crew = crews.setdefault(t.role, [])
        t.number = len(crew)
        crew.append(t)
    return {t: crews[t.role] for t in threads}


def teams_of(code: Program, threads: list[Thread], *, whole: bool) -> list[list[Thread]]:
    """Threads of a crew whose control flow is the same: it does not depend on their place."""
    if whole:
        return [[t] for t in threads]
    by_index = roles_by_index(code)
    by_rank = roles_by_rank(code) if any(t.cta.rank for t in threads) else ()
    teams: dict[tuple[Role, int, int], list[Thread]] = {}
    for t in threads:
        rank = t.cta.rank if t.role in by_rank else 0
        index = t.warpgroup if t.role in by_index else 0
        teams.setdefault((t.role, rank, index), []).append(t)
    return list(teams.values())


def roles_by_index(code: Program) -> set[Role]:
    """Roles with a scalar that is computed from the index of the warpgroup."""
    return _roles_with(code, {v for v in code.needed if isinstance(v.defining_op, WarpgroupIndex)})


def roles_by_rank(code: Program) -> set[Role]:
    """Roles with a scalar that depends on the rank of the CTA in its cluster.

    Computed from the rank, a program id along the axis of the cluster, a tile that is drawn, or
    words of a role of which that holds.
    """
    found = _roles_with(code, {v for v in code.needed if isinstance(v.defining_op, ClusterRank)})
    writes: dict[Role, set[Value]] = {}
    reads: dict[Role, set[Value]] = {}
    for region, steps in code.code.items():
        for op in [s.op for s in steps if s.kind == HANDLED]:
            match op:
                case DrawTile():
                    found.add(role_of(region))
                case TileToProgram() if op.cluster_axis >= 0:
                    if op.results[op.cluster_axis] in code.needed:
                        found.add(role_of(region))
                case WriteScalars() | ReadScalars():
                    words, slot = writes if isinstance(op, WriteScalars) else reads, op.smem
                    made = slot.defining_op
                    buffer = made.buffer if isinstance(made, Slot) else slot
                    words.setdefault(role_of(region), set()).add(buffer)
                case _:
                    pass
    before = -1
    while before != len(found):
        before = len(found)
        told = set[Value]().union(*[writes.get(r, ()) for r in found])
        found.update(r for r, buffers in reads.items() if not told.isdisjoint(buffers))
    return found


def _roles_with(code: Program, values: set[Value]) -> set[Role]:
    """Roles that compute a scalar, or decide something, by one of some values."""
    found: set[Role] = set()
    if values:
        for region, steps in code.code.items():
            for op in [s.op for s in steps if s.kind != HANDLED or type(s.op) in GIVE_SCALARS]:
                if not values.isdisjoint(op.operands):
                    found.add(role_of(region))
    return found
