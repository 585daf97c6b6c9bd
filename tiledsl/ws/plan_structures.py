"""How warpgroups and CTAs may share the work of a tile: the plans that are worth a price."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tiledsl.target import Target
from tiledsl.ws.cost import Problem
from tiledsl.ws.cost import l2_clocks
from tiledsl.ws.kernel_shape import KernelShape
from tiledsl.ws.plan import Overrides
from tiledsl.ws.plan import Plan
from tiledsl.ws.plan import revised
from tiledsl.ws.plan_sizes import MOST_PARTIAL_SUMS
from tiledsl.ws.plan_sizes import MOST_SUMS

LATE = 1.3
"""By how much longer than the tensor core L2 takes for a slot that comes late."""
FREE = 1.15
"""By how much longer it takes where two warpgroups with scales take no turns. Block scales to f32
sums: 128 x 112 (1.18) without turns 0.94 to 1.06, in turns 0.89 to 0.99; 128 x 224 (0.87) 0.938
and 0.960.
"""


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
                if n < 3 or cols <= 192:
                    base = Plan(num_consumers=n, split=split, swapped=swapped)
                    yield from in_flight(base, tile, shape)
        # Turns of whole loops would keep one warpgroup's sums from the other's wgmmas.
        alternates = shape.partial is None and shape.made is None
        words = rows * cols * dots * shape.acc_bits // 32
        if alternates and cols <= 256 and words // 128 <= 192:
            yield Plan(num_consumers=2, ping_pong=True, swapped=swapped, mma_depth=2)
        if swap is None and not swapped and M % 64 == 0 and N % 8 == 0:
            break


def in_flight(base: Plan, tile: tuple[int, int, int], shape: KernelShape) -> Iterator[Plan]:
    """The plan with as many iterations' products in flight as its registers hold.

    What CUDA cores do with products runs under those of other warpgroups; one that is alone starts
    those of two iterations together.
    """
    n, partial = base.num_consumers, shape.partial
    if partial is None or shape.made is not None:
        depths = (1,) if n == 2 or shape.made is not None else (2,)
    else:
        depths = (2, 1) if n == 1 and partial.may_pair(tile[2]) else (1,)
    most = 128 if n > 2 else MOST_SUMS if n == 1 or partial is None else MOST_PARTIAL_SUMS
    for depth in depths:
        plan = revised(base, mma_depth=depth)
        if shape.sum_regs(plan, tile) <= most:
            yield plan


class Structures:
    """Plans of one kernel for one launch, before what depends on their sizes."""

    def __init__(self, shape: KernelShape, overrides: Overrides, target: Target) -> None:
        self.shape = shape
        self.overrides = overrides
        self.target = target
        a, b = shape.operand_axes
        self._used = a | b

    def of(self, tile: tuple[int, int, int], problem: Problem) -> Iterator[Plan]:
        """All of a tile."""
        for base in structures(tile, self.shape, self.overrides.swap_operands):
            if self.shape.partial is not None and base.mma_depth > 1 and problem.cuts_blocks:
                continue  # each version of the loop would have three products for one
            yield from self.variants(self.in_turns(base, problem), tile, problem)

    def in_turns(self, base: Plan, p: Problem) -> Plan:
        """Warpgroups at one tile start products in turns, where CUDA cores go on with these.

        Three gain 1 to 2 % by it. Two that only add lose 2 to 7 %; with scales in the slots two
        gain 9 to 16 %, three 4 to 7 %. Where L2 is slower (`FREE`), two wait for slots, not for
        each other: block scales, 128 x 7168 x 7168, 128 x 64, 23.5 us in turns, 17.8 as they can.
        """
        s, asked = self.shape, self.overrides.ping_pong
        if base.num_consumers == 1 or s.num_loops > 1:
            return base
        if s.made is not None and not base.ping_pong:
            return revised(base, turns=True if asked is None else asked)
        if s.partial is None:
            return base
        shares_rows = base.split == 0 and not base.swapped
        two = bool(s.vectors) and shares_rows and not self.is_late(base, p, FREE)
        own = base.num_consumers > 2 or two
        return revised(base, turns=own if asked is None else asked)

    def variants(self, base: Plan, tile: tuple[int, int, int], p: Problem) -> Iterator[Plan]:
        """Cluster, split-K and persistence on top of a structure."""
        o, s = self.overrides, self.shape
        if o.mma_depth is not None and s.partial is None and s.made is None:
            base = revised(base, mma_depth=o.mma_depth)
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

    def is_late(self, plan: Plan, p: Problem, by: float = LATE) -> bool:
        """Whether L2 takes longer for a slot than the tensor core, by far."""
        return l2_clocks(plan, p, self.multicast(plan)) > by * p.product_clocks

    def multicast(self, plan: Plan) -> tuple[bool, bool]:
        """Which operands the CTAs of a cluster share."""
        if plan.cluster_size == 1 or plan.split_k > 1:
            return (False, False)
        a, b = self.shape.operand_axes
        return (plan.cluster_axis not in a, plan.cluster_axis not in b)

    def unit_axes(self, p: Problem) -> tuple[int, ...]:
        """Grid axes of extent 1, when they make one operand read once and another shared."""
        unit = {axis for axis in range(3) if p.grid[axis] == 1}
        once = self.shape.read_once(unit)
        return tuple(sorted(unit)) if any(once) and not all(once) else ()
