"""Which WGMMA forms exist, their names, and the text of their operands."""

from __future__ import annotations

import pytest

from tiledsl import dtypes as dt
from tiledsl.codegen.environment import environment
from tiledsl.codegen.environment import headers
from tiledsl.codegen.wgmma import WgmmaShape
from tiledsl.codegen.wgmma import render_wgmma
from tiledsl.codegen.wgmma import wgmma_name
from tiledsl.codegen.wgmma import wgmma_shape
from tiledsl.errors import CodegenError


def shape(
    acc: dt.DType,
    a: dt.DType,
    b: dt.DType,
    N: int,
    *,
    a_in_regs: bool = False,
    trans_a: bool = False,
    trans_b: bool = False,
) -> WgmmaShape:
    return wgmma_shape(acc, a, b, N, a_in_regs=a_in_regs, trans_a=trans_a, trans_b=trans_b)


@pytest.mark.parametrize(
    ("acc", "a", "b", "N", "name", "K", "num_acc", "acc_type"),
    [
        (dt.float32, dt.bfloat16, dt.bfloat16, 256, "f32_bf16_bf16", 16, 128, "float"),
        (dt.float32, dt.float16, dt.float16, 8, "f32_f16_f16", 16, 4, "float"),
        (dt.float16, dt.float16, dt.float16, 64, "f16_f16_f16", 16, 16, "u32"),
        (dt.float32, dt.float32, dt.float32, 96, "f32_tf32_tf32", 8, 48, "float"),
        (dt.float32, dt.float8e4nv, dt.float8e5, 176, "f32_e4m3_e5m2", 32, 88, "float"),
        (dt.float16, dt.float8e5, dt.float8e4nv, 24, "f16_e5m2_e4m3", 32, 6, "u32"),
        (dt.int32, dt.int8, dt.uint8, 24, "s32_s8_u8", 32, 12, "i32"),
        (dt.int32, dt.uint8, dt.uint8, 240, "s32_u8_u8", 32, 120, "i32"),
    ],
)
def test_legal_forms(
    acc: dt.DType,
    a: dt.DType,
    b: dt.DType,
    N: int,
    name: str,
    K: int,
    num_acc: int,
    acc_type: str,
) -> None:
    got = shape(acc, a, b, N)
    assert got.name == f"wgmma_m64n{N}k{K}_{name}_ss"
    assert (got.K, got.num_acc, got.acc_type) == (K, num_acc, acc_type)
    assert got.has_trans == (a.bits == 16)
    assert got.has_scale == a.is_float


@pytest.mark.parametrize(
    ("acc", "a", "b", "N", "flags", "message"),
    [
        (dt.bfloat16, dt.bfloat16, dt.bfloat16, 64, {}, "no bf16 accumulator"),
        (dt.float16, dt.bfloat16, dt.bfloat16, 64, {}, "accumulates in f32"),
        (dt.float16, dt.float32, dt.float32, 64, {}, "accumulates in f32"),
        (dt.float32, dt.bfloat16, dt.float16, 64, {}, "cannot multiply bf16 by f16"),
        (dt.float32, dt.float8e5, dt.float16, 64, {}, "cannot multiply e5m2 by f16"),
        (dt.float32, dt.int8, dt.int8, 64, {}, "accumulates in s32"),
        (dt.int32, dt.float16, dt.float16, 64, {}, "not s32"),
        (dt.float32, dt.int16, dt.int16, 64, {}, "no i16 operand"),
        (dt.float32, dt.float64, dt.float64, 64, {}, "no f64 operand"),
        (dt.float32, dt.float16, dt.float16, 0, {}, "multiple of 8"),
        (dt.float32, dt.float16, dt.float16, 12, {}, "multiple of 8"),
        (dt.float32, dt.float16, dt.float16, 264, {}, "multiple of 8"),
        (dt.int32, dt.int8, dt.int8, 40, {}, "multiple of 16"),
        (dt.float32, dt.float8e5, dt.float8e5, 64, {"trans_b": True}, "K-major only"),
        (dt.float32, dt.float32, dt.float32, 64, {"trans_a": True}, "K-major only"),
        (
            dt.float32,
            dt.float16,
            dt.float16,
            64,
            {"trans_a": True, "a_in_regs": True},
            "A in registers",
        ),
    ],
)
def test_illegal_forms(
    acc: dt.DType, a: dt.DType, b: dt.DType, N: int, flags: dict[str, bool], message: str
) -> None:
    with pytest.raises(CodegenError, match=message):
        shape(acc, a, b, N, **flags)


def test_name_tells_operand_places() -> None:
    types = (dt.float32, dt.bfloat16, dt.bfloat16, 128)
    stem = "wgmma_m64n128k16_f32_bf16_bf16"
    assert shape(*types, trans_a=True, trans_b=True).name == f"{stem}_ss_ta_tb"
    assert shape(*types, a_in_regs=True, trans_b=True).name == f"{stem}_rs_tb"
    assert wgmma_name(*types, a_in_regs=True, trans_a=False, trans_b=False) == f"{stem}_rs"


def test_operand_tails() -> None:
    types = (dt.float32, dt.bfloat16, dt.bfloat16, 8)
    assert shape(*types, trans_b=True).operand_tails == ("%4, %5, p, 1, 1, 0, 1",)
    regs = shape(*types, a_in_regs=True, trans_b=True)
    assert regs.operand_tails == ("{%4, %5, %6, %7}, %8, p, 1, 1, 1",)
    assert regs.predicates == (("p", "%9"),)
    fp8 = shape(dt.float32, dt.float8e5, dt.float8e5, 8)
    assert fp8.operand_tails == ("%4, %5, p, 1, 1",)
    int8 = shape(dt.int32, dt.int8, dt.int8, 8)
    assert int8.operand_tails == ("%4, %5, p",)


def test_several_steps_are_one_statement() -> None:
    one = shape(dt.float32, dt.bfloat16, dt.bfloat16, 8, trans_b=True)
    run = one.times(2)
    assert run.name == f"{one.name}_x2"
    assert run.operand_tails == ("%4, %5, p, 1, 1, 0, 1", "%6, %7, q, 1, 1, 0, 1")
    assert run.predicates == (("p", "%8"), ("q", "%9"))
    text = render_wgmma([one, run])
    assert text.count("asm volatile") == 2
    assert text.count(run.instruction) == 3
    assert "const u64 (&a)[2], const u64 (&b)[2], u32 accumulate" in text


def test_render_prints_each_shape_once_in_order() -> None:
    big = shape(dt.float32, dt.bfloat16, dt.bfloat16, 64)
    small = shape(dt.float32, dt.bfloat16, dt.bfloat16, 16)
    text = render_wgmma([big, small, big])
    assert text.count(f"void {big.name}(") == 1
    assert text == render_wgmma([small, big])
    assert text.startswith("// Warpgroup matrix multiplies")
    assert max(map(len, text.splitlines())) <= 120
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_render_of_nothing_is_empty() -> None:
    assert render_wgmma([]) == ""


def test_headers_are_named_as_included() -> None:
    names = [name for name, _ in headers()]
    assert names == sorted(names)
    assert "tiledsl/tiledsl.cuh" in names
    umbrella = dict(headers())["tiledsl/tiledsl.cuh"]
    for name in names:
        assert name == "tiledsl/tiledsl.cuh" or f'#include "{name}"' in umbrella


def test_environment_is_shared_and_strict() -> None:
    from jinja2 import UndefinedError

    env = environment()
    assert env is environment()
    assert env.from_string("{{0}} ${ x }\n").render(x=1) == "{{0}} 1\n"
    with pytest.raises(UndefinedError):
        env.from_string("${ y }").render()
