"""What CUDA cores do in a loop whose products start from zero, in the terms of the planner."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.op import Value
from tiledsl.ir.types import TileType
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.dot_loop import needs_promotion


@dataclass(frozen=True)
class Partial:
    """What CUDA cores do in a loop whose products start from zero.

    dots: products of an iteration. carried: tiles of their size that the loop carries. promote:
    elements of K that the tensor core may add up, 0 for all. tile_ops: operations on such tiles.
    """

    dots: int
    carried: int
    promote: int
    tile_ops: int

    def parts(self, K: int) -> int:
        """Products that one dot over K elements is made of."""
        return -(-K // self.promote) if self.promote else 1

    def tiles_alive(self, K: int, depth: int = 1) -> int:
        """Sums, and products of as many iterations as are in flight."""
        return self.carried + self.dots * self.parts(K) * depth

    def may_pair(self, K: int) -> bool:
        """Whether an iteration starts one product only, under which nothing else runs."""
        return self.dots * self.parts(K) == 1

    def adds(self, K: int) -> int:
        """Passes over a tile's elements in an iteration."""
        return self.tile_ops + self.dots * self.parts(K) * (self.promote > 0)


def partial_work(found: DotLoop) -> Partial | None:
    """The work of CUDA cores in a partial loop."""
    if not found.partial:
        return None
    acc = found.dots[0].acc.type
    assert isinstance(acc, TileType)
    promoted = [d.promote for d in found.dots if needs_promotion(d)]
    math = [
        o
        for o in found.loop.body.ops
        if o not in found.dots and o.results and _extents(o.results[0]) == acc.shape
    ]
    carried = sum(_extents(v) == acc.shape for v in found.loop.carried)
    ops = [o.opcode for o in math if o.opcode.startswith("elementwise.")]
    fused = min(ops.count("elementwise.mul"), ops.count("elementwise.add"))
    return Partial(len(found.dots), carried, min(promoted, default=0), len(ops) - fused)


def _extents(v: Value) -> tuple[int, ...]:
    return v.type.shape if isinstance(v.type, TileType) else ()
