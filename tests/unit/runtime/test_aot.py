"""Ahead-of-time compilation: the files, and the C that a C compiler takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap

import pytest

from tiledsl.__main__ import main
from tiledsl.aot import compile_file
from tiledsl.codegen.module import KernelModule
from tiledsl.errors import LaunchError
from tiledsl.runtime.nvrtc import compile_module

SOURCE = textwrap.dedent("""
    import torch
    import tiledsl, tiledsl.language as tl
    from tests.unit.runtime.manifest_kernels import matmul, scale

    x = torch.empty(1024, device="meta")
    tiledsl.export(scale, x, x, 1024, grid=(8,), BLOCK=128)
    M = 512
    a, b, c = (torch.empty(M, M, device="meta", dtype=torch.bfloat16) for _ in range(3))
    tiledsl.export(
        matmul, a, b, c, name="matmul_bf16", grid=lambda m: (tl.cdiv(M, m["BM"]), tl.cdiv(M, m["BN"]))
    )
    tuned = tiledsl.autotune([tiledsl.Config({"BLOCK": 64}), tiledsl.Config({"BLOCK": 128})], ["n"])(scale)
    tiledsl.export(tuned, x, x, 1024, name="tuned")
""")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("aot") / "kernels.py"
    path.write_text(SOURCE)
    return compile_file(path, path.parent / "out")


def test_files_of_an_export(made):
    out = made[0].parent
    assert sorted(p.name for p in made) == sorted(
        f"{n}.{e}" for n in ("scale", "matmul_bf16", "tuned") for e in ("cubin", "cu", "h", "c")
    )
    assert (out / "scale.cubin").read_bytes().startswith(b"\x7fELF")
    header = (out / "matmul_bf16.h").read_text()
    assert "CUresult matmul_bf16(CUstream stream, unsigned grid_x" in header
    assert "const tiledsl_tensor* a, const tiledsl_tensor* b, const tiledsl_tensor* c" in header
    assert "BM=" in header
    assert "CUdeviceptr x, CUdeviceptr o, int n)" in (out / "scale.h").read_text()
    assert "cuTensorMapEncodeTiled" in (out / "matmul_bf16.c").read_text()
    assert '#include "tiledsl' not in (out / "matmul_bf16.cu").read_text()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("standard", ["c99", "c17"])
def test_the_launcher_compiles_as_plain_c(made, standard):
    out = made[0].parent
    for path in made:
        if path.suffix == ".c":
            command = ["cc", f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-c", path.name]
            done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


# A driver that says what it was asked, and a program that launches both kernels.
STUB = r"""
#include <stdio.h>
#include <string.h>
#include "scale.h"
#include "matmul_bf16.h"
static int loads;
CUresult cuModuleLoadData(CUmodule* m, const void* image) {
  *m = (CUmodule)0; loads += 1;
  return memcmp(image, "\177ELF", 4) ? 200 : 0;
}
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  (void)m; *f = (CUfunction)name; return 0;
}
CUresult cuFuncSetAttribute(CUfunction f, int key, int value) {
  printf("%s attribute %d %s\n", (const char*)f, key, value > 48 << 10 ? "large" : "small");
  return 0;
}
CUresult cuCtxGetDevice(CUdevice* d) { *d = 0; return 0; }
CUresult cuDeviceGetAttribute(int* v, int key, CUdevice d) { (void)d; *v = key == 16 ? 5 : -1; return 0; }
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, int dtype, unsigned rank, void* data,
    const unsigned long long* extents, const unsigned long long* pitches, const unsigned* box,
    const unsigned* steps, int a, int b, int c, int d) {
  (void)map; (void)dtype; (void)box; (void)steps; (void)a; (void)b; (void)c; (void)d;
  printf("map %p rank %u extents %llu %llu pitch %llu\n", data, rank, extents[0], extents[1], pitches[0]);
  return (unsigned long long)data % 16 ? 1 : 0;
}
CUresult cuLaunchKernel(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty,
    unsigned tz, unsigned smem, CUstream stream, void** params, void** extra) {
  (void)ty; (void)tz; (void)smem; (void)extra;
  printf("launch %s grid %u %u %u threads %u stream %p\n", (const char*)f, x, y, z, tx, (void*)stream);
  if (!strcmp((const char*)f, "scale"))
    printf("x %llx o %llx n %d\n", *(unsigned long long*)params[0], *(unsigned long long*)params[1],
           *(int*)params[2]);
  return 0;
}
int main(void) {
  CUstream stream = (CUstream)0x7;
  tiledsl_tensor a = {0x1000, {200, 512}, {512, 1}}, b = {0x2000, {512, 320}, {320, 1}};
  tiledsl_tensor c = {0x3000, {200, 320}, {320, 1}}, odd = {0x1001, {200, 512}, {512, 1}};
  if (scale(stream, 8, 1, 1, 0x100, 0x200, 999) || scale(stream, 8, 1, 1, 0x100, 0x200, 1)) return 1;
  if (matmul_bf16(stream, 20, 3, 1, &a, &b, &c)) return 2;
  printf("empty %d misaligned %d loads %d\n", matmul_bf16(stream, 0, 3, 1, &a, &b, &c),
         matmul_bf16(stream, 20, 3, 1, &odd, &b, &c), loads);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_c_program_launches_through_the_driver(made):
    out = made[0].parent
    sources = ["matmul_bf16.c", "scale.c"]
    (out / "main.c").write_text(STUB)
    command = ["cc", "-std=c99", "-Wall", "-Werror", *sources, "main.c", "-o", "main"]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([out / "main"], capture_output=True, text=True, check=False)
    lines = [n for n in ran.stdout.splitlines() if not n.startswith("scale attribute")]
    assert ran.returncode == 0, ran.stdout
    assert lines[0] == "launch scale grid 8 1 1 threads 32 stream 0x7"
    assert [lines[1], lines[3]] == ["x 100 o 200 n 999", "x 100 o 200 n 1"]
    assert lines[4] == "matmul attribute 8 large"
    assert lines[5:8] == [
        "map 0x1000 rank 2 extents 512 200 pitch 1024",
        "map 0x2000 rank 2 extents 320 512 pitch 640",
        "map 0x3000 rank 2 extents 320 200 pitch 640",
    ]
    assert lines[8].startswith("launch matmul grid 5 1 1")  # persistent, on a GPU of five SMs
    assert lines[-1] == "empty 0 misaligned 1 loads 2"


def test_command_line(file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["tiledsl", "compile", str(file), "-o", str(tmp_path / "o"), "-k", "scale"]
    )
    assert main() == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("scale.cubin")
    monkeypatch.setattr(sys, "argv", ["tiledsl", "compile", str(tmp_path / "none.py")])
    assert main() == 1
    assert "is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "exports nothing"),
        ('tiledsl.export(scale, x, x, 1, BLOCK=64, name="a b")', "no C identifier"),
        ("tiledsl.export(scale, x, x, 1, BLOCK=64)\n" * 2, "scale more than once"),
    ],
)
def test_mistakes(tmp_path, text, message):
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE[: SOURCE.index("tiledsl.export")] + text)
    with pytest.raises(LaunchError, match=message):
        compile_file(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.nvrtc
def test_the_standalone_text_compiles_by_itself(made):
    text = (made[0].parent / "scale.cu").read_text()
    compiled = compile_module(KernelModule("scale", text, (), (), 128))
    assert compiled.cubin.startswith(b"\x7fELF")


ROWS = textwrap.dedent("""
    import torch
    import tiledsl, tiledsl.language as tl

    @tiledsl.jit
    def doubled(x, o, n, step, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        row = tl.program_id(0) * step
        tl.store(o + row + i, tl.load(x + row + i, mask=i < n) * 2, mask=i < n)

    x = torch.empty(8, 128, device="meta")
    tiledsl.export(doubled, x, x, 128, 128, 128, grid=(8,), name="full")
    tiledsl.export(doubled, x, x, 96, 128, 128, grid=(8,), name="part")
""")


def test_a_header_says_what_arguments_were_taken_for(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(ROWS)
    compile_file(path, tmp_path / "out")
    full, part = ((tmp_path / "out" / f"{name}.h").read_text() for name in ("full", "part"))
    assert "x: pointer<f32, align 16>" in full
    assert "n = 128, no argument here" in full
    assert "CUdeviceptr x, CUdeviceptr o, int step)" in full
    assert "n: scalar<i32, multiple of 16>" in part
    assert "CUdeviceptr x, CUdeviceptr o, int n, int step)" in part
