"""The bounds that `unmask` gives a loop, against the masks themselves for random parameters."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType

PREDICATES = {"ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less}
COLS, STEP, OTHER = 8, 8, 40


class Side:
    """sign * iv + factor * m + shift, plus arange(0, 8) if `cols`: one side of a comparison."""

    def __init__(self, rng: random.Random, sign: int) -> None:
        self.sign = sign
        self.factor = rng.choice((-2, -1, 0, 1, 3))
        self.shift = rng.randint(-20, 20)
        self.cols = rng.random() < 0.7

    def build(self, b: Builder, iv: Value, m: Value) -> Value:
        def number(n: int) -> Value:
            return b.value(ew.Constant(n, int32))

        out = b.value(ew.Add(b.value(ew.Mul(m, number(self.factor))), number(self.shift)))
        if self.sign:
            out = b.value(ew.Add(b.value(ew.Mul(iv, number(self.sign))), out))
        spread = b.value(tile.Splat(out, (COLS,)))
        if not self.cols:
            return spread
        return b.value(ew.Add(spread, b.value(tile.Arange(0, COLS))))

    def value(self, iv: int, m: int) -> np.ndarray:
        cols = np.arange(COLS) if self.cols else np.zeros(COLS, np.int64)
        return self.sign * iv + self.factor * m + self.shift + cols


class Mask:
    """One or two comparisons of which one side moves with the loop.

    either: the first is enough, or something about the iteration itself which is never known.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.parts = []
        for _ in range(rng.choice((1, 2))):
            signs = rng.choice(((1, 0), (0, 1), (-1, 0)))
            predicate = rng.choice(sorted(PREDICATES))
            self.parts.append((predicate, Side(rng, signs[0]), Side(rng, signs[1])))
        self.either = seed % 3 == 0

    def build(self, b: Builder, iv: Value, m: Value) -> Value:
        found = [
            b.value(ew.Compare(p, x.build(b, iv, m), y.build(b, iv, m))) for p, x, y in self.parts
        ]
        out = found[0] if len(found) == 1 else b.value(ew.And(*found))
        if not self.either:
            return out
        square = b.value(ew.Mul(iv, iv))
        other = b.value(ew.Compare("eq", square, b.value(ew.Constant(OTHER * OTHER, int32))))
        return b.value(ew.Or(b.value(tile.Splat(other, (COLS,))), out))

    @property
    def correlated(self) -> bool:
        """Whether columns stand on both sides, which the pass takes for independent."""
        return any(x.cols and y.cols for _, x, y in self.parts)

    def holds(self, iv: int, m: int) -> bool:
        return all(PREDICATES[p](x.value(iv, m), y.value(iv, m)).all() for p, x, y in self.parts)


def masked_loop(mask: Mask) -> TileGraph:
    graph = TileGraph("k")
    x = graph.body.add_arg(TensorType(1, float32), "x")
    n, m = (graph.body.add_arg(ScalarType(int32), name) for name in "nm")
    b = Builder(graph)
    zero, step = b.value(ew.Constant(0, int32)), b.value(ew.Constant(STEP, int32))
    ones, zeros = (
        b.value(tile.Splat(b.value(ew.Constant(v, float32)), (COLS,))) for v in (1.0, 0.0)
    )
    body = Region()
    iv = body.add_arg(ScalarType(int32), "k")
    with b.at(body):
        condition = mask.build(b, iv, m)
        b.add(Store(x, (iv,), b.value(ew.Select(condition, ones, zeros)), (COLS,)))
        b.add(Yield(()))
    b.add(For(zero, n, step, (), body=body))
    return graph


def evaluate(value: Value, known: Mapping[Value, int]) -> int:
    """The value of a scalar of the kernel's body."""

    def run(v: Value) -> Any:
        op = v.defining_op
        return np.int32(known[v]) if op is None else op.evaluate(*map(run, op.operands))

    return int(run(value))


@pytest.mark.parametrize("seed", range(60))
def test_the_mask_holds_inside_the_bounds(seed: int) -> None:
    mask = Mask(seed)
    graph = masked_loop(mask)
    run_passes(graph, ("canonicalize", "licm", "unmask"), check=2)
    (loop,) = graph.find(For)
    (select,) = graph.find(ew.Select)
    assert select.masks
    assert loop.unmasked_from is not None or loop.unmasked_until is not None
    _, _, m_arg = graph.args
    for m in (-30, -7, 0, 5, 41):
        known = {m_arg: m}
        start = evaluate(loop.unmasked_from, known) if loop.unmasked_from else -(10**6)
        until = evaluate(loop.unmasked_until, known) if loop.unmasked_until else 10**6
        for iv in range(0, 96, STEP):
            inside, holds = start <= iv < until, mask.holds(iv, m)
            assert holds or not inside, (m, iv, start, until)
            assert inside or not holds or mask.correlated, (m, iv, start, until)
