"""Inline PTX in the interpreter: instructions against numpy, packing, predicates, errors."""

from __future__ import annotations

import numpy as np
import pytest

from tiledsl.errors import TileError
from tiledsl.ir import ptx

F = np.array([0.5, -2.25, 3.0, 1e-3], np.float32)
G = np.array([4.0, 0.125, -1.5, 7.0], np.float32)
I = np.array([5, -7, 2**31 - 1, -(2**31)], np.int32)  # noqa: E741
J = np.array([3, 2, 5, 9], np.int32)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.itemsize}").astype(np.uint64)


def call(asm: str, *inputs: np.ndarray, dtype: object = np.float32) -> np.ndarray:
    (found,) = ptx.run(asm, 1, [bits(x) for x in inputs])
    kind = np.dtype(dtype)
    return found.astype(f"u{kind.itemsize}").view(kind)


@pytest.mark.parametrize(
    ("asm", "want"),
    [
        ("add.f32 $0, $1, $2;", F + G),
        ("sub.rn.ftz.f32 $0, $1, $2;", F - G),
        ("mul.f32 $0, $1, 0f40000000;", F * 2),
        ("mul.f32 $0, $1, 2.0;", F * 2),
        ("div.rn.f32 $0, $1, $2;", F / G),
        ("div.full.f32 $0, $1, $2;", F / G),
        ("fma.rn.f32 $0, $1, $2, $2;", (F.astype(np.float64) * G + G).astype(np.float32)),
        ("max.f32 $0, $1, $2;", np.maximum(F, G)),
        ("min.NaN.f32 $0, $1, $2;", np.minimum(F, G)),
        ("neg.f32 $0, $1;", -F),
        ("abs.f32 $0, $1;", np.abs(F)),
        ("copysign.f32 $0, $1, $2;", np.copysign(G, F)),
        ("ex2.approx.ftz.f32 $0, $1;", np.exp2(F)),
        ("add.sat.f32 $0, $1, $2;", np.clip(F + G, 0, 1)),
        ("{ .reg .f32 t; mul.f32 t, $1, $2; add.f32 $0, t, $1; }", F * G + F),
        ("{ .reg .f32 %t<2>; mov.f32 %t0, $1; mov.f32 %t1, %t0; mov.f32 $0, %t1; }", F),
        ("{ .reg .pred p; setp.lt.f32 p, $1, $2; selp.f32 $0, $1, $2, p; }", np.minimum(F, G)),
        (
            "{ .reg .pred p; setp.gt.f32 p, $1, 0f00000000; mov.f32 $0, $2; @!p mov.f32 $0, $1; }",
            np.where(F > 0, G, F),
        ),
        ("/* a\n comment */ mov.b32 $0, $1; // another", F),
    ],
)
def test_floats(asm: str, want: np.ndarray) -> None:
    np.testing.assert_array_equal(call(asm, F, G), want.astype(np.float32))


U = I.view(np.uint32)


@pytest.mark.parametrize(
    ("asm", "want"),
    [
        ("add.s32 $0, $1, $2;", I + J),
        ("add.u32 $0, $1, 0x10;", I + 16),
        ("mul.lo.s32 $0, $1, $2;", I * J),
        ("mul.hi.s32 $0, $1, $2;", (I.astype(np.int64) * J >> 32).astype(np.int32)),
        ("mul.hi.u32 $0, $1, $2;", (U.astype(np.uint64) * J.astype(np.uint64) >> np.uint64(32))),
        ("mad.lo.s32 $0, $1, $2, $1;", I * J + I),
        ("div.s32 $0, $1, $2;", np.array([1, -3, 429496729, -238609294])),
        ("rem.s32 $0, $1, $2;", np.fmod(I, J)),
        ("min.s32 $0, $1, $2;", np.minimum(I, J)),
        ("max.u32 $0, $1, $2;", np.maximum(U, J.view(np.uint32))),
        ("and.b32 $0, $1, $2;", I & J),
        ("xor.b32 $0, $1, 0xffffffff;", ~I),
        ("not.b32 $0, $1;", ~I),
        ("shl.b32 $0, $1, $2;", I << J),
        ("shr.s32 $0, $1, $2;", I >> J),
        ("shr.u32 $0, $1, $2;", U >> J.view(np.uint32)),
        ("shr.s32 $0, $1, 40;", np.where(I < 0, -1, 0)),
        ("lop3.b32 $0, $1, $2, $1, 0xEA;", (I & J) | I),
        ("prmt.b32 $0, $1, $2, 0x3210;", I),
        ("prmt.b32 $0, $1, $2, 0x7654;", J),
        ("popc.b32 $0, $1;", np.array([bin(u).count("1") for u in U])),
        ("clz.b32 $0, $2;", np.array([30, 30, 29, 28])),
        ("brev.b32 $0, $1;", np.array([int(f"{u:032b}"[::-1], 2) for u in U])),
        ("bfe.u32 $0, $1, 1, 4;", (U >> np.uint32(1)) & np.uint32(15)),
        ("bfe.s32 $0, $1, 0, 3;", np.array([-3, 1, -1, 0])),
        (
            "bfi.b32 $0, $2, $1, 8, 8;",
            (U & np.uint32(0xFFFF00FF)) | (J.view(np.uint32) << np.uint32(8)),
        ),
        ("cvt.rzi.s32.f32 $0, 0fC0200000;", np.full(4, -2)),
        ("shf.l.wrap.b32 $0, $1, $1, 8;", (U << np.uint32(8)) | (U >> np.uint32(24))),
    ],
)
def test_integers(asm: str, want: np.ndarray) -> None:
    found = call(asm, I, J, dtype=np.uint32)
    np.testing.assert_array_equal(found, want.astype(np.int64).astype(np.uint32))


def test_halves() -> None:
    asm = "{ .reg .b16 a, b; mov.b32 {a, b}, $1; mov.b32 $0, {b, a}; }"
    np.testing.assert_array_equal(call(asm, U, dtype=np.uint32), (U << 16) | (U >> 16))
    packed = call("cvt.rn.f16x2.f32 $0, $1, $2;", F, G, dtype=np.uint32)
    high, low = packed >> 16, packed & np.uint32(0xFFFF)
    np.testing.assert_array_equal(high.astype(np.uint16).view(np.float16), F.astype(np.float16))
    np.testing.assert_array_equal(low.astype(np.uint16).view(np.float16), G.astype(np.float16))
    both = call("add.f16x2 $0, $1, $1;", packed, dtype=np.uint32)
    doubled = call("cvt.rn.f16x2.f32 $0, $1, $2;", F + F, G + G, dtype=np.uint32)
    np.testing.assert_array_equal(both, doubled)


def test_fp8_saturates() -> None:
    big = np.array([1e6, -1e6], np.float32)
    packed = call("cvt.rn.satfinite.e4m3x2.f32 $0, $1, $1;", big, dtype=np.uint16)
    np.testing.assert_array_equal(packed, np.array([0x7E7E, 0xFEFE], np.uint16))


@pytest.mark.parametrize(
    ("asm", "instruction"),
    [
        ("ld.global.f32 $0, [$1];", "ld.global.f32"),
        ("bar.sync 0;", "bar.sync 0"),
        ("add.f32 $0, $1, word;", "add.f32"),
        ("add.rz.f32 $0, $1, $1;", "add.rz.f32"),
    ],
)
def test_unknown_instructions(asm: str, instruction: str) -> None:
    with pytest.raises(TileError, match="does not run the PTX instruction") as caught:
        call(asm, F)
    assert instruction in caught.value.message


def test_undeclared_register() -> None:
    with pytest.raises(TileError, match="'t' is not declared"):
        call("mov.f32 t, $1;", F)
