"""`tl.auto` constexprs: values to look at a kernel with, dots, and grids that go with them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass

from tiledsl.errors import LaunchError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.types import TileType

PROBE = {"M": 128, "N": 128, "K": 64}


def probe_constants(constants: Mapping[str, object]) -> dict[str, object]:
    """Constexpr values to look at a kernel with: something for those that are `tl.auto`."""
    return {k: AutoInt(_first(k, v), k) if isinstance(v, Auto) else v for k, v in constants.items()}


def _first(name: str, auto: Auto) -> int:
    if auto.choices:
        return auto.choices[0]
    upper = name.upper()
    for letter, value in PROBE.items():
        if letter in upper.replace("BLOCK", "").replace("SIZE", "").replace("TILE", ""):
            return value
    return 128


class _Noted(UserDict[str, object]):
    """Constants that note which of them are read."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.read: set[str] = set()
        super().__init__(values)

    def __getitem__(self, name: str) -> object:
        self.read.add(name)
        return super().__getitem__(name)


def constants_read(
    grid: Callable[[Mapping[str, object]], object], constants: Mapping[str, object]
) -> set[str]:
    """The names of the constants that a grid function reads."""
    noted = _Noted(constants)
    grid(noted)
    return noted.read


@dataclass(frozen=True)
class Picked:
    """What the work of a program has to do with the constexprs that the compiler picks.

    sharing: those that say how much of it a program does.
    alone: those that nothing but how much is loaded and stored at once follows from, not even the
    grid.
    suits_any: any number of programs does all the work.
    """

    sharing: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    suits_any: bool = False


def check_grid(graph: TileGraph, autos: set[str], *, fixed_grid: bool) -> None:
    """Refuses a grid that cannot follow the tile that is picked.

    fixed_grid: it is a tuple, numbers that do not depend on constexprs.

    Raises:
        LaunchError: a `tl.auto` constexpr is how much a program has of something that no other
            program and no loop goes on with. Or the grid is a tuple, and such a constexpr is how
            many rows or columns of a dot a program computes, or says how the number of a program
            leads to its work; unless any number of programs does all the work.
    """
    picked: Picked = graph.facts.get("picked", Picked())
    if picked.alone:
        name = picked.alone[0]
        raise LaunchError(
            f"{name} is picked by the compiler (tl.auto), and says only how large tiles are: what "
            "does not fit in a tile would be left out",
            hint=f"give a value for {name}, such as {name}=tl.next_power_of_2(n)",
        )
    if not (fixed_grid and autos) or picked.suits_any:
        return
    dims = auto_dims(graph, autos)
    tiles = [name for name, letters in dims.items() if letters in (("M",), ("N",))]
    tiles += [name for name in picked.sharing if name not in tiles]
    if tiles:
        raise LaunchError(
            f"grid: {' and '.join(tiles)} {'are' if tiles[1:] else 'is'} picked by the compiler "
            "(tl.auto), so a tuple cannot say how many programs there are",
            hint="give a function, "
            + "grid = lambda meta: (tl.cdiv(M, meta['BM']), ...)".replace("BM", tiles[0]),
        )


def auto_dims(graph: TileGraph, autos: set[str]) -> dict[str, tuple[str, ...]]:
    """Which dimensions (M, N, K) of the dots each auto constexpr is."""
    out: dict[str, set[str]] = {}
    for dot in graph.find(Dot):
        a, b = dot.a.type, dot.b.type
        assert isinstance(a, TileType)
        assert isinstance(b, TileType)
        for letter, extent in (
            ("M", a.shape[0]),
            ("K", a.shape[1]),
            ("K", b.shape[0]),
            ("N", b.shape[1]),
        ):
            if isinstance(extent, AutoInt) and extent.name in autos:
                out.setdefault(extent.name, set()).add(letter)
    return {name: tuple(sorted(dims)) for name, dims in out.items()}
