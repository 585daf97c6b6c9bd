"""Which stores go through staging in shared memory, and in what chunks."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.errors import ScheduleError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import TileType
from tiledsl.ws.bulk import BULK_BYTES
from tiledsl.ws.bulk import map_fault
from tiledsl.ws.bulk import start_fault
from tiledsl.ws.free import is_elementwise
from tiledsl.ws.plan import Plan


@dataclass(frozen=True)
class StoreGeometry:
    """How one warpgroup's part of a stored tile is cut.

    major: the tile dimension that is contiguous in the tensor.  part: extents of one warpgroup's
    part.
    width: elements of a chunk along `major` (128 bytes).  num_chunks: chunks; the last may overlap
    its neighbour.
    split: the tile dimension that warpgroups share out, -1 where each has the whole tile.
    """

    major: int
    part: tuple[int, int]
    width: int
    num_chunks: int
    itemsize: int
    split: int = -1

    @property
    def rows(self) -> int:
        """Rows of a chunk: the part's extent across `major`."""
        return self.part[1 - self.major]

    @property
    def buffer_bytes(self) -> int:
        return self.rows * self.width * self.itemsize

    @property
    def chunk_shape(self) -> tuple[int, int]:
        return (self.rows, self.width) if self.major == 1 else (self.width, self.rows)

    def start(self, chunk: int) -> tuple[int, int]:
        """First coordinate of a chunk inside the part."""
        at = min(chunk * self.width, self.part[self.major] - self.width)
        return (0, at) if self.major == 1 else (at, 0)


def is_turned(value: Value) -> bool:
    """Whether a tile is a product turned around: its rows are the product's columns."""
    seen: set[Value] = set()
    todo = [(value, False)]
    while todo:
        v, turned = todo.pop()
        op = v.defining_op
        if v in seen or op is None:
            continue
        seen.add(v)
        if isinstance(op, Transpose) and op.order == (1, 0):
            todo.append((op.a, not turned))
        elif is_elementwise(op):
            todo += [(o, turned) for o in op.operands if isinstance(o.type, TileType)]
        elif op.regions:  # the product of a loop or a branch
            return turned
    return False


def split_of(store: Store, plan: Plan) -> int:
    """The dimension of a stored tile that warpgroups share out, -1 for none."""
    if plan.warpgroups_per_tile == 1:
        return -1
    return 1 - plan.split_dim if is_turned(store.value) else plan.split_dim


def store_geometry(store: Store, plan: Plan) -> StoreGeometry | str:
    """The staging of a store, or the reason why it writes straight from registers."""
    t = tensor_type(store.tensor, "store")
    if fault := map_fault(store):
        return fault
    assert t.inner_dim is not None
    kept = [d for d in range(t.rank) if d not in store.squeeze]
    value = store.value.type
    assert isinstance(value, TileType)
    if len(kept) != 2 or t.inner_dim not in kept:
        return "the stored block is not two-dimensional along the dimension of stride 1"
    if t.dtype.bits not in (8, 16, 32):
        return f"dtype {t.dtype!r} is not staged"
    if t.ragged:
        return (
            "the output's rows end between multiples of 16 bytes, and bulk stores write whole ones"
        )
    dims = (t.inner_dim, *(d for d in reversed(range(t.rank)) if d != t.inner_dim))
    if store.end is not None and dims[1:2] != (store.end_dim,):
        return "its end is not along the dimension next to that of stride 1"
    major = kept.index(t.inner_dim)
    part = list(value.shape)
    split = split_of(store, plan)
    if split >= 0:
        part[split] //= plan.warpgroups_per_tile
    width = 128 // t.dtype.bytes
    if part[major] < width or part[1 - major] > 256 or part[1 - major] % 8:
        return f"a warpgroup's part of {part[0]}x{part[1]} is too narrow for a 128-byte chunk"
    if part[major] * t.dtype.bytes % BULK_BYTES:
        return f"a part of {part[major]} elements is no multiple of 16 bytes, as bulk stores are"
    if fault := start_fault(store):
        return fault
    chunks = -(-part[major] // width)
    return StoreGeometry(major, (part[0], part[1]), width, chunks, t.dtype.bytes, split)


def stored_geometry(stores: list[Store], plan: Plan) -> tuple[dict[int, StoreGeometry], list[str]]:
    """Staging geometry of each store by op id (all alike).

    And a line per store that writes from registers.
    """
    out: dict[int, StoreGeometry] = {}
    notes: list[str] = []
    for store in stores:
        value = store.value.type
        assert isinstance(value, TileType)
        found = (
            store_geometry(store, plan)
            if value.rank == 2
            else "the stored tile is not two-dimensional"
        )
        if not isinstance(found, str) and out and next(iter(out.values())) != found:
            found = "another store of the kernel has a different staging"
        if isinstance(found, str):
            at = store.loc.short if store.loc else "?"
            notes.append(f"{at}: store from registers: {found}")
        else:
            out[store.id] = found
    return out, notes


def unstaged(graph: TileGraph, store: Op, layout: Layout) -> ScheduleError:
    """The error for a tile that its warpgroups do not hold in the parts that staging takes.

    It names the first op that leaves a tile in this layout.
    """
    for op in graph.walk():
        is_maker = op.opcode not in _PASSED_ON and not op.regions and not is_elementwise(op)
        if is_maker and any(getattr(v.type, "layout", None) == layout for v in op.results):
            name = op.opcode.rsplit(".", 1)[-1]
            why = f"{name}(): warpgroups do not hold its result in parts to stage for the store"
            return ScheduleError(why, op.loc)
    return ScheduleError("warpgroups do not hold the stored tile in parts to stage", store.loc)


_PASSED_ON = ("tile.undef", "tile.convert_layout", "tma.store_tile")


def lies_as_planned(layout: Layout, geometry: StoreGeometry) -> bool:
    """Whether warpgroups hold the parts of a tile that its staging takes from them."""
    for dim in range(len(layout.dims)):
        groups = [w for s, _, w in layout.unit_terms(dim, Unit.WARP) if s >= 4]
        if groups != ([geometry.part[dim]] if dim == geometry.split else []):
            return False
    return True
