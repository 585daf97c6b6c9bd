"""Shared memory of a kernel: a table of buffers, checked against the target before NVRTC runs."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

from tiledsl.errors import ResourceError
from tiledsl.errors import SourceLoc
from tiledsl.target import Target


@dataclass(frozen=True)
class Block:
    """One buffer: name, bytes, offset, and what would make it smaller."""

    name: str
    num_bytes: int
    offset_bytes: int
    detail: str
    hint: str


@dataclass
class SmemPlan:
    """Buffers in order of allocation."""

    blocks: list[Block] = field(default_factory=list[Block])
    end_bytes: int = 0

    def take(
        self, name: str, num_bytes: int, *, align: int = 1024, detail: str = "", hint: str = ""
    ) -> int:
        """Reserves bytes and returns their offset."""
        offset = -(-self.end_bytes // align) * align
        self.blocks.append(Block(name, num_bytes, offset, detail, hint))
        self.end_bytes = offset + num_bytes
        return offset

    def table(self) -> str:
        """One line per buffer."""
        width = max((len(b.name) for b in self.blocks), default=4)
        rows = [f"  {b.name:<{width}}  {b.num_bytes:>7} bytes  {b.detail}" for b in self.blocks]
        return "\n".join([*rows, f"  {'total':<{width}}  {self.end_bytes:>7} bytes"])

    def check(self, target: Target, loc: SourceLoc | None = None) -> None:
        """Raises ResourceError with the table when the total does not fit."""
        if self.end_bytes <= target.smem_bytes:
            return
        largest = max(self.blocks, key=lambda b: b.num_bytes)
        raise ResourceError(
            f"the kernel needs {self.end_bytes} bytes of shared memory, "
            f"{target.arch} has {target.smem_bytes}\n"
            f"{self.table()}",
            loc,
            largest.hint or "use smaller tiles",
        )
