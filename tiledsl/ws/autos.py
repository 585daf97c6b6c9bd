"""`tl.auto` constexprs: values to look at a kernel with, and which dimensions of dots they are."""

from __future__ import annotations

from collections.abc import Mapping

from tiledsl.errors import LaunchError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.types import TileType
from tiledsl.ws.launch import Launch

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


def check_grid(launch: Launch, graph: TileGraph, autos: set[str]) -> None:
    """Refuses a grid that cannot follow the tile that is picked.

    Raises:
        LaunchError: the grid is a tuple, and a `tl.auto` constexpr is how many rows or columns of a
            dot a program computes, or what the number of a program is multiplied by.
    """
    if not (launch.fixed_grid and autos):
        return
    dims = auto_dims(graph, autos)
    tiles = [name for name, letters in dims.items() if letters in (("M",), ("N",))]
    tiles += [name for name in graph.facts.get("grid_factors", ()) if name not in tiles]
    if tiles:
        raise LaunchError(
            f"grid: {' and '.join(tiles)} {'are' if tiles[1:] else 'is'} picked by the compiler "
            "(tl.auto), "
            "so a tuple cannot say how many programs there are",
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
