"""Fuses elementwise tile ops into `tile.map` loops.

Intermediate tiles then never exist as register arrays. A tile op joins the loop of its users when
all of them are in one loop; otherwise it is the root of a loop of its own. Splats, aranges and
broadcasts are read inside the loops (scalar, coordinate, other index) and never materialised unless
something that is no loop needs them.
"""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.ir.analysis.affine import inner_dims
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.pointer import Lanes
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.free import VIEWS
from tiledsl.ws.free import FreeTiles
from tiledsl.ws.free import is_elementwise
from tiledsl.ws.index_masks import mask_parts
from tiledsl.ws.index_masks import short_mask


def _fusable(op: Op) -> bool:
    return is_elementwise(op) or isinstance(op, VIEWS)


DEEPEST = 32
"""Elements that are made of each other by recursion."""


class LoopBody:
    """The body of one loop over registers under construction.

    type: the iteration space. members: ops that the loop computes itself. facts: of the indexes,
    where these are known. shortens_masks: whether bounds on indexes become counts.
    """

    shortens_masks = True

    def __init__(
        self,
        graph: TileGraph,
        type_: TileType,
        members: set[int],
        facts: AxisFacts | None = None,
    ) -> None:
        self.graph = graph
        self.facts = facts
        self.free = FreeTiles()
        self.members = members
        self.type = type_
        self.inputs: dict[tuple[Value, tuple[int | None, ...]], Value] = {}
        self.body = Region()
        self.coords: dict[int, Value] = {}
        self.memo: dict[tuple[Value, tuple[int | None, ...]], Value] = {}
        self._depth = 0

    def add(self, op: Op) -> Value:
        self.body.ops.append(op)
        op.parent = self.body
        return op.result

    def scalar(self, v: Value, dims: tuple[int | None, ...]) -> Value:
        """The element of `v` at the loop's position; dims maps v's dimensions to the loop's."""
        key = (v, dims)
        if key not in self.memo:
            if self._depth >= DEEPEST:
                self._make_operands(v, dims)
            self._depth += 1
            self.memo[key] = self._make(v, dims)
            self._depth -= 1
        return self.memo[key]

    def _make_operands(self, v: Value, dims: tuple[int | None, ...]) -> None:
        """Makes the elements that one is made of, in front of it and without recursion."""
        todo = [(v, dims)]
        while todo:
            missing = [key for key in self._sources(*todo[-1]) if key not in self.memo]
            if missing:
                todo += reversed(missing)
                continue
            key = todo.pop()
            if todo and key not in self.memo:
                self.memo[key] = self._make(*key)

    def _sources(
        self, v: Value, dims: tuple[int | None, ...]
    ) -> list[tuple[Value, tuple[int | None, ...]]]:
        """The elements that one is made of, each with its dimensions."""
        op = v.defining_op
        if isinstance(op, tile.Broadcast | tile.ExpandDims | tile.Transpose):
            return [(op.a, inner_dims(op, dims))]
        if op is None or not is_elementwise(op) or not self.makes(op):
            return []
        parts = mask_parts(self, v, dims) if self.shortens_masks else None
        if parts is not None:
            return parts
        return [(u, dims) for u in op.operands if isinstance(u.type, TileType)]

    def _make(self, v: Value, dims: tuple[int | None, ...]) -> Value:
        op = v.defining_op
        if not isinstance(v.type, TileType):
            return self._input(v, ())
        if isinstance(op, tile.Splat):
            return self._input(op.a, ())
        if isinstance(op, tile.Arange) and dims[0] is not None:
            at = self.coordinate(dims[0])
            if op.start == 0:
                return at
            return self.add(Add(at, self.add(Constant(op.start, int32))))
        if isinstance(op, tile.Broadcast | tile.ExpandDims | tile.Transpose):
            return self.scalar(op.a, inner_dims(op, dims))
        if op is not None and is_elementwise(op) and self.makes(op):
            return self._elementwise(op, dims)
        return self._input(v, dims)

    def _elementwise(self, op: Op, dims: tuple[int | None, ...]) -> Value:
        """The element of an elementwise op's result."""
        short = short_mask(self, op.results[0], dims) if self.shortens_masks else None
        if short is not None:
            return short
        if isinstance(op, Hint):  # of a tile's dimensions, and not of each of its elements
            return self.scalar(op.a, dims)
        args = {
            u: self.scalar(u, dims if isinstance(u.type, TileType) else ()) for u in op.operands
        }
        return self.add(op.rebuild(args))

    def makes(self, op: Op) -> bool:
        """Whether the loop has the elements of an elementwise op without reading its result."""
        return self.inlines(op) or self.free(op.result)

    def inlines(self, op: Op) -> bool:
        """Whether the loop computes an elementwise op itself."""
        return op.id in self.members

    def coordinate(self, dim: int) -> Value:
        """The coordinate along a dimension of the iteration space."""
        return self.coords.setdefault(dim, Value(ScalarType(int32), self.body, dim, f"at_{dim}"))

    def _input(self, v: Value, dims: tuple[int | None, ...]) -> Value:
        key = (v, dims)
        if key not in self.inputs:
            dtype = v.type.dtype if isinstance(v.type, TileType | ScalarType) else int32
            self.inputs[key] = Value(ScalarType(dtype), self.body, len(self.inputs), v.name)
        return self.inputs[key]

    def finish(self, root: Op) -> tile.Map:
        identity = tuple(range(self.type.rank))
        result = self.scalar(root.result, identity)
        end = Yield((result,))
        self.body.ops.append(end)
        end.parent = self.body
        self.number_arguments()
        return tile.Map(
            tuple(v for v, _ in self.inputs),
            self.type.shape,
            self.type.layout,
            tuple(d for _, d in self.inputs),
            (self.type.dtype,),
            body=self.body,
            loc=root.loc,
            names=(root.result.name,),
        )

    def number_arguments(self) -> None:
        """Gives the body its arguments: elements of the inputs, then the coordinates."""
        i32 = ScalarType(int32)
        args = list(self.inputs.values())
        args += [
            self.coords.get(dim) or Value(i32, self.body, 0, f"at_{dim}")
            for dim in range(self.type.rank)
        ]
        for i, a in enumerate(args):
            a.index = i
        self.body.args = args


def fuse_elementwise(graph: TileGraph, region: Region, facts: AxisFacts | None = None) -> int:
    """Replaces the tile math under `region` by maps; returns how many there are.

    facts: of the indexes, by which elements of a mask share a comparison.
    """
    count = 0
    for op in list(region.ops):
        for inner in op.regions:
            if not isinstance(op, tile.Map | Lanes):
                count += fuse_elementwise(graph, inner, facts)
    return count + _fuse_block(graph, region, facts)


def _fuse_block(graph: TileGraph, region: Region, facts: AxisFacts | None) -> int:
    owner: dict[int, int] = {}
    members: dict[int, set[int]] = {}
    roots: list[Op] = []
    segment = _segments(region)
    free = FreeTiles()
    for op in reversed(list(region.ops)):
        if not _fusable(op):
            continue
        users = [u.op for u in graph.users(op.result)]
        homes = {owner.get(u.id) if _near(op, u, region, segment) else None for u in users}
        shape = tile.tile_type(op.result, "fuse").shape
        same_space = all(
            isinstance(u, VIEWS) or tile.tile_type(u.result, "fuse").shape == shape
            for u in users
            if _fusable(u)
        )
        if isinstance(op, VIEWS) or free(op.result):
            if all(_fusable(u) or isinstance(u, tile.Map) for u in users) and None not in homes:
                owner[op.id] = next(iter(homes)) if len(homes) == 1 else -1  # type: ignore[assignment]
                continue
        elif (
            len(homes) == 1
            and None not in homes
            and -1 not in homes
            and (_is_index(op) or _widens_row(op) or (same_space and not _through_view(users)))
        ):
            home = next(iter(homes))
            assert home is not None
            owner[op.id] = home
            members[home].add(op.id)
            continue
        owner[op.id] = op.id
        members[op.id] = {op.id}
        roots.append(op)
    for root in reversed(roots):
        assert isinstance(root.result.type, TileType)
        loop = LoopBody(graph, root.result.type, members[root.id], facts)
        is_free = free(root.result)
        made = loop.finish(root)
        if not is_free:
            graph.replace_op(root, made)
            continue
        # Loops go on to make it themselves, at their own places.
        graph.insert_before(root, made)
        loops = [u.op for u in graph.users(root.result) if _fusable(u.op)]
        graph.replace_uses(root.result, made.results[0], keep=loops)
    _drop_dead(graph, region)
    return len(roots)


def _segments(region: Region) -> dict[int, int]:
    """The number of synchronising ops before each op: math stays on its side of a wait."""
    out: dict[int, int] = {}
    count = 0
    for op in region.ops:
        count += op.effect is Effect.SYNC
        out[op.id] = count
    return out


def _near(op: Op, user: Op, region: Region, segment: dict[int, int]) -> bool:
    """Whether a user may take an op into its loop: same block, no synchronisation in between."""
    if user.parent is not region:
        return False
    if isinstance(op, VIEWS) or segment[op.id] == segment[user.id]:
        return True
    return _is_index(op)


def _widens_row(op: Op) -> bool:
    """A cast of a loaded row or column to a wider dtype: the narrow row takes fewer registers."""
    if not isinstance(op, Cast) or not isinstance(op.a.defining_op, Load):
        return False
    source, target = op.a.type, op.result.type
    assert isinstance(source, TileType)
    assert isinstance(target, TileType)
    long = [n for n in source.shape if n > 1]
    return len(long) <= 1 and target.dtype.bits > source.dtype.bits


def _is_index(op: Op) -> bool:
    """Masks and indexes cost less to make where they are used than to keep in registers."""
    type_ = op.results[0].type
    return isinstance(type_, TileType) and not type_.dtype.is_float


def _through_view(users: list[Op]) -> bool:
    return any(isinstance(u, tile.Broadcast | tile.ExpandDims) for u in users)


def _drop_dead(graph: TileGraph, region: Region) -> None:
    for op in reversed(list(region.ops)):
        if _fusable(op) and not graph.has_uses(op.result):
            graph.erase(op)
