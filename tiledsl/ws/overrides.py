"""Launch options that ask for a structure; a launch reads them without the planner."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields

OWN_SLOTS = 4
"""Slots that are worth more than a second staging buffer, or a ring of what an epilogue loads."""


@dataclass(frozen=True)
class Overrides:
    """What the user asked for at launch; None leaves the decision to the compiler.

    num_warps: of a single role. Roles read no more of it than whether it is given (`depth`).
    """

    num_warps: int | None = None
    num_stages: int | None = None
    mma_depth: int | None = None
    num_consumers: int | None = None
    ping_pong: bool | None = None
    persistent: bool | None = None
    cluster: int | None = None
    split_k: int | None = None
    warp_specialize: bool | None = None
    raster_group: int | None = None
    swap_operands: bool | None = None
    prefetch: int | None = None

    @property
    def slots(self) -> int | None:
        """Slots asked of a ring between roles.

        One (`num_stages=1`: do not pipeline) asks for none: roles that share one slot take turns.
        """
        return None if self.num_stages == 1 else self.num_stages

    @property
    def least_slots(self) -> int:
        """Slots that a ring between roles has before other things take room beside it."""
        if self.slots is None or self.num_warps is not None:
            return max(OWN_SLOTS, self.slots or 0)
        return self.slots

    def depth(self, own: int, fits: int) -> int:
        """Slots of a ring between roles.

        Beside `num_warps`, `num_stages` is that of one program of so many warps. Several would
        share an SM, which has one ring here: with slots for as many programs as fit, but no more
        than it has by itself.

        own: what the compiler chooses by itself. fits: what there is room for.
        """
        if self.slots is None:
            return own
        if self.num_warps is None:
            return min(fits, self.slots)
        programs = max(1, fits // self.slots)
        return min(fits, max(self.slots, self.mma_depth or 1, min(own, programs * self.slots)))

    @property
    def structure(self) -> dict[str, object]:
        """Those set that only a specialised kernel can honour; all others are hints."""
        hints = ("num_stages", "persistent", "raster_group")
        none = {"cluster": 1, "split_k": 1}
        return {k: v for k, v in self.given.items() if k not in hints and v and v != none.get(k)}

    @property
    def structural(self) -> bool:
        """Whether any is set that only a specialised kernel can honour."""
        return bool(self.structure)

    @property
    def given(self) -> dict[str, object]:
        """Those set that change plans of roles by themselves: all but `num_warps`."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "num_warps"}
        return {k: v for k, v in found.items() if v is not None}
