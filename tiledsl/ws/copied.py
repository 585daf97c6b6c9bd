"""Operands of dots that the threads of the load role copy, since no tensor map describes them.

Rows by an index tensor, strides that no tensor map takes: where neighbours lie side by side in
memory, a warpgroup copies them to the slots that wgmma reads (cp.async), iterations ahead of the
products. The addresses must not follow from what the loop computes, nor the indexes in them be
loaded in the loop: the copies of an iteration would wait for them.
"""

from __future__ import annotations

from tiledsl.dtypes import float32
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import wanted_shape
from tiledsl.ws.copy_rings import read_argument
from tiledsl.ws.copy_rings import written_argument
from tiledsl.ws.dot_operands import ATOM_BYTES
from tiledsl.ws.operands import Copies
from tiledsl.ws.ring_loads import copy_bytes
from tiledsl.ws.ring_loads import copy_obstacle

K_BYTES = 32
"""Of an operand, 16-bit elements or smaller ones, that one instruction reads along K."""
COPIED = "no tensor map loads it, and"
"""Before the reason why threads do not copy an operand either."""
BESIDE = "the loop also loads what feeds no dot, for which the products would wait"
INDEXED = "an index in its address is loaded in the loop, for which its copies would wait"
HAZARD = "the kernel may store to what its copies read"


def copied_operand(
    loop: For, load: pointer.Load, facts: AxisFacts
) -> tuple[SmemType, Copies] | str:
    """How an operand that threads copy lies in its slot, and how they do; or why they cannot."""
    type_ = load.result.type
    assert isinstance(type_, TileType)
    if type_.rank != 2:
        return f"{COPIED} it has {type_.rank} dimensions"
    if type_.dtype == float32 or type_.dtype.bits not in (8, 16):
        return f"{COPIED} wgmma does not read {type_.dtype!r} as it lies in memory"
    reads = [op for op in sources_of([*load.operands]) if op.effect is Effect.READ]
    inside = {op.id for op in loop.body.walk()}
    if any(op.id in inside for op in reads):
        return f"{COPIED} {INDEXED}"
    if any(isinstance(op, pointer.Load) and op.volatile for op in reads):
        return f"{COPIED} an index in its address is volatile"
    if problem := copy_obstacle(loop, load):
        return f"{COPIED} {problem}"
    fast = wanted_shape(load, facts).order[0]
    width_bytes = copy_bytes(load, fast, facts)
    if isinstance(width_bytes, str):
        return f"{COPIED} {width_bytes}"
    is_indexed = any(isinstance(op.results[0].type, TileType) for op in reads)
    return SmemType(type_.shape, type_.dtype, fast), Copies(width_bytes, is_indexed)


def uncopied_parts(side: str, smem: SmemType, *, transposed: bool) -> str:
    """Why wgmma would read parts of a slot that no copy fills, or ""."""
    major = 1 - smem.major if transposed else smem.major
    along_k = major == (1 if side == "a" else 0)
    K_dim = smem.major if along_k else 1 - smem.major
    if smem.shape[K_dim] * smem.dtype.bytes % K_BYTES:
        return f"operand {side}: {COPIED} wgmma takes {K_BYTES} bytes of K at once"
    if not along_k and smem.shape[smem.major] * smem.dtype.bytes % ATOM_BYTES:
        return f"operand {side}: {COPIED} its rows are no multiple of {ATOM_BYTES} bytes"
    return ""


def loads_beside(loop: For, operands: set[int]) -> Op | None:
    """A load of a tile in a loop that is no operand: the consumers would make it themselves."""
    for op in loop.body.walk():
        is_load = isinstance(op, pointer.Load | memory.Load) and op.id not in operands
        if is_load and isinstance(op.results[0].type, TileType):
            return op
    return None


def stored_source(graph: TileGraph, copies: list[pointer.Load]) -> Op | None:
    """A store that may write what copies, or the loads of the indexes in their addresses, read."""
    behind = sources_of([v for op in copies for v in op.operands])
    loads = [*copies, *(op for op in behind if isinstance(op, pointer.Load))]
    sources = {read_argument(graph, op.pointer) for op in loads}
    for op in graph.walk():
        if op.effect is Effect.WRITE and not op.regions:
            written = written_argument(graph, op)
            if not written or None in sources or written in sources:
                return op
    return None


def address_loads(graph: TileGraph, copies: list[pointer.Load]) -> set[int]:
    """Ids of the loads that only addresses and masks of copies take."""
    if not copies:
        return set()
    behind = sources_of([v for op in copies for v in op.operands])
    writes = [op for op in graph.walk() if op.effect is Effect.WRITE]
    others = sources_of([v for op in writes for v in op.operands], {op.result for op in copies})
    return {op.id for op in behind - others if op.effect is Effect.READ}


def sources_of(values: list[Value], known: set[Value] | None = None) -> set[Op]:
    """The ops behind values, wherever they stand. known: where to stop."""
    found: set[Op] = set()
    seen = set(known or ())
    work = list(values)
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        op = value.defining_op
        if op is None:
            work += _argument_sources(value)
            continue
        found.add(op)
        work += _result_sources(op, value)
    return found


def _result_sources(op: Op, value: Value) -> list[Value]:
    """What a result takes its value from."""
    ends = [end.operands for region in op.regions if (end := region.terminator) is not None]
    match op:
        case For():
            carried = [v[value.index] for v in (op.init, *ends)]
            return [op.lower, op.upper, op.step, *carried]
        case If():
            return [op.condition, *(v[value.index] for v in ends)]
        case _:
            return [*op.operands, *(v for end in ends for v in end)]


def _argument_sources(value: Value) -> list[Value]:
    """What an argument of a region takes its values from."""
    region = value.owner
    assert isinstance(region, Region)
    parent = region.parent
    if parent is None:
        return []
    ends = [end.operands for r in parent.regions if (end := r.terminator) is not None]
    if isinstance(parent, For):
        bounds = [parent.lower, parent.upper, parent.step]
        at = value.index - 1
        return bounds if at < 0 else [*bounds, *(v[at] for v in (parent.init, *ends))]
    return [*parent.operands, *(v for end in ends for v in end)]
