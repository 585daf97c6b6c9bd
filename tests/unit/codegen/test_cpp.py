"""Literals and line breaks."""

from __future__ import annotations

import json
import re

import pytest

from tiledsl import dtypes as dt
from tiledsl.codegen.cpp import MAX_COLUMNS
from tiledsl.codegen.cpp import literal
from tiledsl.codegen.cpp import wrap
from tiledsl.dtypes import DType
from tiledsl.errors import CodegenError


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (5, dt.int32, "5"),
        (-5, dt.int32, "-5"),
        (-(2**31), dt.int32, "-2147483647 - 1"),
        (2**31, dt.int32, "-2147483647 - 1"),
        (-1, dt.uint32, "4294967295u"),
        (7, dt.int64, "7ll"),
        (-(2**63), dt.int64, "-9223372036854775807ll - 1"),
        (7, dt.uint64, "7ull"),
        (200, dt.int8, "-56"),
        (True, dt.int1, "true"),
        (1, dt.float32, "1.0f"),
        (0.1, dt.float32, "0.1f"),
        (1e20, dt.float32, "1e+20f"),
        (-0.0, dt.float32, "-0.0f"),
        (0.1, dt.float64, "0.1"),
        (0.1, dt.bfloat16, "0.100097656f"),
        (float("inf"), dt.float32, "__int_as_float(0x7f800000)"),
        (1e300, dt.float32, "__int_as_float(0x7f800000)"),
        (float("nan"), dt.float16, "__int_as_float(0x7fc00000)"),
        (float("-inf"), dt.float64, "__longlong_as_double(0xfff0000000000000ll)"),
    ],
)
def test_literals(value: float, dtype: DType, text: str) -> None:
    assert literal(value, dtype) == text


def test_long_lines_are_broken_at_the_outermost_place() -> None:
    line = "  call(" + ", ".join(f"argument_{i}(x + {i})" for i in range(12)) + ");"
    pieces = wrap(line).split("\n")
    assert len(pieces) > 1
    assert all(len(p) <= MAX_COLUMNS for p in pieces)
    assert all(p.startswith("      ") for p in pieces[1:])
    assert "".join(p.strip() + " " for p in pieces).replace(" ", "") == line.replace(" ", "")
    assert all(p.endswith(",") for p in pieces[:-1])


def test_comments_are_cut() -> None:
    assert len(wrap("  // gemm.py:3  " + "x" * 200)) == MAX_COLUMNS


def test_a_line_without_breaks_is_an_error() -> None:
    with pytest.raises(CodegenError, match="cannot be broken"):
        wrap("x" * 200)


def test_long_strings_are_cut_in_two() -> None:
    ptx = 'add.f32 $0, $1, 2.0; // "é" \\ and ' * 12
    pieces = wrap(f"  asm volatile({json.dumps(ptx)} : outputs);").split("\n")
    assert len(pieces) > 4
    assert all(len(p) <= MAX_COLUMNS for p in pieces)
    strings = re.findall(r'"(?:\\.|[^"\\])*"', "\n".join(pieces))
    assert "".join(map(json.loads, strings)) == ptx


def test_a_string_is_left_whole_where_the_line_breaks_beside_it() -> None:
    line = f'  call({"x, " * 20}"a, b; (c", {"y, " * 20}z);'
    pieces = wrap(line).split("\n")
    assert sum('"a, b; (c"' in p for p in pieces) == 1
    assert " ".join(p.strip() for p in pieces) == line.strip()
