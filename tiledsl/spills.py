"""Registers that spill: notes on why, and which kernel is taken where all spill."""

from __future__ import annotations

from dataclasses import replace

from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.errors import TileError
from tiledsl.ir.extents import extents
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.types import TileType
from tiledsl.lowering import device_graph
from tiledsl.runtime.nvrtc import moved_accumulators
from tiledsl.single import single
from tiledsl.ws.plan import Plan
from tiledsl.ws.single_plan import SinglePlan

MOST_WARPS = 32


def spill_notes(request: Request, made: Kernel) -> list[str]:
    """A line on what a single-role kernel spills, or none."""
    if made.compiled is None or not made.compiled.spill_bytes:
        return []
    if not isinstance(made.plan, SinglePlan):
        return []
    plan, regs = made.plan, made.compiled.registers
    spilled = f"{made.compiled.spill_bytes} bytes of registers spill"
    graph = device_graph(request, made.constants)
    held = _largest_tile(graph, plan)
    asked = request.num_warps
    other = _without_the_option(request, graph) if asked else None
    if asked == plan.num_warps and other is not None and other != plan:
        return [
            f"num_warps={asked} is followed{_fault(plan, other)}: {held}, {regs} registers a "
            f"thread, {spilled}; without the option the plan is {other.describe()}"
        ]
    if plan.min_blocks > 1:
        return [
            f"{spilled}: {plan.min_blocks} CTAs of {plan.num_warps} warps share the registers of "
            f"an SM, {regs} a thread, {held}; fewer CTAs would hide less of the time of loads"
        ]
    more = " or more num_warps" if plan.num_warps < MOST_WARPS else ""
    return [f"{spilled}: {regs} registers a thread, {held}; a smaller tile{more} would need fewer"]


def _fault(plan: SinglePlan, other: SinglePlan) -> str:
    """What is wrong with a plan that the user asked for, beside that of the compiler."""
    if plan.num_ctas < other.num_ctas:
        return ", and no cluster shares the program"
    return " and too few warps" if plan.num_warps < other.num_warps else ""


def _without_the_option(request: Request, graph: TileGraph) -> SinglePlan | None:
    """The plan that the compiler would begin with by itself, where there is one."""
    try:
        free = replace(request, overrides=replace(request.overrides, num_warps=None))
        plan = single(free, graph, []).plan
    except TileError:
        return None
    return plan if isinstance(plan, SinglePlan) else None


def _largest_tile(graph: TileGraph, plan: SinglePlan) -> str:
    """How many elements of the largest tile a thread holds."""
    types = [r.type for op in graph.walk() for r in op.results]
    tiles = [t for t in types if isinstance(t, TileType)]
    most = max(tiles, key=lambda t: t.num_elements)
    each = most.num_elements // (plan.num_threads * plan.num_ctas)
    return f"{max(1, each)} elements of a tile of {extents(most.shape)} for each thread"


def fewest_spills(spilled: Kernel, made: Kernel) -> Kernel:
    """The kernel to take: a specialised one that spills, where the single-role one does so too."""
    if made.compiled is None or not isinstance(made.plan, SinglePlan):
        return made
    if not made.compiled.spill_bytes and not moved_accumulators(made.compiled.notes):
        return made
    assert spilled.compiled is not None
    spilled.notes.append(
        f"registers spill, {spilled.compiled.spill_bytes} bytes, and "
        f"{made.compiled.spill_bytes} in a single role"
    )
    return spilled


def may_spill(made: Kernel) -> bool:
    """Whether a rejected kernel is right all the same.

    Where results take the place of accumulators, ptxas has moved these under a wgmma.
    """
    in_place = isinstance(made.plan, Plan) and made.plan.in_place
    if made.compiled is None or made.compiled.serialized or in_place:
        return False
    return not moved_accumulators(made.compiled.notes)
