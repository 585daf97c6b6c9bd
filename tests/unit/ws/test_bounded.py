"""Rows of a loaded operand that count as zeros: found, cleared in the slot, proved."""

from __future__ import annotations

import pickle
import sys

import ml_dtypes
import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import meta
from tests.unit.ws.kernels import tile_graph_of
from tiledsl.compiler import modules
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import If
from tiledsl.ws.check import check
from tiledsl.ws.flow import analyze_flow
from tiledsl.ws.simulate import simulate

BF16 = np.dtype(ml_dtypes.bfloat16)
sys.setrecursionlimit(100_000)


# fmt: off
@tiledsl.jit
def squares(x: tl.Tensor, y: tl.Tensor, o: tl.Tensor, end: tl.int32, FORM: tl.constexpr):
    """(x x^T)[:, k]^2 y[k] over the rows k of y before `end`."""
    m = tl.program_id(0) * 128
    rows = x.load((m, 0), (128, 64))
    acc = tl.zeros((128, 64), tl.float32)
    for k in range(0, end, 64):
        at = k + tl.arange(0, 64)
        s = tl.dot(rows, tl.trans(x.load((k, 0), (64, 64))))
        s = tl.where((at < end)[None, :], s, 0.0)
        z = y.load((k, 0), (64, 64))
        if FORM == "below":
            z = tl.where((at < end)[:, None], z, 0.0)
        elif FORM == "at most":
            z = tl.where((end - 1 >= at)[:, None], z, 0.0)
        elif FORM == "columns":
            z = tl.where((tl.arange(0, 64) < end)[None, :], z, 0.0)
        elif FORM == "from":
            z = tl.where((at >= end - 100)[:, None], z, 0.0)
        elif FORM == "filled":
            z = tl.where((at < end)[:, None], z, 1.0)
        acc = tl.dot((s * s).to(x.dtype), z, acc)
    o.store((m, 0), acc)
# fmt: on


def request(form: str):
    args = (meta(512, 64), meta(512, 64), meta(512, 64), 300)
    return squares.request_for(args, {"FORM": form}, (4,))[1]


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ("below", True),
        ("at most", True),
        ("columns", False),
        ("from", False),
        ("filled", False),
        ("", False),
    ],
)
def test_what_is_found(form: str, found: bool) -> None:
    flow = analyze_flow(tile_graph_of(request(form)))
    assert not flow.declined
    second = flow.loops[0].dots[1]
    assert bool(second.bounds) is found
    assert bool(second.staged) is (not found and form != ""), "the rest is computed and staged"
    if found:
        assert [b.dim for b in second.bounds] == [0]
        assert not flow.loops[0].math


def machine(form: str = "below") -> TileGraph:
    for made in modules(request(form)):
        if made.certificate is not None and made.certificate.proved:
            return pickle.loads(pickle.dumps(made.machine))
    raise AssertionError("not specialised")


def test_unmasked_iterations_pay_nothing() -> None:
    graph = machine()
    clears: list[smem.Clear] = graph.find(smem.Clear)
    assert clears
    for op in clears:
        assert isinstance(op.parent.parent, If)


@pytest.mark.parametrize("form", ["below", "at most"])
def test_nan_behind_the_end(form: str) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((512, 64)).astype(BF16) for _ in range(2))
    x[300:], y[300:] = np.nan, np.nan
    wide = x[:300].astype(np.float32)
    o = np.zeros((512, 64), BF16)
    simulate(machine(form), {"x": x, "y": y, "o": o, "end": 300}, (3, 1, 1), seed=1)
    want = (wide @ wide.T).astype(BF16).astype(np.float32) ** 2 @ y[:300].astype(np.float32)
    assert np.abs(o[:300].astype(np.float32) - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize("cls", [barrier.AsyncFence, barrier.NamedSync])
def test_fence_and_barrier_are_needed(cls) -> None:
    graph = machine()
    assert check(graph).proved
    (block,) = {op.parent for op in graph.find(smem.Clear)[:1]}
    block.ops.remove(next(o for o in block.ops if isinstance(o, cls)))
    assert "fences" in check(graph).failure


def test_clearing_what_is_read_is_refused() -> None:
    graph = machine()
    op = graph.find(smem.Clear)[-1]
    branch = op.parent.parent
    ops = branch.parent.ops
    ops.remove(branch)
    ops.insert(len(ops) - 1, branch)
    assert not check(graph).proved
