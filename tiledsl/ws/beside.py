"""What a warpgroup does with the rows of an operand while its products run (`row_sums`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.role import Always
from tiledsl.ir.ops.smem import Read
from tiledsl.ws.channels import Channel
from tiledsl.ws.dot_loop import DotLoop

if TYPE_CHECKING:
    from tiledsl.ws.consumer_loop import ConsumerLoop


def apart(maker: ConsumerLoop, channels: list[Channel]) -> Value | None:
    """True, for branches that keep the rows apart from the wgmmas; None where none are.

    ptxas would put them between the wgmmas of an iteration, each of which then waits for loads and
    math, though other warpgroups multiply meanwhile. A warpgroup with a tile of its own issues
    wgmmas as the tensor core takes them: behind the last one, nothing would hide its rows (0.78 of
    the bare product; 0.82 without a branch).
    """
    beside = any(c.loop is not None and c.loop.beside for c in channels)
    return maker.b.value(Always(), "always") if beside and not maker.plan.ping_pong else None


def add_rows(maker: ConsumerLoop, found: DotLoop, always: Value | None) -> None:
    """What is made beside the products, from tiles that are read from their slots."""
    if not found.beside:
        return
    if always is None:
        _read_rows(maker, found)
        return
    b = maker.b
    end = found.loop.body.terminator
    assert isinstance(end, Yield)
    sums = [
        (arg, v)
        for arg, v in zip(found.loop.carried, end.values, strict=True)
        if v.defining_op is not None and v.defining_op.id in found.beside
    ]
    before = tuple(maker.get(arg) for arg, _ in sums)
    branch = If(
        always,
        result_types=tuple(v.type for v in before),
        names=tuple(arg.name for arg, _ in sums),
    )
    b.add(branch)
    saved = dict(maker.map)
    with b.at(branch.then):
        _read_rows(maker, found)
        b.add(Yield(tuple(maker.get(v) for _, v in sums)))
    maker.map = saved
    with b.at(branch.orelse):
        b.add(Yield(before))
    maker.map.update((v, r) for (_, v), r in zip(sums, branch.results, strict=True))


def _read_rows(maker: ConsumerLoop, found: DotLoop) -> None:
    """The tiles, and what is made of them."""
    saved = dict(maker.map)
    for item in found.loads:
        if any(u in found.beside for u in maker.readers.get(item.op.id, ())):
            slot = maker.get(item.op.result)
            maker.map[item.op.result] = maker.b.value(Read(slot), item.name)
    for op in found.loop.body.ops:
        if op.id in found.beside:
            with maker.b.located(op.loc):
                _clone(maker, op)
            saved.update((r, maker.map[r]) for r in op.results)
    maker.map = saved


def _clone(maker: ConsumerLoop, op: Op) -> None:
    """Clones one op; a thread adds up its elements one after the other.

    That takes the fewest instructions: a product and its addition are one.
    """
    if isinstance(op, Reduce) and op.kind == "sum" and len(op.inputs) == 1:
        maker.b.add(clone_op(op, maker.map, chains=1))
    else:
        maker.clone(op)
