"""Shared memory of a kernel: a table of buffers, checked against the target before NVRTC runs."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

from tiledsl.errors import ResourceError
from tiledsl.errors import SourceLoc
from tiledsl.ir.extents import Shape
from tiledsl.ir.extents import named
from tiledsl.ir.extents import named_extents
from tiledsl.ir.extents import smaller
from tiledsl.target import Target

LARGE_PART = 8
"""Buffers of this part of the whole, or more, are those that an error tells how to make smaller."""


@dataclass(frozen=True)
class Block:
    """One buffer: name, bytes, offset, and what would make it smaller.

    shapes: of the tiles that it is for. hint: what else than smaller tiles makes it smaller.
    """

    name: str
    num_bytes: int
    offset_bytes: int
    detail: str
    hint: str
    shapes: tuple[Shape, ...] = ()

    def describe(self, width: int, *, names: bool = False) -> str:
        """Its line in a table. names: whether with the constexprs that its extents are."""
        known = [named_extents(s) for s in self.shapes if names and named(s)]
        line = f"  {self.name:<{width}}  {self.num_bytes:>7} bytes  {self.detail}"
        return f"{line}, for {' and '.join(dict.fromkeys(known))}" if known else line


@dataclass
class SmemPlan:
    """Buffers in order of allocation.

    cut_slots: of rings that have fewer than planned, the deepest first; empty where all are there.
    """

    blocks: list[Block] = field(default_factory=list[Block])
    end_bytes: int = 0
    cut_slots: tuple[int, ...] = ()

    def take(
        self,
        name: str,
        num_bytes: int,
        *,
        align: int = 1024,
        detail: str = "",
        hint: str = "",
        shapes: tuple[Shape, ...] = (),
        at: int | None = None,
    ) -> int:
        """Reserves bytes and returns their offset. at: where others lie that are done by then."""
        offset = -(-(self.end_bytes if at is None else at) // align) * align
        self.blocks.append(Block(name, num_bytes, offset, detail, hint, shapes))
        self.end_bytes = max(self.end_bytes, offset + num_bytes)
        return offset

    def table(self, *, names: bool = False) -> str:
        """One line per buffer. names: whether with the constexprs that their extents are."""
        width = max((len(b.name) for b in self.blocks), default=4)
        rows = [b.describe(width, names=names) for b in self.blocks]
        return "\n".join([*rows, f"  {'total':<{width}}  {self.end_bytes:>7} bytes"])

    def check(self, target: Target, loc: SourceLoc | None = None) -> None:
        """Raises ResourceError with the table when the total does not fit."""
        if self.end_bytes <= target.smem_bytes:
            return
        raise ResourceError(
            f"the kernel needs {self.end_bytes} bytes of shared memory, "
            f"{target.arch} has {target.smem_bytes}\n"
            f"{self.table(names=True)}",
            loc,
            self.remedy(),
        )

    def remedy(self) -> str:
        """What makes the large buffers smaller."""
        blocks = sorted(self.blocks, key=lambda b: -b.num_bytes)
        large = [b for b in blocks if b.num_bytes * LARGE_PART >= self.end_bytes] or blocks[:1]
        shapes = [s for b in large for s in b.shapes]
        tiles = smaller(shapes, "use a smaller tile") if shapes else ""
        return " or ".join(filter(None, [tiles, large[0].hint])) or "use smaller tiles"
