"""The program of a single-role kernel with layouts, addresses, and loads ahead of their use."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from math import prod

from tiledsl.errors import ResourceError
from tiledsl.errors import ScheduleError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory_rows import StoreRows
from tiledsl.ir.ops.memory_rows import StoreSectors
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.ops.smem_ring import RingSlot
from tiledsl.target import Target
from tiledsl.ws.accesses import fuse_accesses
from tiledsl.ws.copy_rings import NOT_COPIED
from tiledsl.ws.copy_rings import copy_rings
from tiledsl.ws.counted_divisions import count_divisions
from tiledsl.ws.dot_places import DotPlaces
from tiledsl.ws.fetch_ahead import fetch_ahead
from tiledsl.ws.fetch_loop import Space
from tiledsl.ws.fetch_loop import fetch_loops
from tiledsl.ws.kept import keep_indexes
from tiledsl.ws.layout_conversions import UNLIMITED
from tiledsl.ws.layout_conversions import Room
from tiledsl.ws.layouts import assign_layouts
from tiledsl.ws.load_ahead import load_ahead
from tiledsl.ws.load_ahead_of_dots import LoadedAhead
from tiledsl.ws.load_ahead_of_dots import load_ahead_of_dots
from tiledsl.ws.memory_order import order_layouts
from tiledsl.ws.merged_exponentials import merge_exponentials
from tiledsl.ws.repeated_loads import load_once
from tiledsl.ws.ring_loads import RingLimits
from tiledsl.ws.ring_places import ring_groups
from tiledsl.ws.ring_places import shared_ring_bytes
from tiledsl.ws.row_loops import reduces
from tiledsl.ws.row_stores import store_rows
from tiledsl.ws.scratch import SMALL_BYTES
from tiledsl.ws.scratch import padded_bytes
from tiledsl.ws.scratch import scratch_bytes
from tiledsl.ws.sector_stores import store_sectors
from tiledsl.ws.shared_sums import share_sums
from tiledsl.ws.short_rows import ask_early
from tiledsl.ws.single_graph import build_single
from tiledsl.ws.single_plan import Limits
from tiledsl.ws.single_plan import SinglePlan
from tiledsl.ws.single_role import obstacle_to_sharing
from tiledsl.ws.single_role import plan_single
from tiledsl.ws.split_addresses import split_addresses
from tiledsl.ws.stay import staying_loop
from tiledsl.ws.thread_exponentials import keep_in_threads

MOST_SLOTS = 6
"""Slots of a ring where the user gives no number."""
PAIRED_SLOTS, PAIRED_WARPS = 3, 8
"""Slots that suffice where two CTAs of at most so many warps then share an SM."""
MOST_THREADS = 512
"""Threads on an SM that have 128 registers each."""

_DOTS = (mma.Dot, mma.Issue)
_MOVES = (tile.ConvertLayout, StoreRows, StoreSectors)

LaidOut = tuple[TileGraph, Role, list[str], SinglePlan]


def laid_out(
    graph: TileGraph,
    plan: SinglePlan,
    target: Target,
    asked: int | None = None,
    grid: tuple[int, ...] = (),
    room: Room | None = None,
) -> LaidOut:
    """The program as one role whose tiles have layouts and whose accesses have their addresses.

    asked: slots of rings that the user wants; fewer are taken where shared memory ends. grid: of
    the launch; where it has no more programs than there are SMs, none of these is shared. room:
    for exchanges that make accesses better; by default what the program leaves.
    """
    # One slot leaves nothing to copy to while the tile before is multiplied: it asks for no depth.
    is_open = asked is None or asked < 2
    most = MOST_SLOTS if is_open else asked or 0
    if not graph.find(mma.Dot):
        return _attempt(graph, plan, target, asked or 0, room).laid_out(plan)
    made = _attempt(graph, plan, target, most, room)
    if made.problem:
        note = f"no rings: {made.problem}"
        return _attempt(graph, plan, target, 0, room).laid_out(plan, note)
    slot_bytes = made.slot_bytes
    if not slot_bytes:
        if made.ring_bytes and made.shared_bytes(target) > target.smem_bytes:
            made = _attempt(graph, plan, target, 0, room)
        return made.laid_out(plan)
    rest = DotPlaces(made.graph, made.role, target).most_bytes() - made.ring_bytes
    depth = fits = min(most, (target.smem_bytes - rest) // slot_bytes)
    paired = (target.smem_per_sm_bytes // 2 - target.smem_reserved_bytes - rest) // slot_bytes
    is_crowded = plan.num_warps <= PAIRED_WARPS and prod(grid) > target.num_sms
    if is_open and is_crowded and paired >= PAIRED_SLOTS:
        depth = min(fits, paired)
        plan = replace(plan, min_blocks=max(plan.min_blocks, 2))
    depth = _one_wave(depth, slot_bytes, rest, plan, target, prod(grid))
    note = _not_followed(asked, fits, slot_bytes)
    if depth < 2:
        note = f"no rings: two slots of {slot_bytes} bytes do not fit, {rest} more are in use"
        depth = 0
    if depth != most:
        made = _attempt(graph, plan, target, depth, room)
        while depth and made.shared_bytes(target) > target.smem_bytes:
            # With smaller rings, operands of dots outside of the loops have no room in them.
            depth = depth - 1 if depth > 2 else 0
            made = _attempt(graph, plan, target, depth, room)
    return made.laid_out(plan, note or _cut(asked, depth))


def _not_followed(asked: int | None, fits: int, slot_bytes: int) -> str:
    """What is said of a number of slots that cannot be had, or ""."""
    if asked is None or 2 <= asked <= fits:
        return ""
    if asked < 2 <= fits:
        why = "copies ahead of a dot take two slots and more"
        return f"num_stages={asked} leaves the depth to the compiler: {why}"
    return f"rings of {asked} slots: {max(fits, 0)} fit, {slot_bytes} bytes each"


def _cut(asked: int | None, depth: int) -> str:
    """What is said of fewer slots than would fit, or ""."""
    if asked is None or depth >= asked or not depth:
        return ""
    return f"num_stages={asked}: {depth} slots, which leave room for exchanges or more programs"


def _one_wave(
    depth: int, slot_bytes: int, rest: int, plan: SinglePlan, target: Target, programs: int
) -> int:
    """Fewer slots, where all programs of the grid are then resident at once, which else wait.

    Of registers, so many CTAs are taken to fit as leave each thread 128.
    """
    most = min(target.max_blocks_per_sm, MOST_THREADS // (32 * plan.num_warps))

    def resident(slots: int) -> int:
        size = rest + slots * slot_bytes + target.smem_reserved_bytes
        return target.num_sms * min(most, target.smem_per_sm_bytes // size)

    if resident(depth) >= programs:
        return depth
    fewer = [n for n in range(2, depth) if resident(n) >= programs]
    return max(fewer, default=depth)


def single_layout(
    graph: TileGraph,
    num_warps: int | None,
    target: Target,
    *,
    clusters: bool = True,
    asked: int | None = None,
    grid: tuple[int, ...] = (),
    persistent: bool | None = None,
    limits: Limits | None = None,
) -> LaidOut:
    """Plan and layouts: with a cluster for large tiles, unless CTAs would have to exchange some.

    Exchanges for the sake of longer vectors, and large ones, give way to the cluster.
    """
    plan = plan_single(
        graph, num_warps, target, clusters=clusters, persistent=persistent, limits=limits
    )
    plan = replace(plan, min_blocks=min(plan.min_blocks, _blocks_of(graph, plan, target, grid)))
    made = laid_out(graph, plan, target, asked, grid)
    obstacle = obstacle_to_sharing(made[1]) if plan.num_ctas > 1 else None
    if obstacle is None:
        return made
    made = laid_out(graph, plan, target, asked, grid, Room(target.smem_bytes, plan.num_ctas))
    obstacle = obstacle_to_sharing(made[1])
    if obstacle is None:
        return made
    plan = plan_single(
        graph, num_warps, target, clusters=False, persistent=persistent, limits=limits
    )
    out, role, notes, plan = laid_out(graph, plan, target)
    where = obstacle.loc.short if obstacle.loc else "?"
    why = f"{where}: threads of a CTA exchange data, so that no cluster shares a program"
    return out, role, [*notes, why], plan


def _blocks_of(graph: TileGraph, plan: SinglePlan, target: Target, grid: tuple[int, ...]) -> int:
    """CTAs of a grid on an SM, where its programs walk over rows; the most there may be if not."""
    if not grid or graph.find(mma.Dot) or not any(reduces(loop) for loop in graph.find(For)):
        return target.max_blocks_per_sm
    return max(1, -(-prod(grid) * plan.num_ctas // target.num_sms))


def space_of(target: Target, blocks: int, role: Role) -> int:
    """Shared memory of each of so many CTAs on an SM, without what a role's exchanges take."""
    space = target.smem_per_sm_bytes // blocks - target.smem_reserved_bytes
    return min(space, target.smem_bytes) - scratch_bytes(role)


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
    loops = copied_loops(made)
    return (loops[0] if loops else None), notes


def copied_loops(graph: TileGraph) -> list[For]:
    """The loops with dots, where copies bring all tiles that they load, and some to each."""
    bodies = [(loop, list(loop.body.walk())) for loop in graph.find(For)]
    loops = [(loop, ops) for loop, ops in bodies if any(isinstance(o, _DOTS) for o in ops)]
    for _, ops in loops:
        loaded = any(isinstance(op, pointer.LoadLanes) and len(op.shape) > 1 for op in ops)
        if loaded or not any(isinstance(op, RingSlot) for op in ops):
            return []
    return [loop for loop, _ in loops]


@dataclass(frozen=True)
class _Attempt:
    """The program with rings of a depth. problem: why that cannot be, or empty.

    min_blocks: CTAs that are to share an SM, as far as their registers go.
    """

    graph: TileGraph
    role: Role
    notes: list[str]
    depth: int
    problem: str
    stays: bool = False
    min_blocks: int = 1

    def shared_bytes(self, target: Target) -> int:
        """At most what all of it takes."""
        return DotPlaces(self.graph, self.role, target).most_bytes()

    @property
    def ring_bytes(self) -> int:
        """What all rings take."""
        return shared_ring_bytes(self.graph)

    @property
    def slot_bytes(self) -> int:
        """What one slot of the rings takes that are in use at the same time."""
        groups = [[r for r in group if r.depth > 1] for group in ring_groups(self.graph)]
        return max((sum(ring.type_.bytes for ring in group) for group in groups), default=0)

    def laid_out(self, plan: SinglePlan, note: str = "") -> LaidOut:
        """The result, with one more note where there is something to say."""
        blocks = max(plan.min_blocks, self.min_blocks)
        plan = replace(plan, stays=self.stays, min_blocks=blocks)
        loops = [ring for ring in self.graph.find(Ring) if ring.depth > 1 or self.depth == 1]
        depth = self.depth if loops else 0
        slots = tuple(sorted({ring.depth for ring in loops}, reverse=True))
        notes = [*([note] if note else []), *self.notes]
        return self.graph, self.role, notes, replace(plan, num_stages=depth, slots=slots)


def _attempt(
    graph: TileGraph, plan: SinglePlan, target: Target, depth: int, room: Room | None = None
) -> _Attempt:
    """The program with rings of a depth, none below 2."""
    made = _lay_out(graph, plan, target, depth, room or UNLIMITED)
    if room is not None or plan.num_ctas > 1:
        return made
    moves = [op for kind in _MOVES for op in made.graph.find(kind)]
    largest = max((padded_bytes(op) for op in moves), default=0)
    if largest <= SMALL_BYTES:
        return made
    rest = DotPlaces(made.graph, made.role, target).most_bytes() - made.ring_bytes - largest
    left = target.smem_bytes - rest
    return made if largest <= left else _lay_out(graph, plan, target, depth, Room(max(left, 0)))


def _lay_out(
    graph: TileGraph,
    plan: SinglePlan,
    target: Target,
    depth: int,
    room: Room,
    *,
    fetches: bool = True,
) -> _Attempt:
    """fetches: whether loops whose warps meet may load through shared memory."""
    out = build_single(graph, plan)
    (role,) = out.find(Role)
    notes: list[str] = []
    ahead = LoadedAhead()
    if plan.stays:
        pass
    elif not graph.find(mma.Dot):
        threads = plan.num_threads * plan.num_ctas
        notes += load_ahead(out, role.body, threads, fetches=fetches)
        keep_indexes(out, role)
    else:
        notes += load_once(out, role.body)
        notes += copy_rings(out, role.body, RingLimits(depth, plan.num_warps, target))
        ahead = load_ahead_of_dots(out, role.body, plan.num_threads)
        notes += ahead.notes
        count_divisions(out, role.body)
        split_addresses(out, role.body)
        keep_indexes(out, role)
    notes += assign_layouts(out, role.body, plan.num_warps * plan.num_ctas, room)
    share_sums(out, role.body)
    merge_exponentials(out, role.body, plan.num_ctas)
    if not plan.stays:
        ask_early(out, role.body)
    if plan.num_ctas == 1:
        notes += store_sectors(out, role.body)
    store_rows(out, role.body)
    programs = staying_loop(role.body) if plan.stays else None
    order_layouts(out, role.body, out.facts.get("divisors", {}), programs)
    problem = ""
    try:
        fuse_accesses(out, role.body, out.facts.get("divisors", {}))
    except ScheduleError as error:
        problem = error.message
    space = space_of(target, plan.min_blocks, role)
    if fetches and not plan.stays and not graph.find(mma.Dot):
        of_cta = Space(plan.num_threads, space, plan.min_blocks, depth, plan.num_ctas)
        found = fetch_loops(out, role.body, of_cta)
        if not found.is_complete:
            made = _lay_out(graph, plan, target, depth, room, fetches=False)
            return replace(made, notes=[*found.notes, *made.notes])
        notes += found.notes
        depth = found.depth
    if plan.stays:
        fetched, why = fetch_ahead(out, role.body, plan.num_threads, space, plan.num_ctas)
        notes += why
        if not fetched:
            made = _lay_out(graph, replace(plan, stays=False), target, depth, room)
            return replace(made, notes=[*why, *made.notes])
        depth = 0
    keep_in_threads(out, role.body, plan.num_warps, plan.num_ctas)
    blocks = ahead.blocks(plan.num_threads, target)
    return _Attempt(out, role, notes, depth, problem, stays=plan.stays, min_blocks=blocks)
