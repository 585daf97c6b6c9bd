"""Bulk tensor copies."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.contexts.barrier import by_leader
from tiledsl.codegen.contexts.barrier import mbarrier_address
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.dtypes import int32
from tiledsl.errors import CodegenError
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tma as ops
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.types import ScalarType

_HINTS = ("evict_first", "evict_last", "evict_normal")


@dataclass(frozen=True)
class MapContext:
    """A tensor map."""

    map: str


@dataclass(frozen=True)
class BoxContext:
    """A box of a tensor."""

    map: str
    coords: str


@dataclass(frozen=True)
class LoadContext:
    """function: the form of the load; extra: mask and policy, each followed by a comma."""

    function: str
    smem: str
    map: str
    barrier: str
    extra: str
    coords: str
    variant: str = ""


@dataclass(frozen=True)
class StoreWaitContext:
    """How many stores may still read."""

    pending: int


@dataclass(frozen=True)
class StoreContext:
    """One box from shared memory; guard: when, or "" for always.

    function: up to the map. smem: where the box lies, after further maps.
    """

    guard: str
    function: str
    map: str
    smem: str
    coords: str


@emits("tma.map")
def tensor_map(op: ops.TensorMap, e: Emission) -> None:
    """The value is a kernel parameter."""
    e.bind(op.result, e.params.tensor_map(op))


@emits("tma.prefetch")
def prefetch(op: ops.Prefetch, e: Emission) -> MapContext:
    """`tma_prefetch_map(&a_map);`."""
    return MapContext(e.text(op.map))


@emits("tma.prefetch_box")
def prefetch_box(op: ops.PrefetchBox, e: Emission) -> BoxContext:
    """`tma_prefetch(&b_map, k_1, n_1);`."""
    return BoxContext(e.text(op.map), coordinates(e, op.coords))


@emits("tma.load")
def load(op: ops.Load, e: Emission) -> LoadContext:
    """`tma_load(a_1, &a_map, full_1 + 8 * c_1.slot, k_1, m_1);`, multicast or with a hint."""
    if op.cache_hint and op.cache_hint not in _HINTS:
        raise CodegenError(
            f"unknown cache hint {op.cache_hint!r}, expected one of {', '.join(_HINTS)}"
        )
    function, extra = "tma_load", ""
    if op.mask is not None:
        function, extra = f"{function}_multicast", f"(u16){e.atom(op.mask)}, "
    if op.cache_hint:
        function, extra = f"{function}_hint", f"{extra}policy_{op.cache_hint}(), "
    smem = e.text(op.smem)
    smem += f" + {op.offset_bytes}" if op.offset_bytes else ""
    if op.part is not None and op.part_bytes:
        smem += f" + {e.atom(op.part)} * {op.part_bytes}"
    barrier = mbarrier_address(e, op.barriers, op.cursor)
    at = coordinates(e, op.coords)
    variant = "_".join(v for v in (by_leader(e), "watched" if e.watch is not None else "") if v)
    return LoadContext(function, smem, map_of(e, op.map, op.item), barrier, extra, at, variant)


def map_of(e: Emission, map_: Value, item: Value | None) -> str:
    """A tensor map, or one of a table: `x_map.at[g_1]`."""
    picked = item.defining_op if item is not None else None
    if not isinstance(picked, Pick):
        return e.text(map_)
    return f"{e.text(map_)}.at[{e.text(picked.index)}]"


def coordinates(e: Emission, coords: tuple[Value, ...]) -> str:
    """Coordinates as i32 arguments."""
    return ", ".join(
        e.text(c) if c.type == ScalarType(int32) else f"(int){e.atom(c)}" for c in coords
    )


@emits("tma.store_wait")
def store_wait(op: ops.StoreWait, e: Emission) -> StoreWaitContext:
    """The warpgroup's leader waits."""
    e.use("leader")
    return StoreWaitContext(op.pending)


@emits("tma.store")
def store(op: ops.Store, e: Emission) -> StoreContext:
    """The warpgroup's leader stores and commits.

    A store that its guard skips commits an empty group, so that waits count the same.
    """
    e.use("leader")
    guard = "" if op.guard is None else e.text(op.guard)
    function, smem = "tma_store(", e.text(op.smem)
    if op.rows is not None and op.map_8 is not None and op.map_1 is not None:
        made = op.map.defining_op
        assert isinstance(made, ops.TensorMap)
        function = f"tma_store_rows<{made.box[1]}>({e.text(op.rows)}, "
        parts = [map_of(e, m, op.item) for m in (op.map_8, op.map_1)]
        smem = f"&{parts[0]}, &{parts[1]}, {smem}"
    target = map_of(e, op.map, op.item)
    return StoreContext(guard, function, target, smem, coordinates(e, op.coords))
