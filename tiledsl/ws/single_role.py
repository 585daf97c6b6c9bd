"""The single-role kernel: every warp runs the whole program.

Always possible; the fallback and the ablation baseline. Dot operands go from registers to shared
memory, the CTA synchronises, and the tensor core runs to completion before anything else happens.
Layout conversions take the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tiledsl.errors import ResourceError
from tiledsl.ir.extents import named_extents
from tiledsl.ir.extents import smaller
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.pointer import Load as PointerLoad
from tiledsl.ir.ops.pointer import Store as PointerStore
from tiledsl.ir.ops.reduce import MergeExponentials
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.access_layouts import THREAD_BYTES
from tiledsl.ws.access_layouts import default_warps
from tiledsl.ws.access_layouts import largest_access_bytes
from tiledsl.ws.dot_registers import DOT_REGISTERS
from tiledsl.ws.dot_registers import warps_for_dots
from tiledsl.ws.free import only_moves
from tiledsl.ws.full_rows import rows_are_full
from tiledsl.ws.row_loops import LOOP_REGISTERS
from tiledsl.ws.row_loops import held_elements
from tiledsl.ws.row_loops import parts_of_rows
from tiledsl.ws.row_loops import resident_blocks
from tiledsl.ws.row_loops import row_loops
from tiledsl.ws.scratch import requested_bytes
from tiledsl.ws.short_rows import short_rows
from tiledsl.ws.single_plan import CROWDED_REGISTERS
from tiledsl.ws.single_plan import ROW_WARPS
from tiledsl.ws.single_plan import WIDE_BLOCKS
from tiledsl.ws.single_plan import Limits
from tiledsl.ws.single_plan import SinglePlan
from tiledsl.ws.stay import bytes_of_elements
from tiledsl.ws.stay import obstacle_to_staying

FULL_ELEMENTS, MOST_WARPS = 64, 16
"""Elements of a tile for a thread from which on there are more warps, up to so many."""
MOST_ELEMENTS = 256
"""Elements of a tile for a thread; a thread has 255 registers, and reductions need only parts."""
SHARED_ELEMENTS, MOST_SHARED = 32, 64
"""Elements of a reduced tile for a thread that CTAs of a cluster aim at; they share a program from
more than these on, or more than the second number where the user gave the number of warps."""
CROWDED_ELEMENTS = 32
"""Elements that a thread may hold in CROWDED_REGISTERS."""
MOVING_WARPS, MOVING_REGISTERS = 16, 40
"""Warps of CTAs that only move tiles, and registers with which three of them fit."""
PHASE_REGISTERS = {8: 32, 16: 40, 32: 48}
"""Registers of a thread where a program goes through loop after loop, by the elements that it holds
in one: it waits for memory at the beginning of each, and other programs have to load meanwhile."""
ROW_BYTES, ROW_TILES = 8192, 2
"""Bytes of rows that have ROW_WARPS or more; and tiles as large as a row that a program may load,
where a thread holds more than SHARED_ELEMENTS of each."""
FLIGHT_BYTES, STAYING_BLOCKS = 65536, 2
"""Bytes that CTAs which stay want on their way to an SM, and CTAs that it takes at most."""
PACKED_BYTES = 2
"""Bytes of elements that a thread holds two and more to a register."""
HIDING_BLOCKS, HIDING_BYTES = 4, 4
"""CTAs on an SM, and bytes of an element that they load, with which they hide what they share."""
MOST_BYTES = 4
"""Bytes of an element that count there: wider ones are rare."""


def plan_single(
    graph: TileGraph,
    num_warps: int | None,
    target: Target,
    *,
    clusters: bool = True,
    persistent: bool | None = None,
    limits: Limits | None = None,
) -> SinglePlan:
    """Warps of the CTA: for dots whole warpgroups, so many that accumulators and operands fit.

    num_warps: what the user asks for; more are taken where the registers need them. clusters:
    whether CTAs may share a program. persistent: whether CTAs stay for the next program, where the
    user says so. limits: what has turned out to spill.
    """
    limits = limits or Limits()
    dots: list[mma.Dot] = graph.find(mma.Dot)
    rows = short_rows(graph.walk()) if limits.short and num_warps is None else None
    if rows is not None and rows.warps:
        plan = SinglePlan(rows.warps, min_blocks=rows.blocks, has_short_rows=True)
        return replace(plan, stays=_stays(graph, plan, bool(persistent)))
    if not dots:
        warps = num_warps or max(default_warps(graph), _warps_for_tiles(graph))
        is_row = not num_warps and _rows_fit_eight_warps(graph, warps, limits)
        warps = ROW_WARPS if is_row else warps
        held = 0 if num_warps else held_elements(graph)
        most = min(LOOP_REGISTERS) if row_loops(graph) else SHARED_ELEMENTS
        while warps < MOST_WARPS and held > most * 32 * warps:
            warps *= 2
        plan = SinglePlan(warps)
        if clusters:
            plan = _shared(graph, warps, target, asked=is_row or num_warps is not None)
        if num_warps and _too_large(graph, plan):
            return plan_single(
                graph, None, target, clusters=clusters, persistent=persistent, limits=limits
            )
        if clusters and warps == MOST_WARPS and not num_warps:
            parts = parts_of_rows(graph, target.max_cluster)
            plan = replace(plan, num_ctas=max(plan.num_ctas, parts))
        _check_tiles(graph, plan)
        plan = replace(plan, min_blocks=_min_blocks(graph, plan, target))
        plan = replace(plan, stays=_stays(graph, plan, persistent))
        if plan.stays and plan.num_ctas > 1 and num_warps is None:
            plan = _fewer_warps(graph, plan, target)
        elif num_warps is None and persistent is not False:
            plan = _more_warps(graph, plan, target)
        blocks = min(plan.min_blocks, limits.blocks)
        return replace(plan, min_blocks=blocks, has_full_rows=rows_are_full(graph))
    plan = warps_for_dots(dots, num_warps or limits.warps or None, limits)
    may_grow = not num_warps and not limits.warps and plan.num_warps < 4 * max(DOT_REGISTERS)
    return replace(plan, may_grow=may_grow)


def _rows_fit_eight_warps(graph: TileGraph, warps: int, limits: Limits) -> bool:
    """Whether a program without loops reduces and stores rows that eight warps hold well."""
    num_bytes, most = largest_access_bytes(graph), max(_num_elements(graph), default=0)
    if warps == ROW_WARPS or not num_bytes >= ROW_BYTES or not graph.find(Reduce):
        return False
    loads = loops = stores = 0
    for op in graph.walk():
        loops += isinstance(op, For | While)
        if isinstance(op, PointerLoad | PointerStore) and isinstance(op.pointer.type, TileType):
            is_large = 2 * op.pointer.type.num_elements > most
            loads += is_large and isinstance(op, PointerLoad)
            stores += is_large and isinstance(op, PointerStore)
    if loops or not stores:
        return False
    threads = 32 * ROW_WARPS
    if num_bytes <= THREAD_BYTES * threads:
        return True
    is_wide = SHARED_ELEMENTS * threads < most <= MOST_SHARED * threads
    return (
        limits.wide and is_wide and num_bytes <= 2 * THREAD_BYTES * threads and loads <= ROW_TILES
    )


def _fewer_warps(graph: TileGraph, plan: SinglePlan, target: Target) -> SinglePlan:
    """A plan for CTAs that stay with eight warps, where one or two on an SM have enough under way.

    What is fetched ahead hides the time of the loads, so that fewer threads with more elements do,
    and fewer wait for each other. Of small elements the registers of half an SM hold as many.
    """
    few = _shared(graph, ROW_WARPS, target, asked=False)
    if few.num_warps != ROW_WARPS:
        few = SinglePlan(ROW_WARPS, target.max_cluster)
    threads = few.num_ctas * few.num_threads
    blocks = -(-FLIGHT_BYTES * few.num_ctas // max(1, largest_access_bytes(graph)))
    most = max(_num_elements(graph), default=0)
    is_packed = bytes_of_elements(graph)[0] <= PACKED_BYTES
    held = MOST_SHARED if blocks == 1 or is_packed else SHARED_ELEMENTS
    if few.num_ctas == 1 or blocks > STAYING_BLOCKS or most > held * threads:
        return plan
    return replace(plan, num_warps=ROW_WARPS, num_ctas=few.num_ctas, min_blocks=blocks)


def _more_warps(graph: TileGraph, plan: SinglePlan, target: Target) -> SinglePlan:
    """A plan for CTAs that stay with sixteen warps, for rows that fill eight warps twice.

    Or once, for certain, where they stay anyway and rows are reduced more than once. Two are on an
    SM, and their warps wait for each other at the same time: what is fetched ahead comes meanwhile.
    """
    wide = SinglePlan(MOST_WARPS)
    most = max(_num_elements(graph), default=0)
    is_full = SHARED_ELEMENTS * wide.num_threads < most
    if plan.num_ctas > 1 or plan.num_warps < ROW_WARPS or is_full or obstacle_to_staying(graph):
        return plan
    fills = largest_access_bytes(graph) // (THREAD_BYTES * 32 * ROW_WARPS)
    # Rows that only may fill eight warps once are too short as often as not (0.85 to 0.96).
    once = fills == 1 and plan.stays and rows_are_full(graph) and len(graph.find(Reduce)) > 1
    if fills < 2 and not once:
        return plan
    return replace(wide, min_blocks=_min_blocks(graph, wide, target), stays=True)


def _num_elements(graph: TileGraph) -> Iterator[int]:
    """Elements of each tile that a program computes."""
    for op in graph.walk():
        for r in op.results:
            if isinstance(r.type, TileType):
                yield r.type.num_elements


def _warps_for_tiles(graph: TileGraph) -> int:
    """Warps that hold the largest tile well."""
    most = max(_num_elements(graph), default=0)
    warps = 4
    while warps < MOST_WARPS and most > FULL_ELEMENTS * 32 * warps:
        warps *= 2
    return warps if most > FULL_ELEMENTS * 32 * 4 else 1


def _shared(graph: TileGraph, num_warps: int, target: Target, *, asked: bool) -> SinglePlan:
    """CTAs that hold the largest tile which a program reduces, each thread a few elements of it.

    asked: the user gave the number of warps, which then stays and may have more to hold.
    """
    reduces: list[Reduce] = graph.find(Reduce)
    tiles = [v.type for op in reduces for v in op.inputs]
    most = max((t.num_elements for t in tiles if isinstance(t, TileType)), default=0)
    held = held_elements(graph) if most else 0
    most_bytes = min(largest_access_bytes(graph), MOST_BYTES * max(most, held))

    def is_full(threads: int) -> bool:
        is_held = most <= SHARED_ELEMENTS * threads and held <= max(LOOP_REGISTERS) * threads
        return not is_held or most_bytes > THREAD_BYTES * threads

    threads = 32 * num_warps
    if (
        num_warps % 4
        or not is_full(threads)
        or (asked and max(most, held) <= MOST_SHARED * threads)
    ):
        return SinglePlan(num_warps)
    ctas = 1
    while ctas < target.max_cluster and is_full(threads * ctas):
        ctas *= 2
    if not asked and is_full(threads * ctas):
        num_warps = min(2 * num_warps, 32)
        # Fewer CTAs wait for each other where the registers of more warps hold the tile.
        while ctas > 1 and max(most, held) <= SHARED_ELEMENTS * 32 * num_warps * (ctas // 2):
            ctas //= 2
    return SinglePlan(num_warps, ctas)


def _min_blocks(graph: TileGraph, plan: SinglePlan, target: Target) -> int:
    """CTAs that fill half of an SM's places for threads, where a thread holds few elements.

    Programs that wait for memory then overlap with others that compute.
    """
    threads = plan.num_threads * plan.num_ctas
    if places := resident_blocks(graph, plan.num_threads, plan.num_ctas, target):
        return places
    loops: list[For] = graph.find(For)
    if registers := _registers_of_phases(loops, threads):
        places = target.registers_per_sm // (registers * plan.num_threads)
        return max(1, min(target.max_blocks_per_sm, places))
    most = max(_num_elements(graph), default=0)
    if plan.num_warps == ROW_WARPS and CROWDED_ELEMENTS * threads < most <= MOST_SHARED * threads:
        return WIDE_BLOCKS if plan.num_ctas == 1 and not loops else 1
    carried = [v.type for op in loops for v in op.init]
    most += sum(t.num_elements for t in carried if isinstance(t, TileType))
    if most > CROWDED_ELEMENTS * threads:
        return 1
    moves = plan.num_warps >= MOVING_WARPS and only_moves(graph)
    registers = (MOVING_REGISTERS if moves else CROWDED_REGISTERS) * plan.num_threads
    return max(1, min(target.max_blocks_per_sm, target.registers_per_sm // registers))


def _registers_of_phases(loops: list[For], threads: int) -> int:
    """Registers of a thread of programs with several loops that load; 0 for others."""
    held: list[int] = []
    for loop in loops:
        ops = list(loop.body.walk())
        tiles = [v.type for op in ops for v in op.results if isinstance(v.type, TileType)]
        carried = [v.type for v in loop.init if isinstance(v.type, TileType)]
        if any(isinstance(op, PointerLoad) for op in ops) and tiles:
            most = max(t.num_elements for t in tiles)
            held.append((most + sum(t.num_elements for t in carried)) // threads)
    if len(held) < 2:
        return 0
    found = [regs for elements, regs in PHASE_REGISTERS.items() if max(held) <= elements]
    return found[0] if found else 0


def _stays(graph: TileGraph, plan: SinglePlan, asked: bool | None) -> bool:
    """Whether CTAs stay for the next program, if not asked.

    Those that wait for each other do, and those whose programs would each load more from one place
    than what is their own: it is fetched once. Where enough CTAs are on an SM, the loads of one
    come while others wait, unless elements are so small that instructions take as long.
    """
    own, shared = bytes_of_elements(graph)
    is_hidden = plan.min_blocks >= HIDING_BLOCKS and own >= HIDING_BYTES
    wanted = plan.num_ctas > 1 or (shared > own > 0 and not is_hidden) if asked is None else asked
    return wanted and not obstacle_to_staying(graph)


def obstacle_to_sharing(role: Role) -> Op | None:
    """An op other than a reduction by which the threads of one CTA exchange data, if any."""
    for op in role.body.walk():
        if requested_bytes(op) and not isinstance(op, Reduce | MergeExponentials):
            return op
    return None


def _too_large(graph: TileGraph, plan: SinglePlan) -> tuple[Op, TileType] | None:
    """A tile of which a thread could not hold its part in registers, and what makes it."""
    most = MOST_ELEMENTS * plan.num_threads * plan.num_ctas
    for op in graph.walk():
        for r in op.results:
            if isinstance(r.type, TileType) and r.type.num_elements > most:
                return op, r.type
    return None


def _check_tiles(graph: TileGraph, plan: SinglePlan) -> None:
    """Refuses tiles of which a thread could not hold its part in registers."""
    found = _too_large(graph, plan)
    if found is None:
        return
    (op, type_), threads = found, plan.num_threads * plan.num_ctas
    few = ", or more num_warps (up to 32)" if plan.num_warps < 32 else ""
    raise ResourceError(
        f"a tile of {named_extents(type_.shape)} is {type_.num_elements // threads} elements for "
        f"each of {threads} threads, {MOST_ELEMENTS} is the most",
        op.loc,
        smaller([type_.shape], "use a smaller tile") + few,
    )
