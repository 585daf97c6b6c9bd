"""Programs of several short rows that store something of each row beside the rows themselves.

What a warp stores of few rows is a request to L2 of its own, which costs several times its bytes:
the mean and the deviation of two rows of 512 bytes cost 4 % (docs/performance.md). A warp with more
rows, side by side in registers, stores those of all of them at once; and what all rows share, such
as weights, is loaded once for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.types import TileType
from tiledsl.ws.slices import tile_slice
from tiledsl.ws.stay import depends_on_program

WARP_BYTES, WARP_ELEMENTS, LEAST_ROWS = 4096, 2048, 2
"""Bytes of rows that a warp has, elements of a tile at most, and rows at least."""
LANE_ELEMENTS = 32
"""Elements of a row that each of 32 lanes has at most: more take the registers of a second row."""
RESIDENT_WARPS = 16
"""Warps on an SM, which then have 64 KB under way and 128 registers a thread."""


@dataclass(frozen=True)
class ShortRows:
    """Rows of a program, elements of each, and bytes that are loaded of each."""

    rows: int
    cols: int
    row_bytes: int

    @property
    def warps(self) -> int:
        """Of a program; 0 where these have no rows for it, or rows are too long."""
        rows_of_warp = min(WARP_BYTES // self.row_bytes, WARP_ELEMENTS // self.cols)
        if rows_of_warp < LEAST_ROWS or self.cols > 32 * LANE_ELEMENTS:
            return 0
        warps = self.rows // rows_of_warp
        return warps if warps in (1, 2, 4, 8) and warps * rows_of_warp == self.rows else 0

    @property
    def blocks(self) -> int:
        """CTAs on an SM."""
        return RESIDENT_WARPS // self.warps


def short_rows(ops: Iterable[Op]) -> ShortRows | None:
    """The rows that a program without loops reduces, where it stores results of each row."""
    shape: tuple[int, ...] = ()
    loaded: list[TileType] = []
    stored: set[int] = set()
    for op in ops:
        match op:
            case For() | While() | mma.Dot() | mma.Issue():
                return None
            case Reduce(axes=axes, inputs=(first, *_)):
                type_ = first.type
                assert isinstance(type_, TileType)
                if type_.rank != 2 or axes != (1,) or shape not in ((), type_.shape):
                    return None
                shape = type_.shape
            case pointer.Store(value=value) if isinstance(value.type, TileType):
                stored.add(value.type.num_elements)
            case pointer.Load(result=result) if isinstance(result.type, TileType):
                loaded.append(result.type)
            case _:
                pass
    row_bytes = sum(t.shape[1] * t.dtype.bytes for t in loaded if t.shape == shape)
    if not shape or shape[0] == 1 or shape[0] not in stored or not row_bytes:
        return None
    return ShortRows(shape[0], shape[1], row_bytes)


def ask_early(graph: TileGraph, region: Region) -> int:
    """Moves loads of what all programs share behind the loads of a program's own rows.

    Only where a thread holds no more of them than of its rows, so that the registers for them are
    there. Returns how many were moved.
    """
    found = short_rows(region.walk())
    if found is None or not found.warps:
        return 0
    loads = [op for op in region.ops if isinstance(op, pointer.Load) and _held_bytes(op)]
    own = [op for op in loads if depends_on_program(op.pointer)]
    shared = [op for op in loads if op not in own]
    if not own or sum(map(_held_bytes, shared)) > sum(map(_held_bytes, own)):
        return 0
    moved = 0
    after: Op = own[-1]
    for op in shared:
        needed = tile_slice(region, op.operands)
        if needed is None or not _may_pass(region, after, op):
            continue
        for each in (*needed, op):
            if region.ops.index(each) > region.ops.index(after):
                behind = region.ops[region.ops.index(after) + 1]
                if behind is not each:
                    graph.move_before(behind, each)
                after = each
        moved += 1
    return moved


def last_first_load(region: Region) -> Op | None:
    """The last load of a program before its first reduction, if any.

    What ptxas moves nothing across belongs behind it: it would keep loads of some rows back until
    others are reduced, which takes fewer registers and leaves memory idle.
    """
    found: Op | None = None
    for op in region.ops:
        if isinstance(op, Reduce):
            return found
        found = op if isinstance(op, pointer.LoadLanes) else found
    return None


def _held_bytes(op: pointer.Load) -> int:
    """Bytes of a thread for what a load makes; 0 of a scalar."""
    type_ = op.result.type
    if not isinstance(type_, TileType) or type_.layout is None:
        return 0
    return type_.layout.num_regs * type_.dtype.bytes


def _may_pass(region: Region, after: Op, load: pointer.Load) -> bool:
    """Whether a load may come directly behind an op before it: nothing between writes there."""
    first, last = region.ops.index(after), region.ops.index(load)
    origin = pointer.origin_of(load.pointer)
    for op in region.ops[first + 1 : last]:
        for each in (op, *(o for r in op.regions for o in r.walk())):
            if each.effect is Effect.SYNC:
                return False
            if each.effect is Effect.WRITE:
                written = pointer.origin_of(each.pointer) if isinstance(each, pointer.Store) else ""
                if not written or not origin or written == origin:
                    return False
    return True
