"""Loops of few iterations, all of whose copies start before the first one: the emitted text on the CPU."""

from __future__ import annotations

import re
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
def chunk(
    q, k, v, g, scores, out, T, scale,
    K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Decayed scores of a chunk of rows, stored as floats, and what they make of its values."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    m = t < T
    acc = tl.zeros((BT, BT), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        c = i * BK + tl.arange(0, BK)
        x = tl.load(q + t[:, None] * K + c[None, :], mask=m[:, None] & (c < K)[None, :], other=0.0)
        y = tl.load(k + c[:, None] + t[None, :] * K, mask=(c < K)[:, None] & m[None, :], other=0.0)
        acc += tl.dot(x, y)
    decay = tl.load(g + t, mask=m, other=0.0)
    acc *= tl.exp2(decay[:, None] - decay[None, :]) * scale
    acc = tl.where((t[:, None] >= t[None, :]) & m[:, None] & m[None, :], acc, 0.0)
    tl.store(scores + t[:, None] * BT + tl.arange(0, BT)[None, :], acc, mask=m[:, None])
    vs = tl.arange(0, V)
    z = tl.load(v + t[:, None] * V + vs[None, :], mask=m[:, None], other=0.0)
    made = tl.dot(acc.to(z.dtype), z)
    tl.store(out + t[:, None] * V + vs[None, :], made.to(out.dtype.element_ty), mask=m[:, None])


def chunk_args(T: int, K: int, V: int, BT: int = 64, BK: int = 32) -> list[Any]:
    torch.manual_seed(K)
    q, k, v = (torch.randn(T, n).bfloat16() for n in (K, K, V))
    scores = torch.full((-(-T // BT) * BT, BT), 7.0)
    out = torch.full((T, V), float("nan")).bfloat16()
    return [q, k, v, -torch.rand(T), scores, out, T, 0.25, K, V, BT, BK]


def check(args: list[Any]) -> None:
    q, k, v, g, scores, out, T, scale, *_, BT, _ = args
    for at in range(0, T, BT):
        end = min(at + BT, T)
        part = q[at:end].float() @ k[at:end].float().T * scale
        part *= torch.exp2(g[at:end, None] - g[None, at:end])
        part = part.tril()
        torch.testing.assert_close(scores[at:end, : end - at], part, rtol=2e-2, atol=2e-2)
        want = part.bfloat16().float() @ v[at:end].float()
        torch.testing.assert_close(out[at:end].float(), want, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("K", [32, 64, 72, 96, 128], ids=str)
def test_all_copies_first(K: int) -> None:
    """One to three iterations have a slot each; of four, two are on their way at a time."""
    args = chunk_args(100, K, 64)
    notes = run(chunk, args, (2,), seed=K, num_stages=3, warp_specialize=False)
    check(args)
    trips = -(-K // 32)
    whole = [n for n in notes if "copies of all" in n]
    assert len(whole) == (trips <= 3), notes
    assert not whole or f"copies of all {trips} iterations before the first one" in whole[0]
    assert any("decay loaded before the loop in front of it" in n for n in notes) == (trips <= 3)
    assert any(f"{min(trips, 3)} slots" in n for n in notes)


def test_two_warpgroups() -> None:
    args = chunk_args(200, 64, 128, BT=128)
    run(chunk, args, (2,), num_stages=2, num_warps=8, warp_specialize=False)
    check(args)


def test_text() -> None:
    """Copies and small loads stand in front of the loop, sums start in front of their dot."""
    made, _ = ring_kernel(chunk, chunk_args(100, 64, 64), num_stages=2, warp_specialize=False)
    text = made.module.source
    first, behind = text.split("int slot_1 = 0;")
    copies = re.compile(r"copy_(lane|partial)<8>\(")
    assert len(copies.findall(first)) == 2
    assert not copies.search(behind)
    assert "float decay_1[2];" in first
    assert "float acc_1[32];" in first
    assert "] = 0.0f;" not in behind
    assert ", false);" in behind  # the second product starts from nothing


FAULTS = {
    "no wait": ("cp_async_wait<1>();", "", "while a copy into it is in flight"),
    "waits for too few": ("cp_async_wait<1>();", "cp_async_wait<2>();", "while a copy"),
    "no barrier": ("(?m)fence_async_smem\\(\\);\n *block_sync\\(\\);", "fence_async_smem();", "."),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    old, new, message = FAULTS[fault]
    args = chunk_args(64, 64, 64)
    made, runtime = ring_kernel(chunk, args, num_stages=2, warp_specialize=False)
    module = replaced(made.module, old, new)

    def all_seeds() -> None:
        for seed in range(6):
            execute(module, runtime, (1,), seed)
            check(args)

    with pytest.raises((EmulationFault, AssertionError), match=message):
        all_seeds()
