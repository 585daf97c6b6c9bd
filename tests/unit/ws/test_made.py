"""Loops whose left operand is made in registers take the plans of plain products."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples import weight_only
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ws.check import check

BF16 = torch.bfloat16


# fmt: off
@tiledsl.jit
def scaled_along_k(w: tl.Tensor, x: tl.Tensor, scales: tl.Tensor, out: tl.Tensor,
                   BN: tl.constexpr = 64, BM: tl.constexpr = 16, BK: tl.constexpr = 128):
    """A number for each column is no number of a row."""
    n, m = tl.program_id(0) * BN, tl.program_id(1) * BM
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(0, w.shape[1], BK):
        wide = w.load((n, k), (BN, BK)).to(x.dtype) * scales.load((k,), (BK,))[None, :]
        acc = tl.dot(wide.to(x.dtype), x.load((m, k), (BM, BK)).T, acc)
    out.store((m, n), acc.T)


@tiledsl.jit
def kept_as_well(w: tl.Tensor, x: tl.Tensor, scales: tl.Tensor, out: tl.Tensor,
                 BN: tl.constexpr = 64, BM: tl.constexpr = 16, BK: tl.constexpr = 128):
    """What is made is read by something else than the product."""
    n, m = tl.program_id(0) * BN, tl.program_id(1) * BM
    acc, top = tl.zeros((BN, BM), tl.float32), tl.zeros((BN,), tl.float32)
    for k in range(0, w.shape[1], BK):
        wide = w.load((n, k), (BN, BK)).to(x.dtype)
        acc = tl.dot(wide, x.load((m, k), (BM, BK)).T, acc)
        top = tl.maximum(top, tl.max(wide.to(tl.float32), axis=1))
    out.store((m, n), (acc + top[:, None]).T)
# fmt: on


def tensors(m: int, kind: str, n: int = 8192, k: int = 8192) -> list[torch.Tensor]:
    def made(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.empty(shape, device="meta", dtype=dtype)

    small = torch.float8_e4m3fn if kind == "fp8" else torch.int8
    columns = k if kind in ("int8", "fp8") else k // 2
    scales = (k // 128, n) if kind == "groups" else (n,)
    return [
        made(n, columns, dtype=small),
        made(m, k),
        made(*scales, dtype=torch.float32),
        made(m, n),
    ]


KERNELS = {
    "int8": weight_only.weight_only, "fp8": weight_only.weight_only,
    "int4": weight_only.weight_only_int4, "groups": weight_only.weight_only_groups,
}  # fmt: skip


@pytest.mark.parametrize("m", [1, 16, 64])
@pytest.mark.parametrize("kind", list(KERNELS))
def test_few_rows_are_streams(kind, m):
    made = KERNELS[kind].compile(*tensors(m, kind), grid=weight_only.tiles(m, 8192))
    assert not made.plan.persistent
    assert made.plan.unit_axes == (1, 2)
    assert made.plan.prefetch
    assert made.constants["BM"] == max(8, m)
    assert made.certificate is not None
    assert made.certificate.proved
    assert not made.compiled.spill_bytes
    assert not made.compiled.serialized


@pytest.mark.parametrize("kind", list(KERNELS))
def test_many_rows_take_large_tiles(kind):
    made = KERNELS[kind].compile(*tensors(4096, kind), grid=weight_only.tiles(4096, 8192))
    assert made.plan.persistent
    assert made.constants["BN"] * made.constants["BM"] >= 128 * 96
    assert not made.compiled.spill_bytes
    assert not made.compiled.serialized


@pytest.mark.parametrize("kernel", [scaled_along_k, kept_as_well])
def test_others_are_flows(kernel):
    args = tensors(16, "int8", 256, 512)
    args[2] = torch.empty(512, device="meta")
    made = kernel.compile(*args, grid=(4, 1))
    assert any("schedule of the loop" in n for n in made.notes)


def test_the_slot_goes_back_after_the_products():
    """Nothing but the wait for the products tells that the elements have arrived."""
    made = weight_only.weight_only.compile(
        *tensors(16, "int8", 256, 512), grid=weight_only.tiles(16, 256)
    )
    graph = made.machine
    assert check(graph).proved
    (read,) = graph.find(smem.Read)
    assert read.scratch is None
    graph.replace_op(read, read.rebuild({}, by_wgmma=False))
    assert not check(graph).proved
    graph.replace_op(graph.find(smem.Read)[0], read.rebuild({}))
    assert check(graph).proved
    region = graph.find(mma.Issue)[0].parent
    wait = next(o for o in region.ops if isinstance(o, mma.Wait))
    arrive = next(o for o in region.ops if isinstance(o, barrier.Arrive))
    region.ops.remove(arrive)
    region.ops.insert(region.ops.index(wait), arrive)
    assert not check(graph).proved
