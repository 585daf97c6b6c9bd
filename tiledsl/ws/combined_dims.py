"""How layouts take care of dimensions that reductions and scans run along."""

from __future__ import annotations

from math import prod

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.scan import Scan
from tiledsl.ir.types import TileType

SECTOR_BYTES = 32
LINE_LANES = 8
"""Lanes side by side that fill the sectors of memory, with vectors."""


def lanes_of_row(shape: tuple[int, ...], row: int, num_warps: int, most: int) -> int:
    """Lanes for a dimension that is combined: few, each with many elements, make few shuffles.

    most: elements of a row that a lane has.
    """
    rows = prod(shape) // shape[row]
    lanes = LINE_LANES
    while lanes < 32 and (shape[row] > lanes * most or rows * lanes < 32 * num_warps):
        lanes *= 2
    return lanes


def combined_dims(ops: list[Op], group: set[Value]) -> set[int]:
    """Dimensions of a group that a reduction or a scan runs along."""
    return {
        axis
        for op in ops
        if isinstance(op, Reduce | Scan) and op.inputs[0] in group
        for axis in (op.axes if isinstance(op, Reduce) else (op.axis,))
    }


def dim_of_runs(
    ops: list[Op], group: set[Value], type_: TileType, order: list[int], *, in_vectors: bool
) -> int:
    """The dimension along which a thread's elements lie side by side: that of a scan, or -1.

    Lanes and warps then exchange totals of runs, not every element. It is not the fast one, whose
    rows fill sectors of memory by themselves. in_vectors: what is loaded one by one is written so.
    """
    if type_.rank < 2:
        return -1
    fast = order[0]
    otherwise = order[1] if in_vectors else -1
    scans = [op for op in ops if isinstance(op, Scan) and op.inputs[0] in group]
    if not scans or type_.shape[fast] * type_.dtype.bytes < SECTOR_BYTES:
        return otherwise
    return scans[0].axis if scans[0].axis != fast else otherwise


def warp_order(
    combined: set[int], order: list[int], shape: tuple[int, ...], num_warps: int
) -> list[int]:
    """Dimensions by which warps are laid out: those first that no reduction or scan runs along."""
    free = [d for d in order if d not in combined]
    places = prod(shape[d] for d in free)
    if places < num_warps and num_warps % places:
        return order
    return [*free, *(d for d in order if d in combined)]
