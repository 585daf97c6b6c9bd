"""Operands that threads compute of tiles from rings, and products of products: the emitted text on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.harness import replaced
from tests.emulation.test_emulated_rings import execute
from tests.emulation.test_emulated_rings import run
from tests.ring_kernels import ring_kernel
from tiledsl.emulate.errors import EmulationFault


@tiledsl.jit
def decayed(k, v, g, out, last, rows, K: tl.constexpr, V: tl.constexpr, T: tl.constexpr):
    """The sum of k.T @ (v * 2 ** g) over blocks of rows, stored before each block too."""
    ks, vs, ts = tl.arange(0, K), tl.arange(0, V), tl.arange(0, T)
    acc = tl.zeros((K, V), tl.float32)
    for i in range(tl.cdiv(rows, T)):
        t = i * T + ts
        m = t < rows
        tl.store(out + i * K * V + ks[:, None] * V + vs[None, :], acc.to(out.dtype.element_ty))
        x = tl.load(k + ks[:, None] + t[None, :] * K, mask=m[None, :], other=0.0)
        y = tl.load(v + t[:, None] * V + vs[None, :], mask=m[:, None], other=0.0)
        w = tl.exp2(tl.load(g + t, mask=m, other=0.0))
        acc += tl.dot(x, (y * w[:, None]).to(y.dtype))
    tl.store(last + ks[:, None] * V + vs[None, :], acc)


def decayed_args(rows: int, K: int, V: int, T: int) -> list[Any]:
    torch.manual_seed(rows)
    k, v = torch.randn(max(rows, 1), K).bfloat16(), torch.randn(max(rows, 1), V).bfloat16()
    g = -torch.rand(max(rows, 1))
    out = torch.full((max(1, -(-rows // T)), K, V), float("nan")).bfloat16()
    return [k, v, g, out, torch.full((K, V), float("nan")), rows, K, V, T]


def check(args: list[Any]) -> None:
    """The states before each block, and the last one."""
    k, v, g, out, last, rows, K, V, T = args
    want = [torch.zeros(K, V)]
    for at in range(0, rows, T):
        end = min(at + T, rows)
        y = (v[at:end].float() * torch.exp2(g[at:end])[:, None]).bfloat16().float()
        want.append(want[-1] + k[at:end].float().T @ y)
    torch.testing.assert_close(last, want[-1], rtol=2e-2, atol=2e-2)
    if rows:
        torch.testing.assert_close(out.float(), torch.stack(want[:-1]), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_scaled_operands(num_stages: int) -> None:
    """Written as they lie, 16 bytes at once, and copied at the end of an iteration."""
    args = decayed_args(200, 64, 64, 32)
    notes = run(decayed, args, (1,), seed=num_stages, num_stages=num_stages, warp_specialize=False)
    check(args)
    ahead = "" if num_stages == 1 else f"copies {max(2, num_stages - 1)} "  # 1: the compiler's
    assert any(f"{ahead}iterations ahead, at the end of one" in n for n in notes), notes


@pytest.mark.parametrize("rows", [0, 1, 32, 33, 100])
def test_trips(rows: int) -> None:
    args = decayed_args(rows, 64, 64, 32)
    run(decayed, args, (1,), num_stages=3, warp_specialize=False)
    check(args)


def test_vectors() -> None:
    """What is read of a ring and written for the tensor core goes in whole vectors."""
    args = decayed_args(64, 64, 64, 32)
    made, _ = ring_kernel(decayed, args, num_stages=3, warp_specialize=False)
    text = made.module.source
    assert "write_shared<8, bf16>" in text
    assert "read_shared<8, bf16>" in text


@pytest.mark.parametrize("fault", ["no fence", "no wait", "no barrier"])
def test_faults_are_found(fault: str) -> None:
    old, new, message = {
        "no fence": ("fence_async_smem();", "", "without fence.proxy.async"),
        "no wait": ("cp_async_wait<1>();", "", "while a copy into it is in flight"),
        "no barrier": ("(?m)keep\\(acc_1\\);\n *block_sync\\(\\);", "keep(acc_1);", "."),
    }[fault]
    args = decayed_args(200, 64, 64, 32)
    made, runtime = ring_kernel(decayed, args, num_stages=3, warp_specialize=False)
    module = replaced(made.module, old, new)

    def all_seeds() -> None:
        for seed in range(4):
            execute(module, runtime, (1,), seed)
            check(args)

    with pytest.raises((EmulationFault, AssertionError), match=message):
        all_seeds()


@tiledsl.jit
def two_loops(a, b, c, d, out, n, M: tl.constexpr, B: tl.constexpr):
    """a @ b + c @ d: loops that follow each other, whose rows are found by an index."""
    ms, ns, ks = tl.arange(0, M), tl.arange(0, M), tl.arange(0, B)
    acc = tl.zeros((M, M), tl.float32)
    for k in range(0, n, B):
        x = tl.load(a + ms[:, None] * n + (k + ks)[None, :] * (1 + 0 * n))
        acc += tl.dot(x, tl.load(b + (k + ks)[:, None] * M + ns[None, :]))
    acc *= 0.5
    for k in range(0, n, B):
        x = tl.load(c + ms[:, None] * n + (k + ks)[None, :] * (1 + 0 * n))
        acc += tl.dot(x, tl.load(d + (k + ks)[:, None] * M + ns[None, :]))
    tl.store(out + ms[:, None] * M + ns[None, :], acc)


def test_loops_share_their_rings() -> None:
    torch.manual_seed(0)
    n, M = 160, 64
    a, b, c, d = (torch.randn(s).bfloat16() for s in ((M, n), (n, M), (M, n), (n, M)))
    out = torch.full((M, M), float("nan"))
    args = [a, b, c, d, out, n, M, 32]
    made, _ = ring_kernel(two_loops, args, num_stages=3, warp_specialize=False)
    rings = [b for b in made.smem.blocks if b.name.startswith("ring of")]
    assert len(rings) >= 3, made.notes
    assert made.smem.end_bytes < sum(b.num_bytes for b in made.smem.blocks)
    for seed in range(3):
        run(two_loops, args, (1,), seed=seed, num_stages=3, warp_specialize=False)
        want = 0.5 * (a.float() @ b.float()) + c.float() @ d.float()
        torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)


@tiledsl.jit
def weighted(q, k, v, index, out, n, M: tl.constexpr, B: tl.constexpr, D: tl.constexpr):
    """relu(q @ k.T) @ v over rows that an index names."""
    ms, ds, bs = tl.arange(0, M), tl.arange(0, D), tl.arange(0, B)
    rows = tl.load(q + ms[:, None] * D + ds[None, :])
    acc = tl.zeros((M, D), tl.float32)
    for at in range(0, n, B):
        i = tl.load(index + at + bs, mask=at + bs < n, other=0)
        keys = tl.load(k + i[:, None] * D + ds[None, :], mask=(at + bs < n)[:, None], other=0.0)
        s = tl.dot(rows, tl.trans(keys))
        p = tl.where(s > 0, s, 0.0).to(rows.dtype)
        values = tl.load(v + i[:, None] * D + ds[None, :], mask=(at + bs < n)[:, None], other=0.0)
        acc += tl.dot(p, values)
    tl.store(out + ms[:, None] * D + ds[None, :], acc)


@pytest.mark.parametrize("warps", [4, 8])
def test_products_of_products_stay_in_registers(warps: int) -> None:
    torch.manual_seed(1)
    M, D, n = 16 * warps, 64, 100
    q, k, v = (torch.randn(s, D).bfloat16() for s in (M, 128, 128))
    index = torch.randperm(128)[:n].int()
    out = torch.full((M, D), float("nan"))
    args = [q, k, v, index, out, n, M, 32, D]
    made, _ = ring_kernel(weighted, args, num_warps=warps, num_stages=2)
    staged = [b.name for b in made.smem.blocks if b.name.startswith("dot operand")]
    assert staged == ["dot operand kept"], staged
    run(weighted, args, (1,), num_warps=warps, num_stages=2)
    s = q.float() @ k[index.long()].float().T
    want = s.clamp(min=0).bfloat16().float() @ v[index.long()].float()
    torch.testing.assert_close(out, want, rtol=2e-2, atol=4e-2)
