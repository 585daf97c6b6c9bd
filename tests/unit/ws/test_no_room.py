"""Errors of kernels that do not fit: what takes the room, and which constexprs decide how much."""

from __future__ import annotations

import pickle

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.errors import ResourceError
from tiledsl.ir.extents import NamedInt
from tiledsl.ir.extents import named_extents
from tiledsl.ir.extents import smaller


@tiledsl.jit
def product(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr):
    """Operands that are computed, and fp8: roles stage none of these."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], 64):
        left = tl.cumsum(a.load((m, k), (BM, 64)).to(tl.float32), 1).to(tl.float8e4nv)
        acc = tl.dot(left, b.load((k, n), (64, BN)).to(tl.float8e4nv), acc)
    c.store((m, n), acc)


@tiledsl.jit
def turned(x, y, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(y + at, tl.sort(tl.load(x + at), 1))


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [torch.empty(shape, device="meta", dtype=dtype) for shape in shapes]


def test_a_dot_without_registers_says_what_takes_them_and_why_it_has_no_roles() -> None:
    args = tensors((512, 512), (512, 512), (512, 512))
    with pytest.raises(ResourceError, match=r"a thread of 16 warps would hold \d+ regi") as caught:
        product.report(*args, BM=256, BN=256, grid=(2, 2))
    error = caught.value
    assert "for the result, 256x256 (BM x BN) f32" in error.message
    assert "for a, 256x64 (BM x 64) e4m3" in error.message
    assert error.hint == "give a smaller BM (256) or BN (256)"
    assert error.loc is not None
    assert error.notes[0].message.startswith("in roles: operand b of the dot is computed")


def test_a_tile_without_threads_names_its_extents() -> None:
    args = tensors((1024, 1024), (1024, 1024), dtype=torch.float32)
    with pytest.raises(ResourceError, match=r"a tile of 1024x1024 \(ROWS x COLS\)") as caught:
        turned.report(*args, 1024, 1024, grid=(1,))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("give a smaller ROWS (1024) or COLS (1024)")


def test_buffers_are_listed_with_the_constexprs_that_make_them_large() -> None:
    args = tensors((512, 256), (512, 256), dtype=torch.float32)
    with pytest.raises(ResourceError, match="bytes of shared memory, sm_90a has 232448") as caught:
        turned.report(*args, 512, 256, grid=(1,), num_warps=32)
    assert "for 512x256 (ROWS x COLS)" in caught.value.message
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("give a smaller ROWS (512) or COLS (256)")


def test_extents_that_are_computed_have_no_name() -> None:
    n = NamedInt(128, "N")
    assert named_extents((n, 64)) == "128x64 (N x 64)"
    assert named_extents((n // 2, n - 1)) == "64x127"
    assert smaller([(n // 2, 64)]) == "use smaller tiles"
    assert (n - 0) is n
    assert pickle.loads(pickle.dumps(n)).name == "N"


@tiledsl.jit
def doubled(x, y, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(y + at, tl.load(x + at) * 2)


@pytest.mark.parametrize("num_warps", [1, 2, 4])
def test_too_few_warps_for_a_tile_refuse_no_kernel(num_warps: int) -> None:
    args = tensors((32, 1024), (32, 1024), dtype=torch.float32)
    report = doubled.report(*args, 32, 1024, grid=(1,), num_warps=num_warps)
    is_followed = num_warps == 4
    assert ("4 warps" in report) == is_followed
    assert (f"num_warps={num_warps} is not followed: the kernel has 16 warps" in report) == (
        not is_followed
    )
