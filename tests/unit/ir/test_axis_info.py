"""Contiguity, divisibility and constancy: rules one by one, then against what the interpreter computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledsl.language as tl
from tests.pointer_kernels import matmul
from tests.pointer_kernels import vector_add
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.axis_values import Axis
from tiledsl.ir.analysis.axis_values import AxisInfo
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import Interpreter
from tiledsl.ir.interp import bind
from tiledsl.ir.interp import finish
from tiledsl.ir.machine import GlobalMemory
from tiledsl.ir.op import Value
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

N16, N1 = ScalarSpec(tl.int32, 16), ScalarSpec(tl.int32)


def lowered(fn: Any, specs: dict[str, Any], **constants: int) -> tuple[TileGraph, AxisFacts]:
    graph = lower_function(fn, specs, constants)
    return graph, axis_facts(graph.body, graph.facts["divisors"])


def stored(fn: Any, **specs: Any) -> AxisInfo:
    """Facts about what a kernel `fn(out, ...)` stores."""
    graph, facts = lowered(fn, {"out": PointerSpec(tl.int32), **specs})
    (store,) = [op for op in graph.walk() if op.opcode == "pointer.store"]
    value: Value = store.value  # type: ignore[attr-defined]
    maker = value.defining_op
    if maker is not None and maker.opcode == "elementwise.cast":
        value = maker.operands[0]
    return facts.of(value)


def accesses(graph: TileGraph) -> list[Any]:
    return [op for op in graph.walk() if op.opcode in ("pointer.load", "pointer.store")]


# ---------------------------------------------------------------------- whole kernels
@pytest.mark.parametrize(("n", "run"), [(N16, 16), (N1, 1), (ScalarSpec(tl.int32, 8), 8)])
def test_vector_add(n: ScalarSpec, run: int) -> None:
    specs = {name: PointerSpec(tl.float32) for name in ("x_ptr", "y_ptr", "out_ptr")}
    graph, facts = lowered(vector_add.fn, {**specs, "n_elements": n}, BLOCK_SIZE=1024)
    for op in accesses(graph):
        info = facts.of(op.pointer)
        assert info.axes == (Axis(1024, 16, 1),)
        assert info.width(0, 4) == 4
        assert facts.of(op.mask).axes[0].constancy == run


def test_unaligned_pointers_are_narrow() -> None:
    specs = {name: PointerSpec(tl.float32, 8) for name in ("x_ptr", "y_ptr", "out_ptr")}
    graph, facts = lowered(vector_add.fn, {**specs, "n_elements": N16}, BLOCK_SIZE=1024)
    assert [facts.of(op.pointer).width(0, 4) for op in accesses(graph)] == [2, 2, 2]


@pytest.mark.parametrize(("stride", "width"), [(16, 8), (8, 8), (4, 4), (1, 1)])
def test_matmul(stride: int, width: int) -> None:
    """Rows that wrap by `% M`, pointers that move in the loop, masks on K."""
    sizes = {n: ScalarSpec(tl.int32, 16) for n in "MNK"}
    rows = {n: ScalarSpec(tl.int32, stride) for n in ("stride_am", "stride_bk", "stride_cm")}
    ones = {n: ScalarSpec(tl.int32, value=1) for n in ("stride_ak", "stride_bn", "stride_cn")}
    pointers = {n: PointerSpec(tl.float16) for n in ("a_ptr", "b_ptr", "c_ptr")}
    constants = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    graph = lower_function(matmul.fn, {**pointers, **sizes, **rows, **ones}, constants)
    run_passes(graph, ("canonicalize", "cse", "licm", "uniform-steps", "cse", "dce"))
    facts = axis_facts(graph.body, graph.facts["divisors"])
    a, b, c = accesses(graph)
    assert [facts.of(op.pointer).width(1, 8) for op in (a, b, c)] == [width] * 3
    assert facts.of(a.mask).axes[1].constancy % 16 == 0
    assert facts.of(b.mask).axes[1].constancy == 64
    assert facts.of(c.mask).axes[1].constancy % 16 == 0


# ---------------------------------------------------------------------- rules
def test_products_and_sums() -> None:
    def kernel(out, n):
        tl.store(out + tl.arange(0, 32), tl.arange(0, 32) * n + 4)

    assert stored(kernel, n=N16).axes == (Axis(1, 4, 1),)


def test_quotients_are_constant_in_runs() -> None:
    def kernel(out, n):
        tl.store(out + tl.arange(0, 32), (tl.program_id(0) * 32 + tl.arange(0, 32)) // 8)

    assert stored(kernel, n=N16).axes[0].constancy == 8


def test_remainders_wrap_at_multiples() -> None:
    def kernel(out, n):
        tl.store(out + tl.arange(0, 32), (tl.program_id(0) * 32 + tl.arange(0, 32)) % n)

    assert stored(kernel, n=N16).axes == (Axis(16, 16, 1),)
    assert stored(kernel, n=N1).axes[0].contiguity == 1


def test_hints() -> None:
    def kernel(out, n):
        offs = tl.max_contiguous(tl.multiple_of((tl.arange(0, 32) * n) % 7, 8), 8)
        tl.store(out + tl.arange(0, 32), offs)

    assert stored(kernel, n=N1).axes == (Axis(8, 8, 1),)


def test_scalar_hint() -> None:
    def kernel(out, n):
        tl.store(out + tl.arange(0, 32), tl.multiple_of(n, 16) + tl.arange(0, 32))

    assert stored(kernel, n=N1).axes == (Axis(32, 16, 1),)


def test_loop_variables_keep_divisors() -> None:
    def kernel(out, n):
        offs = tl.arange(0, 32)
        for k in range(0, n, 64):
            tl.store(out + k + offs, offs + k)
            offs += 32

    graph, facts = lowered(kernel, {"out": PointerSpec(tl.int32), "n": N1})
    (store,) = accesses(graph)
    assert facts.of(store.value).axes == (Axis(32, 32, 1),)


# ---------------------------------------------------------------------- against the interpreter
EXPRESSIONS = st.recursive(
    st.sampled_from(["rows[:, None]", "cols[None, :]", "n", "m", "pid", "1", "3", "8", "16", "64"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.sampled_from(["m", "n", "8", "5", "16"])),
        st.builds("tl.minimum({}, {})".format, inner, inner),
        st.builds("tl.where(rows[:, None] {} {}, {}, {})".format, st.sampled_from(["<", ">=", "<=", "=="]), inner, inner, inner),
        st.builds("({}).to(tl.int64)".format, inner),
        st.builds("({} << 2)".format, inner),
    ),
    max_leaves=8,
)  # fmt: skip
TEXT = """
def kernel(out, n, m):
    pid = tl.program_id(0)
    rows, cols = pid * 16 + tl.arange(0, 16), tl.arange(8, 40)
    x = tl.zeros((16, 32), tl.int32) + {}
    tl.store(out + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :], (x < {}).to(tl.int32))
"""


@given(EXPRESSIONS, EXPRESSIONS, st.sampled_from([1, 4, 16]), st.integers(1, 9))
def test_facts_hold(x: str, y: str, divisor: int, factor: int) -> None:
    """Every value of a random kernel has the properties that the analysis states."""
    import linecache

    text = TEXT.format(x, y)
    linecache.cache["facts.py"] = (len(text), None, text.splitlines(keepends=True), "facts.py")
    names: dict[str, Any] = {"tl": tl}
    exec(compile(text, "facts.py", "exec"), names)
    m = ScalarSpec(tl.int32, divisor)
    try:
        graph = lower_function(names["kernel"], {"out": PointerSpec(tl.int32), "n": N1, "m": m}, {})
    except tl_errors():
        return
    facts = axis_facts(graph.body, graph.facts["divisors"])
    memory = GlobalMemory()
    given_args = {"out": np.zeros(512, np.int32), "n": 7, "m": divisor * factor}
    program = Interpreter(memory, (3, 0, 0), (4, 1, 1), bind(graph, given_args, memory))
    finish(program.run_region(graph.body, ()))
    for value, array in program.values.items():
        if is_index(value):
            verify(facts.of(value), np.asarray(array).astype(np.int64), value)


def tl_errors() -> tuple[type[Exception], ...]:
    from tiledsl.errors import TileError

    return (TileError,)


def is_index(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, TileType | ScalarType) and not type_.dtype.is_float


def verify(info: AxisInfo, array: np.ndarray, value: Value) -> None:
    if info.value is not None:
        assert (array == info.value).all(), value
    if info.positive:
        assert (array >= 0).all(), value
    assert not (array % info.every).any(), value
    for dim, axis in enumerate(info.axes):
        lines = np.moveaxis(array, dim, -1).reshape(-1, array.shape[dim])
        n = lines.shape[1]
        for start in range(0, n, axis.contiguity):
            run = lines[:, start : start + axis.contiguity]
            assert (np.diff(run, axis=1) == info.unit).all(), (value, info)
            assert not (run[:, 0] % axis.divisibility).any(), (value, info)
        for start in range(0, n, axis.constancy):
            assert not np.diff(lines[:, start : start + axis.constancy], axis=1).any(), (
                value,
                info,
            )
