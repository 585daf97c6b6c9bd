"""Which masks only fall along a dimension."""

from __future__ import annotations

import pytest

import tiledsl
import tiledsl.language as tl
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.masks import only_falls
from tiledsl.ir.ops import pointer
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import Spec
from tiledsl.target import HOPPER


@tiledsl.jit
def stores(p, n, KIND: tl.constexpr):
    rows, cols = tl.arange(0, 4)[:, None], tl.arange(0, 64)[None, :]
    if KIND == "bound":
        mask = cols < n
    elif KIND == "rows":
        mask = rows < n
    elif KIND == "both":
        mask = (rows >= n) & (n >= cols + 3)
    elif KIND == "either":
        mask = (cols <= n) | (rows == n)
    elif KIND == "lower":
        mask = cols > n
    elif KIND == "holes":
        mask = (cols < n) & (cols % 2 == 0)
    else:
        mask = cols * 2 < n
    tl.store(p + rows * 64 + cols, 0.0, mask=mask)


@pytest.mark.parametrize(
    ("kind", "falls"),
    [("bound", True), ("rows", True), ("both", True), ("either", True), ("lower", False),
     ("holes", False), ("scaled", False)],
)  # fmt: skip
def test_falls(kind: str, falls: bool) -> None:
    specs: dict[str, Spec] = {"p": PointerSpec(float32, 16), "n": ScalarSpec(int32)}
    graph = lower_function(stores.fn, specs, {"KIND": kind})
    run_passes(graph, ("canonicalize", "cse", "dce"), HOPPER)
    (store,) = graph.find(pointer.Store)
    assert store.mask is not None
    assert only_falls(store.mask, 1, 8, axis_facts(graph.body, {})) is falls
