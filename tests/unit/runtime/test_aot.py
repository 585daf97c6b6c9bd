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


def test_files_of_an_export(file, tmp_path):
    out = tmp_path / "out"
    made = compile_file(file, out)
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
def test_the_launcher_compiles_as_plain_c(file, tmp_path, standard):
    out = tmp_path / "out"
    for path in compile_file(file, out, ["matmul_bf16", "scale"]):
        if path.suffix == ".c":
            command = ["cc", f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-c", path.name]
            done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


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
def test_the_standalone_text_compiles_by_itself(file, tmp_path):
    out = tmp_path / "out"
    compile_file(file, out, ["scale"])
    text = (out / "scale.cu").read_text()
    compiled = compile_module(KernelModule("scale", text, (), (), 128))
    assert compiled.cubin.startswith(b"\x7fELF")
