"""Loads and stores through pointers.

An access of a tile is a function of the register index that gives address, mask and filling, and a
call that runs over the registers in vectors. Of threads that hold copies the first one stores.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.combining import sync_text
from tiledsl.codegen.contexts.tile_map import bind_elements
from tiledsl.codegen.contexts.wide_products import wide_coordinate
from tiledsl.codegen.contexts.wide_products import wide_product
from tiledsl.codegen.cpp import literal
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.indexing import replica_conditions
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import enters
from tiledsl.codegen.registry import yields_to
from tiledsl.dtypes import DType
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control
from tiledsl.ir.ops import pointer as ops
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.elementwise_index import Around
from tiledsl.ir.ops.elementwise_index import Within
from tiledsl.ir.ops.pointer import pointed_to
from tiledsl.ir.ops.pointer_copy import LINE_BYTES
from tiledsl.ir.ops.tile import Map


@dataclass(frozen=True)
class LanesContext:
    """An access of a tile: the function of its addresses, and the call with it.

    before, after: statements around it, or "".
    """

    at: str
    body: str
    call: str
    before: str = ""
    after: str = ""
    variant: str = ""


@dataclass(frozen=True)
class ReturnContext:
    """The end of the function of addresses."""

    copies: str


@dataclass(frozen=True)
class AddContext(Expression):
    """`p + n`."""

    a: str
    b: str


@dataclass(frozen=True)
class LoadContext(Expression):
    """One element that all threads read."""

    function: str
    arguments: str


@dataclass(frozen=True)
class StoreContext:
    """One element that one thread writes."""

    policy: str
    pointer: str
    value: str
    condition: str


@dataclass(frozen=True)
class SharedContext:
    """One thread computes an element and hands it to the others through shared memory.

    guard: a barrier before, or "". word: type that goes through shared memory.
    """

    guard: str
    first: str
    scratch: str
    word: str
    element: str
    sync: str
    target: str
    result: str
    variant: str = "shared"


@dataclass(frozen=True)
class BarrierContext:
    """A barrier of the program's threads."""

    sync: str


# ---------------------------------------------------------------------- pieces
def raw_element(e: Emission, value: Value, dtype: DType) -> str:
    """A scalar as it lies in memory."""
    if value in e.raw:
        return e.raw[value]
    text = e.text(value)
    if dtype.is_float and dtype.bits < 32:
        return f"from_float<{memory_type(dtype)}>({text})"
    return f"({memory_type(dtype)}){e.atom(value)}"


def from_raw(dtype: DType, text: str) -> str:
    """An element of memory as a scalar to compute with."""
    return f"to_float({text})" if dtype.is_float and dtype.bits < 32 else text


def first_thread(e: Emission) -> str:
    """Whether a thread is the first of its program."""
    e.use("warp", "lane")
    return "warp == 0 && lane == 0"


def first_copy(e: Emission, layout: Layout) -> str:
    """Whether a thread is the first of those that hold the same elements of a tile: a name."""
    conditions = replica_conditions(layout, e.place.num_warps)
    if not conditions:
        return "true"
    name = e.names.fresh("first_copy")
    e.before(f"const bool {name} = {e.use_in(' && '.join(conditions))};")
    return name


def shared(
    e: Emission, op: ops.Load | Op, element: str, dtype: DType, scratch: Value, *, guarded: bool
) -> SharedContext:
    """The statements by which all threads get what one computes."""
    word = "u64" if dtype.is_pointer else memory_type(dtype)
    barrier = int(getattr(op, "barrier", 0))
    sync = sync_text(e, barrier)
    address = e.text(scratch)
    read = f"ld_shared<{word}>({address})"
    if dtype.is_pointer:
        element, read = f"(u64){element}", f"({memory_type(dtype)}){read}"
    return SharedContext(
        sync if guarded else "",
        first_thread(e),
        address,
        word,
        element,
        sync,
        e.assignment(op.results[0], "v"),
        from_raw(dtype, read),
    )


# ---------------------------------------------------------------------- single elements
@emits("pointer.add")
def add(op: ops.Add, e: Emission) -> AddContext:
    """`p + n`; of a coordinate `p + (i64)at_1 + (i / 8 * 256)`: registers share an address.

    So do those of a load of single elements, whose coordinate is multiplied by a stride: what the
    thread gives stands in front of what an iteration adds, which ptxas else adds to each register.
    """
    offset = wide_coordinate(op.offset, e)
    parts = wide_product(op.offset, e) if not offset and _is_gathered(op) else None
    if parts is None:
        return AddContext("", False, e.factor(op.pointer), offset or e.factor(op.offset))
    inner = op.pointer.defining_op
    if isinstance(inner, ops.Add) and len(e.users(op.pointer)) == 1 and inner.parent is op.parent:
        middle = f"{e.factor(inner.offset)} + "
        return AddContext("", False, f"{e.factor(inner.pointer)} + {parts[0]}", middle + parts[1])
    return AddContext("", False, e.factor(op.pointer), " + ".join(parts))


def _is_gathered(op: ops.Add) -> bool:
    """Whether an op is of the address of a load of single elements in two dimensions."""
    around = op.parent.parent if op.parent is not None else None
    return isinstance(around, ops.LoadLanes) and around.width == 1 and len(around.shape) > 1


@emits("pointer.load")
def load(op: ops.Load, e: Emission) -> LoadContext | SharedContext | None:
    """All threads read it; memory that others change is read by one."""
    if not e.users(op.result):
        return None
    dtype = pointed_to(op.pointer, "load")
    policy = e.accesses.load("volatile" if op.volatile else op.hint)
    arguments = e.text(op.pointer)
    if op.mask is not None:
        other = f"{memory_type(dtype)}{{}}"
        if dtype.is_pointer:
            other = f"({memory_type(dtype)})0"
        if op.other is not None:
            other = raw_element(e, op.other, dtype)
        arguments += f", {e.text(op.mask)}, {other}"
    function = f"load_one<{policy}>"
    if op.scratch is not None:
        call = f"{function}({arguments})"
        return shared(e, op, call, dtype, op.scratch, guarded=op.guarded)
    is_small = dtype.is_float and dtype.bits < 32
    if is_small and _is_moved(op.result, e):
        name = e.names.fresh("raw")
        e.before(f"const {memory_type(dtype)} {name} = {function}({arguments});")
        e.raw[op.result] = name
        e.bind(op.result, f"to_float({name})")
        return None
    form = "to_float({})" if is_small else ""
    if dtype.is_int and e.place.first_warpgroup and not e.place.is_single:
        # Loop bounds and coordinates stay in uniform registers, descriptors with them.
        form = "uniform({})"
    return LoadContext(form, True, function, arguments)


def _is_moved(value: Value, e: Emission) -> bool:
    """Whether an element is stored, or chosen, as it is."""
    if e.variables.is_mutable(value):
        return False
    users = e.users(value)
    args = [op.body.args[op.inputs.index(value)] for op in users if isinstance(op, Map)]
    inner = [user for arg in args for user in e.users(arg)]
    return any(isinstance(op, ops.Store | Select) for op in users) or any(
        isinstance(op, control.Yield | Select) for op in inner
    )


@emits("pointer.store")
def store(op: ops.Store, e: Emission) -> StoreContext:
    """One thread writes it."""
    dtype = pointed_to(op.pointer, "store")
    condition = first_thread(e)
    if op.mask is not None:
        condition += f" && {e.atom(op.mask)}"
    value = raw_element(e, op.value, dtype)
    return StoreContext(e.accesses.store(op.hint), e.text(op.pointer), value, condition)


@emits("pointer.barrier")
def barrier(op: ops.Barrier, e: Emission) -> BarrierContext:
    """`block_sync();`, or `warp_sync();`."""
    return BarrierContext("warp_sync();" if op.warp else sync_text(e, 0))


# ---------------------------------------------------------------------- tiles
@enters("pointer.load_lanes", "pointer.store_lanes", "atomic.rmw_lanes", "atomic.cas_lanes")
def enter_lanes(op: ops.Lanes, e: Emission) -> None:
    """Binds the body's arguments; the result is declared before."""
    for result in op.results:
        e.name(result, "x")
    bind_elements(op, op.layout, e)


@yields_to("pointer.load_lanes", "pointer.store_lanes", "atomic.rmw_lanes", "atomic.cas_lanes")
def yield_lanes(op: control.Yield, e: Emission) -> ReturnContext:
    """`return MaskedLane<float>{x + at_1, at_1 < n};`."""
    lanes = op.parent.parent if op.parent else None
    assert isinstance(lanes, ops.Lanes)
    if lanes.turned:
        return _turned_lane(op, lanes, e)
    kind = "FilledLane" if lanes.filled else "MaskedLane" if lanes.masked else "Lane"
    texts = [e.text(v) for v in op.values]
    if lanes.filled:
        texts[-1] = raw_element(e, op.values[-1], lanes.dtype)
    return ReturnContext(f"return {kind}<{memory_type(lanes.dtype)}>{{{', '.join(texts)}}};")


def _turned_lane(op: control.Yield, lanes: ops.Lanes, e: Emission) -> ReturnContext:
    """`return TurnedLane<float, 64>{x + t_3, t_3, turned_limit(row < rows, n), n > 32, 0.0f};`."""
    type_, bounds, others = memory_type(lanes.dtype), list[Within](), list[str]()
    todo = [op.values[1]]
    while todo:
        value = todo.pop()
        made = value.defining_op
        if isinstance(made, And):
            todo += made.operands
        elif isinstance(made, Within):
            bounds.append(made)
        else:
            others.append(e.atom(value))
    (bound,) = bounds
    limit = f"turned_limit({' && '.join(others) or 'true'}, {e.text(bound.limit)})"
    other = raw_element(e, op.values[2], lanes.dtype) if lanes.filled else f"{type_}{{}}"
    around = bound.place.defining_op
    assert isinstance(around, Around)
    full = f"{e.atom(bound.limit)} > {around.extent - LINE_BYTES // lanes.dtype.bytes}"
    fields = f"{e.text(op.values[0])}, {e.text(bound.place)}, {limit}, {full}, {other}"
    return ReturnContext(f"return TurnedLane<{type_}, {around.extent}>{{{fields}}};")


@emits("pointer.load_lanes")
def load_lanes(op: ops.LoadLanes, e: Emission, body: str) -> LanesContext:
    """`load_lanes<8, 4, Load>(x_1, at_1);`."""
    at = e.names.fresh("at")
    name = e.name(op.result)
    before = f"cp_async_wait<{op.pending}>();" if op.waits else ""
    if op.segment:
        return _segment(op, e, at, before)
    if op.slot is not None:
        call = _fetched(op, e, name, at)
    elif op.shifted:
        policy = e.accesses.load(op.hint)
        call = f"load_shifted<{_shifted_form(op)}, {policy}>({name}, {at});"
    else:
        policy = e.accesses.load(op.hint)
        form = _form(op, "load_lanes", "load_partial")
        if op.repeats > 1 and op.width == 1:
            form = f"load_repeated<{op.layout.num_regs}, {op.repeats}"
        call = f"{form}, {policy}>({name}, {at});"
    after = f"keep({name});" if e.is_accumulator(op.result) else ""
    return LanesContext(at, body, call, before, after, "filled" if op.filled_slot else "")


def _fetched(op: ops.LoadLanes, e: Emission, name: str, at: str) -> str:
    """The call that reads what the thread has fetched before."""
    assert op.slot is not None
    own, stride = own_place(op, op.slot, e), fetch_stride(op, op.num_threads)
    if op.shifted:
        form = f"{op.layout.num_regs}, {op.width}, {stride}, {shifted_kinds(op)}"
        return f"load_fetched_shifted<{form}>({name}, {own}, {at});"
    if op.filled_slot:
        return f"load_filled<{op.layout.num_regs}, {op.width}, {stride}>({name}, {own});"
    places = f"fetched<{op.width}, {stride}>({own}, {at})"
    return f"{_form(op, 'load_lanes', 'load_partial')}, Fetched>({name}, {places});"


def _segment(op: ops.LoadLanes, e: Emission, at: str, before: str) -> LanesContext:
    """`const Segment x_9_at = segment_at<bf16>(ring_2 + .. + 128, back_1);`: loops read it."""
    assert op.slot is not None
    name = e.segments[op.result] = e.names.fresh(f"{e.name(op.result)}_at")
    type_ = memory_type(op.dtype)
    place = f"{own_place(op, op.slot, e)} + {LINE_BYTES}"
    before += "\nwarp_sync();" if before else ""  # lanes read what others have fetched
    call = f"const Segment {name} = segment_at<{type_}>({place}, {e.text(op.inputs[-1])});"
    return LanesContext(at, "", call, before, "", "filled")


def own_place(op: ops.Lanes, slot: Value, e: Emission) -> str:
    """Where the first vector lies that a thread fetches for itself."""
    if getattr(op, "segment", False):
        vector = op.width * op.dtype.bytes
        own = 32 * op.layout.num_regs * op.dtype.bytes + LINE_BYTES
        return f"{e.text(slot)} + threadIdx.x / 32 * {own} + threadIdx.x % 32 * {vector}"
    return f"{e.text(slot)} + threadIdx.x * {op.width * op.dtype.bytes}"


def fetch_stride(op: ops.Lanes, num_threads: int) -> int:
    """Bytes between the vectors that a thread fetches."""
    return num_threads * op.width * op.dtype.bytes


@emits("pointer.store_lanes")
def store_lanes(op: ops.StoreLanes, e: Emission, body: str) -> LanesContext:
    """`store_lanes<8, 4, Store>(x_1, true, at_1);`."""
    at = e.names.fresh("at")
    arguments = f"{e.text(op.value)}, {first_copy(e, op.layout)}, {at}"
    policy = e.accesses.store(op.hint)
    call = f"{_form(op, 'store_lanes', 'store_partial')}, {policy}>({arguments});"
    if op.shifted:
        call = f"store_shifted<{_shifted_form(op, op.shifted)}, {policy}>({arguments});"
    return LanesContext(at, body, call)


def _form(op: ops.Lanes, whole: str, partial: str) -> str:
    """`whole<32, 8`, or `partial<32, 8, ByEnds` where the mask may cut a vector."""
    form = f"{op.layout.num_regs}, {op.width}"
    is_whole = op.whole or op.width == 1
    return f"{whole}<{form}" if is_whole else f"{partial}<{form}, {mask_kind(op)}"


def mask_kind(op: ops.Lanes) -> str:
    """How the mask of neighbours is asked for."""
    if op.turned:
        return "ByTurn"
    return "ByEnds" if op.falls or not op.masked else "ByElement"


def _shifted_form(op: ops.Lanes, *lanes: int) -> str:
    """`32, 8, ByEnds, AnyOffset`: registers, vector, lanes, and kinds of mask and offsets."""
    return ", ".join(map(str, (op.layout.num_regs, op.width, *lanes, shifted_kinds(op))))


def shifted_kinds(op: ops.Lanes) -> str:
    """`ByEnds, AnyOffset`: kinds of mask and offsets of a shifted access."""
    offsets = "Chained" if op.chained else "OneOffset" if op.alike else "AnyOffset"
    return f"{mask_kind(op)}, {offsets}"


def zero(dtype: DType) -> str:
    """Zero of a dtype, as it lies in memory."""
    if dtype.is_pointer:
        return f"({memory_type(dtype)})0"
    if dtype.is_float and dtype.bits < 32:
        return f"{memory_type(dtype)}{{}}"
    return literal(0, dtype)
