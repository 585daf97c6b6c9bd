"""Rows that go on in the next program's tile, stored so that no sector of memory has two writers.

Rows of odd width begin anywhere in a sector, and where tiles meet, both programs would write a part
of one: memory takes as long for a part as for all of it. A program computes the first columns of
its neighbour as well, as many as a sector holds, and stores up to the sector that the neighbour
begins with (templates/include/tiledsl/rows.cuh). What neighbours compute there is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field

from tiledsl.ir.analysis.affine import NotAffine
from tiledsl.ir.analysis.affine import sum_of
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout_moves import is_padded
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import Stride
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.memory_rows import StoreSectors
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.tile import ConvertLayout
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import vector_dim
from tiledsl.ws.free import is_elementwise
from tiledsl.ws.scratch import requested_bytes

SECTOR_BYTES, PIECE_BYTES, LINE_BYTES = 32, 16, 128
ELEMENT_BYTES = (2, 4)
LEAST_VECTOR_BYTES = 8
"""What a thread holds of a column side by side, at least."""
MOST_OPS = 16
"""Ops that are done once more for the neighbour's columns."""


def store_sectors(graph: TileGraph, region: Region) -> list[str]:
    """Lets programs store whole sectors where tiles change their layout; lines that say so."""
    notes: list[str] = []
    for op in [op for op in region.ops if type(op) is Store]:
        moved = op.value.defining_op
        if not isinstance(moved, ConvertLayout) or not requested_bytes(moved):
            continue
        if moved.parent is not region or len(graph.users(moved.result)) != 1:
            continue
        plan = _Plan(graph, region, op, moved.a)
        if not plan.is_possible():
            continue
        plan.apply()
        graph.erase(moved)
        where = op.loc.short if op.loc else "?"
        notes.append(f"{where}: each program stores whole sectors, {plan.more} columns on")
    return notes


@dataclass
class _Plan:
    """One store. value: its tile, in whose layout columns lie side by side."""

    graph: TileGraph
    region: Region
    store: Store
    value: Value
    axis: int = -1
    columns: dict[Value, int] = field(default_factory=dict[Value, int])
    """The dimension of the columns of each tile that the value is made from."""

    @property
    def element_bytes(self) -> int:
        return tensor_type(self.store.tensor, "store").dtype.bytes

    @property
    def more(self) -> int:
        """Columns of the neighbour."""
        return SECTOR_BYTES // self.element_bytes

    @property
    def type_(self) -> TileType:
        assert isinstance(self.value.type, TileType)
        return self.value.type

    def is_possible(self) -> bool:
        """Whether the neighbour along some axis of the grid goes on with the rows."""
        if not self._has_form():
            return False
        return any(self._goes_on(axis) for axis in range(3))

    def _has_form(self) -> bool:
        store, type_ = self.store, self.type_
        t = tensor_type(store.tensor, "store")
        if t.tma or t.inner_dim is None or store.end is not None or type_.rank != 2:
            return False
        if not store.tensor.is_argument or not self._is_only_access():
            return False
        kept = [d for d in range(t.rank) if d not in store.squeeze]
        size = t.dtype.bytes
        if kept[1] != t.inner_dim or size not in ELEMENT_BYTES:
            return False
        rows, cols = type_.shape
        if cols * size % LINE_BYTES or cols & (cols - 1) or rows & (rows - 1):
            return False
        layout = type_.layout
        if not isinstance(layout, Layout) or is_padded(layout, type_.shape):
            return False
        if layout.num_warps & (layout.num_warps - 1):
            return False
        vector = vector_dim(layout)
        return vector is not None and vector[0] == 0 and vector[1] * size >= LEAST_VECTOR_BYTES

    def _is_only_access(self) -> bool:
        """Whether nothing else is done to the tensor: who stores first does not matter."""
        ops = [use.op for use in self.graph.users(self.store.tensor)]
        return all(op is self.store or isinstance(op, Shape | Stride) for op in ops)

    def _goes_on(self, axis: int) -> bool:
        """Whether the next program along an axis of the grid stores the columns behind these."""
        self.axis, store = axis, self.store
        inner = tensor_type(store.tensor, "store").inner_dim
        for d, offset in enumerate(store.offsets):
            if not (self._steps(offset) if d == inner else _is_free(offset, axis)):
                return False
        self.columns.clear()
        return self._repeats(self.value, 1) and len(self.columns) <= MOST_OPS

    def _steps(self, offset: Value) -> bool:
        """Whether an offset is as many columns further on in the next program."""
        try:
            products = sum_of(offset).products
        except NotAffine:
            return False
        steps = [p for p in products if not all(_is_free(v, self.axis) for v in p.scalars)]
        if len(steps) != 1 or steps[0].number != self.type_.shape[1] or steps[0].dim is not None:
            return False
        (program, *others) = steps[0].scalars
        return not others and isinstance(program.defining_op, ProgramId)

    def _repeats(self, value: Value, column: int) -> bool:
        """Whether a tile's next columns are what its ops make of the loads' next columns."""
        if not isinstance(value.type, TileType):
            return _is_free(value, self.axis)
        if value in self.columns:
            return self.columns[value] == column
        op = value.defining_op
        if op is None or op.parent is not self.region or value.type.rank != 2:
            return False
        if len(self.columns) > MOST_OPS:
            return False
        self.columns[value] = column
        match op:
            case Load():
                return self._is_repeated_load(op, column)
            case Transpose():
                return self._repeats(op.a, op.order[column])
            case Splat():
                return _is_free(op.a, self.axis)
            case Hint():
                return False
            case _ if is_elementwise(op) and op.effect is Effect.PURE and len(op.results) == 1:
                return all(self._repeats(v, column) for v in op.operands)
            case _:
                return False

    def _is_repeated_load(self, op: Load, column: int) -> bool:
        t = tensor_type(op.tensor, "load")
        kept = [d for d in range(t.rank) if d not in op.squeeze]
        if op.part or op.streamed or not op.tensor.is_argument or self._may_write(op.tensor):
            return False
        if op.other is not None and not _is_free(op.other, self.axis):
            return False
        return all(
            self._steps(offset) if d == kept[column] else _is_free(offset, self.axis)
            for d, offset in enumerate(op.offsets)
        )

    def _may_write(self, tensor: Value) -> bool:
        """Whether the kernel writes a tensor, or through pointers; arguments lie apart."""
        ops = [op for op in self.graph.walk() if op.effect is Effect.WRITE]
        return any(not isinstance(op, Store) or tensor in tensors_of(op.tensor) for op in ops)

    # ------------------------------------------------------------------ the rewrite
    def apply(self) -> None:
        """Makes the neighbour's columns and puts the store in place."""
        graph, store = self.graph, self.store
        mapping: dict[Value, Value] = {}
        layout = self._layout()
        for value in self._in_order():
            self._clone(value, layout, mapping)
        program = graph.insert_before(store, ProgramId(self.axis, loc=store.loc))
        programs = graph.insert_before(store, NumPrograms(self.axis, loc=store.loc))
        new = StoreSectors(
            store.tensor, store.offsets, self.value, store.block_shape, store.squeeze,
            more=mapping[self.value], program=program.result, programs=programs.result,
            loc=store.loc,
        )  # fmt: skip
        graph.replace_op(store, new)

    def _in_order(self) -> Iterator[Value]:
        """The tiles, each behind those that it is made from."""
        for op in list(self.region.ops):
            yield from (v for v in op.results if v in self.columns)

    def _layout(self) -> Layout:
        """Of the neighbour's columns: vectors lie along columns, as in the value."""
        layout, rows = self.type_.layout, self.type_.shape[0]
        assert isinstance(layout, Layout)
        vector = PIECE_BYTES // self.element_bytes
        share = max(1, rows * self.more // (32 * layout.num_warps))
        while vector > share or rows % vector:
            vector //= 2
        return blocked((rows, self.more), layout.num_warps, vector=vector, order=[0, 1])

    def _clone(self, value: Value, layout: Layout, mapping: dict[Value, Value]) -> None:
        op, column = value.defining_op, self.columns[value]
        assert op is not None
        assert isinstance(value.type, TileType)
        shape = list(value.type.shape)
        shape[column] = self.more
        changes: dict[str, object] = {}
        if isinstance(op, Load):
            changes = self._next_block(op, column)
        elif isinstance(op, Splat):
            changes = {"shape": tuple(shape)}
        new = clone_op(op, mapping, **changes)
        lies = layout if column == 1 else layout.transpose((1, 0))
        new.result.type = TileType(tuple(shape), value.type.dtype, lies)
        self.graph.insert_after(op, new)

    def _next_block(self, op: Load, column: int) -> dict[str, object]:
        """A load's fields for the neighbour's columns."""
        kept = [d for d in range(len(op.offsets)) if d not in op.squeeze]
        dim = kept[column]
        offset = op.offsets[dim]
        assert isinstance(offset.type, ScalarType)
        step = self.graph.insert_before(
            op, ew.Constant(self.type_.shape[1], offset.type.dtype, loc=op.loc)
        )
        moved = self.graph.insert_before(op, ew.Add(offset, step.result, loc=op.loc))
        offsets, extents = list(op.offsets), list(op.block_shape)
        offsets[dim], extents[dim] = moved.result, self.more
        return {"offsets": tuple(offsets), "block_shape": tuple(extents)}


def _is_free(value: Value, axis: int) -> bool:
    """Whether a scalar is the same in all programs along an axis of the grid, for certain."""
    todo, seen = [value], set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        op = v.defining_op
        if op is None:
            if not v.is_argument:
                return False
            continue
        if op.effect is not Effect.PURE or op.regions or not isinstance(v.type, ScalarType):
            return False
        if isinstance(op, ProgramId) and op.axis == axis:
            return False
        todo += op.operands
    return True
