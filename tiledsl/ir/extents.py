"""Extents of tiles by the names of the `tl.constexpr` arguments that they are, for errors.

A kernel that does not fit is lowered once more with its constexprs as `NamedInt`s: the error then
says which of them make a buffer or a tile as large as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping

from tiledsl.ir.op import Value
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.types import TileType

Shape = tuple[int, ...]


class NamedInt(int):
    """The value of a constexpr; it keeps its class where it is used as a tile's extent.

    Arithmetic gives a plain int, but for a difference to 0, which `tl.arange(0, n)` takes.
    """

    name: str

    def __new__(cls, value: int, name: str) -> NamedInt:
        """An int that knows the constexpr it came from."""
        made = super().__new__(cls, value)
        made.name = name
        return made

    def __reduce__(self) -> tuple[type[NamedInt], tuple[int, str]]:
        return NamedInt, (int(self), self.name)

    def __sub__(self, other: int) -> int:
        return self if other == 0 else int(self) - other


def marked(constants: Mapping[str, object]) -> dict[str, object]:
    """Constexpr values with the integers among them named."""
    return {
        k: NamedInt(v, k) if isinstance(v, int) and not isinstance(v, bool) else v
        for k, v in constants.items()
    }


def extents(shape: Shape) -> str:
    """`128x64`."""
    return "x".join(str(int(n)) for n in shape)


def named_extents(shape: Shape) -> str:
    """`128x64`, followed by ` (BM x 64)` where an extent is known by name."""
    if not named(shape):
        return extents(shape)
    names = (n.name if isinstance(n, NamedInt | AutoInt) else str(n) for n in shape)
    return f"{extents(shape)} ({' x '.join(names)})"


def tile_shapes(*values: Value) -> tuple[Shape, ...]:
    """The shapes of those values that are tiles, each once."""
    types = [v.type for v in values]
    return tuple(dict.fromkeys(t.shape for t in types if isinstance(t, TileType)))


def named(*shapes: Shape) -> dict[str, int]:
    """The constexprs among some extents, with their values, largest first."""
    found = {n.name: int(n) for s in shapes for n in s if isinstance(n, NamedInt | AutoInt)}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def smaller(shapes: Iterable[Shape], otherwise: str = "use smaller tiles") -> str:
    """What to do about tiles that do not fit: which constexprs make them smaller."""
    names = [f"{name} ({value})" for name, value in named(*shapes).items()]
    if not names:
        return otherwise
    return f"give a smaller {' or '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}"
