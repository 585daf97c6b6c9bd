"""Accesses outside of all arguments end the emulation, and never reach other memory."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.emulate.errors import EmulationFault
from tiledsl.emulate.errors import NotEmulated
from tiledsl.simulator import emulate


@tiledsl.jit
def copied(x, o, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    values = tl.load(x + at)
    tl.store(o + at, values, mask=at < n)


@tiledsl.jit
def filled(o, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + at, at.to(tl.float32), mask=at < n)


@tiledsl.jit
def printed(x, o, B: tl.constexpr):
    values = tl.load(x + tl.arange(0, B))
    tl.device_print("value", values)
    tl.store(o + tl.arange(0, B), values)


def test_a_load_without_its_mask() -> None:
    x, o = torch.rand(100), torch.zeros(100)
    kernel = copied.compile(x, o, 100, 128, grid=(1,))
    with pytest.raises(EmulationFault, match=r"of argument x, which has 400.*\n.*bounds\.py:1[67]"):
        emulate(kernel, (x, o, 100), (1,))


@pytest.mark.parametrize("n", [128, 100_000])
def test_stores_behind_a_tensor(n: int) -> None:
    o = torch.zeros(100)
    blocks = -(-n // 1024)
    kernel = filled.compile(o, n, 1024, grid=(blocks,))
    with pytest.raises(EmulationFault, match=r"of argument o, which has 400.*\n.*bounds\.py:2[45]"):
        emulate(kernel, (o, n), (blocks,))


def test_far_away() -> None:
    o = torch.zeros(100)
    kernel = filled.compile(o, 1 << 30, 1024, grid=(1 << 16,))
    with pytest.raises(EmulationFault, match=r"argument o|outside of all arguments"):
        emulate(kernel, (o[:0], 1 << 30), (1 << 16,))


def test_prints(capfd: pytest.CaptureFixture[str]) -> None:
    x, o = torch.arange(32.0), torch.zeros(32)
    emulate(printed.compile(x, o, 32, grid=(1,)), (x, o), (1,))
    assert torch.equal(o, x)
    assert capfd.readouterr().out.count("value") == 32


SHIFTED = """
{
    .reg .b8 tmp<4>;
    mov.b32 {tmp0, tmp1, tmp2, tmp3}, $8;
    cvt.u32.u8 $0, tmp0;
    cvt.u32.u8 $1, tmp1;
    cvt.u32.u8 $2, tmp2;
    cvt.u32.u8 $3, tmp3;
}
shr.u32 $0, $0, 3;
shr.u32 $1, $1, 3;
shr.u32 $2, $2, 3;
shr.u32 $3, $3, 3;
cvt.rn.f32.u32 $4, $0;
cvt.rn.f32.u32 $5, $1;
cvt.rn.f32.u32 $6, $2;
cvt.rn.f32.u32 $7, $3;
max.f32 $4, $4, $9;
max.f32 $5, $5, $10;
max.f32 $6, $6, $11;
max.f32 $7, $7, $12;
"""
UNKNOWN = "{ .reg .b128 big; mov.b32 $0, $1; }"


@tiledsl.jit
def assembly(a, b, c, d, B: tl.constexpr):
    at = tl.arange(0, B)
    c_, d_ = tl.inline_asm_elementwise(
        asm=SHIFTED,
        constraints="=r,=r,=r,=r,=f,=f,=f,=f,r,f,f,f,f",
        args=[tl.load(a + at), tl.load(b + at)],
        dtype=(tl.int32, tl.float32),
        is_pure=True,
        pack=4,
    )
    tl.store(c + at, c_)
    tl.store(d + at, d_)


@tiledsl.jit
def unknown(a, o, B: tl.constexpr):
    at = tl.arange(0, B)
    x = tl.load(a + at)
    tl.store(o + at, tl.inline_asm_elementwise(UNKNOWN, "=r,r", [x], tl.int32, True, 1))


def test_the_assembly_of_tritons_documentation() -> None:
    a, b = torch.arange(128, dtype=torch.uint8), torch.rand(128) * 20
    c, d = torch.zeros(128, dtype=torch.int32), torch.zeros(128)
    emulate(assembly.compile(a, b, c, d, 128, grid=(1,)), (a, b, c, d), (1,))
    assert torch.equal(c, a.int() >> 3)
    assert torch.equal(d, torch.maximum((a >> 3).float(), b))


def test_an_unknown_register_is_named() -> None:
    a, o = torch.zeros(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    kernel = unknown.compile(a, o, 32, grid=(1,))
    with pytest.raises(NotEmulated, match=r"register of type \.b128 has no emulation \(.*\.py:\d+"):
        emulate(kernel, (a, o), (1,))
