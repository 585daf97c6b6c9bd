"""Rows at odd addresses, turned so that what a thread holds of them is aligned.

Which element of a row a register holds does not matter to elementwise ops, nor to sums of the whole
row. Where a row begins k elements behind a multiple of 128 bytes, place c of the registers takes
element c - k: vectors and warps then begin where lines do, nothing is shifted between lanes, and
the mask cuts the first vector and the last. The first k places hold the last k elements of the
tile, c - k modulo its extent: most rows end before them, the others have them read and written
apart. What all programs load from one place is fetched once, with a line before what each warp
holds, and shifted when it is read (codegen/contexts/segments.py).

A store whose rows lie otherwise is shifted as before (templates/include/tiledsl/shifted.cuh).
"""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.dtypes import uint8
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.graph import clone_region
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise_index import Around
from tiledsl.ir.ops.elementwise_index import CountBelow
from tiledsl.ir.ops.elementwise_index import Within
from tiledsl.ir.ops.pointer_copy import LINE_BYTES
from tiledsl.ir.ops.pointer_copy import FetchLanes
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ws.stay import staying_loop
from tiledsl.ws.turnable import Rows
from tiledsl.ws.turnable import bound_of
from tiledsl.ws.turnable import find_rows

TURNED = "rows are turned so that vectors and warps begin where lines do"


def turn_rows(graph: TileGraph, role: Role, room: int) -> str:
    """Turns what the programs load and store that a role runs one after the other, if they can.

    Rows may end long before their tile: warps are dealt out over a cluster's CTAs in turns. The
    first warp of a CTA, which also draws programs and tells the others, has the end of the tile.
    Returns what the report says of it, if anything. room: bytes of shared memory that are left for
    lines before what programs share.
    """
    loop = staying_loop(role.body)
    rows = find_rows(graph, loop) if loop is not None else None
    if isinstance(rows, str):
        return rows
    if loop is None or rows is None:
        return ""
    loads = [op for op in loop.body.ops if isinstance(op, pointer.LoadLanes) and rows.concerns(op)]
    shared = [op for op in loads if op.filled_slot]
    needed = sum(op.num_threads // 32 * LINE_BYTES for op in shared)
    if needed > room:
        return f"rows are shifted, not turned: {needed} bytes for what they share, {room} are left"
    assert loop.parent is not None
    for op in shared:
        _widen_slot(graph, op, rows, loop)
    for block in (loop.parent, loop.body):
        back: Value | None = None
        ahead: Value | None = None
        for op in list(block.ops):
            if isinstance(op, FetchLanes) and op.segment:
                continue
            if isinstance(op, FetchLanes) and op.shape == rows.anchor.shape:
                ahead = ahead or _turn(graph, op, rows)
                _rewrite(graph, op, rows, ahead)
            elif block is loop.body and rows.concerns(op) and not isinstance(op, Reduce):
                back = back or _turn(graph, rows.anchor, rows)
                _rewrite(graph, op, rows, back)
    fills_warpgroups = rows.anchor.num_threads * role.num_ctas == 32 * role.num_warps
    role.dealt = fills_warpgroups and all(op.kind for op in graph.find(Reduce))
    return TURNED


# ---------------------------------------------------------------------- what programs share
def _widen_slot(graph: TileGraph, load: pointer.LoadLanes, rows: Rows, loop: While) -> None:
    """Room for a line before what each warp holds of a tile that is fetched once, and its fetch."""
    assert load.slot is not None
    assert loop.parent is not None
    ring = load.slot.defining_op
    assert isinstance(ring, Ring)
    (fetch,) = (o for o in loop.parent.ops if isinstance(o, FetchLanes) and o.slot is load.slot)
    more = load.num_threads // 32 * LINE_BYTES
    wide = SmemType((ring.type_.bytes + more,), uint8, 0, 0)
    new = Ring(wide, 1, loc=ring.loc)
    graph.replace_op(ring, new)
    b = Builder(graph, loop.parent, loop.parent.ops.index(fetch), fetch.loc)
    back = b.value(ew.Constant(-rows.line, int32))
    b.add(_turned(graph, fetch, rows, back, segment="line"))
    main = fetch.rebuild({}, (clone_region(fetch.body, {}),), segment="main")
    graph.replace_op(fetch, main)


# ---------------------------------------------------------------------- the rewrite
def _turn(graph: TileGraph, op: pointer.LoadLanes | FetchLanes, rows: Rows) -> Value:
    """How far places are moved back: from the row's first element to where a line begins."""
    assert op.parent is not None
    b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
    body = op.regions[0]
    end = body.terminator
    assert isinstance(end, Yield)
    zero = b.value(ew.Constant(0, int32))
    mapping = dict(zip(body.args, (*op.inputs, *(zero for _ in op.shape)), strict=True))
    for inner in _slice(body, end.values[0]):
        b.add(clone_op(inner, mapping))
    around = b.value(ew.Constant(LINE_BYTES - 1, int64))
    off = b.value(ew.And(b.value(ew.Cast(mapping[end.values[0]], int64)), around))
    size = b.value(ew.Constant(rows.anchor.dtype.bytes.bit_length() - 1, int64))
    off = b.value(ew.Cast(b.value(ew.Shr(off, size)), int32))
    return b.value(ew.Sub(zero, off), "back")


def _slice(body: Region, value: Value) -> list[Op]:
    """The ops of a body behind a value, in order."""
    needed: set[int] = set()
    todo = [value]
    while todo:
        op = todo.pop().defining_op
        if op is not None and op.parent is body and op.id not in needed:
            needed.add(op.id)
            todo += op.operands
    return [op for op in body.ops if op.id in needed]


def _rewrite(graph: TileGraph, op: Op, rows: Rows, back: Value) -> None:
    """Puts the op with its places turned in its place, where it asks for them."""
    assert isinstance(op, pointer.Lanes | tile.Map)
    if isinstance(op, tile.Map) and not _is_used(op.body, op.body.args[len(op.inputs) + rows.dim]):
        return
    if isinstance(op, pointer.LoadLanes) and op.filled_slot:
        new = _turned(graph, op, rows, back, segment=True)
    elif isinstance(op, pointer.Lanes):
        new = _turned(graph, op, rows, back, turned=True)
    else:
        new = _turned(graph, op, rows, back)
    for before, after in zip(op.results, new.results, strict=True):
        after.type, after.name = before.type, before.name
    graph.replace_op(op, new)


def _turned(
    graph: TileGraph, op: pointer.Lanes | tile.Map, rows: Rows, back: Value, **changes: object
) -> Op:
    """The op with its places moved back."""
    old: Region = op.regions[0]
    count = len(op.inputs)
    body, mapping = Region(), dict[Value, Value]()
    for a in old.args[:count]:
        mapping[a] = body.add_arg(a.type, a.name)
    inner = body.add_arg(ScalarType(int32), "back")
    for a in old.args[count:]:
        mapping[a] = body.add_arg(a.type, a.name)
    at = old.args[count + rows.dim]
    b = Builder(graph, body, loc=op.loc)
    place = b.value(ew.Add(mapping[at], inner, no_wrap=True))
    if "turned" in changes or isinstance(op, tile.Map):
        place = b.value(Around(place, rows.extent))
    else:
        place = b.value(ew.And(place, b.value(ew.Constant(rows.extent - 1, int32))))
    mapping[at] = place
    for each in old.ops:
        limit = _limit_of(bound_of(each, at), op, rows)
        if limit is None:
            b.add(clone_op(each, mapping))
            continue
        inside = b.value(Within(place, mapping[limit]), each.results[0].name)
        mapping[each.results[0]] = inside
    inputs, follows = (*op.inputs, back), (*op.follows, ())
    return op.rebuild({}, (body,), inputs=inputs, follows=follows, **changes)


def _is_used(body: Region, at: Value) -> bool:
    return any(at in op.operands for op in body.walk())


def _limit_of(bound: Value | None, op: pointer.Lanes | tile.Map, rows: Rows) -> Value | None:
    """The argument of an op's body that a bound stands for, if it is the length of a row.

    Places lie below the tile's extent, which a count does not exceed.
    """
    made = bound.defining_op if bound is not None else None
    if isinstance(made, CountBelow) and not made.inclusive and made.extent == rows.extent:
        start = made.start.defining_op
        if not isinstance(start, ew.Constant) or start.value != 0:
            return None
        bound = made.limit
    if bound is None or bound.owner is not op.regions[0] or bound.index >= len(op.inputs):
        return None
    return bound if op.inputs[bound.index] is rows.limit else None
