"""The rows of docs/semantics.md, a test each: `row-name` is `test_row_name`."""

from __future__ import annotations

import functools
import linecache
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.triton_style.losses import philox
from tiledsl.errors import NameUnresolved
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch

PAGE = Path(__file__).parents[3] / "docs" / "semantics.md"


def test_every_row_has_a_test() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert len(rows) > 30
    assert {r.replace("-", "_") for r in rows} == tests - {"every_row_has_a_test"}


@functools.cache
def function(text: str) -> Any:
    """A function of x and y that gives an expression, with a source that can be read."""
    file = f"<semantics {text}>"
    lines = ["def expression(x, y=None):\n", f"    return {text}\n"]
    linecache.cache[file] = (0, None, lines, file)
    scope: dict[str, Any] = {"tl": tl}
    exec(compile("".join(lines), file, "exec"), scope)
    return scope["expression"]


@tiledsl.jit
def apply(fn: tl.constexpr, out, x=None, y=None):
    """Stores what a function gives for scalars, or for what is loaded from pointers."""
    tl.store(out, fn(x, y))


@tiledsl.jit
def tiles(fn: tl.constexpr, out, x, N: tl.constexpr, M: tl.constexpr):
    at = tl.arange(0, N)
    made = fn(tl.load(x + at))
    tl.store(out + tl.arange(0, M), made) if M else tl.store(out, made)


@tiledsl.jit
def probe(fn: tl.constexpr, x, y):
    tl.static_assert(False, fn(x, y).dtype)


def scalar(text: str, x: Any = None, y: Any = None, dtype: torch.dtype = torch.float64) -> Any:
    out = torch.zeros(1, dtype=dtype)
    apply[(1,)](function(text), out, x, y)
    return out.item()


def tile(text: str, x: Any, size: int | None = None, dtype: torch.dtype = torch.float64) -> Any:
    given = torch.as_tensor(x)
    out = torch.zeros(max(1, len(given) if size is None else size), dtype=dtype)
    tiles[(1,)](function(text), out, given, len(given), len(given) if size is None else size)
    return out.tolist() if size != 0 else out.item()


def dtype_of(text: str, *args: Any) -> str:
    """The type of an expression, as the kernel sees it."""
    with pytest.raises(TileError, match="static_assert failed") as caught:
        probe[(1,)](function(text), *(*args, None, None)[:2])
    return caught.value.message.rpartition(": ")[2]


# ---------------------------------------------------------------------- types
SAME, SUM, LOADED = "x + 0", "x + y", "tl.load(x) + tl.load(y)"


def test_argument_types() -> None:
    assert [dtype_of(SAME, n) for n in (5, -(2**31), 2**31 - 2**16, 2**40, 2**63)] == [
        "i32", "i32", "i64", "i64", "u64",
    ]  # fmt: skip
    assert dtype_of(SAME, 1.0) == "f32"
    assert dtype_of("x", True) == "i1"
    assert dtype_of("x", torch.zeros(1)) == "ptr<f32>"


def test_arguments_out_of_range() -> None:
    assert scalar(SAME, 1e300) == math.inf
    assert scalar("x.to(tl.float8e5)", -1e30, dtype=torch.float32) == -57344.0


def one(dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(1).to(dtype)


def test_weak_numbers() -> None:
    times = "tl.load(x) * 2.5"
    assert dtype_of(times, one(torch.float16)) == "f16"
    assert dtype_of(times, one(torch.int64)) == "f32"
    assert dtype_of("tl.load(x) + 1", one(torch.uint8)) == "u8"
    assert dtype_of("tl.load(x) + 1", one(torch.bool)) == "i32"
    assert (
        dtype_of("tl.full([], 4294967295, tl.uint32) | tl.where(x > 0, 4294967295, 1)", 1) == "u32"
    )
    with pytest.raises(TypeMismatch, match="constant 300 does not fit"):
        scalar("tl.load(x) + 300", one(torch.uint8))


def test_promotion() -> None:
    names = {
        "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
        "i32": torch.int32, "i64": torch.int64, "u32": torch.uint32, "u8": torch.uint8,
        "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
    }  # fmt: skip
    for x, y, want in (
        ("f64", "f32", "f64"), ("f32", "bf16", "f32"), ("f16", "bf16", "f16"), ("f16", "i64", "f16"),
        ("bf16", "bf16", "bf16"), ("bf16", "i32", "f32"), ("bf16", "e5m2", "f32"),
        ("e4m3", "e5m2", "f16"), ("i64", "u32", "i64"), ("i32", "u32", "u32"), ("u8", "i32", "i32"),
    ):  # fmt: skip
        made = [torch.zeros(1, dtype=names[n]) for n in (x, y)]
        assert dtype_of(LOADED, *made) == want, (x, y)
        assert dtype_of(LOADED, *reversed(made)) == want, (y, x)


def test_division_type() -> None:
    half = "tl.load(x) / 2"
    assert [dtype_of(half, one(d)) for d in (torch.float16, torch.int32, torch.float64)] == [
        "f32", "f32", "f64",
    ]  # fmt: skip
    assert dtype_of("tl.load(x) % tl.load(y)", one(torch.float16), one(torch.float16)) == "f32"


def test_casts() -> None:
    big = [2.5, -2.5, 1e10, -1e10, math.nan]
    as_int = tile("x.to(tl.int32)", torch.tensor(big), dtype=torch.int64)
    assert as_int == [2, -2, 2**31 - 1, -(2**31), 0]
    assert tile("x.to(tl.int8)", torch.tensor([300, -129, 5]), dtype=torch.int64) == [
        44,
        127,
        5,
    ]
    assert tile("x.to(tl.int1)", torch.tensor([0.0, 0.1, math.nan])) == [0, 1, 1]
    halves = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11])
    assert tile("x.to(tl.float16)", halves) == [1.0, 1 + 2.0**-9]
    down = tile('x.to(tl.float16, fp_downcast_rounding="rtz")', torch.cat([halves, -halves]))
    assert down == [1.0, 1 + 2.0**-10, -1.0, -1 - 2.0**-10]
    top = tile('x.to(tl.bfloat16, "rtz")', torch.tensor([3.4e38, -math.inf, math.nan]))
    assert top[:2] == [float(torch.finfo(torch.bfloat16).max), -math.inf]
    assert math.isnan(top[2])


def test_fp8_saturates() -> None:
    values = torch.tensor([1e6, -math.inf, math.nan, 1.0])
    assert tile("x.to(tl.float8e4nv)", values)[:2] == [448.0, -448.0]
    assert tile("x.to(tl.float8e5)", values)[:2] == [57344.0, -57344.0]
    assert math.isnan(tile("x.to(tl.float8e4nv)", values)[2])
    assert scalar("tl.full([], 1000000.0, tl.float8e4nv)") == 448.0


def test_bools() -> None:
    assert scalar(SUM, True, True) == 0
    assert scalar("~x", True) == 0
    assert dtype_of("x * tl.load(y)", True, one(torch.float16)) == "f16"


# ---------------------------------------------------------------------- integers
def test_integers_wrap() -> None:
    assert scalar(SUM, 2**31 - 2**16 - 1, 2**16 + 1, torch.int64) == -(2**31)
    assert scalar("x * y", 65536, 65537, torch.int64) == 65536


def test_division_truncates() -> None:
    quotient, rest = ("x // y"), ("x % y")
    assert (scalar(quotient, -7, 2), scalar(rest, -7, 2)) == (-3, -1)
    assert (scalar("x + -7 // 2", 0), scalar("x + -7 % 2", 0)) == (-4, 1)


def test_shifts() -> None:
    assert scalar("x >> y", -8, 1) == -4
    assert scalar("x.to(tl.uint32) >> y", -8, 1, torch.int64) == (2**32 - 8) // 2
    assert scalar("x >> y", -8, 40) == -1
    assert scalar("x << y", 3, 32) == 0


@tiledsl.jit
def far(x, n, m):
    tl.store(x + n * m, 7)


def test_addresses() -> None:
    """2**16 * 2**15 is no int32. The memory is reserved and all but one page stays untouched."""
    x = torch.empty(2**31 + 8, dtype=torch.int8)
    x[2**31] = 0
    far[(1,)](x, 2**16, 2**15)
    assert x[2**31] == 7


# ---------------------------------------------------------------------- memory
@tiledsl.jit
def shifted(x: tl.Tensor, out: tl.Tensor, row, column, other: tl.constexpr):
    out.store((0, 0), x.load((row, column), (4, 4), other))


@pytest.mark.parametrize("other", [None, 9.0])
def test_blocks_outside(other: float | None) -> None:
    x = torch.arange(6.0).view(2, 3)
    out = torch.full((3, 4), -1.0)
    shifted[(1,)](x, out, -1, 1, other)
    fill = other or 0.0
    assert out.tolist() == [[fill] * 4, [1, 2, fill, fill], [4, 5, fill, fill]]


@tiledsl.jit
def row_of(x: tl.Tensor, out: tl.Tensor, row):
    out.store((row, 0), x.load((row, 0), (4,)) + 1)


def test_block_rank() -> None:
    x, out = torch.arange(12.0).view(3, 4), torch.zeros(3, 4)
    row_of[(1,)](x, out, 1)
    assert out.tolist() == [[0] * 4, [5, 6, 7, 8], [0] * 4]


def test_strides() -> None:
    for x in (
        torch.arange(24.0).view(4, 6)[:, ::2],
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(4.0)[:, None].expand(4, 3),
        torch.arange(13.0)[1:].view(4, 3),
    ):
        out = torch.zeros(3, 4).t()
        shifted[(1,)](x, out, 0, 0, None)
        assert torch.equal(out, x)


@tiledsl.jit
def masked(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(
        out + at, tl.load(x + at * 1000000, mask=at < 1) + tl.load(x + at * 1000000, at < 1, 5.0)
    )


def test_masked_loads() -> None:
    out = torch.zeros(4)
    masked[(1,)](torch.ones(1), out, 4)
    assert out.tolist() == [2, 5, 5, 5]


def test_stores_cast() -> None:
    assert tile("x", torch.tensor([1.9, -1.9]), dtype=torch.int32) == [1, -1]
    flags = torch.zeros(3, dtype=torch.bool)
    tiles[(1,)](function("x"), flags, torch.tensor([0, 2, -1]), 3, 3)
    assert flags.view(torch.uint8).tolist() == [0, 1, 1]


@tiledsl.jit
def reversed_twice(x: tl.Tensor, p, N: tl.constexpr):
    at = tl.arange(0, N)
    x.store(0, tl.flip(x.load(0, (N,))))
    x.store(0, tl.flip(x.load(0, (N,))) * 10)
    tl.store(p + at, at)
    tl.debug_barrier()
    tl.store(p + N + at, tl.load(p + (N - 1 - at)))


def test_program_order() -> None:
    x, p = torch.arange(4.0), torch.zeros(8)
    reversed_twice[(1,)](x, p, 4)
    assert x.tolist() == [0, 10, 20, 30]
    assert p.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]


def test_aliases() -> None:
    with pytest.raises(TileError, match="share memory"):
        row_of[(1,)](torch.zeros(3, 4), torch.zeros(1, 4).expand(3, 4), 0)


@tiledsl.jit
def count(x, out, N: tl.constexpr):
    old = tl.atomic_add(x + tl.arange(0, N) * 0, 1)
    tl.store(out + tl.arange(0, N), old)


def test_atomics() -> None:
    x, out = torch.zeros(1, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    count[(1,)](x, out, 8)
    assert x.item() == 8
    assert sorted(out.tolist()) == list(range(8))


def test_zero_sizes() -> None:
    shifted[(1,)](torch.zeros(0, 3), torch.zeros(3, 0), 0, 0, None)
    out = torch.zeros(1)
    apply[(0,)](function(SAME), out, 5)
    assert out.item() == 0


# ---------------------------------------------------------------------- floating point
NAN = torch.tensor([math.nan, 1.0])


def test_comparisons() -> None:
    assert tile("x <= x", NAN) == [0, 1]
    assert tile("x != x", NAN) == [1, 0]


def test_nan_in_maximum() -> None:
    assert tile("tl.maximum(x, 0.5)", NAN) == [0.5, 1.0]
    assert math.isnan(tile("tl.maximum(x, 0.5, propagate_nan=tl.PropagateNan.ALL)", NAN)[0])
    assert tile("tl.clamp(x, 0.25, 0.5)", NAN) == [0.25, 0.5]
    assert tile("tl.max(x)", NAN, 0) == 1.0
    assert tile("tl.argmin(x, 0)", NAN, 0) == 1
    assert tile('tl.argmax(x * float("nan"), 0)', NAN, 0) == 0


def test_nan_in_sorts() -> None:
    x = torch.tensor([-math.nan, 0.0, math.inf, -0.0])
    found = tile("tl.sort(x)", x)
    assert found[:3] == [0.0, 0.0, math.inf]
    assert [math.copysign(1, v) for v in found] == [-1, 1, 1, 1]
    assert math.isnan(tile("tl.topk(x, 1)", x, 1)[0])


def test_infinities() -> None:
    low = torch.full((2,), -math.inf)
    assert all(map(math.isnan, tile("tl.exp(x - x)", low)))
    assert tile('tl.where(x == -float("inf"), 0.0, tl.exp(x - x))', low) == [0, 0]


def test_where() -> None:
    assert tile("tl.where(x == 0, 3.0, 1 / x)", torch.tensor([0.0, 4.0])) == [3.0, 0.25]


@tiledsl.jit
def product(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, P: tl.constexpr):
    c.store((0, 0), tl.dot(a.load((0, 0), (16, 32)), b.load((0, 0), (32, 16)), input_precision=P))


def error_of_product(precision: str | None) -> float:
    a, b, c = torch.randn(16, 32), torch.randn(32, 16), torch.zeros(16, 16)
    product[(1,)](a, b, c, precision)
    return float((c.double() - a.double() @ b.double()).abs().max())


def test_dot_f32() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert error_of_product(None) < 1e-5 < error_of_product("tf32")
        torch.set_float32_matmul_precision("high")
        assert error_of_product("ieee") < 1e-5 < error_of_product(None)
    finally:
        torch.set_float32_matmul_precision(before)


def test_dot_types() -> None:
    for given, result in (
        (torch.bfloat16, torch.float32), (torch.float8_e5m2, torch.float32),
        (torch.int8, torch.int32), (torch.float64, torch.float64),
    ):  # fmt: skip
        a, b = (torch.randint(-3, 4, s).to(given) for s in ((16, 32), (32, 16)))
        c = torch.zeros(16, 16, dtype=result)
        product[(1,)](a, b, c, None)
        assert torch.equal(c.double(), a.double() @ b.double())


# ---------------------------------------------------------------------- reductions
def test_reduced_types() -> None:
    def result(name: str, dtype: torch.dtype) -> str:
        return dtype_of(f"tl.{name}(tl.load(x + tl.arange(0, 4)))", torch.zeros(4).to(dtype))

    assert [result("sum", d) for d in (torch.bool, torch.int8, torch.uint8, torch.float16)] == [
        "u32", "i32", "u32", "f16",
    ]  # fmt: skip
    assert [result("max", d) for d in (torch.int8, torch.float16, torch.bfloat16)] == [
        "i32", "f32", "f32",
    ]  # fmt: skip
    assert result("cumsum", torch.int16) == "i32"


@tiledsl.jit
def reduced(x, out, AXIS: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, 3)[:, None, None] * 35 + tl.arange(0, 5)[None, :, None] * 7 + tl.arange(0, 7)
    made = tl.sum(tl.load(x + at), axis=AXIS)
    if N == 0:
        tl.store(out, made)
    else:
        tl.store(out + tl.arange(0, N), tl.reshape(made, [N]))


def test_reduced_axes() -> None:
    x = torch.arange(105.0).view(3, 5, 7)
    for axis in (0, 1, 2, -1, -3):
        want = x.sum(axis)
        out = torch.zeros_like(want)
        reduced[(1,)](x, out, axis, want.numel())
        assert torch.equal(out, want)
    out = torch.zeros(1)
    reduced[(1,)](x, out, None, 0)
    assert out.item() == x.sum()


def test_ties() -> None:
    x = torch.tensor([1.0, 3.0, 3.0, 0.0, 0.0])
    assert tile("tl.argmax(x, 0)", x, 0) == 1
    assert tile("tl.argmin(x, 0)", x, 0) == 3
    assert tile("tl.max(x, 0, return_indices=True)[1]", x, 0) == 1


@tiledsl.jit
def columns(fn: tl.constexpr, x, out):
    at = tl.arange(0, 4)[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(out + at, fn(tl.load(x + at)))


def test_default_axes() -> None:
    x, out = torch.tensor([[3.0, 1], [2, 5], [0, 4], [1, 1]]), torch.zeros(4, 2)
    for fn, want in (
        (tl.cumsum, x.cumsum(0)),
        (tl.cumprod, x.cumprod(0)),
        (tl.softmax, x.softmax(0)),
        (tl.sort, x.sort(1).values),
    ):
        columns[(1,)](fn, x, out)
        torch.testing.assert_close(out, want)


def test_random() -> None:
    seed = 0x123456789ABC
    words = [philox(seed, 0), philox(seed, 7)]
    drawn = tile(f"tl.randint({seed}, x)", torch.tensor([0, 7]), dtype=torch.int64)
    assert [int(d) % 2**32 for d in drawn] == words


# ---------------------------------------------------------------------- control flow
@tiledsl.jit
def branches(out, FLAG: tl.constexpr, x=None):
    if FLAG:
        tl.store(out, 1)
    elif x is not None and x.there_is_no_such_name:
        tl.no_such_function()
    y = 2 if FLAG or undefined_name else other_undefined_name  # noqa: F821
    tl.store(out + 1, y)


def test_compile_time_branches() -> None:
    out = torch.zeros(2)
    branches[(1,)](out, True)
    assert out.tolist() == [1, 2]


@tiledsl.jit
def sides(x, out):
    pid = tl.program_id(0)
    tl.store(out + pid, tl.load(x + 1000000) if pid > 5 else tl.load(x))


def test_one_side_runs() -> None:
    out = torch.zeros(1)
    sides[(1,)](torch.ones(1), out)
    assert out.item() == 1


@tiledsl.jit
def leaves(out):
    pid = tl.program_id(0)
    if pid > 0:
        tl.store(out + pid, 1)
        return
    tl.store(out, 5)


def test_early_return() -> None:
    out = torch.zeros(3)
    leaves[(3,)](out)
    assert out.tolist() == [5, 1, 1]


@tiledsl.jit
def walk(out, start, end, step, DOWN: tl.constexpr):
    n = 0
    last = -1
    for i in range(start, end, -2 if DOWN else step):
        n += 1
        last = i
    tl.store(out, n)
    tl.store(out + 1, last)


def walked(*args: Any) -> list[int]:
    out = torch.zeros(2, dtype=torch.int32)
    walk[(1,)](out, *args)
    return out.tolist()


def test_ranges() -> None:
    assert walked(3, 3, 1, False) == [0, -1]
    assert walked(5, 2, 1, False) == [0, -1]
    assert walked(1, 8, 3, False) == [3, 7]
    assert walked(7, 0, 1, True) == [4, 1]


def test_step_of_zero() -> None:
    with pytest.raises(TileError, match="the step is 0"):
        walked(0, 5, 0, False)


@tiledsl.jit
def reads_after(out, n):
    for i in range(n):
        inside = i
    tl.store(out, inside)


def test_after_loops() -> None:
    assert walked(0, 0, 1, False) == [0, -1]
    with pytest.raises(NameUnresolved, match="assigned inside a loop only"):
        reads_after[(1,)](torch.zeros(1), 3)


@tiledsl.jit
def with_lists(x, out, n):
    known = [1, 2] + [3]  # noqa: RUF005
    known.append(4)
    for item in known[1:]:
        tl.store(out + item, 10 * item + len(known))
    pair = [tl.load(x), tl.load(x + 1)]
    for _ in range(n):
        pair = [pair[1], pair[0]]
    first, _ = pair
    tl.store(out, first)


@tiledsl.jit
def appends(x, out):
    items = [tl.load(x)]
    items.append(tl.load(x + 1))


@tiledsl.jit
def assigns(x, out):
    items = [tl.load(x)]
    items[0] = 1.0


def test_lists() -> None:
    x, out = torch.tensor([7.0, 8.0]), torch.zeros(5)
    with_lists[(1,)](x, out, 3)
    assert out.tolist() == [8, 0, 24, 34, 44]
    for kernel, text in ((appends, "a list cannot be changed in place"), (assigns, "a subscript")):
        with pytest.raises(TileError, match=text):
            kernel[(1,)](x, out)


def test_tile_extents() -> None:
    assert tile("x + 1", np.arange(7.0)) == [1, 2, 3, 4, 5, 6, 7]
    assert scalar("tl.zeros([], tl.float32) + x", 2.0) == 2
