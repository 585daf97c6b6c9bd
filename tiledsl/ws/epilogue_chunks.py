"""A stored tile made chunk by chunk, so that an epilogue takes few registers beside accumulators.

The loop that makes the tile is repeated for each chunk. Where it reads an accumulator that nobody
reads afterwards, its results take the accumulator's place before they are rounded, and the blocks
that only it reads are loaded with the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import register_shift
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.ops.tile import Shift
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.code_size import LONG_CODE
from tiledsl.ws.code_size import code_size
from tiledsl.ws.epilogue_channel import StreamedTiles
from tiledsl.ws.stores import StoreGeometry

LOADS_OF_CHUNK = 4
"""Parts in which the blocks that are read with a chunk are loaded."""
MAX_VECTOR = 16
"""Elements of the longest vector access."""
HELD_AHEAD = 16
"""Elements of a block that a thread loads before the chunk that reads them."""


class ChunkedValue:
    """The value of one staged store, chunk after chunk.

    written: tensors that the kernel stores to. streamed: tiles that come through a channel.
    own: warpgroups hold parts of the tile. in_place:
    results take the place of the accumulator; else each chunk is made beside it.
    """

    def __init__(
        self,
        graph: TileGraph,
        op: tma.StoreTile,
        geometry: StoreGeometry,
        written: set[Value],
        streamed: StreamedTiles | None = None,
        *,
        own: bool,
        in_place: bool,
    ) -> None:
        self.graph = graph
        self.written = written
        self.streamed = streamed
        self.op = op
        self.geometry = geometry
        self.own = own
        made = op.value.defining_op
        is_loop = isinstance(made, Map) and made.parent is op.parent and len(made.results) == 1
        is_loop = is_loop and op.chunk < 0 and len(graph.users(op.value)) == 1
        self.map: Map | None = made if is_loop and isinstance(made, Map) else None
        self.place = self.overwritten(self.map) if self.map is not None and in_place else -1
        self.loads: dict[Value, Load] = {}
        self.column: Value | None = None
        self.ahead: dict[Value, Value] = {}
        if self.map is None or self.place < 0:
            return
        layout = self.map.layout
        assert layout is not None
        if self.is_apart(layout, self.step):
            self.loads = {v: o for v in self.map.inputs if (o := self.sinks(self.map, v))}
        if not self.loads and not self.is_apart(layout, geometry.width):
            self.place = -1
            return
        self.acc = self.map.inputs[self.place]

    # ------------------------------------------------------------------ chunks in a rolled loop
    @property
    def rolls(self) -> bool:
        """Whether one copy of the code serves all chunks, after each of which registers move down.

        Code that runs once for each tile keeps the wgmmas of the other warpgroup back: with gelu in
        straight code 8192 x 8192 x 4096 is 0.969 of the product alone, in a loop 0.984.
        """
        g, loop = self.geometry, self.map
        if loop is None or self.place < 0 or self.streamed is not None or g.num_chunks < 2:
            return False
        type_ = self.acc.type
        assert isinstance(type_, TileType)
        if type_.layout is None or g.part[g.major] % g.width or type_.shape[g.major] % g.width:
            return False
        if register_shift(type_.layout, type_.shape, g.major, g.width) is None:
            return False
        others = [v for i, v in enumerate(loop.inputs) if i != self.place and v not in self.loads]
        if any(g.major in loop.follows[loop.inputs.index(v)] for v in others):
            return False  # nothing moves its registers
        return code_size(loop) >= LONG_CODE

    def loaded_ahead(self, b: Builder, column: Value | None) -> dict[Value, Value]:
        """Blocks of few registers, of the chunk that begins with a column (None: the first)."""
        loop, g = self.map, self.geometry
        assert loop is not None
        box = (g.start(0), g.chunk_shape)
        made: dict[Value, Value] = {}
        self.column = column
        for v, load in self.loads.items():
            follows = loop.follows[loop.inputs.index(v)]
            type_ = v.type
            assert isinstance(type_, TileType)
            assert type_.layout is not None
            held = touched(type_.layout, *self.box_of(follows, box), own=self.own)[0].sum()
            if held <= HELD_AHEAD:
                made[v] = self.loaded(b, load, follows, box)
        return made

    def rolled(self, b: Builder, column: Value, acc: Value, ahead: dict[Value, Value]) -> Value:
        """What the registers of the first chunk hold, made of the sums of the chunk at `column`."""
        self.column, self.acc, self.ahead = column, acc, ahead
        return self.in_place(b, 0, (self.geometry.start(0), self.geometry.chunk_shape))

    def shifted(self, b: Builder) -> Value:
        """The sums with those of the next chunk in the registers of the first."""
        return b.value(Shift(self.acc, self.geometry.major, self.geometry.width))

    def value(self, b: Builder, chunk: int) -> Value:
        """What the registers of a chunk hold: the whole tile, or one with only these made."""
        if self.map is None:
            return self.op.value
        box = (self.geometry.start(chunk), self.geometry.chunk_shape)
        if self.place < 0:
            part = clone_op(self.map, {}, part=box, part_of_warpgroup=self.own)
            b.add(part)
            return part.results[0]
        return self.in_place(b, chunk, box)

    def finish(self) -> None:
        """Erases what the chunks replace."""
        if self.map is not None and not self.graph.has_uses(self.map.results[0]):
            self.graph.erase(self.map)
        for load in self.loads.values():
            if not self.graph.has_uses(load.result):
                self.graph.erase(load)

    # ------------------------------------------------------------------ in place of an accumulator
    def boxes(self, step: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(start, extents) of parts of so many columns."""
        g = self.geometry
        for at in range(0, g.part[g.major], step):
            count = min(step, g.part[g.major] - at)
            shape = (g.rows, count) if g.major == 1 else (count, g.rows)
            yield ((0, at) if g.major == 1 else (at, 0)), shape

    def is_apart(self, layout: Layout, step: int) -> bool:
        """Whether no register has elements of two such parts: each is made once."""
        return all(touched(layout, *box, own=self.own)[1] for box in self.boxes(step))

    def overwritten(self, loop: Map) -> int:
        """The input whose place the loop's results can take, -1 for none."""
        if loop.layout is None or len(loop.body.ops) <= 2:  # a cast alone
            return -1
        end = loop.body.terminator
        assert isinstance(end, Yield)
        result = end.values[0]
        last = result.defining_op
        wide = last.a if isinstance(last, Cast) else result
        if wide.type != ScalarType(float32) or wide in loop.body.args:
            return -1
        for i, v in enumerate(loop.inputs):
            same = loop.follows[i] == tuple(range(len(loop.shape)))
            type_ = v.type
            if not same or not isinstance(type_, TileType) or type_.layout != loop.layout:
                continue
            if type_.dtype == float32 and self.dies_with(loop, v):
                return i
        return -1

    def dies_with(self, loop: Map, v: Value) -> bool:
        """Whether nobody reads a value after the loop; in a loop around it others may."""
        assert loop.parent is not None
        ops = loop.parent.ops
        if isinstance(v.owner, Op) and v.owner.parent is not loop.parent:
            return False
        at = ops.index(loop)
        users = [u.op for u in self.graph.users(v)]
        return all(u is loop or (u.parent is loop.parent and ops.index(u) < at) for u in users)

    def in_place(self, b: Builder, chunk: int, box: tuple[tuple[int, ...], ...]) -> Value:
        """The results of a chunk over the accumulator, then rounded."""
        loop, g = self.map, self.geometry
        assert loop is not None
        first = chunk * g.width
        end = min(first + g.width, g.part[g.major])
        step = self.step if self.loads else g.width
        narrow: Cast | None = None
        if self.streamed is not None:
            self.streamed.begin(b, g.start(chunk)[g.major])
        for at in range(first, end, step):
            narrow = self.compute(b, loop, at, min(step, end - at))
        if self.streamed is not None:
            self.streamed.end(b)
        return self.rounded(b, narrow, box) if narrow is not None else self.acc

    def compute(self, b: Builder, loop: Map, first: int, count: int) -> Cast | None:
        """Makes some columns over the accumulator; the cast that rounds them, if there is one."""
        g = self.geometry
        shape = (g.rows, count) if g.major == 1 else (count, g.rows)
        start = (0, first) if g.major == 1 else (first, 0)
        inputs = list(loop.inputs)
        for i, v in enumerate(loop.inputs):
            load = self.loads.get(v)
            if v in self.ahead:
                inputs[i] = self.ahead[v]
            elif load is not None:
                inputs[i] = self.loaded(b, load, loop.follows[i], (start, shape))
        inputs[self.place] = self.acc
        wide = clone_op(
            loop, {}, inputs=tuple(inputs), out_dtypes=(float32,), part=(start, shape),
            part_of_warpgroup=self.own, in_place=self.place,
        )  # fmt: skip
        assert isinstance(wide, Map)
        place = wide.body.args[len(inputs) + g.major]
        if self.column is not None and any(place in op.operands for op in wide.body.walk()):
            wide = wide.rebuild({}, (moved_body(wide.body, place, self.column),))
            assert isinstance(wide, Map)
        narrow = self.unrounded(wide)
        type_ = loop.results[0].type
        assert isinstance(type_, TileType)
        wide.results[0].type = TileType(type_.shape, float32, type_.layout)
        b.add(wide)
        self.acc = wide.results[0]
        return narrow

    def unrounded(self, wide: Map) -> Cast | None:
        """Takes the cast off the end of a loop's body."""
        end = wide.body.terminator
        assert isinstance(end, Yield)
        cast = end.values[0].defining_op
        if not isinstance(cast, Cast):
            return None
        last = Yield((cast.a,))
        last.parent = wide.body
        wide.body.ops[-1] = last
        wide.body.ops.remove(cast)
        return cast

    def rounded(self, b: Builder, cast: Cast, box: tuple[tuple[int, ...], ...]) -> Value:
        """A loop that casts the registers of a chunk."""
        loop = self.map
        assert loop is not None
        body = Region()
        x = body.add_arg(ScalarType(float32), "x")
        for d in range(len(loop.shape)):
            body.add_arg(ScalarType(int32), f"at_{d}")
        narrow = cast.rebuild({cast.a: x})
        for op in (narrow, Yield((narrow.results[0],))):
            op.parent = body
            body.ops.append(op)
        identity = tuple(range(len(loop.shape)))
        new = Map(
            (self.acc,), loop.shape, loop.layout, (identity,), loop.out_dtypes, body=body,
            part=box, part_of_warpgroup=self.own, names=(loop.results[0].name,),
        )  # fmt: skip
        b.add(new)
        return new.results[0]

    # ------------------------------------------------------------------ blocks read with a chunk
    def sinks(self, loop: Map, v: Value) -> Load | None:
        """The load of a block that only this loop reads and that can be cut into chunks."""
        load = v.defining_op
        if not isinstance(load, Load) or load.parent is not loop.parent:
            return None
        if any(u.op is not loop for u in self.graph.users(v)):
            return None
        if not self.written.isdisjoint(tensors_of(load.tensor)):
            return None
        type_ = v.type
        assert isinstance(type_, TileType)
        if type_.layout is None:
            return None
        follows = loop.follows[loop.inputs.index(v)]
        parts = [self.box_of(follows, box) for box in self.boxes(self.step)]
        in_runs = all(comes_in_runs(type_.layout, *part, own=self.own) for part in parts)
        return load if in_runs else None

    @property
    def step(self) -> int:
        """Columns that are loaded at once, so that few registers are in flight."""
        return max(8, self.geometry.width // LOADS_OF_CHUNK)

    def box_of(
        self, follows: tuple[int | None, ...], box: tuple[tuple[int, ...], ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The part of an input that a part of the loop reads."""
        start = tuple(0 if d is None else box[0][d] for d in follows)
        return start, tuple(1 if d is None else box[1][d] for d in follows)

    def loaded(
        self,
        b: Builder,
        load: Load,
        follows: tuple[int | None, ...],
        box: tuple[tuple[int, ...], ...],
    ) -> Value:
        part = self.box_of(follows, box)
        if load.streamed and self.streamed is not None:
            return self.streamed.read(b, load, part[0][1], part[1][1])
        new = clone_op(load, {}, part=part, part_of_warpgroup=self.own)
        if self.column is not None:
            new = clone_op(
                load,
                {},
                part=part,
                part_of_warpgroup=self.own,
                offsets=self.moved(b, load, follows),
            )
        b.add(new)
        return new.results[0]

    def moved(self, b: Builder, load: Load, follows: tuple[int | None, ...]) -> tuple[Value, ...]:
        """The offsets of a block for the chunk at `column`."""
        assert self.column is not None
        kept = [d for d in range(len(load.offsets)) if d not in load.squeeze]
        offsets = list(load.offsets)
        for d, along in zip(kept, follows, strict=True):
            if along == self.geometry.major:
                offsets[d] = moved_by(b, offsets[d], self.column)
        return tuple(offsets)


def moved_by(b: Builder, at: Value, distance: Value) -> Value:
    """A coordinate and an i32 distance."""
    assert isinstance(at.type, ScalarType)
    if at.type.dtype != int32:
        distance = b.value(Cast(distance, at.type.dtype))
    return b.value(Add(at, distance))


def moved_body(body: Region, place: Value, distance: Value) -> Region:
    """A copy of a loop's body in which a coordinate is a distance further on."""
    new = Region()
    mapping: dict[Value, Value] = {}
    for arg in body.args:
        mapping[arg] = new.add_arg(arg.type, arg.name)
    total = Add(mapping[place], distance)
    mapping[place] = total.result
    for op in (total, *(clone_op(op, mapping) for op in body.ops)):
        op.parent = new
        new.ops.append(op)
    return new


def comes_in_runs(
    layout: Layout, start: tuple[int, ...], shape: tuple[int, ...], *, own: bool
) -> bool:
    """Whether the registers of a box come in whole vectors of any access."""
    runs = touched(layout, start, shape, own=own)[0].reshape(-1, longest_vector(layout))
    return bool((runs.all(axis=1) | ~runs.any(axis=1)).all())


def touched(
    layout: Layout, start: tuple[int, ...], shape: tuple[int, ...], *, own: bool
) -> tuple[np.ndarray, bool]:
    """Which registers have elements of a box, and whether they have no others."""
    coords = layout.coords()
    if own:
        coords = coords[:4]
    low, high = coords.min(axis=(0, 1)), coords.max(axis=(0, 1))
    first, last = np.asarray(start), np.asarray(start) + np.asarray(shape)
    found = ((high >= first) & (low < last)).all(axis=1)
    return found, bool(((low >= first) & (high < last))[found].all())


def longest_vector(layout: Layout) -> int:
    """How many registers a vector has at most, along one dimension."""
    width, coords = 1, layout.coords()[0, 0]
    while width < MAX_VECTOR and len(coords) % (2 * width) == 0:
        groups = coords.reshape(-1, 2 * width, coords.shape[-1])
        steps = np.diff(groups, axis=1)
        one = steps.sum(axis=-1) == 1
        if not (one.all() and (np.abs(steps).sum(axis=-1) == 1).all()):
            break
        width *= 2
    return width
