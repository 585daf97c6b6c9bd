"""Elements of register tiles: their registers and coordinates in a loop over registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import index_map
from tiledsl.codegen.indexing import thread_part
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Value
from tiledsl.ir.ops.tile import tile_type

INDEX = "i"


@dataclass(frozen=True)
class MapContext:
    """A loop over registers.

    Or a lambda that gives one element and a loop over groups of registers.

    name, element: the result and the lambda. group: registers that are packed at once. pins: `keep`
    statements or "". whole: what holds in a warp without an edge. word, reads: the shift of what
    the loop reads from shared memory, and what reads it. unless: a tile of which not all elements
    are one where the loop runs. unroll: what follows `#pragma unroll`.
    """

    before: str
    count: int
    body: str
    pins: str = ""
    name: str = ""
    element: str = ""
    group: int = 1
    arguments: str = ""
    variant: str = ""
    skip: str = ""
    only: str = ""
    unless: str = ""
    unroll: str = ""
    whole: str = ""
    word: str = ""
    reads: str = ""


def register_index(e: Emission, layout: Layout, value: Value, follows: Sequence[int | None]) -> str:
    """Register of a tile that goes with register `i` of a layout.

    A table is declared where no formula fits.
    """
    where = index_map(layout, e.layout(tile_type(value, "map")), follows, INDEX)
    if not where.table:
        return where.text
    name = e.names.fresh("register_of")
    e.before(f"constexpr int {name}[] = {{{', '.join(map(str, where.table))}}};")
    return f"{name}[{INDEX}]"


def element(e: Emission, value: Value, index: str) -> str:
    """An element of a tile, to compute with."""
    is_small = is_packed(tile_type(value, "map").dtype)
    return f"{e.text(value)}.get({index})" if is_small else f"{e.text(value)}[{index}]"


def thread_coordinate(
    e: Emission, layout: Layout, dim: int, stem: str, *, base: str = "", own_group: bool = False
) -> str:
    """The part of a coordinate that does not change from register to register.

    A variable, `base` or nothing.
    """
    part = thread_part(layout, dim, e.place.num_warps, own_group=own_group, joins=e.place.is_plain)
    if not part:
        return base
    e.use_in(part)
    name = e.names.fresh(stem)
    prefix = f"{base} + " if base else ""
    e.before(f"const int {name} = {prefix}(int)({part});")
    return name


def add(*terms: str) -> str:
    """A sum without its empty terms."""
    return " + ".join(t for t in terms if t) or "0"


def dim_name(dim: int, rank: int) -> str:
    """Stem of a coordinate's name."""
    return ("row", "col")[dim] if rank == 2 else "at" if rank == 1 else f"at{dim}"
