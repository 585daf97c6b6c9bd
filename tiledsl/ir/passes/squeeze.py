"""Folds reshapes that only drop or add dimensions of extent 1 into block loads and stores."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Reshape
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import TileType
from tiledsl.target import Target


@register_pass("squeeze", consumes=Level.TILE, produces=Level.TILE)
def squeeze(graph: TileGraph, target: Target) -> PassReport:
    """`load(...).reshape(...)` without its unit dimensions, and `store` of a tile given unit ones.

    A load whose every use is the same squeezing reshape takes its `squeeze`; a store of a reshaped
    tile stores the tile itself.
    """
    del target
    changes = 0
    for op in list(graph.walk()):
        if isinstance(op, Load):
            changes += _squeeze_load(graph, op)
        elif isinstance(op, Store):
            changes += _squeeze_store(graph, op)
    return PassReport("squeeze", changes)


def _squeeze_load(graph: TileGraph, load: Load) -> int:
    users = [u.op for u in graph.users(load.result)]
    if load.squeeze or not users or not all(isinstance(u, Reshape) for u in users):
        return 0
    shapes = {u.result.type for u in users}
    if len(shapes) != 1:
        return 0
    dropped = dropped_dims(load.block_shape, _shape(users[0].result))
    if not dropped:
        return 0
    new = load.rebuild({}, squeeze=dropped)
    new.results[0].name = load.result.name or users[0].result.name
    graph.insert_before(load, new)
    for user in users:
        graph.replace_uses(user.results[0], new.results[0])
        graph.erase(user)
    graph.erase(load)
    return 1


def _squeeze_store(graph: TileGraph, store: Store) -> int:
    cast = store.value.defining_op
    inner = cast.a if isinstance(cast, Cast) else store.value
    source = _unsqueezed(inner)
    if store.squeeze or source is None:
        return 0
    dropped = dropped_dims(store.block_shape, _shape(source))
    if not dropped:
        return 0
    if isinstance(cast, Cast):
        narrow = Cast(source, cast.dtype)
        narrow.loc = cast.loc
        graph.insert_before(store, narrow)
        source = narrow.result
    new = Store(
        store.tensor, store.offsets, source, store.block_shape, dropped, store.end, store.end_dim
    )
    new.loc = store.loc
    graph.insert_before(store, new)
    graph.erase(store)
    return 1


def _unsqueezed(value: Value) -> Value | None:
    """The tile behind reshapes and expand_dims that only add unit dimensions."""
    op: Op | None = value.defining_op
    source: Value | None = None
    while isinstance(op, Reshape | ExpandDims):
        if isinstance(op, Reshape) and not dropped_dims(_shape(op.result), _shape(op.a)):
            break
        source = op.a
        op = source.defining_op
    return source


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TileType)
    return value.type.shape


def dropped_dims(full: tuple[int, ...], short: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of extent 1 of `full` that `short` leaves out; empty when that is not all."""
    out: list[int] = []
    at = 0
    for dim, n in enumerate(full):
        left = len(full) - dim
        if at < len(short) and short[at] == n and not (n == 1 and left > len(short) - at):
            at += 1
        elif n == 1:
            out.append(dim)
        else:
            return ()
    return tuple(out) if at == len(short) else ()
