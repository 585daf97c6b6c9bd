"""Barriers that keep the order of one program's accesses to one tensor.

Threads hold other elements of one access than of another one, so that an element that one thread
stores may be another one's next. Blocks that have no element in common need no order. Accesses
through pointers are ordered where their shapes differ, as a scalar and a tile; lanes of equal
shapes see what they did themselves, for which a barrier stands where their layouts differ, and what
other lanes store is for the user to order.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from tiledsl.ir.analysis.affine import NotAffine
from tiledsl.ir.analysis.affine import sum_of
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.atomic import Cas
from tiledsl.ir.ops.atomic import Rmw
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory_rows import StoreRows
from tiledsl.ir.ops.memory_rows import StoreSectors
from tiledsl.ir.ops.pointer import Barrier
from tiledsl.ir.ops.pointer import Load as PointerLoad
from tiledsl.ir.ops.pointer import Store as PointerStore
from tiledsl.ir.ops.pointer import origin_of
from tiledsl.ir.types import TileType
from tiledsl.ws.shifted import shift_of

Lanes = PointerLoad | PointerStore | Rmw | Cas
Access = Lanes | Load | Store


def order_memory(graph: TileGraph) -> None:
    """Barriers between the accesses of a tensor that one program both loads and stores.

    A load that one store of the same block follows needs none, unless another iteration takes part
    of that block, nor do accesses whose blocks lie apart.
    """
    touched: dict[Value, list[Load | Store]] = {}
    for op in graph.walk():
        if isinstance(op, Load | Store):
            touched.setdefault(op.tensor, []).append(op)
    for accesses in touched.values():
        stores = [op for op in accesses if isinstance(op, Store)]
        if not stores or len(accesses) == 1 or _are_apart(graph, accesses):
            continue
        is_update = len(accesses) == 2 and _is_update(accesses[0], accesses[1])
        if is_update and _steps_in_blocks(graph, stores[0]):
            continue
        for op in accesses:
            graph.insert_before(op, Barrier(loc=op.loc))


def order_lanes(graph: TileGraph) -> None:
    """Barriers between stores and loads of other shapes through one pointer argument.

    A kernel with barriers of its own is left as it is.
    """
    if graph.find(Barrier):
        return
    touched: dict[str, list[Lanes]] = {}
    for op in graph.walk():
        if isinstance(op, Lanes) and (name := origin_of(op.pointer)):
            touched.setdefault(name, []).append(op)
    for accesses in touched.values():
        made: list[tuple[int, Barrier]] = []
        for at, op in enumerate(accesses):
            first, cut = _last_before(graph, op, made)
            before = accesses[first:at]
            before += [o for o in accesses[at:] if _meet_again(graph, o, op, cut)]
            if any(_may_exchange(other, op) for other in before):
                barrier = Barrier(loc=op.loc)
                graph.insert_before(op, barrier)
                made.append((at, barrier))


def order_scalars(graph: TileGraph, programs: While | None) -> None:
    """Barriers between loads of scalars, which all threads do, and what one thread writes there.

    A thread that waits for other programs in a `while` loop may leave it before others: no barrier
    stands inside. programs: as in `order_layouts`.
    """
    found: list[Access] = []
    for op in graph.walk():
        if isinstance(op, Lanes) and not lanes_shape(op) and not getattr(op, "volatile", False):
            loops = [o for o in graph.enclosing(op) if isinstance(o, While)]
            if not loops or loops == [programs]:
                found.append(op)
    _order(graph, found, _is_told, programs)


def order_layouts(
    graph: TileGraph, region: Region, divisors: Mapping[str, int], programs: While | None
) -> None:
    """Barriers between accesses of equal shapes whose elements belong to different threads.

    To be called when layouts are known, and which stores exchange their tile. Accesses of other
    shapes, or to other blocks, have been ordered before. What lies at odd addresses is stored by a
    lane's neighbour (templates/include/tiledsl/shifted.cuh), so that a warp waits where layouts are
    equal. programs: a loop over the programs of the grid, which have no order.
    """
    found = [op for op in graph.walk() if isinstance(op, Access)]
    _order(graph, found, _change_hands, programs)
    facts: list[AxisFacts] = []

    def meet_in_warp(one: Op, other: Op) -> bool:
        """Whether a lane's neighbour may have stored what it accesses next."""
        layout = _layout(one)
        if one.effect is not Effect.WRITE or None in (layout, _layout(other)):
            return False
        if not isinstance(one, PointerStore):
            return isinstance(one, Store) and not _lie_apart(one, other)
        if not facts:
            facts.append(axis_facts(region, divisors))
        return isinstance(layout, Layout) and shift_of(one, layout, facts[0]) is not None

    _order(graph, found, meet_in_warp, programs, warp=True)


def _order(
    graph: TileGraph,
    found: list[Access],
    meets: Callable[[Op, Op], bool],
    programs: While | None,
    *,
    warp: bool = False,
) -> None:
    """Barriers between two accesses to one memory for which `meets` holds, where there is none."""
    touched: dict[Value | str, list[Access]] = {}
    for op in found:
        if key := _memory_of(op):
            touched.setdefault(key, []).append(op)
    for accesses in touched.values():
        if all(op.effect is Effect.READ for op in accesses):
            continue
        made = _barriers(graph, accesses, warp=warp)
        for at, op in enumerate(accesses):
            first, cut = _last_before(graph, op, [m for m in made if m[0] <= at])
            ahead = [o for o in accesses[first:at] if meets(o, op)]
            again = [o for o in accesses[at:] if _meet_again(graph, o, op, cut, programs)]
            is_again = any(meets(o, op) for o in again)
            if ahead or is_again:
                barrier = Barrier(warp=warp, loc=op.loc)
                graph.insert_before(op if is_again else _branch(graph, op, ahead), barrier)
                made = sorted([*made, (at, barrier)], key=lambda m: m[0])


def _barriers(graph: TileGraph, accesses: list[Access], *, warp: bool) -> list[tuple[int, Barrier]]:
    """What barriers there are, each with the number of accesses before it."""
    numbers, before = {op.id for op in accesses}, 0
    made: list[tuple[int, Barrier]] = []
    for op in graph.walk():
        before += op.id in numbers
        if isinstance(op, Barrier) and (warp or not op.warp):
            made.append((before, op))
    return made


def _branch(graph: TileGraph, op: Op, others: Sequence[Op]) -> Op:
    """The innermost op around an op, or itself, that follows all others outside of its branch."""
    for each in (op, *graph.enclosing(op)):
        if any(each.parent in _regions(graph, o) for o in others):
            return each
    return op


def _regions(graph: TileGraph, op: Op) -> list[Region | None]:
    return [op.parent, *(o.parent for o in graph.enclosing(op))]


def _is_told(one: Op, other: Op) -> bool:
    """Whether one of two accesses to scalars loads, and the other one writes."""
    return isinstance(one, PointerLoad) != isinstance(other, PointerLoad)


def _memory_of(op: Access) -> Value | str | None:
    return op.tensor if isinstance(op, Load | Store) else origin_of(op.pointer)


def _change_hands(one: Op, other: Op) -> bool:
    """Whether one access writes elements that the other one's layout gives to other threads."""
    if (one.effect is Effect.READ and other.effect is Effect.READ) or _lie_apart(one, other):
        return False
    layouts = [_layout(op) for op in (one, other)]
    return None not in layouts and (layouts[0] != layouts[1] or _EXCHANGE in layouts)


def _lie_apart(one: Op, other: Op) -> bool:
    """The same of blocks, for which barriers stand already where they are in a loop."""
    return (
        isinstance(one, Load | Store) and isinstance(other, Load | Store) and lie_apart(one, other)
    )


_EXCHANGE = "exchange"


def _layout(op: Op) -> Layout | str | None:
    """Which thread accesses which element of a tile; None for a scalar."""
    match op:
        case StoreRows() | StoreSectors():
            return _EXCHANGE
        case Load() | PointerLoad():
            type_ = op.result.type
        case Store() | PointerStore():
            type_ = op.value.type
        case _:
            type_ = op.operands[0].type
    return type_.layout if isinstance(type_, TileType) else None


def _last_before(
    graph: TileGraph, op: Op, made: list[tuple[int, Barrier]]
) -> tuple[int, Barrier | None]:
    """The last barrier that surely runs ahead of an op, and which access it stands before."""
    around = _regions(graph, op)
    return next(((i, b) for i, b in reversed(made) if b.parent in around), (0, None))


def _meet_again(
    graph: TileGraph, one: Op, other: Op, cut: Barrier | None, programs: While | None = None
) -> bool:
    """Whether a loop runs `one`, then `other` in its next iteration, without a barrier between."""
    loops = [o for o in graph.enclosing(one) if isinstance(o, For | While) and o is not programs]
    shared = [o for o in graph.enclosing(other) if o in loops]
    return bool(shared) and (cut is None or shared[0] not in graph.enclosing(cut))


def _may_exchange(one: Lanes, other: Lanes) -> bool:
    """Whether one access writes and the other one's lanes belong to other threads."""
    is_read = isinstance(one, PointerLoad) and isinstance(other, PointerLoad)
    return not is_read and lanes_shape(one) != lanes_shape(other)


def lanes_shape(op: Lanes) -> tuple[int, ...]:
    """Extents of an access through pointers; none of a scalar one."""
    return op.pointer.type.shape if isinstance(op.pointer.type, TileType) else ()


def _is_update(first: Load | Store, second: Load | Store) -> bool:
    """Whether two accesses are a load and then a store of one block."""
    return (
        isinstance(first, Load)
        and isinstance(second, Store)
        and first.parent is second.parent
        and first.offsets == second.offsets
        and first.block_shape == second.block_shape
    )


def _steps_in_blocks(graph: TileGraph, op: Load | Store) -> bool:
    """Whether the blocks of any two iterations are the same one, or have no element in common."""
    loops = [o for o in graph.enclosing(op) if o.is_loop]
    moved = {v for loop in loops for v in _made_in(loop)}
    counting = [o for o in loops if isinstance(o, For) and o.lower not in moved]
    steps = {o.iv: int(constant_value(o.step) or 1) for o in counting}
    for offset, length in zip(op.offsets, op.block_shape, strict=True):
        if offset not in moved:
            continue
        try:
            products = sum_of(offset).products
        except NotAffine:
            return False
        for p in products:
            step = steps.get(p.scalars[0], 1) if len(p.scalars) == 1 else 1
            if any(v in moved for v in p.scalars) and p.number * step % length:
                return False
    return True


def _are_apart(graph: TileGraph, accesses: list[Load | Store]) -> bool:
    """Whether each element is touched once: no iteration repeats one, and no two blocks meet."""
    for at, a in enumerate(accesses):
        for b in accesses[at:]:
            if isinstance(a, Load) and isinstance(b, Load):
                continue
            loops = [[o for o in graph.enclosing(op) if o.is_loop] for op in (a, b)]
            moved = {v for ops in loops for loop in ops for v in _made_in(loop)}
            if _lie_apart_without(a, b, moved):
                continue
            if not (a is b or lie_apart(a, b)) or not _advance(a, b, loops, moved):
                return False
    return True


def _made_in(loop: Op) -> set[Value]:
    """What may differ from one iteration of a loop to another."""
    ops = [loop, *(op for region in loop.regions for op in region.walk())]
    args = {v for op in ops for region in op.regions for v in region.args}
    return args | {v for op in ops for v in op.results}


def _advance(
    a: Load | Store, b: Load | Store, loops: Sequence[Sequence[Op]], moved: set[Value]
) -> bool:
    """Whether no iteration of one loop around both touches what another one does.

    Along some dimension both blocks move on by as much as they are long, or further.
    """
    if not any(loops):
        return True
    if loops[0] != loops[1] or len(loops[0]) != 1 or not isinstance(loops[0][0], For):
        return False
    loop = loops[0][0]
    step = constant_value(loop.step)
    if step is None:
        return False
    for d in range(len(a.offsets)):
        try:
            first, second = sum_of(a.offsets[d]), sum_of(b.offsets[d])
        except NotAffine:
            continue
        of_iv = [p for p in first.products if p.scalars == (loop.iv,)]
        rest = [p for p in first.products if p not in of_iv]
        if len(of_iv) != 1 or any(v in moved for p in rest for v in p.scalars):
            continue
        distance = (second + first.times(-1)).number
        longest = max(a.block_shape[d], b.block_shape[d])
        if distance is not None and abs(of_iv[0].number * step) >= longest + abs(distance):
            return True
    return False


def _lie_apart_without(a: Load | Store, b: Load | Store, moved: set[Value]) -> bool:
    """The same as `lie_apart` in whatever iterations: along a dimension that none of them moves."""
    for d in range(len(a.offsets)):
        try:
            sums = [sum_of(op.offsets[d]) for op in (a, b)]
        except NotAffine:
            continue
        if any(v in moved for s in sums for p in s.products for v in p.scalars):
            continue
        if _is_far(a, b, d):
            return True
    return False


def lie_apart(a: Load | Store, b: Load | Store) -> bool:
    """Whether two blocks of one tensor surely have no element in common.

    Along some dimension they start at places whose distance is known and as large as the first one.
    """
    return any(_is_far(a, b, d) for d in range(len(a.offsets)))


def _is_far(a: Load | Store, b: Load | Store, d: int) -> bool:
    try:
        distance = (sum_of(b.offsets[d]) + sum_of(a.offsets[d]).times(-1)).number
    except NotAffine:
        return False
    if distance is None:
        return False
    return distance >= a.block_shape[d] or -distance >= b.block_shape[d]
