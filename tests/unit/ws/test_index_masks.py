"""Masks as counts: the same elements as the comparisons, up to the ends of int32; and what stays."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import interpret
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise_index import CountBelow
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ws.fuse import fuse_elementwise

LOWEST, HIGHEST = -(2**31), 2**31 - 1
ROWS, COLS = 64, 32
PREDICATES = ("lt", "le", "gt", "ge")
NEAR_ZERO = (-33, -1, 0, 1, 31, 32, 70)
EDGES = (LOWEST, LOWEST + 1, LOWEST + 7, *NEAR_ZERO, HIGHEST - 8, HIGHEST - 1, HIGHEST)


class Mask:
    """Up to three bounds on the columns of a tile, limited by a scalar, by rows, or by elements.

    has_or: they are joined by `or` as well, and there are conditions on rows among them.
    """

    def __init__(self, seed: int, *, has_or: bool = False) -> None:
        rng = random.Random(seed)
        kinds = ("scalar", "rows", "row index", "elements")
        if has_or:
            kinds = ("scalar", "rows", "row index", "row condition")
        self.parts = [
            (rng.choice(kinds), rng.choice(PREDICATES), rng.random() < 0.5)
            for _ in range(rng.randint(2, 4) if has_or else rng.randint(1, 3))
        ]
        self.joins = [rng.choice((ew.And, ew.Or) if has_or else (ew.And,)) for _ in self.parts[1:]]

    @property
    def is_short(self) -> bool:
        """Whether there is a bound that columns of a row share."""
        return any(kind != "elements" for kind, _, _ in self.parts)

    def build(self, b: Builder, n: Value, limits: dict[str, Value]) -> Value:
        def spread(v: Value) -> Value:
            return b.value(tile.Broadcast(v, (ROWS, COLS)))

        index = b.value(ew.Add(b.value(tile.Splat(n, (COLS,))), b.value(tile.Arange(0, COLS))))
        cols = spread(b.value(tile.ExpandDims(index, 0)))
        masks: list[Value] = []
        for kind, predicate, is_swapped in self.parts:
            if kind == "row condition":
                holds = b.value(ew.Compare(predicate, limits["rows"], limits["row index"]))
                masks.append(spread(holds))
                continue
            limit = limits[kind]
            if kind == "scalar":
                limit = b.value(tile.Splat(limit, (ROWS, COLS)))
            elif kind != "elements":
                limit = spread(limit)
            sides = (limit, cols) if is_swapped else (cols, limit)
            masks.append(b.value(ew.Compare(predicate, *sides)))
        for join in self.joins:
            masks = [b.value(join(*masks[-2:])), *masks[:-2]]
        return masks[0]


def kernel(mask: Mask) -> TileGraph:
    """out[i] = the mask of iteration i as 1.0 and 0.0."""
    graph = TileGraph("k")
    out = graph.body.add_arg(TensorType(2, float32), "out")
    rows, elements = (graph.body.add_arg(TensorType(2, int32), x) for x in ("rows", "elements"))
    names = ("lower", "upper", "end", "first")
    lower, upper, end, first = (graph.body.add_arg(ScalarType(int32), x) for x in names)
    b = Builder(graph)
    step, zero = (b.value(ew.Constant(x, int32)) for x in (COLS, 0))
    yes, no = (
        b.value(tile.Splat(b.value(ew.Constant(x, float32)), (ROWS, COLS))) for x in (1.0, 0.0)
    )
    at = b.value(ew.Add(b.value(tile.Splat(first, (ROWS,))), b.value(tile.Arange(0, ROWS))))
    body = Region()
    n = body.add_arg(ScalarType(int32), "n")
    with b.at(body):
        limits = {
            "scalar": end,
            "rows": b.value(Load(rows, (zero, zero), block_shape=(ROWS, 1))),
            "row index": b.value(tile.ExpandDims(at, 1)),
            "elements": b.value(Load(elements, (zero, zero), block_shape=(ROWS, COLS))),
        }
        select = ew.Select(mask.build(b, n, limits), yes, no)
        place = b.value(ew.Sub(n, lower))
        b.add(Store(out, (zero, place), b.value(select), (ROWS, COLS)))
        b.add(Yield(()))
    b.add(For(lower, upper, step, (), body=body))
    return graph


def fused(graph: TileGraph) -> TileGraph:
    """With loops over registers of an accumulator's layout."""
    run_passes(graph, ("no-wrap", "dce"), check=2)
    layout = mma_accumulator(ROWS, COLS)
    for op in graph.find(ew.Select):
        op.result.type = op.result.type.with_layout(layout)
    fuse_elementwise(graph, graph.body)
    return graph


@pytest.mark.parametrize("has_or", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_counts_say_what_the_comparisons_say(seed: int, has_or: bool) -> None:
    mask, rng = Mask(seed, has_or=has_or), random.Random(seed)
    plain, short = kernel(mask), fused(kernel(mask))
    assert has_or or bool(short.find(CountBelow)) == mask.is_short
    for _ in range(6):
        lower = rng.choice((LOWEST, LOWEST + 5, -COLS, -1, 0, 64, HIGHEST - 3 * COLS))
        near = [lower + x for x in (-1, 0, 1, COLS - 1, COLS, 2 * COLS) if lower + x >= LOWEST]
        pick = [*EDGES, *near, *near]
        args = {
            "rows": np.array([[rng.choice(pick)] for _ in range(ROWS)], np.int32),
            "elements": np.array(rng.choices(pick, k=ROWS * COLS), np.int32).reshape(ROWS, COLS),
            "lower": np.int32(lower), "upper": np.int32(lower + 2 * COLS),
            "end": np.int32(rng.choice(pick)), "first": np.int32(rng.choice(pick)),
        }  # fmt: skip
        found = [np.full((ROWS, 2 * COLS), 5, np.float32) for _ in range(2)]
        for out, graph in zip(found, (plain, short), strict=True):
            interpret(graph, {**args, "out": out}, (1, 1, 1))
        np.testing.assert_array_equal(*found)
        assert np.isin(found[0], (0, 1)).all()


def test_bounds_on_one_side_are_one_comparison() -> None:
    mask = Mask(0)
    mask.joins = [ew.And, ew.And]
    mask.parts = [("scalar", "lt", False), ("rows", "ge", True), ("row index", "gt", False)]
    graph = fused(kernel(mask))
    kinds = [(op.predicate, op.a.name) for op in graph.find(ew.Compare)]
    assert kinds == [("lt", "at_1"), ("ge", "at_1")]
    assert sorted(op.inclusive for op in graph.find(CountBelow)) == [False, True, True]


@pytest.mark.parametrize("predicate", ["lt", "gt"])
@pytest.mark.parametrize("joins", [(ew.And, ew.Or), (ew.Or, ew.Or), (ew.Or, ew.And)])
def test_what_either_of_two_bounds_leaves_is_one_comparison(predicate: str, joins) -> None:
    mask = Mask(0)
    mask.joins = list(joins)
    mask.parts = [
        ("row index", predicate, False), ("row condition", "le", False), ("scalar", predicate, False)
    ]  # fmt: skip
    graph = fused(kernel(mask))
    on_columns = [op for op in graph.find(ew.Compare) if op.a.name == "at_1"]
    assert len(on_columns) == 1
    assert len(graph.find(CountBelow)) == 2


# ---------------------------------------------------------------------- kernels
# fmt: off
@tiledsl.jit
def masked_rows(x: tl.Tensor, y: tl.Tensor, first, BM: tl.constexpr, BN: tl.constexpr,
                SHIFTED: tl.constexpr):
    rows = tl.arange(0, BM)
    total = tl.zeros((BM,), tl.float32)
    for n in range(0, x.shape[1], BN):
        cols = n + tl.arange(0, BN)
        if SHIFTED:
            cols += first
        seen = rows[:, None] >= cols[None, :]
        total += tl.sum(tl.where(seen, x.load((0, n), (BM, BN)), 0.0), 1)
    y.store((0,), total)


@tiledsl.jit
def centred(x, y, mean, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    row = tl.load(x + cols, mask=cols < n_cols, other=0.0)
    row = tl.where(cols < n_cols, row - tl.load(mean), 0.0)
    tl.store(y + cols, row * row, mask=cols < n_cols)


@tiledsl.jit
def pointer_mask(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)
# fmt: on


def text(kernel: object, *args: object) -> str:
    return kernel.cuda(*args, grid=(1, 1, 1), num_warps=4)  # type: ignore[attr-defined]


def test_the_thread_part_stands_beside_the_count() -> None:
    x, y = torch.empty(16, 1024, device="meta"), torch.empty(16, device="meta")
    found = text(masked_rows, x, y, 0, 16, 512, False)
    assert "count_up_to<512>(" in found
    line = next(s for s in found.splitlines() if "const bool seen" in s)
    assert " - at_1" in line.partition("<")[2]
    assert "at_1" not in line.partition("<")[0]


def test_an_index_that_may_wrap_is_compared_by_element() -> None:
    x, y = torch.empty(16, 1024, device="meta"), torch.empty(16, device="meta")
    assert "count_" not in text(masked_rows, x, y, 0, 16, 512, True)


def test_masks_of_accesses_stay() -> None:
    x = torch.empty(4096, device="meta")
    assert "count_" not in text(pointer_mask, x, x, 100, 4096)


@pytest.mark.parametrize(
    ("n_cols", "at"), [(4096 - 16, "i / 4 * 512"), (4095, "i % 4 + i / 4 * 512")]
)
def test_neighbours_share_a_comparison_where_the_limit_allows_it(n_cols: int, at: str) -> None:
    """Four floats of a thread lie side by side; the limit is a multiple of 16 or not known to be."""
    x = torch.empty(4096, device="meta")
    lines = text(centred, x, x, x, n_cols, 4096).splitlines()
    (selected,) = [line for line in lines if " < limit_1 - at_" in line]
    assert f"= ({at} < limit_1 - " in selected
    assert selected.endswith(" : 0.0f;")
