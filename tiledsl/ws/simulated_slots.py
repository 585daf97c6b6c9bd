"""What slots of shared memory hold in a simulation, and where a box of a tensor lies in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledsl.ir.layout import Unit
from tiledsl.ir.machine import Array
from tiledsl.ir.machine import load_block
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tma
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ws.check_state import SlotState


@dataclass(frozen=True)
class Held:
    """A slot that is read later. orders: permutations of its dimensions, one after the other."""

    state: SlotState
    orders: tuple[tuple[int, ...], ...]


def is_shared_out(value: Value) -> bool:
    """Whether warpgroups hold different parts of a tile."""
    type_ = value.type
    if not isinstance(type_, TileType) or type_.layout is None:
        return False
    terms = (type_.layout.unit_terms(dim, Unit.WARP) for dim in range(type_.rank))
    return any(stride >= 4 for found in terms for stride, _, _ in found)


def own_part(type_: TileType, warpgroup: int) -> Array:
    """Where a warpgroup holds the elements of a tile."""
    assert type_.layout is not None
    own = np.zeros(type_.layout.padded_shape, bool)
    places = type_.layout.coords()[4 * warpgroup : 4 * warpgroup + 4]
    own[tuple(np.moveaxis(places, -1, 0))] = True
    return own[tuple(map(slice, type_.shape))]


def contents(x: Any) -> Any:
    """What an operand of a wgmma holds when it is read."""
    if not isinstance(x, Held):
        return x
    data = x.state.data
    for order in x.orders:
        data = data.transpose(order)
    return data


def fill(op: tma.Load, state: SlotState, tensor: Array, coords: list[int], part: int) -> None:
    """Copies one box into its place in a slot."""
    made = op.smem.type
    assert isinstance(made, SmemType)
    starts, shape = box_within(op.map, coords)
    block = load_block(tensor, starts, shape)
    box = op.offset_bytes // max(1, made.box_rows * made.swizzle_bytes)
    row = part * op.part_bytes // max(1, made.swizzle_bytes)
    sizes = _kept(op.map, len(made.shape))
    at = [row] * len(made.shape)
    at[made.major] = box * made.box_elems
    block = np.reshape(block, sizes)
    if made.paired:  # rows 0 and 1, or 2 and 3, of every four
        half = op.offset_bytes // (made.box_rows // 2 * made.swizzle_bytes) % 2
        own = np.arange(made.box_rows) % 4 // 2 == half
        data, block = (np.moveaxis(x, made.major, 1) for x in (state.data, block))
        first = box * made.box_elems
        wide = min(block.shape[1], data.shape[1] - first)
        data[own, first : first + wide] = block[own, :wide]
        return
    room = [min(n, m - a) for n, m, a in zip(sizes, made.shape, at, strict=True)]
    inside = tuple(slice(0, n) for n in room)
    state.data[tuple(slice(a, a + n) for a, n in zip(at, room, strict=True))] = block[inside]


def tensor_map_of(v: Value) -> tma.TensorMap:
    """The op that makes a tensor map."""
    op = v.defining_op
    assert isinstance(op, tma.TensorMap)
    return op


def box_within(v: Value, coords: list[int]) -> tuple[list[int], list[int]]:
    """Starts and extents of a box in the order of the tensor's dimensions."""
    op = tensor_map_of(v)
    type_ = op.tensor.type
    assert isinstance(type_, TensorType)
    starts, shape = [0] * type_.rank, [1] * type_.rank
    for i, (dim, extent, at) in enumerate(zip(op.dims, op.box, coords, strict=True)):
        per = 4 if dim in op.dims[:i] else 1  # the fours of a dimension that stands twice
        starts[dim], shape[dim] = at * per, extent * per
    return starts, shape


def _kept(v: Value, rank: int) -> list[int]:
    """Extents of a box without the dimensions that the tile does not have."""
    op = tensor_map_of(v)
    _, shape = box_within(v, [0] * len(op.dims))
    inner = op.dims[0]
    wide = [d for d in range(len(shape)) if shape[d] > 1 or d == inner]
    spare = [d for d in reversed(range(len(shape))) if d not in wide]
    kept = sorted(wide + spare[: rank - len(wide)])
    return [shape[d] for d in kept]


def nothing(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array that no result may come from."""
    out = np.zeros(shape, dtype)
    if np.dtype(dtype).kind in "iu":
        out[...] = np.iinfo(dtype).max
    else:
        out[...] = np.asarray(float("nan")).astype(dtype)
    return out
