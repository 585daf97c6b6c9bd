"""Tiles that the role of the search draws at run time: it tells with each whether there is one.

Where programs take different times, CTAs that walk in steps end at different times. The other roles
need nothing but the numbers of a tile, so that only this role has to know which one it is; the last
number of a slot tells whether tiles have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.role import DrawTile
from tiledsl.ir.ops.role import FirstTile
from tiledsl.ir.ops.role import NextTile
from tiledsl.ir.ops.role import NumTiles
from tiledsl.ir.types import ScalarType
from tiledsl.ws.handed import Handed
from tiledsl.ws.handed import Numbers
from tiledsl.ws.handed import put_numbers
from tiledsl.ws.handed import read_numbers
from tiledsl.ws.handed import room

ENDED = 1
"""The last number of a slot behind the last tile; 0 in the others."""


@dataclass(frozen=True)
class ToldTiles:
    """The loop of a role that is told of its tiles.

    fields: of the body, the numbers of a tile. carried: of the body, what else the loop carries.
    taken: what stands for the values of the tile graph.
    """

    handed: Handed
    loop: While
    body: Region
    fields: tuple[Value, ...]
    carried: tuple[Value, ...]
    taken: dict[Value, Value]

    def end(self, b: Builder, values: tuple[Value, ...] = ()) -> tuple[Value, ...]:
        """Ends the body; gives back the slot behind the last tile. Returns what was carried."""
        with b.at(self.body):
            b.add(Yield((*self.fields, *values)))
        b.add(aref.Consumed(self.handed.aref))
        return self.loop.results[len(self.fields) :]


def told_tiles(b: Builder, handed: Handed, init: tuple[Value, ...] = ()) -> ToldTiles:
    """The loop over what comes through a channel; a slot is given back before the tile's work."""
    before, body = Region(), Region()
    none = b.value(Constant(0, int32))
    names = tuple(v.name for v in handed.values)
    start = (*(none for _ in names), *init)
    loop = While(start, before=before, body=body)
    all_names = (*names, *(v.name for v in init))
    args = [before.add_arg(v.type, n) for v, n in zip(start, all_names, strict=True)]
    with b.at(before):
        read = read_numbers(b, handed)
        goes_on = b.value(Compare("ne", read[-1], b.value(Constant(ENDED, int32))), "has_tile")
        b.add(Yield((goes_on, *read[: len(names)], *args[len(names) :])))
    args = [body.add_arg(v.type, n) for v, n in zip(start, all_names, strict=True)]
    b.add(loop)
    with b.at(body):
        # After the test of the loop: the read has finished in every lane.
        b.add(aref.Consumed(handed.aref))
    fields, carried = tuple(args[: len(names)]), tuple(args[len(names) :])
    taken = dict(zip(handed.values, fields, strict=True))
    return ToldTiles(handed, loop, body, fields, carried, taken)


@dataclass(frozen=True)
class DrawnTiles:
    """The loop of the role that draws. tile: of the body."""

    numbers: Numbers
    loop: While
    body: Region
    tile: Value
    count: Value

    def put(self, b: Builder, values: dict[Value, Value], *, ended: bool = False) -> None:
        """Tells the other roles of a tile, or that there are no more."""
        for handed in (self.numbers.loads, self.numbers.consumers):
            assert handed is not None
            none = b.value(Constant(0, int32))
            found = [none if ended else values[v] for v in handed.values]
            found += [none] * (room(handed) - 1 - len(found))
            put_numbers(b, handed, [*found, b.value(Constant(ENDED if ended else 0, int32))])

    def end(self, b: Builder) -> None:
        """Draws the next tile at the end of the body: it is claimed as late as may be."""
        with b.at(self.body):
            drawn = b.value(DrawTile(), "drawn")
            b.add(Yield((b.value(NextTile(drawn, self.count), "next_tile"),)))
        self.put(b, {}, ended=True)


def drawn_tiles(b: Builder, numbers: Numbers) -> DrawnTiles:
    """The loop over the tiles that a CTA draws."""
    first = b.value(FirstTile(), "first_tile")
    count = b.value(NumTiles(), "num_tiles")
    before, body = Region(), Region()
    loop = While((first,), before=before, body=body)
    tile = before.add_arg(ScalarType(int32), "tile")
    with b.at(before):
        b.add(Yield((b.value(Compare("lt", tile, count)), tile)))
    tile = body.add_arg(ScalarType(int32), "tile")
    b.add(loop)
    return DrawnTiles(numbers, loop, body, tile, count)
