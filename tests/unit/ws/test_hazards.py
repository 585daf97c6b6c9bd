"""What keeps a kernel in a single role for the sake of its values."""

from __future__ import annotations

import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import first
from tiledsl.compiler import Kernel
from tiledsl.ws.plan import Plan

FP8 = torch.float8_e4m3fn


# fmt: off
@tiledsl.jit
def fp8(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, LIMIT: tl.constexpr):
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(0, a.shape[1], 128):
        x, y = a.load((0, k), (128, 128)), b.load((k, 0), (128, 128))
        acc = tl.dot(x, y, acc, max_num_imprecise_acc=LIMIT)
    c.store((0, 0), acc)


@tiledsl.jit
def residual(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, SHIFT: tl.constexpr):
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((0, k), (128, 64)), b.load((k, 0), (64, 128)), acc)
    old = c.load((SHIFT, 0), (128, 128))
    c.store((0, 0), acc + old.to(tl.float32))
# fmt: on


def made(kernel, dtype: torch.dtype, value: object) -> Kernel:
    a = torch.empty(1024, 1024, device="meta", dtype=dtype)
    c = torch.empty(1024, 1024, device="meta", dtype=torch.bfloat16)
    return first(kernel.request_for((a, a.t(), c, value), {}, (8, 8))[1])


def test_fp8_sums_are_promoted_in_a_single_role() -> None:
    kernel = made(fp8, FP8, None)
    assert not isinstance(kernel.plan, Plan)
    assert any("fp8 products" in str(d) for d in kernel.declined)


def test_fp8_sums_of_the_tensor_core_are_specialised() -> None:
    assert isinstance(made(fp8, FP8, 1 << 20).plan, Plan)


def test_a_block_that_is_loaded_and_then_stored_is_specialised() -> None:
    assert isinstance(made(residual, torch.bfloat16, 0).plan, Plan)


def test_another_block_of_the_stored_tensor_is_not() -> None:
    kernel = made(residual, torch.bfloat16, 8)
    assert not isinstance(kernel.plan, Plan)
    assert any("stores to" in str(d) for d in kernel.declined)
    body = kernel.module.source.partition('extern "C"')[2]
    assert body.index("block_sync") < body.index("store")
