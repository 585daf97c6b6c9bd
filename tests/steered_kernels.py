"""Kernels whose branches and loops depend on what they have computed, loaded or drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tiledsl
import tiledsl.language as tl

BF16 = torch.bfloat16
Args = dict[str, Any]


# fmt: off
@tiledsl.jit
def branch_on_sums(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    p = tl.program_id(0)
    m = p * BM
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    total = tl.sum(acc)
    if total > 0:
        tl.store(o + p, total)
        acc = acc * 0.5
    else:
        acc = -acc
    for i in range(tl.argmax(tl.max(acc, 0), 0) % 3):
        acc += i + 1.0
    c.store((m, 0), acc)


@tiledsl.jit
def some_blocks(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    """Only some programs store a block, others end before."""
    p = tl.program_id(0)
    m = p * BM
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    total = tl.sum(acc)
    if total < -20000:
        return
    if total > 20000:
        c.store((m, 0), acc)
    else:
        tl.store(o + p, total)
        if tl.max(acc) > 125:
            c.store((m, 0), -acc)


@tiledsl.jit
def either_block(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    if tl.sum(acc) > 0:
        c.store((m, 0), acc)
    elif tl.min(acc) < -10:
        c.store((m, 0), -acc)


@tiledsl.jit
def lazily_rescaled(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, BM: tl.constexpr = 64):
    m = tl.program_id(0) * BM
    x = q.load((m, 0), (BM, 64))
    top, total = tl.full((BM,), -1e30, tl.float32), tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, 64), tl.float32)
    for n in range(0, k.shape[0], 64):
        s = tl.dot(x, tl.trans(k.load((n, 0), (64, 64)))) * 0.125
        s = tl.where((n + tl.arange(0, 64) < k.shape[0])[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        w, fade = tl.exp(s - new[:, None]), tl.exp(top - new)
        total, top = total * fade + tl.sum(w, 1), new
        if tl.min(fade) < 1.0:
            acc = acc * fade[:, None]
        acc = tl.dot(w.to(v.dtype), v.load((n, 0), (64, 64)), acc)
    o.store((m, 0), acc / total[:, None])


@tiledsl.jit
def loaded_tile(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    """A tile that products take is looked at."""
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        x = a.load((m, k), (BM, 64))
        if tl.max(x) > 3:
            x = x * 2
        acc = tl.dot(x, b.load((k, 0), (64, 64)), acc)
    c.store((m, 0), acc)


@tiledsl.jit
def last_of_all(A, B, C, counter, K, S: tl.constexpr, BK: tl.constexpr = 64):
    """Programs add up parts of K; the one that draws the last ticket sets the counter back."""
    rows, s = tl.arange(0, 64), tl.program_id(0)
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, BK * S):
        at = k + s * BK + tl.arange(0, BK)
        acc = tl.dot(tl.load(A + rows[:, None] * K + at[None, :]),
                     tl.load(B + at[:, None] * 64 + rows[None, :]), acc)
    tl.atomic_add(C + rows[:, None] * 64 + rows[None, :], acc)
    ticket = tl.atomic_add(counter, 1)
    if ticket == S - 1:
        tl.store(counter, 0)


@tiledsl.jit
def next_place(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    j = tl.argmax(tl.max(acc, 0), 0)
    for k in range(0, 128, 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k + j, 0), (64, 64)), acc)  # place
    c.store((m, 0), acc)


@tiledsl.jit
def next_trips(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    j = tl.argmax(tl.max(acc, 0), 0)
    for k in range(0, j, 64):  # trips
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    c.store((m, 0), acc)


@tiledsl.jit
def next_branch(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    if tl.sum(acc) > 0:  # branch
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    c.store((m, 0), acc)


@tiledsl.jit
def carried_place(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, 64), tl.float32)
    j = 0
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k + j, 0), (64, 64)), acc)  # carried
        j = tl.argmax(tl.max(acc, 0), 0)
    c.store((m, 0), acc)


@tiledsl.jit
def counted_blocks(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, BM: tl.constexpr = 64):
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    for i in range(tl.argmax(tl.max(acc, 0), 0) % 2):
        c.store((m, i * 64), acc)  # block


@tiledsl.jit
def by_programs(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o, WHICH: tl.constexpr):
    m, n, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if WHICH in ("one row", "again"):
        if m == 1:
            return
    elif WHICH == "one column":
        if n == 3:
            return
    elif z == 2:
        return
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m * 64, k), (64, 64)), b.load((k, n * 64), (64, 64)), acc)
    if WHICH == "again":  # noqa: SIM102 - a constant
        if m == 1:  # never
            tl.store(o, tl.sum(acc))
    c.store((m * 64, n * 64), acc)


@tiledsl.jit
def loop_within(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, count, WHICH: tl.constexpr):
    wide = tl.cdiv(c.shape[1], 64)
    for t in range(tl.program_id(0), tl.cdiv(c.shape[0], 64) * wide, tl.num_programs(0)):
        m, n = t // wide, t % wide
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], 64):
            part = tl.dot(a.load((m * 64, k), (64, 64)), b.load((k, n * 64), (64, 64)))
            acc += part * 0.5
            for i in range(count + 1 if WHICH == "argument" else m):
                acc = acc + i
        c.store((m * 64, n * 64), acc)
# fmt: on


def product_args(rows: int = 200, K: int = 256, device: str = "cpu", seed: int = 1) -> Args:
    """Small integers: sums are exact. Programs differ in the sign of theirs."""
    made = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-2, 3, s, generator=made) for s in ((rows, K), (K, 64)))
    a += torch.tensor([2, -2, 0]).repeat_interleave(64).repeat(rows)[:rows, None]
    b[:, ::2] += 1
    args = {
        "a": a.to(BF16), "b": b.to(BF16), "c": torch.full((rows, 64), 7.0, dtype=BF16),
        "o": torch.full((16,), 7.0),
    }  # fmt: skip
    return {n: v.to(device) for n, v in args.items()}


def attention_args(rows: int = 200, device: str = "cpu", seed: int = 1) -> Args:
    made = torch.Generator().manual_seed(seed)
    args = {n: torch.randn(rows, 64, generator=made).to(BF16) for n in "qkv"}
    args["k"][64:] *= 0.1  # maxima stand in the first block
    return {n: v.to(device) for n, v in args.items()} | {
        "o": torch.full((rows, 64), torch.nan, dtype=BF16, device=device)
    }


def ticket_args(K: int = 512, S: int = 4, device: str = "cpu", seed: int = 1) -> Args:
    made = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-2, 3, s, generator=made).to(BF16) for s in ((64, K), (K, 64)))
    c, counter = torch.zeros(64, 64), torch.zeros(1, dtype=torch.int32)
    tensors = {"A": a, "B": b, "C": c, "counter": counter}
    return {n: v.to(device) for n, v in tensors.items()} | {"K": K, "S": S}


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments and its programs for rows of BM."""

    kernel: Any
    args: Callable[..., Args] = product_args
    exact: bool = True

    def grid(self, args: Args, BM: int) -> tuple[int, ...]:
        return (args["S"],) if "S" in args else (-(-next(iter(args.values())).shape[0] // BM),)

    def options(self, BM: int) -> dict[str, int]:
        return {} if self.kernel is last_of_all else {"BM": BM}


SPECIALISED = {
    "branch": Case(branch_on_sums),
    "blocks": Case(some_blocks),
    "either": Case(either_block),
    "attention": Case(lazily_rescaled, attention_args, exact=False),
    "loaded": Case(loaded_tile),
    "ticket": Case(last_of_all, ticket_args),
}
DECLINED = {
    "place": Case(next_place),
    "trips": Case(next_trips),
    "branch": Case(next_branch),
    "carried": Case(carried_place),
    "block": Case(counted_blocks),
}


def interpreted(case: Case, args: Args, BM: int = 64) -> Args:
    """What a kernel makes of copies of its arguments, on the CPU."""
    out = {n: v.cpu().clone() if isinstance(v, torch.Tensor) else v for n, v in args.items()}
    case.kernel[case.grid(out, BM)](*out.values(), **case.options(BM))
    return out


def agree(case: Case, got: Args, want: Args) -> None:
    for name, value in want.items():
        if isinstance(value, torch.Tensor):
            tolerance = 0.0 if case.exact else 2e-2
            torch.testing.assert_close(
                got[name].cpu(), value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m
            )
