"""Pointers in the interpreter: kernels in Triton's names against torch, faults, addresses beyond 2**31 elements."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.pointer_kernels import CASES
from tests.pointer_kernels import Case
from tests.pointer_kernels import check
from tests.pointer_kernels import pointer_table
from tests.pointer_kernels import vector_add
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.interp import interpret
from tiledsl.ir.machine import GlobalMemory
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(case: Case) -> None:
    args = case.make()
    want = case.want(*args)
    case.kernel[case.grid](*args, **case.options)
    check(case, args, want)


def test_out_of_bounds_names_the_tensor_the_place_and_the_line() -> None:
    x, y, out = torch.zeros(1000), torch.zeros(1000), torch.zeros(1000)
    with pytest.raises(LaunchError) as caught:
        vector_add[5](x, y, out, 1200, 256)
    text = str(caught.value)
    assert "element 1000 of 'x_ptr', whose memory holds 1000 elements" in text
    assert "element [232] of the tile" in text
    assert "x = tl.load(x_ptr + offsets, mask=mask)" in text


@tiledsl.jit
def poke(x_ptr, i, value):
    tl.store(x_ptr + i, value)


@pytest.mark.parametrize("index", [-1, 8, 2**40, -(2**40)])
def test_stores_out_of_bounds(index: int) -> None:
    with pytest.raises(
        LaunchError, match=f"element {index} of 'x_ptr', whose memory holds 8 elements"
    ):
        poke[1](torch.zeros(8), index, 1.0)


def test_elements_are_counted_from_where_a_slice_begins() -> None:
    with pytest.raises(LaunchError, match="element 8 of 'x_ptr', whose memory holds 8 elements"):
        poke[1](torch.zeros(20)[12:], 8, 1.0)


def test_neighbouring_tensors_are_told_apart() -> None:
    """A pointer of one tensor may not reach another one, wherever it lies."""
    both = np.zeros(16, np.float32)
    memory = GlobalMemory()
    first = memory.add(both[:8], "first")
    memory.add(both[8:], "second")
    assert memory.gather(first + 4 * 8, tl.float32) == 0
    with pytest.raises(LaunchError, match="element 8 of 'first'"):
        memory.gather(first + 4 * 8, tl.float32, origin="first")


def test_views_reach_their_whole_storage() -> None:
    """Pointer arithmetic from a view may go where the storage does."""
    packed = torch.arange(24.0).reshape(3, 8)
    out = torch.zeros(8)
    vector_add[1](packed[1], packed[2], out, 8, 16)
    assert torch.equal(out, packed[1] + packed[2])
    poke[1](packed[1], -8, 99.0)
    assert packed[0, 0] == 99


def test_table_of_pointers() -> None:
    xs = [torch.arange(10.0) + 100 * i for i in range(3)]
    table = torch.tensor([x.data_ptr() for x in xs])
    out = torch.zeros(3, 10)
    pointer_table[3](table, out, 10, 16)
    assert torch.equal(out, 2 * torch.stack(xs))


def test_wild_pointers_are_faults() -> None:
    table = torch.tensor([8])
    with pytest.raises(TileError, match="outside every tensor"):
        pointer_table[1](table, torch.zeros(10), 10, 16)


@tiledsl.jit
def far_corner(x_ptr, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    ptrs = x_ptr + rows[:, None] * stride + cols[None, :]
    tl.store(ptrs, tl.load(ptrs, mask=mask) + 1, mask=mask)


def test_offsets_beyond_two_to_the_31() -> None:
    """int32 rows and strides whose product does not fit int32."""
    rows, stride = 40000, 65536
    memory = mmap.mmap(-1, rows * stride)  # pages that nobody touches take no memory
    x = np.frombuffer(memory, np.int8)[: (rows - 1) * stride + 64]
    specs = {name: ScalarSpec(tl.int32) for name in ("M", "N", "stride")}
    specs = {"x_ptr": PointerSpec(tl.int8), **specs}
    graph = lower_function(far_corner.fn, specs, {"BM": 8, "BN": 64})
    run_program(graph, {"x_ptr": x, "M": rows, "N": 60, "stride": stride}, rows // 8 - 1)
    assert x[(rows - 1) * stride :].tolist() == [1] * 60 + [0] * 4
    assert x[(rows - 8) * stride] == 1
    assert x[(rows - 9) * stride] == 0


def run_program(graph, args, pid: int) -> None:
    """One program of a large grid."""
    from tiledsl.ir.interp import Interpreter
    from tiledsl.ir.interp import bind
    from tiledsl.ir.interp import finish

    memory = GlobalMemory()
    values = bind(graph, args, memory)
    program = Interpreter(memory, (pid, 0, 0), (pid + 1, 1, 1), values)
    finish(program.run_region(graph.body, ()))


@tiledsl.jit
def asserts(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.device_assert(x > 0, "x must be positive", mask=tl.arange(0, BLOCK) < 4)


def test_device_assert() -> None:
    x = torch.ones(8)
    x[6] = -1
    asserts[1](x, 8)
    x[2] = -1
    with pytest.raises(
        TileError,
        match=r"device_assert failed in program \(0, 0, 0\), first for element \[2\]: x must",
    ):
        asserts[1](x, 8)


@tiledsl.jit
def prints(x_ptr, n):
    tl.device_print("n: ", n)
    tl.device_print("x =", tl.load(x_ptr + tl.arange(0, 2)), n, hex=True)
    tl.device_print(" y: ", tl.arange(0, 11) * 0.5)
    tl.device_print("done")


def test_device_print(capsys) -> None:
    prints[1](torch.tensor([10, 255]), 5)
    lines = capsys.readouterr().out.splitlines()
    assert [*lines[:4], *lines[13:]] == [
        "pid (0, 0, 0) idx () n: 5",
        "pid (0, 0, 0) idx (0) x =: (operand 0) 0x000000000000000a",
        "pid (0, 0, 0) idx (1) x =: (operand 0) 0x00000000000000ff",
        "pid (0, 0, 0) idx () x =: (operand 1) 0x00000005",
        "pid (0, 0, 0) idx ( 9) y: 4.500000",
        "pid (0, 0, 0) idx (10) y: 5.000000",
        "pid (0, 0, 0) done",
    ]


def test_interpret_takes_numpy_arrays() -> None:
    specs = {name: PointerSpec(tl.float32) for name in ("x_ptr", "y_ptr", "out_ptr")}
    specs["n_elements"] = ScalarSpec(tl.int32)
    graph = lower_function(vector_add.fn, specs, {"BLOCK_SIZE": 16})
    x, out = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
    interpret(
        graph, {"x_ptr": x, "y_ptr": x[::-1].copy(), "out_ptr": out, "n_elements": 20}, (2, 1, 1)
    )
    assert (out == 19).all()
