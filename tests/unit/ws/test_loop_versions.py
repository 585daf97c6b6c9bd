"""Scales of blocks: how many places of a block's end there are, and where their elements are loaded."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import first
from tiledsl.compiled import Kernel
from tiledsl.ir.op import Op
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.mma import Issue
from tiledsl.ir.ops.role import Role


# fmt: off
@tiledsl.jit
def scaled(a: tl.Tensor, b: tl.Tensor, s: tl.Tensor, c: tl.Tensor, W: tl.constexpr,
           BM: tl.constexpr, BN: tl.constexpr, AT: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN + AT
    before = tl.arange(0, BN) < W - n % W
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], 64):
        product = tl.dot(a.load((m, k), (BM, 64)), b.load((k, n), (64, BN)))
        x, y = s.load((k // 64, n // W), (1,)), s.load((k // 64, n // W + 1), (1,))
        acc += product * tl.where(before, x, y)[None, :]
    c.store((m, n), acc)


@tiledsl.jit
def rescaled(s: tl.Tensor, c: tl.Tensor, N: tl.constexpr):
    n = tl.program_id(0) * N
    w = s.load((n // 64,), (3,))
    s.store((n // 64,), w * 0.0)
    c.store((n,), tl.gather(w, (n % 64 + tl.arange(0, N)) // 64, 0))
# fmt: on


def compiled(W: int, BN: int, scales: torch.Tensor, at: int = 0) -> Kernel:
    a, c = (torch.empty(256, 768, device="meta", dtype=torch.bfloat16) for _ in range(2))
    b = torch.empty(768, 768, device="meta", dtype=torch.bfloat16)
    request = scaled.request_for((a, b, scales, c, W, 128, BN, at), {}, (2, -(-768 // BN)))[1]
    return first(request)


def loops(kernel: Kernel) -> int:
    assert kernel.machine is not None
    (role,) = [o for o in kernel.machine.walk() if isinstance(o, Role) and not o.single_thread]
    return sum(isinstance(o, For) and any(map(_is_product, o.body.ops)) for o in role.body.walk())


def _is_product(op: Op) -> bool:
    return isinstance(op, Issue)


@pytest.mark.parametrize(
    ("W", "BN", "at", "places"),
    [
        (48, 96, 0, 1), (48, 192, 0, 1), (96, 144, 0, 2), (96, 80, 0, 5), (128, 112, 0, 7),
        (48, 96, 8, 1), (96, 144, 8, 2), (128, 64, 8, 2), (128, 128, 24, 1),
    ],
)  # fmt: skip
def test_places_of_the_end_of_a_block(W: int, BN: int, at: int, places: int) -> None:
    """Also where tile and block share a factor that is no power of two, or tiles start behind one."""
    kernel = compiled(W, BN, torch.empty(12, 17, device="meta"), at)
    assert loops(kernel) == places
    assert kernel.certificate is not None
    assert kernel.certificate.proved, kernel.certificate.failure


def test_scales_of_which_no_two_lie_side_by_side() -> None:
    scales = torch.empty_strided((12, 16), (48, 3), device="meta")
    kernel = compiled(128, 112, scales)
    assert loops(kernel) == 7
    assert kernel.certificate is not None
    assert kernel.certificate.proved


def test_elements_are_loaded_before_a_store_that_follows() -> None:
    s, c = torch.arange(1, 4, dtype=torch.float32), torch.full((96,), float("nan"))
    rescaled[(1,)](s, c, 96)
    assert torch.equal(c, torch.tensor([1.0, 2.0]).repeat_interleave(64)[:96])
    assert not s.any()
