"""Tiles to price: what the free dimensions of the dots may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiledsl.ir.markers import Auto
from tiledsl.ws.kernel_shape import KernelShape
from tiledsl.ws.tile_problem import FEW_ROWS

ALL_M = (8, 16, 32, 64, 128, 192, 256)
ALL_N = (8, 16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)


@dataclass(frozen=True)
class TileChoices:
    """What decides which tiles are priced.

    autos: the `tl.auto` constexprs, and dims: which dimensions of the dots each of them is.
    probe_tile: (M, N, K) that the kernel was looked at with. rows: per operand, those that all
    programs load together, 0 where the host cannot tell.
    """

    shape: KernelShape
    autos: Mapping[str, Auto]
    dims: Mapping[str, tuple[str, ...]]
    probe_tile: tuple[int, int, int]
    rows: tuple[float, float]

    def constants_of(self, tile: tuple[int, int, int]) -> dict[str, int]:
        """Values of the auto constexprs for a tile."""
        at = dict(zip("MNK", tile, strict=True))
        return {name: at[dims[0]] for name, dims in self.dims.items()}

    def tiles(self) -> list[tuple[int, int, int]]:
        """Tiles to price: all combinations of the free dimensions."""
        free: dict[str, tuple[int, ...]] = {}
        for name, dims in self.dims.items():
            for d in dims:
                choices = self.autos[name].choices or self.default_choices(d)
                free[d] = choices if d not in free else tuple(c for c in free[d] if c in choices)
        M, N, K = (free.get(d, (n,)) for d, n in zip("MNK", self.probe_tile, strict=True))
        out = [(m, n, k) for m in M for n in N for k in K]
        if "K" in free:
            out = [t for t in out if t[2] * self.row_itemsize <= self.longest_row_bytes(t[0])]
        if any(len(dims) > 1 for dims in self.dims.values()):
            out = [t for t in out if self.consistent(t)]
        return out

    @property
    def row_itemsize(self) -> int:
        """Bytes of an element by which the extent of K is picked: of the one that is made."""
        return self.shape.itemsizes[0] if self.shape.made is not None else self.shape.itemsize

    def longest_row_bytes(self, M: int) -> int:
        """Of K in a slot. Longer rows pay where little is computed on them."""
        if M <= 32:
            return 512
        return 256 if M <= FEW_ROWS and 0 < self.rows[0] <= FEW_ROWS else 128

    def consistent(self, tile: tuple[int, int, int]) -> bool:
        at = dict(zip("MNK", tile, strict=True))
        return all(len({at[d] for d in dims}) == 1 for dims in self.dims.values())

    def default_choices(self, dim: str) -> tuple[int, ...]:
        s = self.shape
        if dim == "K":
            short = s.made is not None and not any(0 < n <= FEW_ROWS for n in self.rows)
            rows = (64, 128, 256) if short else (128, 256, 512)
            return tuple(n // self.row_itemsize for n in rows)
        side = 0 if dim == "M" else 1
        listed = ALL_M if dim == "M" else ALL_N
        if s.mn_major[side]:
            return tuple(n for n in listed if n % 64 == 0)
        # Few rows, which one tile takes as they are: 48 of them, not 64.
        few = -(-int(self.rows[side]) // 8) * 8
        return (*listed, few) if 0 < few < FEW_ROWS and few not in listed else listed
