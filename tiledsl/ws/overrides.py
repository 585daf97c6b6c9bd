"""Launch options that ask for a structure; a launch reads them without the planner."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields


@dataclass(frozen=True)
class Overrides:
    """What the user asked for at launch; None leaves the decision to the compiler."""

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
        """The overrides that are set."""
        return {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None
        }
