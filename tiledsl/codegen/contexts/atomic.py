"""Atomic updates: relaxed instructions between fences, one thread for an element.

A release is a barrier of the program's threads and a fence before the update, left out where the
kernel writes nothing that the update could publish; an acquire is a fence after it, left out where
nobody looks at the old values.
"""

from __future__ import annotations

from tiledsl.codegen.combining import sync_text
from tiledsl.codegen.contexts.pointer import LanesContext
from tiledsl.codegen.contexts.pointer import SharedContext
from tiledsl.codegen.contexts.pointer import StoreContext
from tiledsl.codegen.contexts.pointer import first_copy
from tiledsl.codegen.contexts.pointer import first_thread
from tiledsl.codegen.contexts.pointer import raw_element
from tiledsl.codegen.contexts.pointer import shared
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import dim_name
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.registry import emits
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.ops import atomic as ops
from tiledsl.ir.ops.pointer import pointed_to

Single = ops.Rmw | ops.Cas
Tile = ops.RmwLanes | ops.CasLanes


def releases(op: Single | Tile, e: Emission) -> bool:
    """Whether earlier writes of the program have to be visible to who sees the update."""
    if op.sem not in ("release", "acq_rel"):
        return False
    return any(o.effect is Effect.WRITE and not _is_atomic(o) for o in e.graph.walk())


def acquires(op: Single | Tile, e: Emission) -> bool:
    """Whether later reads of the program have to see what was published."""
    return op.sem in ("acquire", "acq_rel") and bool(e.users(op.results[0]))


def _is_atomic(op: Op) -> bool:
    return op.opcode.startswith("atomic.")


def before(op: Single | Tile, e: Emission) -> str:
    """Statements of a release."""
    if not releases(op, e):
        return ""
    barrier = int(getattr(op, "barrier", 0))
    return f"{sync_text(e, barrier)}\nfence_{op.scope}();"


def after(op: Single | Tile, e: Emission) -> str:
    """Statements of an acquire."""
    return f"fence_{op.scope}();" if acquires(op, e) else ""


# ---------------------------------------------------------------------- single elements
@emits("atomic.rmw")
def rmw(op: ops.Rmw, e: Emission) -> SharedContext | StoreContext:
    """`if (warp == 0 && lane == 0) ...`."""
    dtype = pointed_to(op.pointer, "atomic")
    policy = e.accesses.atomic(op.kind, dtype, op.scope)
    mask = e.text(op.mask) if op.mask is not None else "true"
    value = raw_element(e, op.value, dtype)
    call = f"rmw_one<{policy}>({e.text(op.pointer)}, {value}, {mask})"
    return _single(op, e, call)


@emits("atomic.cas")
def cas(op: ops.Cas, e: Emission) -> SharedContext | StoreContext:
    """As `atomic.rmw`."""
    dtype = pointed_to(op.pointer, "atomic_cas")
    policy = e.accesses.atomic("cas", dtype, op.scope)
    values = ", ".join(raw_element(e, v, dtype) for v in (op.compare, op.value))
    return _single(op, e, f"cas_one<{policy}>({e.text(op.pointer)}, {values}, true)")


def _single(op: Single, e: Emission, call: str) -> SharedContext | StoreContext:
    head, tail = before(op, e), after(op, e)
    if head:
        e.before(head)
    if not e.users(op.result) or op.scratch is None:
        return StoreContext("", call, "", first_thread(e))
    dtype = pointed_to(op.pointer, "atomic")
    guarded = op.guarded and not head
    made = shared(e, op, call, dtype, op.scratch, guarded=guarded)
    sync = f"{made.sync}\n{tail}" if tail else made.sync
    return SharedContext(
        made.guard,
        made.first,
        made.scratch,
        made.word,
        made.element,
        sync,
        made.target,
        made.result,
    )


# ---------------------------------------------------------------------- tiles
@emits("atomic.rmw_lanes")
def rmw_lanes(op: ops.RmwLanes, e: Emission, body: str) -> LanesContext:
    """`red_lanes<8, 4, AtomicAdd_f32_gpu>(x_1, true, at_1);`."""
    at = e.names.fresh("at")
    policy = e.accesses.atomic(op.kind, op.dtype, op.scope)
    arguments = f"{e.text(op.value)}, {first_copy(e, op.layout)}, {at}"
    count = op.layout.num_regs
    if e.users(op.result):
        call = f"rmw_lanes<{count}, {policy}>({e.name(op.result)}, {arguments});"
    else:
        call = f"red_lanes<{count}, {op.width}, {policy}>({arguments});"
    return LanesContext(at, body, call, before(op, e), share(op, e))


@emits("atomic.cas_lanes")
def cas_lanes(op: ops.CasLanes, e: Emission, body: str) -> LanesContext:
    """`cas_lanes<4, AtomicCas_i32_gpu>(old_1, c_1, x_1, true, at_1);`."""
    at = e.names.fresh("at")
    policy = e.accesses.atomic("cas", op.dtype, op.scope)
    values = f"{e.text(op.compare)}, {e.text(op.value)}"
    call = (
        f"cas_lanes<{op.layout.num_regs}, {policy}>"
        f"({e.name(op.result)}, {values}, {first_copy(e, op.layout)}, {at});"
    )
    return LanesContext(at, body, call, before(op, e), share(op, e))


def share(op: Tile, e: Emission) -> str:
    """Statements after an update: the old elements to all that hold copies, and an acquire."""
    tail = after(op, e)
    if op.scratch is None or not e.users(op.result):
        return tail
    layout, name = op.layout, e.name(op.result)
    terms: list[str] = []
    inside: list[str] = []
    weight = 1
    for dim in reversed(range(layout.rank)):
        thread = thread_coordinate(e, layout, dim, dim_name(dim, layout.rank))
        place = add(thread, register_part(layout, dim))
        terms.append(f"({place}) * {weight}" if weight > 1 else place)
        if layout.padded_shape[dim] > op.shape[dim]:
            inside.append(f"{place} < {op.shape[dim]}")
        weight *= op.shape[dim]
    sync = sync_text(e, op.barrier)
    index = f"[&](int i) {{ return {' + '.join(terms)}; }}"
    held = f"[&](int i) {{ return {' && '.join(inside) or 'true'}; }}"
    arguments = f"{name}, {e.text(op.scratch)}"
    write = f"share_out<{layout.num_regs}>({arguments}, {first_copy(e, layout)}, {index}, {held});"
    read = f"share_in<{layout.num_regs}>({arguments}, {index}, {held});"
    lines = [sync if op.guarded else "", write, sync, read, tail]
    return "\n".join(line for line in lines if line)
