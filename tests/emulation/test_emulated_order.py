"""One program's accesses to one memory in the order of its statements, whichever threads do them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl import simulator
from tiledsl.compiler import modules
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.signature import signature

I32, I8 = torch.int32, torch.int8
SEEDS = range(3)


@tiledsl.jit
def row_again(x, y, n, BLOCK: tl.constexpr):
    """The load lies in vectors of its own, the store as the first load."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    value = tl.load(x + row * n + at, mask=at < n, other=0)
    tl.store(y + row * n + at, value + tl.max(value, axis=0), mask=at < n)
    value = tl.load(y + row * n + at, mask=at < n, other=0)
    tl.store(y + row * n + at, value * 2 - tl.max(value, axis=0), mask=at < n)


@tiledsl.jit
def turned_copy(x, y, z):
    row, col = tl.arange(0, 32)[:, None], tl.arange(0, 64)[None, :]
    tl.store(y + row * 65 + col, tl.load(x + row * 64 + col))
    tl.store(z + col * 32 + row, tl.load(y + row * 65 + col))


@tiledsl.jit
def added(x, y, z):
    """Neighbours store what lies at odd addresses; each lane adds to its own."""
    at = tl.arange(0, 1024)
    tl.store(y + at, tl.load(x + at))
    tl.atomic_add(y + at, 3)
    tl.store(z + at, tl.load(y + at) * 2)


@tiledsl.jit
def counter(x, y, z):
    """One thread writes, all read."""
    at = tl.arange(0, 256)
    tl.store(y + 1, tl.load(x) + 1)
    for i in range(4):
        value = tl.load(y + 1)
        if value < 100:
            tl.store(y + 1, value + i)
        tl.store(z + i * 256 + at, value + at)
    tl.atomic_add(y + 1, 7)
    tl.store(z + 4 * 256 + at, tl.load(y + 1) + at)


@tiledsl.jit
def turned_in_place(x: tl.Tensor):
    for i in range(3):
        x.store((0, 0), tl.trans(x.load((0, 0), (64, 64))) + i)


@tiledsl.jit
def sliding(x: tl.Tensor, n):
    """Half of each block is the next one's, in other threads."""
    for i in range(0, n, 4):
        block = x.load((i, 0), (8, 16))
        x.store((i, 0), block * 2 + tl.flip(block, 0))


def numbers(count: int, dtype: torch.dtype = I32) -> torch.Tensor:
    return torch.randint(-3, 4, (count,), dtype=dtype)


def run(kernel: Any, args: list[Any], grid: int, seed: int, **options: Any) -> None:
    made, runtime = compiled(kernel, args, **options)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (grid, 1, 1), seed=seed, num_sms=1)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_are_stored_and_loaded(persistent: bool, seed: int) -> None:
    n, rows = 2047, 2
    x = numbers(rows * n, torch.int16)
    y = torch.full((rows * n + 7,), 77, dtype=torch.int16)
    run(row_again, [x, y[7:], n, 2048], rows, seed, persistent=persistent)
    first = x.view(rows, n) + x.view(rows, n).amax(1, keepdim=True)
    assert torch.equal(y[7:].view(rows, n), first * 2 - first.amax(1, keepdim=True))


@pytest.mark.parametrize("dtype", [I32, I8])
@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_of_other_layouts(dtype: torch.dtype, seed: int) -> None:
    x, y = numbers(32 * 64, dtype), torch.zeros(32 * 65, dtype=dtype)
    z = torch.zeros(64 * 32, dtype=dtype)
    run(turned_copy, [x, y, z], 1, seed)
    assert torch.equal(z.view(64, 32), x.view(32, 64).t())


@pytest.mark.parametrize("seed", range(4))
def test_atomics_after_shifted_stores(seed: int) -> None:
    x, y, z = (numbers(1027)[3:] for _ in range(3))
    run(added, [x, y, z], 1, seed)
    assert torch.equal(z, (x + 3) * 2)


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_scalars_that_are_stored_and_loaded(num_warps: int, seed: int) -> None:
    x, y, z = numbers(4), torch.zeros(4, dtype=I32), torch.zeros(5 * 256, dtype=I32)
    run(counter, [x, y, z], 1, seed, num_warps=num_warps)
    value = x[0] + 1
    seen = torch.stack([value, value, value + 1, value + 3, value + 13])
    assert torch.equal(z.view(5, 256), seen[:, None] + torch.arange(256, dtype=I32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, I32, I8])
@pytest.mark.parametrize("seed", SEEDS)
def test_tiles_turned_in_place(dtype: torch.dtype, seed: int) -> None:
    """Iterations load what the one before has stored, out of shared memory or by neighbours."""
    x = numbers(65 * 67).to(dtype).view(65, 67)[:64, :65]
    want = x.clone()
    want[:, :64] = want[:, :64].t() + 3
    call = turned_in_place._bind((x,), {})
    sig, _ = signature(call.runtime)
    request = turned_in_place._request(call, sig, (1, 1, 1), call.constants)
    emulate.run(next(iter(modules(request))).module, {"x": numpy_view(x)}, (1, 1, 1), seed=seed)
    assert torch.equal(x, want)


@tiledsl.jit
def product(a: tl.Tensor, b: tl.Tensor, c, n, d, K, MODE: tl.constexpr):
    """What is stored is loaded again, by other threads; or added to what was there."""
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
    row, col = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    if MODE == "again":
        tl.store(c + row * 67 + col, acc)
        acc = tl.load(c + row * 67 + col) * 2
    elif MODE == "counted":
        seen = tl.load(n)
        tl.store(n, seen + 1)
        acc += seen + tl.load(n)
    elif MODE == "before":
        old = tl.load(c + row * 67 + col)
        tl.store(c + row * 67 + col, acc)
        acc += old
    else:
        acc += tl.load(d + col * 64 + row)
    tl.store(d + col * 64 + row, acc)


@pytest.mark.parametrize("mode", ["again", "counted", "before", "update"])
@pytest.mark.parametrize("seed", SEEDS)
def test_products(mode: str, seed: int) -> None:
    """Roles keep no order between threads: only an update is left to them."""
    a, b = (numbers(64 * 64).to(torch.bfloat16).view(64, 64) for _ in range(2))
    c, d = torch.ones(64 * 67), torch.ones(64 * 64)
    args = (a, b, c, torch.ones(1, dtype=I32), d, 64)
    call = product._bind(args, {"MODE": mode})
    sig, _ = signature(call.runtime, pointers=("c", "n", "d"))
    request = product._request(call, sig, (1, 1, 1), call.constants)
    made = next(iter(modules(request)))
    assert ("SinglePlan" in type(made.plan).__name__) == (mode != "update")
    names = ("a", "b", "c", "n", "d")
    arrays = {k: numpy_view(v) for k, v in zip(names, args, strict=False)}
    emulate.run(made.module, {**arrays, "K": 64}, (1, 1, 1), seed=seed)
    more = {"again": a.float() @ b.float(), "counted": 3.0, "before": 1.0, "update": 1.0}[mode]
    assert torch.equal(d.view(64, 64).t(), a.float() @ b.float() + more)


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_that_overlap_in_the_next_iteration(seed: int) -> None:
    x = numbers(40 * 16).view(40, 16)
    want = x.clone()
    for i in range(0, 32, 4):
        want[i : i + 8] = want[i : i + 8] * 2 + want[i : i + 8].flip(0)
    made = sliding.compile(x, 32, grid=(1,), num_warps=4)
    simulator.emulate(made, {"x": x, "n": 32}, (1,), seed=seed)
    assert torch.equal(x, want)
