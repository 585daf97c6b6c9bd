"""What a consumer does between two tiles of a flow kernel: little, and under its last product."""

from __future__ import annotations

import functools
import re

import pytest
import torch

import tiledsl
from examples.attention import attention_kernel
from examples.attention import tiles
from examples.attention import varlen_kernel
from tests.unit.ws.kernels import first
from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.ir.op import Op
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.role import DrawTile
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem import ReadScalars


@functools.cache
def made(D: int, *, causal: bool, window: int = 0, fast_math: bool = True) -> Kernel:
    q, o = (torch.empty(4, 16, 4096, D, device="meta", dtype=torch.bfloat16) for _ in range(2))
    lse = torch.empty(4, 16, 4096, device="meta")
    sizes = tiles(4096, D, D)
    args = (q, q, q, o, lse, q, 0, D**-0.5, causal, window, None, 1)
    return kernel_of(attention_kernel, args, sizes, (-(-4096 // sizes["BM"]), 16, 4), fast_math)


@functools.cache
def packed() -> Kernel:
    q, o = (torch.empty(1, 16, 8192, 128, device="meta", dtype=torch.bfloat16) for _ in range(2))
    starts = torch.empty(9, device="meta", dtype=torch.int32)
    lse = torch.empty(16, 8192, device="meta")
    args = (q, q, q, o, o, lse, q, starts, starts, 0.1, True, 0, None, 1)
    return kernel_of(varlen_kernel, args, tiles(1024, 128, 128), (8, 16, 8), True)


def kernel_of(
    kernel: tiledsl.Kernel, args: tuple, sizes: dict, grid: tuple[int, ...], fast_math: bool
) -> Kernel:
    request: Request = kernel.request_for(args, {**sizes, "fast_math": fast_math}, grid)[1]
    return first(request)


def ops_of(kernel: Kernel, role: str) -> list[Op]:
    assert kernel.machine is not None
    return list(next(r for r in kernel.machine.find(Role) if r.name == role).body.walk())


def at(ops: list[Op], *classes: type[Op]) -> list[int]:
    return [i for i, o in enumerate(ops) if isinstance(o, classes)]


# ---------------------------------------------------------------------- the next tile
@pytest.mark.parametrize(
    ("kernel", "late"),
    [
        (lambda: made(128, causal=True), True),
        (lambda: made(128, causal=False), False),
        (packed, True),
    ],
    ids=["causal", "full", "packed"],
)
def test_tiles_that_take_different_times_are_drawn_late(kernel, late: bool) -> None:
    """What is drawn waits for its CTA: a long tile before it would keep it from an idle one."""
    ops = ops_of(kernel(), "producer")
    (drawn,) = at(ops, DrawTile)
    loads = at(ops, tma.Load)
    assert (drawn > loads[-1]) if late else (drawn < loads[0])


@pytest.mark.parametrize(
    ("kernel", "uniform"),
    [
        (lambda: made(128, causal=True), (0, 1)),
        (lambda: made(128, causal=False), (0,)),
        (lambda: made(128, causal=False, window=512), (0, 1)),
        (packed, (0, 1, 3)),
    ],
    ids=["causal", "full", "window", "packed"],
)
def test_only_what_steers_a_warp_takes_uniform_registers(kernel, uniform: tuple[int, ...]) -> None:
    """Held over the loops, others push slots and descriptors out of them."""
    ops = ops_of(kernel(), "consumer")
    (read,) = [o for o in ops if isinstance(o, ReadScalars)]
    assert read.uniform == uniform


# ---------------------------------------------------------------------- the store
@pytest.mark.parametrize(
    "kernel", [lambda: made(128, causal=True), packed], ids=["causal", "packed"]
)
def test_staging_is_waited_for_under_the_last_product(kernel) -> None:
    ops = ops_of(kernel(), "consumer")
    issued, waited = at(ops, mma.Issue)[-1], at(ops, mma.Wait)[-1]
    (free,) = [i for i in at(ops, tma.StoreWait) if issued < i < waited]
    assert isinstance(ops[free + 1], barrier.NamedSync)
    stores, fences = at(ops, tma.Store), at(ops, barrier.AsyncFence)
    assert len(stores) == 2
    assert len([i for i in fences if i > waited]) == 1, "both chunks become visible together"


@pytest.mark.parametrize("D", [64, 256])
def test_a_tile_that_does_not_fill_its_slabs_waits_for_each(D: int) -> None:
    """One chunk finds another slab than the one before; four chunks share two."""
    ops = ops_of(made(D, causal=True), "consumer")
    last = at(ops, mma.Wait)[-1]
    waits = [i for i in at(ops, tma.StoreWait) if i > last]
    assert len(waits) == len(at(ops, tma.Store)) + 1, "one for each chunk, one at the end"


def test_a_tile_without_keys_waits_too() -> None:
    """Its branch has no product to wait under, but the store that follows both is the same."""
    ops = ops_of(made(128, causal=True), "consumer")
    assert len(at(ops, tma.StoreWait)) == 3, "both branches, and the end of the kernel"


# ---------------------------------------------------------------------- the first iteration
def test_nothing_is_multiplied_with_zeros_under_fast_math() -> None:
    zero_times = re.compile(r"= 0\.0f \* ")
    assert not zero_times.search(made(128, causal=True).module.source)
    assert zero_times.search(made(128, causal=True, fast_math=False).module.source)
