"""What keeps a kernel in a single role for the sake of its values."""

from __future__ import annotations

import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import first
from tiledsl.compiled import Kernel
from tiledsl.ws.plan import Plan


# fmt: off
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


def test_a_block_that_is_loaded_and_then_stored_is_specialised() -> None:
    assert isinstance(made(residual, torch.bfloat16, 0).plan, Plan)


def test_another_block_of_the_stored_tensor_is_not() -> None:
    kernel = made(residual, torch.bfloat16, 8)
    assert not isinstance(kernel.plan, Plan)
    assert any("stores to" in str(d) for d in kernel.declined)
    body = kernel.module.source.partition('extern "C"')[2]
    assert body.index("block_sync") < body.index("store")
