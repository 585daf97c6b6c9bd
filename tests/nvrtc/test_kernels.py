"""Hand-built kernels compile for sm_90a as they should: no spills, no serialised wgmma, registers in budget."""

from __future__ import annotations

import re

import pytest

from tests.unit.codegen import elementwise_graphs as eg
from tests.unit.codegen import layout_graphs as lg
from tests.unit.codegen import machine_graphs as mg
from tiledsl import dtypes as dt
from tiledsl.codegen.kernel import emit_kernel
from tiledsl.codegen.module import KernelModule
from tiledsl.dtypes import DType
from tiledsl.ir.graph import TileGraph
from tiledsl.runtime.disassembler import find_disassembler
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.runtime.nvrtc import compile_module
from tiledsl.runtime.nvrtc import sass

pytestmark = pytest.mark.nvrtc
HOST_HEAD = 'extern "C"'


def checked(graph: TileGraph, *, most_registers: int = 255) -> CompiledKernel:
    """Compiles and checks what every kernel has to fulfil."""
    compiled = compile_module(emit_kernel(graph))
    assert compiled.spill_bytes == 0, compiled.log
    assert compiled.stack_bytes == 0, compiled.log
    assert compiled.serialized == (), compiled.log
    assert compiled.notes == (), compiled.log
    assert compiled.registers <= most_registers
    return compiled


@pytest.mark.parametrize("make", [mg.vector_add, mg.single_role_dot])
def test_small_kernels(make: object) -> None:
    checked(make(), most_registers=80)


@pytest.mark.parametrize("make", [mg.ping_pong_gemm, mg.cooperative_gemm])
def test_gemms(make: object) -> None:
    """168 registers are what 384 threads have at launch; more would break setmaxnreg."""
    compiled = checked(make(), most_registers=168)
    if find_disassembler() is None:
        pytest.skip("no disassembler")
    text = sass(compiled.cubin)
    counts = {
        name: len(re.findall(rf"\b{name}\b", text))
        for name in ("HGMMA", "UTMALDG", "UTMASTG", "STSM")
    }
    expected = {"HGMMA": 8, "UTMALDG": 2, "UTMASTG": 3, "STSM": 24}
    if make is mg.cooperative_gemm:
        expected = {"HGMMA": 20, "UTMALDG": 2, "UTMASTG": 8, "STSM": 32}
    assert counts == expected


@pytest.mark.parametrize("N", [64, 80, 176, 208, 256])
def test_ragged_tiles(N: int) -> None:
    checked(mg.cooperative_gemm(128, N), most_registers=168)


@pytest.mark.parametrize("case", lg.CASES, ids=lambda c: c.name)
def test_layouts(case: lg.Case) -> None:
    compile_module(emit_kernel(case.graph()))


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_elementwise(dtype: DType) -> None:
    """Every op on a dtype, all in one translation unit; the first one also on vectors."""
    cases = [case for case in eg.cases() if case.dtype == dtype]
    graphs = [eg.kernel(case, 32, 1, vector=1) for case in cases]
    modules = [emit_kernel(graph) for graph in (eg.kernel(cases[0], 32, 1), *graphs)]
    heads = {m.source.split(HOST_HEAD)[0].split("\n", 1)[1] for m in modules}
    assert len(heads) == 1
    kernels = [f"{HOST_HEAD}{m.source.split(HOST_HEAD)[1]}" for m in modules]
    numbered = [text.replace("elementwise(", f"kernel_{i}(", 1) for i, text in enumerate(kernels)]
    compile_module(KernelModule("all", heads.pop() + "".join(numbered), modules[0].headers, (), 32))


def test_constants() -> None:
    compile_module(emit_kernel(eg.constant_kernel(eg.constants())))
