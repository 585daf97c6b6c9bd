"""The program of a single-role kernel with layouts, addresses, and loads ahead of their use."""

from __future__ import annotations

from dataclasses import replace

from tiledsl.errors import ResourceError
from tiledsl.errors import ScheduleError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.pointer_copy import CopyLanes
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.accesses import fuse_accesses
from tiledsl.ws.copy_rings import NOT_COPIED
from tiledsl.ws.copy_rings import RingLimits
from tiledsl.ws.copy_rings import copy_rings
from tiledsl.ws.dot_shapes import shape_of_dot
from tiledsl.ws.layouts import assign_layouts
from tiledsl.ws.load_ahead import load_ahead
from tiledsl.ws.scratch import scratch_bytes
from tiledsl.ws.single_role import SinglePlan
from tiledsl.ws.single_role import build_single
from tiledsl.ws.single_role import plan_single

MOST_SLOTS = 4
"""Slots of a ring where the user gives no number."""
PAIRED_SLOTS, PAIRED_WARPS = 3, 4
"""Slots that suffice where two CTAs of at most so many warps then share an SM."""
CTA_BYTES = 1024
"""Shared memory that each CTA on an SM takes beside its own."""

_DOTS = (mma.Dot, mma.Issue)

LaidOut = tuple[TileGraph, Role, list[str], SinglePlan]


def laid_out(
    graph: TileGraph, plan: SinglePlan, target: Target, asked: int | None = None
) -> LaidOut:
    """The program as one role whose tiles have layouts and whose accesses have their addresses.

    asked: slots of rings that the user wants; fewer are taken where shared memory ends.
    """
    failed: list[str] = []
    deepest: LaidOut | None = None
    for depth in _depths(graph, asked):
        made, role, notes, problem = _attempt(graph, plan, target, depth)
        needed = shared_bytes(made, role, plan)
        if depth and not problem and needed > target.smem_bytes:
            problem = f"{needed} bytes of shared memory, {target.smem_bytes} are there"
        if problem:
            failed.append(f"no rings of {depth} slots: {problem}")
            continue
        found: LaidOut = (made, role, failed + notes, replace(plan, num_stages=depth))
        if not made.find(Ring):
            return deepest or (made, role, failed + notes, plan)
        is_paired = 2 * (needed + CTA_BYTES) <= target.smem_per_sm_bytes
        if asked is not None or is_paired or plan.num_warps > PAIRED_WARPS:
            return found
        if deepest is not None or depth <= PAIRED_SLOTS:
            return deepest or found
        deepest = found
    raise AssertionError("the last depth needs no ring")


def copies_suffice(
    graph: TileGraph, num_warps: int | None, target: Target, asked: int | None
) -> tuple[For | None, list[str]]:
    """A loop, where no role is needed to load ahead of the dots: all loops load by copies alone.

    None where some loop takes blocks of tensors, or tiles that cannot be copied; with lines that
    say why.
    """
    if graph.find(memory.Load) or not graph.find(pointer.Load) or not graph.find(mma.Dot):
        return None, []
    try:
        plan = plan_single(graph, num_warps, target)
        made, _, notes, _ = laid_out(graph, plan, target, asked)
    except ResourceError:
        return None, []
    notes = [line for line in notes if NOT_COPIED in line]
    loops = [loop for loop in made.find(For) if any(isinstance(o, _DOTS) for o in loop.body.walk())]
    for loop in loops:
        ops = list(loop.body.walk())
        loaded = any(isinstance(op, pointer.LoadLanes) and len(op.shape) > 1 for op in ops)
        if loaded or not any(isinstance(op, CopyLanes) for op in ops):
            return None, notes
    return (loops[0] if loops else None), notes


def _depths(graph: TileGraph, asked: int | None) -> list[int]:
    """Depths to try, 0 for no rings last."""
    if not graph.find(mma.Dot):
        return [0]
    most = MOST_SLOTS if asked is None else asked
    return [*range(most, 1, -1), 0]


def _attempt(
    graph: TileGraph, plan: SinglePlan, target: Target, depth: int
) -> tuple[TileGraph, Role, list[str], str]:
    """The program with rings of a depth; last, why that cannot be."""
    out = build_single(graph, plan)
    (role,) = out.find(Role)
    notes: list[str] = []
    if graph.find(mma.Dot):
        notes += copy_rings(out, role.body, RingLimits(depth, plan.num_warps, target))
    else:
        notes += load_ahead(out, role.body, plan.num_threads * plan.num_ctas)
    notes += assign_layouts(out, role.body, plan.num_warps * plan.num_ctas)
    problem = ""
    try:
        fuse_accesses(out, role.body, out.facts.get("divisors", {}))
    except ScheduleError as error:
        problem = error.message
    return out, role, notes, problem


def shared_bytes(graph: TileGraph, role: Role, plan: SinglePlan) -> int:
    """At least what the rings, the operands of dots and exchanges take."""
    rings = sum(ring.depth * ring.type_.bytes for ring in graph.find(Ring))
    sides: set[tuple[int, ...]] = set()
    for op in role.body.walk():
        if isinstance(op, mma.Dot):
            shape = shape_of_dot(op, max(1, plan.num_warps // 4))
            a = op.a.type
            assert isinstance(a, TileType)
            parts = 2 if a.dtype.name == "f32" and op.precision != "tf32" else 1
            K_bytes = -(-a.shape[1] * a.dtype.bytes // 128) * 128
            sides.add((0, shape.M, K_bytes * parts))
            sides.add((1, shape.N, K_bytes * parts))
    return rings + sum(lines * size for _, lines, size in sides) + scratch_bytes(role)
