"""How the layouts of an op's operands and results follow from one another."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass

from tiledsl.ir.axis_plan import AxisPlan
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout_moves import append_pair
from tiledsl.ir.layout_moves import prepend
from tiledsl.ir.layout_moves import reshape_layout
from tiledsl.ir.layout_moves import without_first
from tiledsl.ir.layout_moves import without_last
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.tile_moves import Join
from tiledsl.ir.ops.tile_moves import Split
from tiledsl.ir.ops.tile_moves import Stack
from tiledsl.ir.ops.tile_moves import Unstack
from tiledsl.ir.types import TileType

Carry = Callable[[Layout], Layout | None]


@dataclass(frozen=True)
class Link:
    """An operand and a result between which no element may change its thread.

    down, up: the layout of one side from that of the other, or None where it does not follow.
    strict: False where the op itself can move elements.
    """

    operand: Value
    result: Value
    down: Carry | None = None
    up: Carry | None = None
    strict: bool = True


def links(op: Op) -> Iterator[Link]:
    """The links of an op."""
    make = _LINKS.get(type(op))
    if make is not None:
        yield from make(op)


def _broadcast(op: tile.Broadcast) -> Iterator[Link]:
    yield Link(op.a, op.result, up=lambda out: _unbroadcast(op, out))


def _expand_dims(op: tile.ExpandDims) -> Iterator[Link]:
    yield Link(
        op.a,
        op.result,
        down=lambda inner: inner.expand(op.axis),
        up=lambda out: out.drop(op.axis, keep=False),
    )


def _transpose(op: tile.Transpose) -> Iterator[Link]:
    inverse = tuple(op.order.index(i) for i in range(len(op.order)))
    yield Link(
        op.a,
        op.result,
        down=lambda inner: inner.transpose(op.order),
        up=lambda out: out.transpose(inverse),
    )


def _reduce(op: Reduce) -> Iterator[Link]:
    for value, result in zip(op.inputs, op.results, strict=True):
        if isinstance(result.type, TileType):
            yield Link(value, result, down=lambda inner: AxisPlan(inner, op.axes).result)


def _reshape(op: tile.Reshape) -> Iterator[Link]:
    source = op.a.type
    assert isinstance(source, TileType)
    yield Link(
        op.a,
        op.result,
        down=lambda inner: reshape_layout(inner, source.shape, op.shape),
        up=lambda out: reshape_layout(out, op.shape, source.shape),
        strict=False,
    )


def _join(op: Join) -> Iterator[Link]:
    for value in (op.a, op.b):
        yield Link(value, op.result, down=append_pair, up=without_last)


def _split(op: Split) -> Iterator[Link]:
    for result in op.results:
        yield Link(op.a, result, down=without_last, up=append_pair)


def _stack(op: Stack) -> Iterator[Link]:
    for value in op.parts:
        yield Link(
            value, op.result, down=lambda inner: prepend(inner, len(op.parts)), up=without_first
        )


def _unstack(op: Unstack) -> Iterator[Link]:
    for result in op.results:
        yield Link(op.a, result, down=without_first, up=lambda out: prepend(out, len(op.results)))


_LINKS: dict[type[Op], Callable[..., Iterator[Link]]] = {
    Join: _join,
    Reduce: _reduce,
    Split: _split,
    Stack: _stack,
    Unstack: _unstack,
    tile.Broadcast: _broadcast,
    tile.ExpandDims: _expand_dims,
    tile.Reshape: _reshape,
    tile.Transpose: _transpose,
}


def _unbroadcast(op: tile.Broadcast, out: Layout) -> Layout:
    source = op.a.type
    assert isinstance(source, TileType)
    for dim, (n, m) in enumerate(zip(source.shape, op.shape, strict=True)):
        if n != m:
            out = out.drop(dim, keep=True)
    return out
