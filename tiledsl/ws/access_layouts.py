"""Layouts of tiles that are loaded and stored through pointers: neighbours in memory side by side.

The order of the dimensions follows the contiguity of the pointers, the vectors of a thread their
alignment; both come from the axis analysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd
from math import prod

import numpy as np

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_steps import FAR
from tiledsl.ir.analysis.axis_steps import least_step
from tiledsl.ir.analysis.masks import only_falls
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.layout import blocked
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import atomic
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.types import TileType
from tiledsl.ws.shifted import shift_of
from tiledsl.ws.shifted import shiftable_width

VECTOR_BYTES = 16
RegisterAccess = pointer.Load | pointer.Store | atomic.Rmw | atomic.Cas
Access = RegisterAccess | Copy


def access_of(op: Op) -> Access | None:
    """The op, when it accesses a tile of pointers."""
    if isinstance(op, Access) and isinstance(op.pointer.type, TileType):
        return op
    return None


def anchor(op: Access) -> Value:
    """The tile whose layout an access has: what it loads or stores."""
    return op.result if isinstance(op, pointer.Load | Copy) else op.value


@dataclass(frozen=True)
class Shape:
    """How an access wants its tile: dimensions from fastest to slowest, elements of a vector.

    chained: the vectors of a warp follow each other.
    """

    order: tuple[int, ...]
    vector: int
    chained: bool = False


def wanted_shape(op: Access, facts: AxisFacts) -> Shape:
    """The best order and vector for one access."""
    type_ = op.pointer.type
    assert isinstance(type_, TileType)
    info = facts.of(op.pointer)
    dims = list(reversed(range(type_.rank)))
    # The dimension with the longest runs is the fastest; of equal ones that whose neighbours may
    # lie closest, then the last.
    runs = {d: min(info.axes[d].contiguity, type_.shape[d]) for d in dims}
    steps = dict.fromkeys(dims, 0)
    if len(set(runs.values())) < len(dims):
        steps = {d: least_step(op.pointer, d, facts) or FAR for d in dims}
    dims.sort(key=lambda d: (-runs[d], steps[d]))
    element = type_.dtype.element
    assert element is not None
    if not dims:
        return Shape((), 1)
    vector = info.width(dims[0], max(1, VECTOR_BYTES // element.bytes))
    shifted = shiftable_width(op, dims[0], facts)
    return Shape(tuple(dims), max(vector, shifted), shifted > 1)


def loops_around(op: Op) -> int:
    """Loops around an op."""
    around = op.parent.parent if op.parent else None
    return 0 if around is None else loops_around(around) + around.is_loop


def touches(op: Access, group: set[Value]) -> bool:
    """Whether an access reads or writes a tile of a group."""
    return anchor(op) in group or any(r in group for r in op.results)


def vector_dim(layout: Layout) -> tuple[int, int] | None:
    """(dimension, elements) of the neighbours that a thread holds in consecutive registers."""
    for dim, digits in enumerate(layout.dims):
        first = next((d for d in digits if d.size > 1), None)
        if first is not None and first.unit is Unit.REG and first.stride == 1:
            return dim, first.size
    return None


def fast_dim(layout: Layout) -> int:
    """The dimension in which neighbouring registers, or else neighbouring lanes, are neighbours."""
    found = vector_dim(layout)
    if found is not None:
        return found[0]
    lanes = layout.coords()[0][:2, 0]
    return int(np.argmax(lanes[-1] != lanes[0]))


def access_width(op: Access, layout: Layout, facts: AxisFacts) -> tuple[int, bool]:
    """(elements accessed at once, whether the mask is equal in all of them)."""
    found = vector_dim(layout)
    type_ = op.pointer.type
    assert isinstance(type_, TileType)
    element = type_.dtype.element
    assert element is not None
    if found is None:
        return 1, True
    dim, held = found
    width = facts.of(op.pointer).width(dim, VECTOR_BYTES // element.bytes)
    shift = shift_of(op, layout, facts)
    if shift is not None:
        return shift.width, shift.falls
    while width > 1 and (held % width or type_.shape[dim] % width or layout.num_regs % width):
        width //= 2
    if width * element.bytes < 2:
        return 1, True
    mask = op.mask if not isinstance(op, atomic.Cas) else None
    whole = mask is None or facts.of(mask).axes[dim].constancy % width == 0
    return width, whole


def repeated(op: RegisterAccess, layout: Layout, facts: AxisFacts) -> int:
    """Neighbours in consecutive registers of a thread that a load reads from one place."""
    found = vector_dim(layout)
    if not isinstance(op, pointer.Load) or op.volatile or found is None:
        return 1
    dim, count = found
    for value in (op.pointer, op.mask, op.other):
        if value is not None and isinstance(value.type, TileType):
            count = gcd(count, facts.of(value).axes[dim].constancy)
    return count if layout.num_regs % count == 0 else 1


def copied_width(
    op: Copy | pointer.Load, dim: int, width: int, facts: AxisFacts
) -> tuple[int, bool]:
    """(elements of a copy that the mask allows, whether it is equal in all of them).

    A copy may take the first few elements alone, no others.
    """
    if op.mask is None:
        return width, True
    constancy = facts.of(op.mask).axes[dim].constancy
    if constancy % width and only_falls(op.mask, dim, width, facts):
        return width, False
    while width > 1 and constancy % width:
        width //= 2
    return width, True


# ---------------------------------------------------------------------- cost
LANES = 32
SECTOR_BYTES = 32
ISSUE_SECTORS = 4
"""What issuing one instruction of a warp costs, in sectors moved."""
CONVERT_SECTORS = 5
"""What an element costs on its way through shared memory: its place, and an instruction."""
MIN_GAIN = 2.0


def access_cost(op: Access, layout: Layout, facts: AxisFacts) -> float:
    """Sectors that the accesses of one warp touch, with the cost of issuing them.

    Neighbours along the dimension with the longest runs are neighbours in memory; other dimensions
    are taken to lie far apart.
    """
    type_ = op.pointer.type
    assert isinstance(type_, TileType)
    element = type_.dtype.element
    assert element is not None
    fast = wanted_shape(op, facts).order[0]
    width, _ = access_width(op, layout, facts)
    run = max(1, min(facts.of(op.pointer).axes[fast].contiguity, type_.shape[fast]))
    return _cost(layout, fast, element.bytes, width, run)


@cache
def _cost(layout: Layout, fast: int, element_bytes: int, width: int, run: int) -> float:
    coords = layout.coords()[0]
    fast_at = coords[..., fast]
    first = fast_at * element_bytes // SECTOR_BYTES
    others = [coords[..., d] for d in range(layout.rank) if d != fast] + [fast_at // run]
    key = first
    for other in others:
        key = key * (int(other.max()) + 1) + other
    total = 0
    for reg in range(0, layout.num_regs, width):
        total += len(np.unique(key[:, reg : reg + width])) + ISSUE_SECTORS
    return float(total)


def better_layout(op: Access, layout: Layout, facts: AxisFacts, num_warps: int) -> Layout | None:
    """A layout in which an access costs so much less that converting the tile pays; or None."""
    type_ = op.pointer.type
    assert isinstance(type_, TileType)
    if type_.num_elements < 2 * LANES * num_warps:
        return None
    wanted = wanted_shape(op, facts)
    if facts.of(op.pointer).axes[wanted.order[0]].contiguity == 1:
        return None
    best = shaped_layout(type_.shape, num_warps, wanted)
    now, then = access_cost(op, layout, facts), access_cost(op, best, facts)
    return _cheaper(layout, best, now, then, _converting(op, layout, best, wanted))


def least_cost(op: Access, layout: Layout, facts: AxisFacts, num_warps: int) -> float:
    """What an access costs as its tile lies, or with an exchange where that pays."""
    best = better_layout(op, layout, facts, num_warps)
    if best is None:
        return access_cost(op, layout, facts)
    convert = _converting(op, layout, best, wanted_shape(op, facts))
    return access_cost(op, best, facts) + convert * layout.num_regs


def _converting(op: Access, layout: Layout, best: Layout, wanted: Shape) -> float:
    """What it costs an element to be exchanged.

    Behind all loops, room for that would be taken from what the loops copy ahead.
    """
    return _exchange_cost(layout, best, wanted) if loops_around(op) else CONVERT_SECTORS


def better_block_layout(op: Load | Store, layout: Layout, num_warps: int) -> Layout | None:
    """As better_layout, for blocks of tensors; neighbours lie along the contiguous dimension."""
    t = tensor_type(op.tensor, "memory")
    type_ = (op.result if isinstance(op, Load) else op.value).type
    assert isinstance(type_, TileType)
    if t.inner_dim is None or t.inner_dim in op.squeeze or type_.rank < 2:
        return None
    if type_.num_elements < 2 * LANES * num_warps:
        return None
    kept = [d for d in range(t.rank) if d not in op.squeeze]
    fast = kept.index(t.inner_dim)
    order = (fast, *(d for d in reversed(range(type_.rank)) if d != fast))
    most = max(1, VECTOR_BYTES // t.dtype.bytes)
    best = shaped_layout(type_.shape, num_warps, Shape(order, most))

    def cost(layout: Layout) -> float:
        dim, width = vector_dim(layout) or (fast, 1)
        width = width if dim == fast else 1
        while width > most or (width > 1 and layout.num_regs % width):
            width //= 2
        return _cost(layout, fast, t.dtype.bytes, width, type_.shape[fast])

    return _cheaper(layout, best, cost(layout), cost(best))


def _exchange_cost(layout: Layout, best: Layout, wanted: Shape) -> float:
    """What an element costs on its way from one layout to another.

    Neighbours that both hold side by side go together: pairs of an accumulator, and whole vectors
    on the way back.
    """
    have, want = vector_dim(layout), vector_dim(best)
    if have is None or want is None or not have[0] == want[0] == wanted.order[0]:
        return CONVERT_SECTORS
    return ISSUE_SECTORS * (1 / min(have[1], want[1]) + 1 / want[1])


def _cheaper(
    layout: Layout, best: Layout, now: float, then: float, convert: float = CONVERT_SECTORS
) -> Layout | None:
    """The best layout, where what it saves is worth an exchange between the threads."""
    exchange = convert * layout.num_regs
    return None if now < MIN_GAIN * then or now < then + exchange else best


def shaped_layout(shape: tuple[int, ...], num_warps: int, wanted: Shape) -> Layout:
    """The coalesced layout with an order and a vector, as far as the tile has room for it."""
    vector = wanted.vector
    share = -(-prod(shape) // (LANES * num_warps))
    while vector > 1 and (vector > share or shape[wanted.order[0]] % vector):
        vector //= 2
    return blocked(
        shape, num_warps, vector=vector, order=list(wanted.order), chained=wanted.chained
    )


# ---------------------------------------------------------------------- warps
THREAD_BYTES = 64
"""Bytes of the largest tile that a thread should have in flight: four vectors."""
DEFAULT_WARPS = 4
MOST_WARPS = 16


def default_warps(graph: TileGraph) -> int:
    """Warps of a CTA that moves tiles, where the user asks for no number.

    Four, fewer where a thread would get less than one vector of the largest tile, more where it
    would get many.
    """
    most = largest_access_bytes(graph)
    if not most:
        return DEFAULT_WARPS
    warps = DEFAULT_WARPS
    while warps > 1 and most < warps * LANES * VECTOR_BYTES:
        warps //= 2
    while warps < MOST_WARPS and most > warps * LANES * THREAD_BYTES:
        warps *= 2
    return warps


def largest_access_bytes(graph: TileGraph) -> int:
    """Bytes in memory of the largest tile that is loaded or stored."""
    sizes = [0]
    for op in graph.walk():
        access = access_of(op)
        if access is not None:
            type_ = access.pointer.type
            assert isinstance(type_, TileType)
            assert type_.dtype.element is not None
            sizes.append(type_.num_elements * type_.dtype.element.bytes)
        elif isinstance(op, Load | Store):
            block = (op.result if isinstance(op, Load) else op.value).type
            assert isinstance(block, TileType)
            sizes.append(block.num_elements * tensor_type(op.tensor, "memory").dtype.bytes)
    return max(sizes)
