"""The plan of a single-role kernel: every decision, frozen, printable."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from tiledsl.target import HOPPER
from tiledsl.ws.copy_rings import FLIGHT_SLOTS

CROWDED_REGISTERS = 64
"""With which half of an SM's threads fit."""
ROW_WARPS = 8
"""Warps for long rows that one CTA holds."""
FEW_SPILLS_BYTES, TIGHT_SPILLS_BYTES = 64, 16
"""What a thread may spill rather than leave half of an SM's places empty; and so that more fit."""
WIDE_BLOCKS = 2
"""CTAs of so many warps on an SM, where threads hold more elements."""


@dataclass(frozen=True)
class Limits:
    """What spilled before, or did not fit.

    blocks: CTAs that may have to share the registers of an SM. wide: whether threads may hold more
    than SHARED_ELEMENTS of a row. roomy: whether the warps of dots make room for all that loops
    carry around them. warps: of dots, at least. one_form: whether one form of f32 operands of
    dots may be held at a time. short: whether few warps may have many short rows.
    """

    blocks: int = 1 << 10
    wide: bool = True
    roomy: bool = True
    warps: int = 0
    one_form: bool = True
    short: bool = True

    def after(self, plan: SinglePlan) -> Limits:
        """What is tried after a plan whose registers spill."""
        if plan.has_short_rows:
            return replace(self, short=False)
        is_wide = (
            plan.num_warps == ROW_WARPS and plan.num_ctas == 1 and plan.min_blocks == WIDE_BLOCKS
        )
        if self.wide and is_wide:
            return replace(self, wide=False)
        if plan.is_crowded:
            return replace(self, blocks=plan.min_blocks - 1)
        fewer = plan.relaxed_blocks if plan.is_tight else plan.min_blocks // 2
        return replace(self, blocks=fewer)


@dataclass(frozen=True)
class SinglePlan:
    """Decisions about a single-role kernel.

    num_ctas: CTAs of a cluster that run one program together, each with num_warps warps.
    min_blocks: CTAs that the registers of an SM hold at least.
    num_stages: slots that rings which copies fill may have, 0 where there are none. slots: those
    that they have, the deepest first: a short loop needs fewer.
    pdl: CTAs come to their places while the kernel before ends (programmatic dependent launch).
    stays: a CTA (cluster) runs program after program and fetches ahead what the next one loads.
    may_grow: where more warps may hold what the registers of these do not.
    has_short_rows: warps have many rows each (ws/short_rows.py).
    has_full_rows: the largest loads have no mask that differs inside of a row.
    is_sparse: the programs multiply, and there are no more of them than SMs.
    is_crowded: as many CTAs share an SM as its shared memory and their tiles let.
    is_final: nothing else is left to try.
    """

    num_warps: int = 4
    num_ctas: int = 1
    min_blocks: int = 1
    num_stages: int = 0
    slots: tuple[int, ...] = field(default=(), compare=False)
    pdl: bool = True
    stays: bool = False
    may_grow: bool = field(default=False, compare=False)
    has_short_rows: bool = False
    has_full_rows: bool = False
    is_sparse: bool = False
    is_crowded: bool = field(default=False, compare=False)
    is_final: bool = field(default=False, compare=False)

    @property
    def num_threads(self) -> int:
        return 32 * self.num_warps

    @property
    def relaxed_blocks(self) -> int:
        """CTAs on an SM whose threads have CROWDED_REGISTERS each."""
        return max(1, HOPPER.registers_per_sm // (CROWDED_REGISTERS * self.num_threads))

    @property
    def is_tight(self) -> bool:
        """Whether threads have fewer registers, so that more loops wait for memory at a time."""
        return not self.is_crowded and self.min_blocks > self.relaxed_blocks

    def is_last(self, spill_bytes: int, *, are_moved: bool = False) -> bool:
        """Whether another kernel of a single role would be no better.

        Fewer CTAs on an SM take more registers than spill; where accumulators are moved under a
        wgmma, rings of fewer slots leave no product in flight, and more warps have fewer each.
        """
        if self.is_final:
            return True
        if are_moved and self.num_stages >= FLIGHT_SLOTS:
            return False
        if self.may_grow and (are_moved or spill_bytes > FEW_SPILLS_BYTES):
            return False
        most = TIGHT_SPILLS_BYTES if self.is_tight else FEW_SPILLS_BYTES
        return self.min_blocks == 1 or spill_bytes <= most

    def crowded(self, blocks: int) -> SinglePlan:
        """The plan for so many CTAs on an SM, or more."""
        if blocks <= self.min_blocks:
            return self
        return replace(self, min_blocks=blocks, is_crowded=True)

    def describe(self) -> str:
        cluster = f", clusters of {self.num_ctas} CTAs a program" if self.num_ctas > 1 else ""
        found = self.slots or (self.num_stages,)
        slots = f", stages {' and '.join(map(str, found))}" if self.num_stages else ""
        stays = ", stays for the next program" if self.stays else ""
        return f"single role, {self.num_warps} warps{cluster}{slots}{stays}"
