"""The interpreter: grids, bounds, strides, control flow, pointers, errors."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest

from tests.unit.ir.harness import GRID
from tests.unit.ir.harness import graph_of
from tests.unit.ir.harness import tensor_arg
from tiledsl import dtypes
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.errors import InternalError
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import Interpreter
from tiledsl.ir.interp import bind
from tiledsl.ir.interp import interpret
from tiledsl.ir.machine import GlobalMemory
from tiledsl.ir.machine import load_block
from tiledsl.ir.machine import store_block
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op

COPY = """
  %t : tile<4x4xf32> = memory.load(%x, [%i, %j]{other}) {{block_shape = (4, 4)}}
  memory.store(%y, [%i, %j], %t) {{block_shape = (4, 4)}}
"""
ARGS = (
    tensor_arg("x", float32, 2),
    tensor_arg("y", float32, 2),
    "%i : i32",
    "%j : i32",
    "%o : f32",
)


def copy_block(x: np.ndarray, y: np.ndarray, i: int, j: int, other: float | None = None) -> None:
    graph = graph_of(COPY.format(other="" if other is None else ", %o"), *ARGS)
    interpret(graph, {"x": x, "y": y, "i": i, "j": j, "o": other or 0.0}, GRID)


@pytest.mark.parametrize("i", [-9, -2, 0, 1, 3, 9, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("j", [-3, 0, 2])
@pytest.mark.parametrize("other", [None, 7.0])
def test_blocks_at_the_edges(i: int, j: int, other: float | None) -> None:
    x = np.arange(1, 26, dtype=np.float32).reshape(5, 5)
    block = load_block(x, (i, j), (4, 4), other or 0)
    for r in range(4):
        for c in range(4):
            inside = 0 <= i + r < 5 and 0 <= j + c < 5
            assert block[r, c] == (x[i + r, j + c] if inside else other or 0)
    y = np.zeros_like(x)
    copy_block(x, y, i, j, other)
    want = np.zeros_like(x)
    for r in range(5):
        for c in range(5):
            if i <= r < i + 4 and j <= c < j + 4:
                want[r, c] = x[r, c]
    np.testing.assert_array_equal(y, want)


def test_loads_are_copies_and_stores_write_views() -> None:
    base = np.arange(200, dtype=np.float32).reshape(10, 20)
    x = base.T[::2, ::-1]
    block = load_block(x, (0, 0), (10, 10))
    np.testing.assert_array_equal(block, x)
    store_block(x, (0, 0), np.zeros((10, 10), np.float32))
    assert not base[:, ::2].any()
    assert base[:, 1::2].all()
    assert block.any()


def test_squeezed_dimensions() -> None:
    body = """
      %t : tile<4xf32> = memory.load(%x, [%i, %j]) {block_shape = (1, 4), squeeze = (0,)}
      memory.store(%y, [%j, %i], %t) {block_shape = (4, 1), squeeze = (1,)}
    """
    x, y = np.arange(16, dtype=np.float32).reshape(4, 4), np.zeros((4, 4), np.float32)
    interpret(graph_of(body, *ARGS), {"x": x, "y": y, "i": 2, "j": 0, "o": 0}, GRID)
    np.testing.assert_array_equal(y[:, 2], x[2])


def test_programs_run_in_order_of_the_grid() -> None:
    body = """
      %p : i32 = program.id() {axis = 0}
      %n : i32 = program.count() {axis = 0}
      %q : i32 = program.id() {axis = 2}
      %s : i32 = elementwise.mul(%n, %q)
      %at : i32 = elementwise.add(%s, %p)
      %t : tile<1xi32> = tile.splat(%at) {shape = (1,)}
      memory.store(%x, [%at], %t) {block_shape = (1,)}
    """
    order: list[int] = []
    x = np.full(6, -1, np.int32)
    interpret(
        graph_of(body, tensor_arg("x", int32)), {"x": x}, (3, 1, 2),
        on_store=lambda op, array, window: order.append(window[0].start),
    )  # fmt: skip
    assert x.tolist() == list(range(6))
    assert order == list(range(6))


LOOP = """
  %t : tile<1xi32> = memory.load(%x, [%a]) {block_shape = (1,)}
  %s : tile<1xi32> = control.for(%a, %b, %c, [%t])  @loop.py:7:5
  body(%k : i32, %u : tile<1xi32>) {
    %v : tile<1xi32> = tile.splat(%k) {shape = (1,)}
    %w : tile<1xi32> = elementwise.add(%u, %v)
    control.yield(%w)
  }
  memory.store(%x, [%a], %s) {block_shape = (1,)}
"""
LOOP_ARGS = (tensor_arg("x", int32), "%a : i32", "%b : i32", "%c : i32")


@pytest.mark.parametrize(("a", "b", "c"), [(0, 5, 1), (0, 5, 2), (0, 0, 1), (3, 0, -1), (0, -3, 1)])
def test_for(a: int, b: int, c: int) -> None:
    x = np.zeros(8, np.int32)
    interpret(graph_of(LOOP, *LOOP_ARGS), {"x": x, "a": a, "b": b, "c": c}, GRID)
    assert x[a] == sum(range(a, b, c))


def test_a_step_of_zero_is_an_error_at_its_line() -> None:
    args = {"x": np.zeros(1, np.int32), "a": 0, "b": 1, "c": 0}
    with pytest.raises(TileError, match=r"loop.py:7:5: error: for: the step is 0"):
        interpret(graph_of(LOOP, *LOOP_ARGS), args, GRID)


def test_while_and_if() -> None:
    body = """
      %zero : i32 = elementwise.constant() {value = 0, dtype = i32}
      %one : i32 = elementwise.constant() {value = 1, dtype = i32}
      %two : i32 = elementwise.constant() {value = 2, dtype = i32}
      %three : i32 = elementwise.constant() {value = 3, dtype = i32}
      %r : i32, %steps : i32 = control.while(%n, %zero)
      before(%a : i32, %b : i32) {
        %go : i1 = elementwise.compare(%a, %one) {predicate = 'ne'}
        control.yield(%go, %a, %b)
      }
      body(%c : i32, %d : i32) {
        %m : i32 = elementwise.mod(%c, %two)
        %even : i1 = elementwise.compare(%m, %zero) {predicate = 'eq'}
        %e : i32 = control.if(%even) {result_types = (scalar<i32>,)}
        then() {
          %h : i32 = elementwise.floordiv(%c, %two)
          control.yield(%h)
        }
        orelse() {
          %p : i32 = elementwise.mul(%c, %three)
          %q : i32 = elementwise.add(%p, %one)
          control.yield(%q)
        }
        %f : i32 = elementwise.add(%d, %one)
        control.yield(%e, %f)
      }
      %t : tile<1xi32> = tile.splat(%steps) {shape = (1,)}
      memory.store(%x, [%zero], %t) {block_shape = (1,)}
    """
    x = np.zeros(1, np.int32)
    interpret(graph_of(body, tensor_arg("x", int32), "%n : i32"), {"x": x, "n": 27}, GRID)
    assert x[0] == 111


def test_shape_and_stride() -> None:
    body = """
      %n : i32 = memory.shape(%x) {dim = 1}
      %s : i64 = memory.stride(%x) {dim = 0}
      %m : i64 = elementwise.cast(%n) {dtype = i64}
      %zero : i32 = elementwise.constant() {value = 0, dtype = i32}
      %a : tile<1xi64> = tile.splat(%m) {shape = (1,)}
      %b : tile<1xi64> = tile.splat(%s) {shape = (1,)}
      %one : i32 = elementwise.constant() {value = 1, dtype = i32}
      memory.store(%y, [%zero], %a) {block_shape = (1,)}
      memory.store(%y, [%one], %b) {block_shape = (1,)}
    """
    graph = graph_of(body, tensor_arg("x", dtypes.bfloat16, 2), tensor_arg("y", dtypes.int64))
    y = np.zeros(2, np.int64)
    interpret(graph, {"x": np.zeros((8, 6), ml_dtypes.bfloat16)[::2, :5], "y": y}, GRID)
    assert y.tolist() == [5, 12]


def matmul_graph() -> TileGraph:
    body = """
      %pm : i32 = program.id() {axis = 0}
      %pn : i32 = program.id() {axis = 1}
      %b : i32 = elementwise.constant() {value = 128, dtype = i32}
      %bk : i32 = elementwise.constant() {value = 64, dtype = i32}
      %zero : i32 = elementwise.constant() {value = 0, dtype = i32}
      %m : i32 = elementwise.mul(%pm, %b)
      %n : i32 = elementwise.mul(%pn, %b)
      %z : f32 = elementwise.constant() {value = 0.0, dtype = f32}
      %acc : tile<128x128xf32> = tile.splat(%z) {shape = (128, 128)}
      %k : i32 = memory.shape(%x) {dim = 1}
      %sum : tile<128x128xf32> = control.for(%zero, %k, %bk, [%acc])
      body(%i : i32, %c : tile<128x128xf32>) {
        %p : tile<128x64xbf16> = memory.load(%x, [%m, %i]) {block_shape = (128, 64)}
        %q : tile<64x128xbf16> = memory.load(%y, [%i, %n]) {block_shape = (64, 128)}
        %d : tile<128x128xf32> = mma.dot(%p, %q, %c)
        control.yield(%d)
      }
      memory.store(%out, [%m, %n], %sum) {block_shape = (128, 128)}
    """
    bf16 = dtypes.bfloat16
    args = (tensor_arg("x", bf16, 2), tensor_arg("y", bf16, 2), tensor_arg("out", float32, 2))
    return graph_of(body, *args)


def test_matmul_of_ragged_size_is_right_and_fast() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 300)).astype(ml_dtypes.bfloat16)
    y = rng.standard_normal((300, 520)).astype(ml_dtypes.bfloat16)
    out = np.zeros((500, 520), np.float32)
    seconds: list[float] = []
    for _ in range(3):
        start = time.process_time()
        interpret(matmul_graph(), {"x": x, "y": y, "out": out}, (4, 5, 1))
        seconds.append(time.process_time() - start)
    assert min(seconds) < 2.0
    want = x.astype(np.float64) @ y.astype(np.float64)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "arguments missing: x"),
        ({"x": [1]}, "x: expected an array, got list"),
        ({"x": np.zeros(1, np.float64)}, "x: expected float32, got float64"),
        ({"x": np.zeros((1, 1), np.float32)}, "x: expected rank 1, got 2"),
    ],
)
def test_arguments_are_checked(given: dict[str, object], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        interpret(graph_of("", tensor_arg("x", float32)), given, GRID)


def test_empty_grid_and_empty_tensor() -> None:
    x = np.zeros((0, 5), np.float32)
    copy_block(x, np.zeros((0, 5), np.float32), 0, 0)
    interpret(graph_of("", tensor_arg("x", float32, 2)), {"x": x}, (0, 1, 1))


class Broken(Op, effect=Effect.PURE):
    """An op whose semantics give the wrong dtype; in no registry."""

    def infer_types(self) -> tuple[dtypes.DType, ...]:  # type: ignore[override]
        from tiledsl.ir.types import ScalarType

        return (ScalarType(int32),)  # type: ignore[return-value]

    def evaluate(self) -> np.ndarray:
        return np.zeros(3, np.float32)


def test_results_are_checked_against_their_types() -> None:
    graph = TileGraph("broken")
    graph.append(graph.body, Broken())
    with pytest.raises(InternalError, match=r"gave \[3\] float32 for a value of type i32"):
        interpret(graph, {}, GRID)


class TestGlobalMemory:
    def test_gather_and_scatter_through_strides(self) -> None:
        memory = GlobalMemory()
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        base = memory.add(x.T)
        at = base + 4 * np.array([[0, 5], [11, 99]])
        mask = np.array([[True, True], [True, False]])
        assert memory.gather(at, float32, mask, 7.0).tolist() == [[0, 5], [11, 7]]
        memory.scatter(at, np.float32([[20, 21], [22, 23]]), mask)
        assert (x[0, 0], x[1, 1], x[2, 3]) == (20, 21, 22)

    def test_addresses_outside_are_refused(self) -> None:
        memory = GlobalMemory()
        base = memory.add(np.zeros(4, np.float32))
        with pytest.raises(LaunchError, match="read from address"):
            memory.gather(base + 16, float32)
        with pytest.raises(LaunchError, match="write to address"):
            memory.scatter(base - 4, np.float32(1))

    def test_two_tensors(self) -> None:
        memory = GlobalMemory()
        a, b = np.float32([1, 2]), np.float32([3, 4])
        at = np.array([memory.add(a), memory.add(b) + 4])
        assert memory.gather(at, float32).tolist() == [1, 4]


def test_roles_share_what_is_known_and_nothing_else() -> None:
    graph = graph_of("%p : i32 = program.id() {axis = 1}", "%n : i32")
    memory = GlobalMemory()
    program = Interpreter(memory, (1, 2, 3), (4, 4, 4), bind(graph, {"n": 5}, memory))
    role = program.fork()
    with pytest.raises(StopIteration):
        next(role.run_region(graph.body, ()))
    (p,) = graph.body.ops[0].results
    assert role.values[p] == 2
    assert p not in program.values
    assert program.values[graph.args[0]] == 5
