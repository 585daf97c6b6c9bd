"""Accesses to memory whose order the roles of a specialised kernel would not keep."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import steering_scalars
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ws.dependence import drawn_values
from tiledsl.ws.dependence import tainted_values
from tiledsl.ws.dependence import unknown_to_loads
from tiledsl.ws.pointer_hazards import depends
from tiledsl.ws.pointer_hazards import pointer_hazard

DRAWN = (
    "what is loaded depends on an atomic operation, which happens in one role only; draw it in a "
    "kernel before this one"
)
COMPUTED = (
    "what is loaded, or how often, depends on what the kernel computes from loaded tiles, which "
    "the load role does not know"
)
REPEATED = (
    "how often a block is stored depends on what the kernel computes from loaded tiles, and the "
    "proof counts bulk copies; store in a loop with other bounds, or through a pointer"
)
OVERWRITTEN = (
    "the kernel may store to the same elements twice, and bulk copies keep no order between "
    "stores; store each element once, with offsets that depend on the loop around the store"
)
HAZARD = (
    "the kernel loads from a tensor that it stores to, and roles keep no order between them; store "
    "to another tensor"
)
LANES = (
    "the kernel loads and stores through one pointer, and roles keep no order between threads; "
    "store through another pointer"
)


def order_problems(
    graph: TileGraph, operands: Collection[Load | pointer.Load]
) -> Iterator[tuple[str, Op]]:
    """Accesses to memory whose order roles would not keep: why, and the op."""
    drawn, unknown = drawn_values(graph), unknown_to_loads(graph, operands)
    found = {
        HAZARD: memory_hazard(graph),
        LANES: pointer_hazard(graph),
        OVERWRITTEN: overwritten_store(graph),
        DRAWN: unknown_place(graph, operands, tainted_values(graph, drawn) if drawn else set()),
        COMPUTED: unknown_place(graph, operands, unknown),
        REPEATED: repeated_store(graph, unknown),
    }
    for reason, op in found.items():
        if op is not None:
            yield reason, op


def unknown_place(
    graph: TileGraph, loads: Iterable[Load | pointer.Load], unknown: set[Value]
) -> Op | None:
    """A load, or the control flow around one, that depends on what the load role cannot know."""
    for load in loads if unknown else ():
        around = [o for o in graph.enclosing(load) if isinstance(o, For | If)]
        if any(v in unknown for v in load.operands):
            return load
        for op in around:
            if any(v in unknown for v in steering_scalars(op)):
                return op
    return None


def repeated_store(graph: TileGraph, unknown: set[Value]) -> Store | None:
    """A store of a block in a loop of which only the consumers know how often it runs."""
    for store in graph.find(Store):
        loops = [o for o in graph.enclosing(store) if isinstance(o, For)]
        if any(v in unknown for loop in loops for v in steering_scalars(loop)):
            return store
    return None


def memory_hazard(graph: TileGraph) -> Load | None:
    """A load that is not simply followed by a store of what it became, to the same block."""
    stores: dict[Value, list[Store]] = {}
    position = {op.id: i for i, op in enumerate(graph.walk())}
    for store in graph.find(Store):
        for tensor in tensors_of(store.tensor):
            stores.setdefault(tensor, []).append(store)
    for load in graph.find(Load):
        for store in [s for t in tensors_of(load.tensor) for s in stores.get(t, [])]:
            same = (
                load.tensor is store.tensor
                and load.offsets == store.offsets
                and load.block_shape == store.block_shape
            )
            follows = load.parent is store.parent and position[load.id] < position[store.id]
            if not same or not follows or not depends(store.value, load.results):
                return load
    return None


def overwritten_store(graph: TileGraph) -> Store | None:
    """A store that may follow another one to the same elements of its tensor.

    Two stores in different branches of an if exclude each other. A store in a loop is taken to walk
    along where its place depends on what the loop changes.
    """
    before: dict[Value, list[Store]] = {}
    for store in graph.find(Store):
        tensors = tensors_of(store.tensor)
        if any(not _exclude(store, other) for t in tensors for other in before.get(t, [])):
            return store
        for tensor in tensors:
            before.setdefault(tensor, []).append(store)
        loops = [o for o in graph.enclosing(store) if isinstance(o, For | While)]
        if not all(_walks(graph, store, loop) for loop in loops):
            return store
    return None


def _exclude(a: Store, b: Store) -> bool:
    """Whether two stores stand in different branches of an if."""
    branches: list[dict[int, Region]] = []
    for store in (a, b):
        found: dict[int, Region] = {}
        region = store.parent
        while region is not None and region.parent is not None:
            if isinstance(region.parent, If):
                found[region.parent.id] = region
            region = region.parent.parent
        branches.append(found)
    both = branches[0].keys() & branches[1].keys()
    return any(branches[0][i] is not branches[1][i] for i in both)


def _walks(graph: TileGraph, store: Store, loop: For | While) -> bool:
    """Whether the place of a store is made from what a loop around it changes."""
    known = tainted_values(graph, [a for region in loop.regions for a in region.args])
    return any(v in known for v in (store.tensor, *store.offsets))
