"""Inclusive scans of tiles along an axis with any associative function."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.errors import TypeMismatch
from tiledsl.ir.axis_plan import area_bytes
from tiledsl.ir.axis_plan import scan_levels
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.layout import Unit
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.op import region
from tiledsl.ir.operands import axis_argument
from tiledsl.ir.operands import describe
from tiledsl.ir.ops.elementwise import wide
from tiledsl.ir.ops.reduce import check_body
from tiledsl.ir.ops.reduce import check_kind
from tiledsl.ir.ops.reduce import combine
from tiledsl.ir.ops.reduce import combined_types
from tiledsl.ir.ops.reduce import exchanged_bytes
from tiledsl.ir.ops.reduce_functions import combine_region
from tiledsl.ir.ops.reduce_functions import operands_of
from tiledsl.ir.ops.reduce_functions import widened_sum
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine


class Scan(Op, opcode="scan.scan", levels=Level.ALL):
    """Element i of the result combines elements 0 .. i along `axis`.

    With `reverse`, elements i .. last, from the end.

    inputs: tiles of one shape that are scanned together. kind, body: the function, called with what
    was combined so far and the next element; see `reduce.reduce`, as for scratch, barrier, guarded.
    """

    vectorized = True
    numbers = True
    inputs: tuple[Value, ...] = operands()
    scratch: Value | None = operand(default=None)
    axis: int = attribute(kw_only=True)
    reverse: bool = attribute(default=False)
    kind: str = attribute(default="")
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        types = combined_types(self.inputs, "scan")
        if not 0 <= self.axis < types[0].rank:
            raise TypeMismatch(f"scan: axis {self.axis} of a tile of rank {types[0].rank}")
        if self.kind:
            check_kind(self.kind, [t.dtype for t in types], "scan")
        return types

    def verify(self, target: Target) -> None:
        dtypes = [t.dtype for t in combined_types(self.inputs, "scan")]
        check_body(self, self.body, dtypes, self.kind)

    @property
    def masks(self) -> bool:
        """Whether elements beyond the tile's edge come before its own."""
        t = combined_types(self.inputs, "scan")[0]
        assert t.layout is not None
        return self.reverse and t.layout.padded_shape[self.axis] > t.shape[self.axis]

    def scratch_bytes(self) -> int:
        """Shared memory for the totals of warps; the operands have layouts."""
        types = combined_types(self.inputs, "scan")
        layout = types[0].layout
        assert layout is not None
        sizes = [exchanged_bytes(t.dtype) for t in types]
        if not self.kind and self.masks:
            sizes = [1, *sizes]
        counts = [
            layout.num_warps * 32 * level.blocks(layout.num_regs)
            for level in scan_levels(layout, self.axis)
            if level.unit is Unit.WARP
        ]
        return max((area_bytes(n, sizes) for n in counts), default=0)

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        inputs = [np.moveaxis(np.asarray(a), self.axis, 0) for a in arrays[: len(self.inputs)]]
        if self.reverse:
            inputs = [a[::-1] for a in inputs]
        wides = [wide(a) for a in inputs] if self.kind in ("sum", "prod") else inputs
        done = [[a[0]] for a in wides]
        for i in range(1, len(inputs[0])):
            before = [rows[-1] for rows in done]
            found = yield from combine(machine, self.kind, self.body, before, [a[i] for a in wides])
            for rows, x in zip(done, found, strict=True):
                rows.append(np.broadcast_to(x, rows[0].shape))
        out: list[Any] = []
        for rows, a in zip(done, inputs, strict=True):
            array = np.stack(rows[::-1] if self.reverse else rows).astype(a.dtype)
            out.append(np.ascontiguousarray(np.moveaxis(array, 0, self.axis)))
        return tuple(out)


# ---------------------------------------------------------------------- functions of the language
@builtin(methods=(TileType,))
def associative_scan(
    b: Builder,
    input: Value | tuple[Value, ...],
    axis: int,
    combine_fn: object,
    reverse: bool = False,
) -> Value | tuple[Value, ...]:
    """Inclusive scan along an axis with an associative function.

    input: a tile, or a tuple of tiles of one shape. combine_fn: takes what was combined so far and
    the next element
    (of each tile) and returns their combination. reverse: from the last element to the first.
    """
    values, is_tuple = operands_of(input, "associative_scan()")
    dtypes = [tile_type(v, "associative_scan()").dtype for v in values]
    kind, body = combine_region(b, combine_fn, dtypes, "associative_scan()")
    results = _scanned(b, values, axis, kind, body, reverse, "associative_scan()")
    return tuple(results) if is_tuple else results[0]


def _scanned(
    b: Builder, values: list[Value], axis: int, kind: str, body: Region, reverse: object, what: str
) -> list[Value]:
    place = axis_argument(axis, combined_types(values, what)[0].rank, f"{what}: axis")
    op = Scan(tuple(values), axis=place, reverse=bool(unwrap(reverse)), kind=kind, body=body)
    b.add(op)
    return list(op.results)


@builtin(methods=(TileType,))
def cumsum(
    b: Builder, input: Value, axis: int = 0, reverse: bool = False, dtype: DType | None = None
) -> Value:
    """Running sums along an axis, by default axis 0; dtypes widen as in `sum`."""
    return _running(b, input, axis, reverse, dtype, "sum", "cumsum()")


@builtin(methods=(TileType,))
def cumprod(
    b: Builder, input: Value, axis: int = 0, reverse: bool = False, dtype: DType | None = None
) -> Value:
    """Running products along an axis, by default axis 0; dtypes widen as in `sum`."""
    return _running(b, input, axis, reverse, dtype, "prod", "cumprod()")


def _running(
    b: Builder, x: Value, axis: int, reverse: bool, dtype: DType | None, kind: str, what: str
) -> Value:
    if not isinstance(x, Value) or not isinstance(x.type, TileType):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeMismatch(f"{what}: expected a tile, got {describe(x)}")
    value = widened_sum(b, x, dtype, what)
    return _scanned(b, [value], axis, kind, Region(), reverse, what)[0]
