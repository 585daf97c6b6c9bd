"""Chooses a plan: lists the legal ones of a tile, prices them, honours overrides or refuses."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from math import prod

from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.types import SmemType
from tiledsl.target import Target
from tiledsl.ws.cost import Cost
from tiledsl.ws.cost import Problem
from tiledsl.ws.cost import copies_are_late
from tiledsl.ws.cost import estimate
from tiledsl.ws.cost import l2_clocks
from tiledsl.ws.cost import pause_of
from tiledsl.ws.kernel_shape import KernelShape
from tiledsl.ws.plan import Overrides
from tiledsl.ws.plan import Plan
from tiledsl.ws.plan import revised
from tiledsl.ws.refusals import illegal
from tiledsl.ws.refusals import no_stream
from tiledsl.ws.refusals import no_tile
from tiledsl.ws.refusals import refusal
from tiledsl.ws.stores import is_turned
from tiledsl.ws.streamed import Stream
from tiledsl.ws.streamed import with_stream

MAX_STAGES = 20
CHANNEL_REGS = 8
"""What a consumer needs to walk over the ring of an epilogue's channel."""
VECTOR_REGS = 8
"""What a consumer needs for the vectors of a slot."""
UNSTAGED_REGS = (128, 192)
"""Of sums and what an epilogue loads, where it stores from registers: of bulk loads, and where
threads copy, since a single role is slower then.
"""
COPY_REGS, COPIES_HELD = 56, 8
"""Registers of a thread that copies, and for how many addresses of rows they suffice."""
LEAST_STAGES, FLIGHT_BYTES, LATE = 4, 136 << 10, 1.3
"""Slots, and bytes of slots, of loops that threads copy for where L2 takes that much longer than
the tensor core. Rows by index, 4096 cubed, tiles of 64 x 128: 4 to 8 slots take 310, 269, 257, 277
and 300 us, of 64 x 64 8, 9, 11 and 13 slots 362, 374, 376 and 388.
"""
BARRIER_BYTES = 1024
MOST_SUMS = 200
"""Registers of a thread for the tiles that a loop keeps, where two warpgroups share a tile."""
MOST_PARTIAL_SUMS = 224
"""The same where products start from zero: an iteration needs few others (16 with the scales of
three blocks of columns), and the epilogue has the product's when the loop is over.
"""


@dataclass(frozen=True)
class Ranked:
    """A priced plan of a tile. registers: accumulators, results and epilogue tiles of a thread."""

    cost: Cost
    plan: Plan
    tile: tuple[int, int, int]
    registers: int


def structures(tile: tuple[int, int, int], shape: KernelShape, swap: bool | None) -> Iterator[Plan]:
    """Plans that differ in how warpgroups share the work, for one tile.

    swap: whether the operands must (not) be swapped; by default only where rows need it.
    """
    M, N, _ = tile
    dots = shape.tiles_alive(tile)
    ways = ((False, (M, N)), (True, (N, M)))
    # Rows of operands that are added up lie in quads of lanes: no swap, and no shared rows.
    # So do those of operands that are made, which a warpgroup has for itself.
    own_rows = shape.row_sums or shape.made is not None
    for swapped, (rows, cols) in ways[:1] if own_rows else ways:
        if rows % 64 or cols % 8 or cols > 512 or swap == (not swapped):
            continue
        # An operand that is contiguous along the columns is cut in boxes of 64 of them.
        part = 64 if shape.mn_major[0 if swapped else 1] else 8
        for n in (1, 2, 3):
            for split in (0,) if own_rows else (0, 1):
                if split == 0 and (rows % (64 * n) or cols > 256):
                    continue
                if split == 1 and (
                    n == 1 or cols % (part * n) or cols // n > 256 or rows % (64 * n) == 0
                ):
                    continue
                alone = shape.partial is not None or shape.made is not None
                depth = 1 if n == 2 or alone else 2
                base = Plan(num_consumers=n, split=split, swapped=swapped, mma_depth=depth)
                regs = shape.sum_regs(base, tile)
                most = MOST_SUMS if shape.partial is None or n != 2 else MOST_PARTIAL_SUMS
                if regs <= (most if n < 3 else 128) and not (n == 3 and cols > 192):
                    yield base
        # Turns of whole loops would keep one warpgroup's sums from the other's wgmmas.
        alternates = shape.partial is None and shape.made is None
        words = rows * cols * dots * shape.acc_bits // 32
        if alternates and cols <= 256 and words // 128 <= 192:
            yield Plan(num_consumers=2, ping_pong=True, swapped=swapped, mma_depth=2)
        if swap is None and not swapped and M % 64 == 0 and N % 8 == 0:
            break


class Planner:
    """Prices plans of one kernel for one launch."""

    def __init__(self, shape: KernelShape, overrides: Overrides, target: Target) -> None:
        self.shape = shape
        self.overrides = overrides
        self.target = target
        # What all plans share, or all of a tile: hundreds are priced.
        a, b = shape.operand_axes
        self._is_asked = bool(overrides.given)
        self._used = a | b
        self._group_axis = min((a - b) & {0, 1}, default=0)
        self._sides: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._stored = _stored(shape.single_top_store)

    # ------------------------------------------------------------------ one tile
    def plans(self, tile: tuple[int, int, int], problem: Problem) -> Iterator[tuple[Cost, Plan]]:
        """Legal plans of a tile with their cost."""
        for base in structures(tile, self.shape, self.overrides.swap_operands):
            for plan in self.variants(self.in_turns(base), tile, problem):
                for done in self.completed(plan, tile, problem):
                    cost = estimate(done, problem, self.target.num_sms, self.multicast(done))
                    yield cost, done

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
        streamed = sum(n for n, one in zip(self.side_bytes(tile), once, strict=True) if one)
        staging = self.staging_bytes(plan, tile, p) * plan.store_buffers
        own = plan.num_stages * self.slot_bytes(tile) + staging + self.spare_bytes
        stream = Stream(streamed, -(-p.trips // plan.split_k), own, p.grid)
        return with_stream(plan, item.cost, stream, self.target, self.overrides.prefetch)

    def in_turns(self, base: Plan) -> Plan:
        """Warpgroups at one tile start products in turns, where CUDA cores go on with these.

        Three gain 1 to 2 % by it. Two that only add lose 2 to 7 %; with scales in the slots, which
        ptxas reads between wgmmas that do not follow a turn, two gain 9 to 16 %, three 4 to 7 %.
        """
        s, asked = self.shape, self.overrides.ping_pong
        if base.num_consumers == 1 or s.num_loops > 1:
            return base
        if s.made is not None and not base.ping_pong:
            return revised(base, turns=True if asked is None else asked)
        if s.partial is None:
            return base
        shares_rows = base.split == 0 and not base.swapped
        own = base.num_consumers > 2 or (bool(s.vectors) and shares_rows)
        return revised(base, turns=own if asked is None else asked)

    def variants(self, base: Plan, tile: tuple[int, int, int], p: Problem) -> Iterator[Plan]:
        """Cluster, split-K and persistence on top of a structure."""
        o, s = self.overrides, self.shape
        if o.mma_depth is not None and s.partial is None and s.made is None:
            base = revised(base, mma_depth=o.mma_depth)
        elif o.num_stages is not None:
            base = revised(base, mma_depth=min(base.mma_depth, o.num_stages))
        persistent = o.persistent if o.persistent is not None else True
        if base.ping_pong and (
            not persistent or s.bound_axes or s.num_loops > 1 or not s.top_level
        ):
            persistent_ok = False
        else:
            persistent_ok = True
        if persistent_ok:
            plan = revised(base, persistent=persistent)
            yield from self.starts(plan, p)
            if persistent and s.top_level and not s.copied:
                yield from self.clustered(plan, tile, p)
        yield from self.doubled(base, p)
        can_split = s.may_split and not base.ping_pong and not s.copied
        for split in (2, 4) if can_split else ():
            small = p.grid[0] * p.grid[1] * p.grid[2] * split <= self.target.num_sms
            if (small and p.trips >= 4 * split) or o.split_k == split:
                # Short loops of two wait for copies, not for each other.
                short = s.made is None and base.num_consumers == 2
                turns = base.turns and (not short or o.ping_pong is True)
                yield revised(
                    base,
                    persistent=False,
                    split_k=split,
                    cluster_size=split,
                    cluster_axis=-1,
                    turns=turns,
                )

    def doubled(self, base: Plan, p: Problem) -> Iterator[Plan]:
        """Two CTAs on an SM that share out a stream's K, each with a warpgroup that makes operands.

        What one of them does between its products hides under the other's work. M = 16, N = K =
        8192, beside two warpgroups of a CTA: int8 19.1 and 19.5 us, int4 12.7 and 13.6, with bf16
        scales of groups, a part of each slot, 14.2 and 13.6.
        """
        o, s, sms = self.overrides, self.shape, self.target.num_sms
        asked = o.persistent or o.raster_group is not None or o.cluster not in (None, 2)
        if s.made is None or s.vectors or not s.may_split or base.num_consumers > 1 or asked:
            return
        streams = p.few_rows and bool(self.unit_axes(p))
        if streams and sms < 2 * prod(p.grid) <= 2 * sms and p.trips >= 8:
            yield revised(
                base, persistent=False, split_k=2, cluster_size=2, cluster_axis=-1, ctas_per_sm=2
            )

    def starts(self, plan: Plan, p: Problem) -> Iterator[Plan]:
        """The plan, or one with a CTA for each program, or both.

        A CTA that has one program alone stays for nothing; where operands are streamed, those of
        SMs that are ahead take more programs.
        """
        o, s = self.overrides, self.shape
        free = o.persistent is None and o.raster_group is None
        if free and s.top_level and not s.copied and not plan.ping_pong:
            at_once = prod(p.grid) <= self.target.num_sms
            if at_once or (p.few_rows and self.unit_axes(p)):
                yield revised(plan, persistent=False)
            if at_once:
                return
        yield plan

    def clustered(self, plan: Plan, tile: tuple[int, int, int], p: Problem) -> Iterator[Plan]:
        """Clusters along a grid axis that leaves one operand unchanged.

        Along an axis of one program the other CTAs would compute nothing: only when asked for.
        """
        asked = self.overrides.cluster
        if not self.shape.in_blocks:
            return
        for axis in (0, 1):
            if axis in self.shape.bound_axes or axis not in self._used:
                continue
            for size in (2, 4) if asked == 4 else (2,):
                if p.grid[axis] == 1 and asked != size:
                    continue
                made = revised(plan, cluster_axis=axis, cluster_size=size)
                shared = self.multicast(made)
                rows = [n for n, m in zip(tile[:2], shared, strict=True) if m]
                if rows and all(
                    self.splits(i, n, size) for i, n in enumerate(tile[:2]) if shared[i]
                ):
                    yield made

    def splits(self, side: int, extent: int, size: int) -> bool:
        """Whether a slot of an operand cuts into `size` parts of whole swizzle atoms."""
        rows = 64 if self.shape.mn_major[side] else extent
        return rows % (8 * size) == 0

    def multicast(self, plan: Plan) -> tuple[bool, bool]:
        """Which operands the CTAs of a cluster share."""
        if plan.cluster_size == 1 or plan.split_k > 1:
            return (False, False)
        a, b = self.shape.operand_axes
        return (plan.cluster_axis not in a, plan.cluster_axis not in b)

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
        chunk = s.streamable * SmemType((tile[0], 64), _DTYPES[2], 1).bytes
        groups = plan.num_consumers * plan.store_buffers
        staging = self.staging_bytes(plan, tile, p) // plan.num_consumers * groups
        room = self.target.smem_bytes - staging - self.spare_bytes
        least = plan.num_stages if self.overrides.num_stages else min(plan.num_stages, 4)
        slots = min(2, (room - least * self.slot_bytes(tile)) // chunk)
        if slots > 0 and tile[1] >= 64 and tile[0] <= 256:
            depth = min(plan.num_stages, (room - slots * chunk) // self.slot_bytes(tile))
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
        slot, staging = self.slot_bytes(tile), self.staging_bytes(plan, tile, p)
        owned = -(-plan.num_consumers // plan.split_k)
        reduce = owned * (plan.split_k - 1) * stored * 512
        room = self.room_bytes(plan) - self.spare_bytes - reduce
        depth, buffers = 0, 1
        for buffers in (2, 1) if not plan.ping_pong else (1,):
            depth = min(MAX_STAGES, (room - staging * buffers) // slot)
            if depth >= (self.overrides.num_stages or 4):
                break
        if self.overrides.num_stages is not None:
            depth = min(depth, self.overrides.num_stages)
        elif s.copied and self.is_late(plan, p):
            depth = min(depth, max(LEAST_STAGES, round(FLIGHT_BYTES / slot)))
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
            **self.registers(plan, regs, tile),
            copies=bool(s.copied),
            unit_axes=() if s.copied else self.unit_axes(p),
            l2_promotion_bytes=256 if p.pitch_128 else 128,
            group_axis=self.group_axis(plan),
        )

    def room_bytes(self, plan: Plan) -> int:
        """Shared memory of a CTA."""
        t = self.target
        if plan.ctas_per_sm == 1:
            return t.smem_bytes
        return t.smem_per_sm_bytes // plan.ctas_per_sm - t.smem_reserved_bytes

    def is_late(self, plan: Plan, p: Problem) -> bool:
        """Whether L2 takes longer for a slot than the tensor core, by far."""
        return l2_clocks(plan, p, self.multicast(plan)) > LATE * p.product_clocks

    def unit_axes(self, p: Problem) -> tuple[int, ...]:
        """Grid axes of extent 1, when they make one operand read once and another shared."""
        unit = {axis for axis in range(3) if p.grid[axis] == 1}
        once = self.shape.read_once(unit)
        return tuple(sorted(unit)) if any(once) and not all(once) else ()

    def slot_bytes(self, tile: tuple[int, int, int]) -> int:
        """Bytes of one slot of the rings of all loops, padding to 128-byte boxes included."""
        return sum(self.side_bytes(tile)) * self.shape.num_loops + self.shape.vector_bytes(tile)

    @property
    def spare_bytes(self) -> int:
        """Room for mbarriers, and for the alignment of what comes after a ring of vectors."""
        return BARRIER_BYTES * (2 if self.shape.vectors else 1)

    def side_bytes(self, tile: tuple[int, int, int]) -> tuple[int, int]:
        """Bytes of a slot by operand."""
        found = self._sides.get(tile)
        if found is None:
            M, N, K = tile
            s = self.shape
            left, right = (_DTYPES[n] for n in s.itemsizes)
            a = SmemType((M, K), left, 0 if s.mn_major[0] else 1).bytes
            b = SmemType((K, N), right, 1 if s.mn_major[1] else 0).bytes
            found = self._sides[tile] = a * s.num_operands[0], b * s.num_operands[1]
        return found

    def staging_bytes(self, plan: Plan, tile: tuple[int, int, int], p: Problem) -> int:
        """Bytes of one staging chunk over all consumer warpgroups."""
        if not p.staged:
            return 0
        if self._stored is None:
            groups = plan.warpgroups_per_tile if plan.split_dim == 0 else 1
            return tile[0] // groups * 128 * plan.num_consumers
        major, turned = self._stored
        part = [tile[1], tile[0]] if turned else [tile[0], tile[1]]
        if plan.warpgroups_per_tile > 1:
            part[1 - plan.split_dim if turned else plan.split_dim] //= plan.warpgroups_per_tile
        return part[1 - major] * 128 * plan.num_consumers

    def copy_registers(self, plan: Plan, tile: tuple[int, int, int]) -> dict[str, int]:
        """Threads that copy rows by index hold the addresses of all that they copy at once."""
        copies = self.shape.copies(tile, indexed=True)
        own = COPY_REGS + -(-6 * max(0, copies - COPIES_HELD) // 8) * 8
        total = 65536 // 128 if plan.num_consumers == 3 else 504
        most = (total - own) // plan.num_consumers // 8 * 8
        return {"producer_registers": own, "consumer_registers": min(224, most)}

    def registers(self, plan: Plan, regs: int, tile: tuple[int, int, int]) -> dict[str, int]:
        """setmaxnreg values: none when the launch registers suffice."""
        if plan.num_consumers == 1 or (plan.num_consumers == 2 and regs <= 64):
            return {"producer_registers": 0, "consumer_registers": 0}
        if self.shape.copied:
            return self.copy_registers(plan, tile)
        if plan.num_consumers == 3:
            return {"producer_registers": 32, "consumer_registers": 160}
        if plan.ping_pong or regs > MOST_SUMS:
            return {"producer_registers": 24, "consumer_registers": 240}
        return {"producer_registers": 40, "consumer_registers": 232}

    def group_axis(self, plan: Plan) -> int:
        if plan.cluster_axis >= 0 and plan.split_k == 1 and self.multicast(plan)[1]:
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
            a, b = self.side_bytes(tile)
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
                found.append(Ranked(cost, plan, tile, self.registers_of(plan, tile)))
        found.sort(key=lambda r: (r.cost.clocks, -r.tile[0] * r.tile[1], r.plan.num_consumers))
        return found

    def registers_of(self, plan: Plan, tile: tuple[int, int, int]) -> int:
        """Registers of a consumer thread that tiles take at the fullest point."""
        regs = self.shape.sum_regs(plan, tile)
        stored = self.shape.stored_elements(plan, tile)
        held = stored * self.shape.out_bits // 32 if plan.deferred else 0
        if plan.in_place:
            channel = CHANNEL_REGS if plan.epilogue_slots else 0
            return regs + self.shape.chunk_regs(plan, tile, staged=True) + channel
        width = min(tile[1], 128 * 8 // self.shape.out_bits)  # of a staged chunk, made beside them
        made = stored * width // tile[1] * self.shape.out_bits // 32
        return regs + (held or made) + self.shape.epilogue_regs(plan, tile)


def _stored(store: Store | None) -> tuple[int, bool] | None:
    """Of the one stored tile: its contiguous dimension, and whether it is the product turned."""
    if store is None:
        return None
    t = tensor_type(store.tensor, "store")
    kept = [d for d in range(t.rank) if d not in store.squeeze]
    return kept.index(t.inner_dim) if t.inner_dim in kept else 1, is_turned(store.value)


def _dtypes() -> dict[int, DType]:
    from tiledsl.dtypes import bfloat16
    from tiledsl.dtypes import float8e4nv

    return {1: float8e4nv, 2: bfloat16, 4: float32}


_DTYPES = _dtypes()
