"""Compiling with NVRTC, reading ptxas, and mapping errors. Needs no GPU."""

import dataclasses
import sys
from types import SimpleNamespace

import pytest

from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import PointerParam
from tiledsl.dtypes import float32
from tiledsl.errors import NvrtcError
from tiledsl.errors import TileError
from tiledsl.runtime import disassembler
from tiledsl.runtime import doctor
from tiledsl.runtime import nvrtc

ADD = KernelModule(
    name="add_one",
    source='#include "tiledsl/one.cuh"\n'
    'extern "C" __global__ void add_one(float* x) { x[threadIdx.x] += one(); }\n',
    headers=(("tiledsl/one.cuh", "__device__ inline float one() { return 1.0f; }\n"),),
    params=(PointerParam("x", "x", float32),),
    num_threads=32,
)
PTXAS_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : (C7517) Potential Performance Loss: a wait was injected
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size
"""


def with_source(source: str, **kwargs: object) -> KernelModule:
    return dataclasses.replace(ADD, source=source, **kwargs)


@pytest.mark.nvrtc
def test_cubin_and_facts():
    compiled = nvrtc.compile_module(ADD)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert 0 < compiled.registers < 64
    assert compiled.spill_bytes == compiled.stack_bytes == 0
    assert compiled.serialized == compiled.notes == ()
    assert compiled.seconds > 0


@pytest.mark.nvrtc
def test_repeated_compile_keeps_the_log():
    logs = [nvrtc.compile_module(ADD).log for _ in range(2)]
    assert all("Used" in log for log in logs)


@pytest.mark.nvrtc
def test_ptx():
    text = nvrtc.ptx_of(ADD)
    assert ".entry add_one" in text
    assert ".target sm_90a" in text
    assert "\0" not in text


def test_parse_ptxas():
    facts = nvrtc.parse_ptxas(PTXAS_LOG)
    assert (facts.registers, facts.spill_bytes, facts.stack_bytes) == (168, 56, 16)
    assert len(facts.serialized) == 1
    assert "C7510" in facts.serialized[0]
    assert len(facts.notes) == 1
    assert "C7517" in facts.notes[0]


@pytest.mark.parametrize("code", range(7507, 7520))
def test_codes(code):
    facts = nvrtc.parse_ptxas(f"ptxas info    : (C{code}) text")
    assert bool(facts.serialized) == (7508 <= code <= 7515)
    assert bool(facts.notes) == (code in (7517, 7519))


def test_parse_ptxas_empty():
    assert nvrtc.parse_ptxas("") == nvrtc.PtxasFacts(0, 0, 0, (), ())


@pytest.mark.nvrtc
def test_error_at_python_line(tmp_path):
    file = tmp_path / "gemm.py"
    file.write_text("import x\n    acc = dot(a, b)\n")
    source = f'#line 2 "{file}"\n__device__ int f() {{ return missing; }}\n'
    with pytest.raises(NvrtcError) as caught:
        nvrtc.compile_module(with_source(source))
    loc = caught.value.loc
    assert loc is not None
    assert (loc.file, loc.line) == (str(file), 2)
    assert 'identifier "missing" is undefined' in caught.value.message
    assert "acc = dot(a, b)\n        ^^^^" in str(caught.value)


@pytest.mark.nvrtc
def test_error_at_comment():
    source = "// gemm.py:31  acc = tl.dot(a, b)\n__device__ int f() { return missing; }\n"
    with pytest.raises(NvrtcError) as caught:
        nvrtc.compile_module(with_source(source))
    assert "line 2 of add_one.cu" in caught.value.notes[0].message
    assert "from gemm.py:31" in caught.value.notes[0].message
    assert "full NVRTC log" in caught.value.notes[-1].message


@pytest.mark.nvrtc
def test_inline_assembly_that_ptxas_refuses_names_its_line() -> None:
    source = (
        'TDSL_FN void inline_asm_1(float& o) {\n  asm volatile("foo.f32 %0;" : "=f"(o));\n}\n'
        'extern "C" __global__ void k(float* x) {\n  // gemm.py:31  tl.inline_asm(...)\n'
        "  inline_asm_1(x[0]);\n}\n"
    )
    with pytest.raises(NvrtcError, match="any known instruction: 'foo'") as caught:
        nvrtc.compile_module(with_source("#define TDSL_FN __device__\n" + source))
    assert "from gemm.py:31" in caught.value.notes[0].message


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        ('extern "C" __global__ void k() { asm("foo;"); }', (), "foo"),
        ("#include <nothere.h>", (), "could not open source file"),
        ('extern "C" __global__ void k() {}', ("--bad",), "unrecognized option --bad"),
    ],
)
def test_other_errors(source, options, text):
    with pytest.raises(NvrtcError, match="rejected kernel add_one") as caught:
        nvrtc.compile_module(with_source(source), options=options)
    assert text in str(caught.value)


def test_missing_nvrtc(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    nvrtc.bindings.cache_clear()
    try:
        with pytest.raises(NvrtcError, match="cannot be loaded") as caught:
            nvrtc.compile_module(ADD)
        assert "pip install" in (caught.value.hint or "")
        assert "FAIL NVRTC" in doctor.report()
    finally:
        nvrtc.bindings.cache_clear()


def test_sass_without_a_tool(monkeypatch):
    monkeypatch.setattr(disassembler, "find_disassembler", lambda: None)
    with pytest.raises(TileError, match="no CUDA disassembler") as caught:
        nvrtc.sass(b"")
    assert "nvidia-cuda-nvdisasm" in (caught.value.hint or "")


def make_tool(folder, text):
    tool = folder / "nvdisasm"
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    return tool


def test_sass_runs_the_tool(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    tool = make_tool(tmp_path, 'cat "$2"')
    assert disassembler.find_disassembler() == tool
    assert nvrtc.sass(b"EXIT ;") == "EXIT ;"
    make_tool(tmp_path, "echo broken >&2; exit 3")
    with pytest.raises(TileError, match="broken"):
        nvrtc.sass(b"")


def test_disassembler_in_cuda_home(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    tool = make_tool(tmp_path / "bin", "true")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert disassembler.find_disassembler() == tool


def test_doctor_reports_every_check():
    lines = doctor.report().splitlines()
    checks = "packages NVRTC headers compile cache torch driver GPU launch disassembler"
    for name in checks.split():
        assert any(line[5:].startswith(name) for line in lines)


def test_doctor_names_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for folder, text in ((str(tmp_path / "file" / "x"), "cannot write"), ("off", "switched off")):
        monkeypatch.setenv("TILEDSL_CACHE_DIR", folder)
        (line,) = [line for line in doctor.report().splitlines() if line[5:].startswith("cache")]
        assert line.startswith("--")
        assert text in line


@pytest.mark.parametrize("unknown", [(), ("--minimal",), ("--no-cache",), nvrtc.OPTIONAL])
def test_flags_that_a_version_does_not_know_are_left_out(unknown):
    result = SimpleNamespace(NVRTC_ERROR_INVALID_OPTION=5)
    asked = []

    def compile_program(program, count, options):
        assert count == len(options)
        asked.append([o.decode() for o in options])
        return (5 if any(o in unknown for o in asked[-1]) else 0,)

    fake = SimpleNamespace(nvrtcResult=result, nvrtcCompileProgram=compile_program)
    options = (*nvrtc.FLAGS, *nvrtc.CUBIN_FLAGS)
    assert nvrtc._compile(fake, None, options) == 0
    kept = [o for o in options if o not in unknown]
    assert set(kept) - set(nvrtc.OPTIONAL) <= set(asked[-1]) <= set(kept)
    assert nvrtc._compile(fake, None, ("--std=c++17",)) == 0


@pytest.mark.nvrtc
def test_edited_text_may_print_and_assert():
    body = 'printf("%d", (int)threadIdx.x); assert(threadIdx.x < 32); x[0] = __ldg(x + 1);'
    source = f'extern "C" __global__ void add_one(float* x) {{ {body} }}\n'
    assert nvrtc.compile_module(with_source(source)).cubin
