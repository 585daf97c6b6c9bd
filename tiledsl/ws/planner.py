"""Chooses a plan: lists the legal ones of a tile, prices them, honours overrides or refuses."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace

from tiledsl.target import Target
from tiledsl.ws.cost import Cost
from tiledsl.ws.cost import Problem
from tiledsl.ws.cost import copies_are_late
from tiledsl.ws.cost import estimate
from tiledsl.ws.cost import pause_of
from tiledsl.ws.kernel_shape import KernelShape
from tiledsl.ws.plan import Overrides
from tiledsl.ws.plan import Plan
from tiledsl.ws.plan import revised
from tiledsl.ws.plan_sizes import Sizes
from tiledsl.ws.plan_structures import Structures
from tiledsl.ws.refusals import illegal
from tiledsl.ws.refusals import no_stream
from tiledsl.ws.refusals import no_tile
from tiledsl.ws.refusals import refusal
from tiledsl.ws.streamed import Stream
from tiledsl.ws.streamed import with_stream

MAX_STAGES = 20
VECTOR_REGS = 8
"""What a consumer needs for the vectors of a slot."""
UNSTAGED_REGS = (128, 192)
"""Of sums and what an epilogue loads, where it stores from registers: of bulk loads, and where
threads copy, since a single role is slower then.
"""
LEAST_STAGES, FLIGHT_BYTES = 4, 136 << 10
"""Slots, and bytes of slots, of loops that threads copy for where L2 takes that much longer than
the tensor core. Rows by index, 4096 cubed, tiles of 64 x 128: 4 to 8 slots take 310, 269, 257, 277
and 300 us, of 64 x 64 8, 9, 11 and 13 slots 362, 374, 376 and 388.
"""


@dataclass(frozen=True)
class Ranked:
    """A priced plan of a tile. registers: accumulators, results and epilogue tiles of a thread."""

    cost: Cost
    plan: Plan
    tile: tuple[int, int, int]
    registers: int


class Planner:
    """Prices plans of one kernel for one launch."""

    def __init__(self, shape: KernelShape, overrides: Overrides, target: Target) -> None:
        self.shape = shape
        self.overrides = overrides
        self.target = target
        # What all plans share: hundreds are priced.
        self.structures = Structures(shape, overrides, target)
        self.sizes = Sizes(shape, target)
        a, b = shape.operand_axes
        self._is_asked = bool(overrides.given)
        self._group_axis = min((a - b) & {0, 1}, default=0)

    # ------------------------------------------------------------------ one tile
    def plans(self, tile: tuple[int, int, int], problem: Problem) -> Iterator[tuple[Cost, Plan]]:
        """Legal plans of a tile with their cost."""
        for plan in self.structures.of(tile, problem):
            for done in self.completed(plan, tile, problem):
                shared = self.structures.multicast(done)
                yield estimate(done, problem, self.target.num_sms, shared), done

    def allowed(self, plan: Plan) -> bool:
        """Whether a plan honours the overrides."""
        o = self.overrides
        if not self._is_asked:
            return True
        pairs = (
            (o.mma_depth, plan.mma_depth),
            (o.num_consumers, plan.num_consumers),
            (o.ping_pong, plan.ping_pong or plan.turns),
            (o.persistent, plan.persistent),
            (o.split_k, plan.split_k),
            (o.cluster, plan.cluster_size),
            (o.swap_operands, plan.swapped),
        )
        if o.prefetch and not (plan.pdl and plan.unit_axes):
            return False
        if o.cluster is not None and o.split_k is None and plan.split_k > 1:
            return False  # the CTAs of a cluster that is asked for share operands
        return all(want is None or want == have for want, have in pairs)

    def settled(self, item: Ranked, p: Problem) -> Plan:
        """The plan of a tile with what its price does not depend on."""
        plan, tile = item.plan, item.tile
        if not plan.unit_axes:
            return plan
        once = self.shape.read_once(plan.unit_axes)
        streamed = sum(n for n, one in zip(self.sizes.side_bytes(tile), once, strict=True) if one)
        staging = self.sizes.staging_bytes(plan, tile, p) * plan.store_buffers
        own = plan.num_stages * self.sizes.slot_bytes(tile) + staging + self.sizes.spare_bytes
        stream = Stream(streamed, -(-p.trips // plan.split_k), own, p.grid)
        return with_stream(plan, item.cost, stream, self.target, self.overrides.prefetch)

    def completed(self, plan: Plan, tile: tuple[int, int, int], p: Problem) -> Iterator[Plan]:
        """The plan with all that depends on the tile, then forms of it that take fewer registers.

        A deferred result takes registers that an epilogue with much to compute does not leave; with
        its results in the accumulators' place, an epilogue takes few.
        """
        done = self.complete(plan, tile, p)
        if done is None or not self.allowed(done):
            return
        yield done
        if done.deferred:
            yield revised(done, deferred=False)
        if p.staged and self.shape.computes:
            in_place = revised(done, deferred=False, in_place=True)
            if not done.in_place:
                yield in_place
            yield from self.streamed(in_place, tile, p)

    def streamed(self, plan: Plan, tile: tuple[int, int, int], p: Problem) -> Iterator[Plan]:
        """The plan with a role that loads what the epilogue reads, where that fits.

        Its ring may take the place of slots of the loop's ring beyond the fourth.
        """
        s, split = self.shape, plan.warpgroups_per_tile > 1 and plan.split_dim == 1
        if (
            not s.streamable
            or s.copied
            or plan.swapped
            or split
            or plan.split_k > 1
            or tile[1] % 16
        ):
            return
        chunk = self.sizes.channel_bytes(tile)
        groups = plan.num_consumers * plan.store_buffers
        staging = self.sizes.staging_bytes(plan, tile, p) // plan.num_consumers * groups
        room = self.target.smem_bytes - staging - self.sizes.spare_bytes
        least = min(plan.num_stages, self.overrides.least_slots)
        slots = min(2, (room - least * self.sizes.slot_bytes(tile)) // chunk)
        if slots > 0 and tile[1] >= 64 and tile[0] <= 256:
            depth = min(plan.num_stages, (room - slots * chunk) // self.sizes.slot_bytes(tile))
            yield revised(
                plan,
                epilogue_slots=slots,
                num_stages=depth,
                epilogue_pause=pause_of(plan, p),
            )

    def complete(self, plan: Plan, tile: tuple[int, int, int], p: Problem) -> Plan | None:
        """Ring depth, staging, registers, raster group; None when the tile does not fit."""
        s = self.shape
        regs = s.sum_regs(plan, tile)
        stored = s.stored_elements(plan, tile)
        extra = s.epilogue_regs(plan, tile)
        alone = s.chunk_regs(plan, tile, staged=p.staged)
        room = 224 if p.staged else UNSTAGED_REGS[bool(s.copied)]
        if regs + alone > room and (extra or not p.staged):
            return None
        in_place = p.staged and regs + extra > 200 and extra > 0
        held = extra + (VECTOR_REGS if s.vectors else 0)
        waves = -(-(p.grid[0] * p.grid[1] * p.grid[2]) // self.target.num_sms)
        # Of two in turns, one waits while the other stores: 18.2 to 17.8 us with scales, 15.9 to
        # 15.7 without, for 512 x 7168 x 2048.
        deferred = (
            p.staged
            and plan.persistent
            and not plan.ping_pong
            and not (plan.turns and plan.num_consumers == 2)
            and not p.cuts_blocks  # each version of the loop would have chunks of its own
            and s.single_top_store is not None
            and s.made is None
            and s.top_level
            and s.num_loops == 1
            and waves > 1
            and plan.mma_depth <= 2
            and regs + stored * s.out_bits / 32 + held <= (200 if plan.num_consumers < 3 else 140)
        )
        slot, staging = self.sizes.slot_bytes(tile), self.sizes.staging_bytes(plan, tile, p)
        owned = -(-plan.num_consumers // plan.split_k)
        reduce = owned * (plan.split_k - 1) * stored * 512
        room = self.sizes.room_bytes(plan) - self.sizes.spare_bytes - reduce
        fits, buffers = 0, 1
        once = plan.ping_pong or self.sizes.stores_once(plan, tile)
        for buffers in (1,) if once else (2, 1):
            fits = min(MAX_STAGES, (room - staging * buffers) // slot)
            if fits >= self.overrides.least_slots:
                break
        own = fits
        if s.copied and self.structures.is_late(plan, p):
            own = min(fits, max(LEAST_STAGES, round(FLIGHT_BYTES / slot)))
        depth = self.overrides.depth(own, fits)
        if depth < max(1, plan.mma_depth):
            return None
        group = self.overrides.raster_group or self.raster_group(plan, tile)
        return revised(
            plan,
            deferred=deferred,
            store_buffers=buffers,
            num_stages=depth,
            in_place=in_place,
            raster_group=group,
            **self.sizes.registers(plan, regs, tile),
            copies=bool(s.copied),
            unit_axes=() if s.copied else self.structures.unit_axes(p),
            l2_promotion_bytes=256 if p.pitch_128 else 128,
            group_axis=self.group_axis(plan),
        )

    def group_axis(self, plan: Plan) -> int:
        if plan.cluster_axis >= 0 and plan.split_k == 1 and self.structures.multicast(plan)[1]:
            return plan.cluster_axis
        return self._group_axis

    def raster_group(self, plan: Plan, tile: tuple[int, int, int]) -> int:
        """Tiles of the grouped axis visited together: about 2048 rows.

        Where threads copy, so many that the CTAs which run at once read the fewest bytes.
        """
        axis = self.group_axis(plan)
        along_M = axis in self.shape.operand_axes[0]
        size = plan.cluster_size if plan.cluster_axis == axis else 1
        if self.shape.copied:
            a, b = self.sizes.side_bytes(tile)
            ratio = b / a if along_M else a / b
            return max(1, round((self.target.num_sms * ratio) ** 0.5 / size))
        return max(1, 2048 // ((tile[0] if along_M else tile[1]) * size))

    # ------------------------------------------------------------------ all tiles
    def best(
        self,
        tiles: list[tuple[int, int, int]],
        problem_of: Callable[[tuple[int, int, int]], Problem],
    ) -> list[Ranked]:
        """Plans over all tiles, cheapest first; none of a kernel that has none of any options.

        Raises ScheduleError when what the overrides ask of the structure leaves none.
        """
        fault = illegal(self.overrides) if self.overrides.given else None
        found = [] if fault is not None else self.ranked(tiles, problem_of)
        if not found and self.overrides.given:
            self.explain(tiles, problem_of)
        return found

    def explain(
        self,
        tiles: list[tuple[int, int, int]],
        problem_of: Callable[[tuple[int, int, int]], Problem],
    ) -> None:
        """Raises the error that says why the overrides leave no plan.

        Hints do not change what a kernel is: where nothing else is asked for, there is no error.
        """
        o = self.overrides
        fault = illegal(o)
        if fault is not None:
            raise fault

        def has_plans(overrides: Overrides) -> bool:
            return bool(Planner(self.shape, overrides, self.target).ranked(tiles, problem_of))

        if not has_plans(Overrides()):
            if o.structural:
                raise no_tile(self.shape, o, tiles)
            return
        if o.prefetch and has_plans(replace(o, prefetch=None)):
            raise no_stream(o)
        raise refusal(self.shape, o, tiles, has_plans)

    def ranked(
        self,
        tiles: list[tuple[int, int, int]],
        problem_of: Callable[[tuple[int, int, int]], Problem],
    ) -> list[Ranked]:
        """Plans over all tiles that honour the overrides, cheapest first."""
        found: list[Ranked] = []
        for tile in tiles:
            problem = problem_of(tile)
            if copies_are_late(problem) and not self.overrides.structural:
                continue
            for cost, plan in self.plans(tile, problem):
                found.append(Ranked(cost, plan, tile, self.sizes.registers_of(plan, tile)))
        found.sort(key=lambda r: (r.cost.clocks, -r.tile[0] * r.tile[1], r.plan.num_consumers))
        return found
