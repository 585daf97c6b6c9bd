"""Attention and the other loops with several dots compile specialised, without spills or waits that
ptxas injects. From meta tensors, with no GPU.
"""

from __future__ import annotations

import re

import pytest
import torch

import tiledsl.language as tl
from examples import attention as example
from examples.attention_backward import grad_bias_kernel
from examples.attention_backward import grad_kv_kernel
from examples.attention_backward import grad_q_kernel
from examples.attention_backward import grad_tiles
from examples.attention_varlen_backward import varlen_grad_kv_kernel
from examples.attention_varlen_backward import varlen_grad_q_kernel
from examples.back_to_back import back_to_back
from examples.back_to_back import relu
from examples.gated_mlp import gated_mlp
from examples.linear_attention import linear_attention_kernel
from tests.triton_style.attention import _attn_fwd
from tiledsl.compiled import Kernel
from tiledsl.ws.plan import Plan

pytestmark = pytest.mark.nvrtc

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
B, H, L = 4, 16, 4096


def meta(*shape: int, dtype: torch.dtype = BF16, order: str = "BHLD") -> torch.Tensor:
    if order == "BLHD":
        b, h, n, d = shape
        return torch.empty(b, n, h, d, device="meta", dtype=dtype).transpose(1, 2)
    return torch.empty(shape, device="meta", dtype=dtype)


def check(kernel: Kernel, *, at_once: bool = True) -> Plan:
    """What holds for every specialised kernel; returns its plan. at_once: the first plan is taken."""
    made, plan = kernel.compiled, kernel.plan
    assert made is not None
    assert isinstance(plan, Plan), f"not specialised: {kernel.notes} {kernel.declined}"
    print(f"NVRTC {made.seconds * 1e3:.0f} ms, {made.registers} registers: {plan.describe()}")
    assert not at_once or not [n for n in kernel.notes if "given up" in n], kernel.notes
    assert made.spill_bytes == 0
    assert not re.search(r"C75\d\d", made.log), made.log
    return plan


def compiled(
    dims: tuple[int, int] = (128, 128),
    *,
    causal: bool = False,
    window: int = 0,
    score=None,
    extra: torch.Tensor | None = None,
    kv_heads: int = H,
    lengths: tuple[int, int] = (L, L),
    dtype: torch.dtype = BF16,
    order: str = "BHLD",
    fast_math: bool = True,
) -> Kernel:
    (D, DV), (Lq, Lk) = dims, lengths
    q, k = meta(B, H, Lq, D, dtype=dtype, order=order), meta(B, kv_heads, Lk, D, dtype=dtype)
    v, o = meta(B, kv_heads, Lk, DV, dtype=dtype), meta(B, H, Lq, DV, dtype=dtype, order=order)
    tile = example.tiles(Lq, D, DV)
    return example.attention_kernel.compile(
        q, k, v, o, meta(B, H, Lq, dtype=FP32), q if extra is None else extra, Lk - Lq, D**-0.5,
        causal, window, score, H // kv_heads,
        grid=(tl.cdiv(Lq, tile["BM"]), H, B), fast_math=fast_math, **tile,
    )  # fmt: skip


DIMS = [(64, 64), (72, 40), (96, 96), (128, 128), (192, 128), (256, 256)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_head_dims(dims, causal):
    plan = check(compiled(dims, causal=causal))
    assert plan.num_consumers == (3 if max(dims) == 64 else 2)


VARIANTS = {
    "fp16": {"dtype": FP16, "causal": True},
    "window": {"causal": True, "window": 512},
    "grouped heads": {"causal": True, "kv_heads": 4},
    "lengths": {"causal": True, "lengths": (3000, 5000)},
    "few rows": {"causal": True, "lengths": (1, 5000)},
    "BLHD": {"causal": True, "order": "BLHD"},
    "bias": {"score": example.add_bias, "extra": meta(B, H, L, L)},
    "alibi": {"score": example.alibi, "extra": meta(H, dtype=FP32), "causal": True},
    "softcap": {"score": example.softcap(20.0), "causal": True},
    "exact math": {"fast_math": False, "causal": True},
}


TIGHT = {"bias"}
"""Where a schedule that keeps less in registers may have to follow one that spills."""


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name):
    check(compiled(**VARIANTS[name]), at_once=name not in TIGHT)


@pytest.mark.parametrize("dims", [(64, 64), (128, 128)], ids=str)
def test_varlen(dims):
    D, DV = dims
    q, k, v, o = (meta(1, 8192, H, d).transpose(1, 2) for d in (D, D, DV, DV))
    starts = torch.empty(5, device="meta", dtype=torch.int32)
    tile = example.tiles(L, D, DV)
    check(
        example.varlen_kernel.compile(
            q, k, v, o, meta(8192, H, DV), meta(H, 8192, dtype=FP32), q, starts, starts,
            D**-0.5, True, 0, None, 1,
            grid=(tl.cdiv(L, tile["BM"]), H, 4), fast_math=True, **tile,
        )
    )  # fmt: skip


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256)], ids=str)
def test_gradients(dims):
    D, DV = dims
    q, do, lse = meta(B, H, L, D), meta(B, H, L, DV), meta(B, H, L, dtype=FP32)
    masks = (q, 0, D**-0.5, True, 0, None, None, 1, D, DV, 64, 64)
    options = {"grid": (L // 64, H, B), "fast_math": True}
    check(grad_q_kernel.compile(q, q, do, do, lse, lse, q, *masks, **options))
    for wanted in ("kv",) if D <= 128 else ("k", "v"):
        check(grad_kv_kernel.compile(q, q, do, do, lse, lse, q, do, *masks, wanted, **options))


@pytest.mark.parametrize(
    ("D", "score"),
    [(64, None), (128, None), pytest.param(128, example.add_bias, marks=pytest.mark.slow)],
    ids=["64", "128", "bias"],
)
def test_varlen_gradients(D, score):
    T, HK = 8191, 4  # rows of the statistics are no multiple of 16 bytes
    q, do = (meta(1, H, T, D, order="BLHD") for _ in range(2))
    k, v = (meta(1, HK, T, D, order="BLHD") for _ in range(2))
    lse, starts = meta(1, H, T, dtype=FP32), torch.empty(5, device="meta", dtype=torch.int32)
    rows, keys = meta(T, H, D), meta(T, HK, D)
    dims, parts = grad_tiles(D, D, score)
    extra = q if score is None else meta(1, H, L, L)
    masks = (extra, starts, starts, D**-0.5, True, 0, score, None, H // HK, *dims, 64, 64, True)
    options = {"grid": (L // 64, H, 4), "fast_math": True}
    inputs = (q, k, v, do, lse, lse)
    check(varlen_grad_q_kernel.compile(*inputs, q, rows, *masks, **options))
    for wanted in parts:
        made = varlen_grad_kv_kernel.compile(*inputs, k, v, keys, keys, *masks, wanted, **options)
        check(made, at_once=score is None)


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("shape", [(1, H, L, L), (B, 1, 1, L)], ids=["a sum", "sums of rows"])
def test_bias_gradient(shape, D):
    q, lse = meta(B, H, L, D), meta(B, H, L, dtype=FP32)
    bias, out = meta(*shape).expand(B, H, L, L), meta(*shape)
    one = shape[2] == 1
    masks = (0, D**-0.5, True, 0, 1, one, False, D, D, 64, 64)
    grid = (tl.cdiv(shape[2], 64), L // 64, shape[0] * shape[1])
    inputs = (q, q, q, q, lse, lse, bias, out)
    check(grad_bias_kernel.compile(*inputs, *masks, grid=grid, fast_math=True))


def test_gated_mlp():
    x, w, out = meta(L, 2048), meta(2048, 8192), meta(L, 8192)
    plan = check(gated_mlp.compile(x, w, w, out, grid=(L // 128, 64)))
    assert plan.num_consumers == 2


def test_back_to_back():
    a, b, c = meta(8, L, 128), meta(8, 128, L), meta(8, L, 128)
    check(back_to_back.compile(a, b, c, torch.empty_like(a), relu, 128, 128, grid=(L // 128, 8)))


@pytest.mark.parametrize(("D", "DV"), [(64, 64), (128, 64), (192, 32)], ids=str)
def test_linear_attention(D, DV):
    """The state is a right operand that the loop computes."""
    q = meta(B, H, L, D)
    args = (q, q, q, torch.empty_like(q), meta(H, dtype=FP32), D, DV)
    plan = check(linear_attention_kernel.compile(*args, grid=(H, B, tl.cdiv(D, DV))))
    assert plan.num_consumers == 1


@pytest.mark.parametrize("stage", [1, 3], ids=["full", "causal"])
def test_two_ctas_an_sm(stage: int) -> None:
    """One consumer of 128 rows has 232 registers in each, of 128 at launch."""
    q, sums = meta(1, 128, 2048, 64, dtype=FP16), meta(1, 128, 2048, dtype=FP32)
    strides = [n for _ in range(4) for n in q.stride()]
    args = (q, q, q, 0.125, sums, q, *strides, 1, 128, 2048, 64, 128, 64, stage)
    made = _attn_fwd.compile(*args, grid=(16, 128, 1), num_warps=4)
    assert check(made).ctas_per_sm == 2
    assert made.compiled is not None
    assert made.compiled.registers == 128
