"""Tiles that lie alike, and how a layout passes from one side of an op to the other.

Values that an elementwise op, a loop or a branch ties together share one layout; shape ops
(broadcast, expand_dims, transpose) carry it to the other side.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tile_moves
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.ops.mma_warp import WarpDot
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.scan import Scan
from tiledsl.ir.ops.tile_asm import InlineAsm
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import access_of
from tiledsl.ws.access_layouts import anchor
from tiledsl.ws.free import FreeTiles
from tiledsl.ws.free import is_elementwise
from tiledsl.ws.links import Link


class Groups:
    """Union-find over tile values; each group has at most one layout."""

    def __init__(self) -> None:
        self.parent: dict[Value, Value] = {}
        self.layout: dict[Value, Layout] = {}

    def root(self, v: Value) -> Value:
        self.parent.setdefault(v, v)
        while self.parent[v] is not v:
            self.parent[v] = self.parent[self.parent[v]]
            v = self.parent[v]
        return v

    def tie(self, a: Value, b: Value) -> None:
        ra, rb = self.root(a), self.root(b)
        if ra is not rb:
            self.parent[rb] = ra

    def tied(self, a: Value, b: Value) -> bool:
        """Whether two values lie alike."""
        return self.root(a) is self.root(b)

    def get(self, v: Value) -> Layout | None:
        return self.layout.get(self.root(v))

    def among(self, values: list[Value]) -> dict[Value, set[Value]]:
        """Some values by the root of their group."""
        out: dict[Value, set[Value]] = {}
        for v in values:
            out.setdefault(self.root(v), set()).add(v)
        return out

    def offer(self, v: Value, layout: Layout) -> bool:
        """Sets a group's layout unless it has one; True when it did."""
        root = self.root(v)
        if root in self.layout:
            return False
        self.layout[root] = layout
        return True


def is_tile(v: Value) -> bool:
    """Whether a value is a tile in registers."""
    return isinstance(v.type, TileType)


def ties(op: Op, free: FreeTiles) -> Iterator[tuple[Value, Value]]:  # noqa: C901 - a case per op
    """Pairs of values of an op that must lie alike."""
    if isinstance(op, For):
        end = yielded(op.body)
        for init, arg, nxt, res in zip(op.init, op.carried, end, op.results, strict=True):
            yield from ((arg, init), (arg, nxt), (arg, res))
    elif isinstance(op, If):
        for i, res in enumerate(op.results):
            yield from ((res, yielded(op.then)[i]), (res, yielded(op.orelse)[i]))
    elif isinstance(op, While):
        for i, res in enumerate(op.results):
            before = yielded(op.before)[i + 1]
            yield from ((res, op.init[i]), (res, op.before.args[i]), (res, before))
            yield from ((res, op.body.args[i]), (res, yielded(op.body)[i]))
    elif isinstance(op, mma.Issue | mma.ClusterReduce | mma.Dot | WarpDot):
        yield (op.results[0], op.acc)
    elif isinstance(op, mma.Wait):
        yield from zip(op.results, op.accs, strict=True)
    elif isinstance(op, mma.Spread):
        yield (op.results[0], op.a)
    elif isinstance(op, Reduce):
        yield from ((op.inputs[0], v) for v in op.inputs[1:])
    elif isinstance(op, Scan):
        yield from ((op.inputs[0], v) for v in (*op.inputs[1:], *op.results))
    elif isinstance(op, InlineAsm):
        yield from ((op.args[0], v) for v in (*op.args[1:], *op.results))
    elif isinstance(op, tile_moves.Join):
        yield (op.a, op.b)
    elif isinstance(op, tile_moves.Split | tile_moves.Unstack):
        yield from ((op.results[0], v) for v in op.results[1:])
    elif isinstance(op, tile_moves.Stack):
        yield from ((op.parts[0], v) for v in op.parts[1:])
    elif isinstance(op, tile_moves.Gather):
        yield (op.index, op.result)
    elif isinstance(op, tile_moves.Histogram) and op.mask is not None:
        yield (op.a, op.mask)
    elif is_elementwise(op) or access_of(op) is not None:
        tiles = _places(op, free)
        yield from ((tiles[0], v) for v in tiles[1:])


def _places(op: Op, free: FreeTiles) -> list[Value]:
    """Tiles of an elementwise op or an access that lie alike: those that are not made anew."""
    access = access_of(op)
    fixed = anchor(access) if access is not None else None
    tiles = [v for v in (*op.operands, *op.results) if is_tile(v)]
    return [v for v in tiles if v is fixed or not free(v)]


def _derive(link: Link, groups: Groups) -> bool:
    """Carries a layout from one side of a link to the other; True when a new one was set."""
    inner, out = groups.get(link.operand), groups.get(link.result)
    if out is not None and inner is None and link.up is not None:
        found = link.up(out)
        return found is not None and groups.offer(link.operand, found)
    if inner is not None and out is None and link.down is not None:
        found = link.down(inner)
        return found is not None and groups.offer(link.result, found)
    return False


def propagate(open_links: list[Link], groups: Groups) -> None:
    """Derives layouts until nothing new follows; links with both sides known are taken out."""
    for _ in range(len(open_links) + 1):
        # Every link derives what it can: no short cut.
        if not sum([_derive(link, groups) for link in open_links]):
            break
    open_links[:] = [
        k for k in open_links if groups.get(k.operand) is None or groups.get(k.result) is None
    ]
