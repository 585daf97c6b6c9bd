"""The README's matmul: its graph, its values, and the time to make it."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest

import tiledsl.language as tl
from tiledsl.dtypes import bfloat16
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.op import Level
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.specs import spec

BF16 = np.dtype(ml_dtypes.bfloat16)


def matmul(
    a: tl.Tensor,
    b: tl.Tensor,
    c: tl.Tensor,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto,
    BK: tl.constexpr = 64,
):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)  # fmt: skip


def transposed(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, AT: tl.constexpr, BT: tl.constexpr):
    m, n = tl.program_id(0) * 16, tl.program_id(1) * 16
    acc = tl.zeros((16, 16), tl.float32)
    K = a.shape[0] if AT else a.shape[1]
    for k in range(0, K, 16):
        x = a.load((k, m), (16, 16)).T if AT else a.load((m, k), (16, 16))
        y = tl.trans(b.load((n, k), (16, 16))) if BT else b.load((k, n), (16, 16))
        acc = tl.dot(x, y, acc)
    c.store((m, n), acc)


def relu(x):
    return tl.maximum(x, 0.0)


def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


def with_epilogue(
    a: tl.Tensor,
    b: tl.Tensor,
    bias: tl.Tensor,
    c: tl.Tensor,
    scale,
    ACT: tl.constexpr,
    BM: tl.constexpr = 16,
    BN: tl.constexpr = 32,
):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, a.shape[1], 16):
        acc += tl.dot(a.load([m, k], [BM, 16]), b.load([k, n], [16, BN]))
    acc *= scale
    if bias is not None:
        acc = acc + bias.load(n, BN)[None, :]
    if ACT == "relu":
        acc = relu(acc)
    elif ACT == "gelu":
        acc = gelu(acc)
    c.store((m, n), acc)  # fmt: skip


def test_graph(golden) -> None:
    from tiledsl.ir.printer import print_graph

    s = spec(bfloat16, 2)
    graph = lower_function(matmul, {"a": s, "b": s, "c": s}, {"BM": 128, "BN": 256})
    assert graph.name == "matmul"
    assert graph.level is Level.TILE
    assert graph.constants == {"BM": 128, "BN": 256, "BK": 64}
    assert [v.name for v in graph.args] == ["a", "b", "c"]
    golden(print_graph(graph, locations=False), "frontend/matmul.tir")


def test_locations_and_names() -> None:
    s = spec(bfloat16, 2)
    graph = lower_function(matmul, {"a": s, "b": s, "c": s}, {"BM": 128, "BN": 256})
    (dot,) = [op for op in graph.walk() if op.opcode == "mma.dot"]
    assert dot.loc is not None
    assert dot.loc.file == __file__
    assert dot.loc.text[dot.loc.col : dot.loc.end_col].startswith("tl.dot(a.load((m, k)")
    assert all(op.loc is not None for op in graph.walk())
    names = {v.name for op in graph.walk() for v in op.results}
    assert {"m", "n", "acc"} <= names
    (loop,) = [op for op in graph.walk() if op.opcode == "control.for"]
    assert [a.name for a in loop.regions[0].args] == ["k", "acc"]


def test_auto_int_reaches_the_tile_dimensions() -> None:
    s = spec(bfloat16, 2)
    constants = {"BM": AutoInt(128, "BM"), "BN": AutoInt(256, "BN"), "BK": AutoInt(64, "BK")}
    graph = lower_function(matmul, {"a": s, "b": s, "c": s}, constants)
    (dot,) = [op for op in graph.walk() if op.opcode == "mma.dot"]
    shapes = [operand.type.shape for operand in dot.operands[:2]]
    assert [[d.name for d in shape] for shape in shapes] == [["BM", "BK"], ["BK", "BN"]]


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 16), (40, 17, 33), (1, 1, 1), (32, 16, 0)])
def test_values(run, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(BF16), rng.standard_normal((k, n)).astype(BF16)
    c = np.full((m, n), np.nan, np.float32)
    run(matmul, a, b, c, grid=(-(-m // 16), -(-n // 16), 1), BM=16, BN=16, BK=16)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_transposed_operands(run, a_transposed: bool, b_transposed: bool) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((33, 20) if a_transposed else (20, 33)).astype(np.float16)
    b = rng.standard_normal((24, 33) if b_transposed else (33, 24)).astype(np.float16)
    c = np.empty((20, 24), np.float32)
    run(transposed, a, b, c, grid=(2, 2, 1), AT=a_transposed, BT=b_transposed)
    x, y = (a.T if a_transposed else a), (b.T if b_transposed else b)
    np.testing.assert_allclose(c, x.astype(float) @ y.astype(float), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_epilogue(run, activation: str, has_bias: bool) -> None:
    from math import erf

    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((20, 16)).astype(BF16), rng.standard_normal((16, 40)).astype(BF16)
    bias = rng.standard_normal(40).astype(np.float32) if has_bias else None
    c = np.empty((20, 40), np.float32)
    run(with_epilogue, a, b, bias, c, 0.5, grid=(2, 2, 1), ACT=activation)
    want = a.astype(float) @ b.astype(float) * 0.5 + (0 if bias is None else bias)
    if activation == "relu":
        want = np.maximum(want, 0)
    if activation == "gelu":
        want = 0.5 * want * (1 + np.vectorize(erf)(want * 0.5**0.5))
    np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-5)


def test_lowering_is_fast() -> None:
    s = spec(bfloat16, 2)
    specs, constants = {"a": s, "b": s, "c": s}, {"BM": 128, "BN": 256}
    lower_function(matmul, specs, constants)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        lower_function(matmul, specs, constants)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.010
