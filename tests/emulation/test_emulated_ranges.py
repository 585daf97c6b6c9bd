"""Loops at the ends of the integers, steps of 0, f64 dots: the emitted text against the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.errors import TileError
from tiledsl.runtime.interop import numpy_view


def emulated(kernel: Any, args: list[Any]) -> None:
    made, runtime = compiled(kernel, args)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (1, 1, 1), seconds=60.0)


@tiledsl.jit
def counted(out, first, last, step):
    n = 0
    for i in range(first, last, step):
        n += 1
        tl.store(out + 1, i)
    tl.store(out, n)
    tl.store(out + 2, tl.cdiv(last, 128))


@pytest.mark.parametrize(
    ("first", "last", "step"),
    [
        (2**31 - 5, 2**31 - 1, 2),
        (2**31 - 200, 2**31 - 1, 64),
        (0, 2**31 - 1, 2**30),
        (7, 100, 31),
        (100, 7, -31),
        (5, 5, 1),
    ],
)
def test_ends_of_ranges(first: int, last: int, step: int) -> None:
    out = torch.zeros(3, dtype=torch.int64)
    emulated(counted, [out, first, last, step])
    items = range(first, last, step)
    assert out.tolist() == [len(items), items[-1] if items else 0, -(-last // 128)]


@pytest.mark.parametrize(("first", "last"), [(0, 3), (3, 0)])
def test_a_step_of_zero(first: int, last: int) -> None:
    """An error in the interpreter; no iteration in compiled code, which would not end."""
    out = torch.zeros(3, dtype=torch.int64)
    emulated(counted, [out, first, last, 0])
    assert out[0] == 0
    with pytest.raises(TileError, match="step"):
        counted[(1,)](out, first, last, 0)


@tiledsl.jit
def product(a, b, c, K: tl.constexpr):
    m, k = tl.arange(0, 8)[:, None], tl.arange(0, K)[None, :]
    n = tl.arange(0, 16)[None, :]
    x = tl.load(a + m * K + k)
    y = tl.load(b + tl.arange(0, K)[:, None] * 16 + n)
    tl.store(c + m * 16 + n, tl.dot(x, y))


def test_f64_dot() -> None:
    a, b = torch.randn(8, 12, dtype=torch.float64), torch.randn(12, 16, dtype=torch.float64)
    c = torch.zeros(8, 16, dtype=torch.float64)
    emulated(product, [a, b, c, 12])
    torch.testing.assert_close(c, a @ b, rtol=1e-13, atol=1e-13)


FAR = 2**31


@pytest.mark.parametrize(
    ("first", "last", "step"),
    [
        (0, FAR - 70000, 2**17),
        (0, FAR - 70000, 1500000000),
        (FAR - 70005, FAR - 70000, 2**17),
        (FAR - 200000, FAR - 70000, 70000),
        (-FAR + 3, -FAR, -5),
        (FAR - 70000, -FAR, -(2**30)),
        (-FAR, -FAR + 9, 2**30),
        (-5, -FAR, 7),
        (5, FAR - 70000, -7),
    ],
)
def test_steps_beyond_the_last_integer(first: int, last: int, step: int) -> None:
    """Of arguments, of numbers, and of an end that is loaded."""
    items = range(first, last, step)
    want = [len(items), items[-1] if items else 0]
    out = torch.zeros(3, dtype=torch.int64)
    emulated(counted, [out, first, last, step])
    assert out.tolist()[:2] == want
    for kernel in (counted_numbers, counted_loaded):
        out = torch.zeros(2, dtype=torch.int64)
        given = [out, torch.tensor([last], dtype=torch.int32), first, last, step]
        emulated(kernel, given)
        assert out.tolist() == want


@tiledsl.jit
def counted_numbers(
    out, end, first: tl.constexpr, last: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    n = 0
    for i in range(first, last, step):
        n += 1
        tl.store(out + 1, i)
    tl.store(out, n)


@tiledsl.jit
def counted_loaded(out, end, first, last, step):
    n = 0
    for i in range(first, tl.load(end), step):
        n += 1
        tl.store(out + 1, i)
    tl.store(out, n)


@pytest.mark.parametrize(("first", "last"), [(FAR - 5, FAR - 1), (FAR - 40, FAR - 1)])
@pytest.mark.parametrize("step", [3, 16])
def test_numbers_at_the_end(first: int, last: int, step: int) -> None:
    out = torch.zeros(2, dtype=torch.int64)
    end = torch.tensor([last], dtype=torch.int32)
    for kernel in (counted_numbers, counted_loaded):
        emulated(kernel, [out, end, first, last, step])
        assert out.tolist() == [len(range(first, last, step)), range(first, last, step)[-1]]


def test_the_loop_variable_keeps_its_type() -> None:
    out = torch.zeros(1, dtype=torch.int64)

    @tiledsl.jit
    def wrapped(out):
        last = 0
        for i in range(2147483640, 2147483647, 3):
            last = i + i
        tl.store(out, last)

    emulated(wrapped, [out])
    assert out[0] == -4  # 2 * (2**31 - 2), in int32
    wrapped[(1,)](out.zero_())
    assert out[0] == -4


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint32], ids=str)
def test_ends_of_other_integers(dtype: torch.dtype) -> None:
    """Bounds that are loaded: up to the largest number by 16."""
    numbers = torch.iinfo(dtype)
    out = torch.zeros(2, dtype=torch.int64)
    ends = torch.tensor([numbers.max - 40, numbers.max, 16], dtype=torch.int64).to(dtype)
    emulated(counted_between, [out, ends])
    assert out.tolist() == [3, numbers.max - 8]


@tiledsl.jit
def counted_between(out, ends):
    n = 0
    for i in range(tl.load(ends), tl.load(ends + 1), tl.load(ends + 2)):
        n += 1
        tl.store(out + 1, i)
    tl.store(out, n)


@tiledsl.jit
def ahead(x, out, ends, base, n, B: tl.constexpr, STEP: tl.constexpr):
    """Loads that start an iteration ahead, from places relative to `base`."""
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(tl.load(ends), tl.load(ends + 1), STEP):
        total += tl.load(x + (i - base) + at, mask=(i - base) + at < n, other=0.0)
    tl.store(out + at, total)


@pytest.mark.parametrize("step", [1, 32, 4096])
@pytest.mark.parametrize("trips", [0, 1, 2, 9])
@pytest.mark.parametrize("low", [False, True])
def test_loads_ahead_of_the_last_integer(step: int, trips: int, low: bool) -> None:
    """No load lies outside of the tensor: the emulation refuses one that does."""
    base = -FAR if low else FAR - 1 - trips * step
    x = torch.arange(trips * step + 32, dtype=torch.float32)
    ends = torch.tensor([base, base + trips * step], dtype=torch.int32)
    out = torch.zeros(32)
    args = [x, out, ends, base, x.numel(), 32, step]
    emulated(ahead, args)
    want = sum(x[i * step : i * step + 32] for i in range(trips))
    assert torch.equal(out, want + torch.zeros(32))


@tiledsl.jit
def strided(x, out, n, base, B: tl.constexpr):
    """A loop over the grid, whose programs together reach beyond 2**31."""
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(base + tl.program_id(0) * B, n, tl.num_programs(0) * B * 2):
        total += tl.load(x + (i - base) + at, mask=i + at < n, other=0.0)
    tl.store(out + tl.program_id(0) * B + at, total)


@pytest.mark.parametrize("above", [2**16 + 1, 2**16 + 2000])
def test_strides_of_a_grid(above: int) -> None:
    n, rows, B = FAR - above, 5000, 1024
    base = n - rows
    x = torch.randn(rows)
    out = torch.zeros(60 * B)
    made, runtime = compiled(strided, [x, out, n, base, B], grid=(60, 1, 1))
    arrays = {k: numpy_view(v) if isinstance(v, torch.Tensor) else v for k, v in runtime.items()}
    emulate.run(made.module, arrays, (60, 1, 1), seconds=60.0)
    want = torch.zeros(60 * B)
    want[:rows] = x
    assert torch.equal(out, want)


@tiledsl.jit
def annotated(out, n: tl.int32, first):
    count = 0
    for _ in range(first, n, 16):
        count += 1
    tl.store(out, count)


def test_annotated_ends() -> None:
    """An annotation keeps int32 up to its end."""
    out = torch.zeros(1, dtype=torch.int32)
    emulated(annotated, [out, FAR - 1, FAR - 70000])
    assert out[0] == len(range(FAR - 70000, FAR - 1, 16))


@tiledsl.jit
def usual(x, out, starts, n, STEP: tl.constexpr, KIND: tl.constexpr):
    at = tl.arange(0, 32)
    total = tl.zeros((32,), tl.float32)
    pid = tl.program_id(0)
    end, first, step = n, 0, STEP
    if KIND == "blocks":
        end = tl.cdiv(n, STEP)
    elif KIND == "tiles":
        first, end = pid * 64, pid * 64 + 64
    elif KIND == "part":
        end = tl.minimum(n, pid * 4096 + 4096)
    elif KIND == "loaded":
        end = tl.load(starts)
    elif KIND == "grid":
        step = tl.num_programs(0)
    for i in range(first, end, step):
        total += tl.load(x + i + at)
    tl.store(out + at, total)


@pytest.mark.parametrize("kind", ["", "blocks", "tiles", "part", "loaded", "grid"])
def test_which_loops_ask_for_the_last_iteration(kind: str) -> None:
    """Those of ends that are known to be far from 2**31 compare with the end."""
    x, out = torch.zeros(64), torch.zeros(32)
    made, _ = compiled(usual, [x, out, torch.zeros(1, dtype=torch.int32), 99, 64, kind])
    assert ("2147483647" in made.module.source) == (kind in ("loaded", "grid"))
