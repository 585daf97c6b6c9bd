"""Kernels with pointers in Triton's names, each with arguments and what torch makes of them.

One list for the interpreter, the emulation, NVRTC and the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import torch

import tiledsl as triton
import tiledsl.language as tl


@dataclass(frozen=True)
class Case:
    """A launch. make: arguments on the CPU; want: the expected value of each output by position."""

    name: str
    kernel: Any
    make: Callable[[], list[Any]]
    grid: tuple[int, ...]
    want: Callable[..., dict[int, torch.Tensor]]
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []


def case(name: str, kernel: Any, grid: Any, make: Any, want: Any, **rest: Any) -> None:
    tolerance = rest.pop("tolerance", 0.0)
    grid = grid if isinstance(grid, tuple) else (grid,)
    CASES.append(Case(name, kernel, make, grid, want, rest, tolerance))


def seeded(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    return torch.randint(-50, 50, shape, generator=generator).to(dtype)


# ---------------------------------------------------------------------- elementwise
@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


for n, dtype, skip in (
    (1000, torch.float32, 0), (1024, torch.float32, 0), (1000, torch.bfloat16, 0),
    (999, torch.int8, 0), (65, torch.float64, 0), (1000, torch.float16, 1), (7, torch.int64, 3),
):  # fmt: skip
    case(
        f"vector_add_{n}_{str(dtype)[6:]}_{skip}",
        vector_add,
        -(-n // 256),
        lambda n=n, dtype=dtype, skip=skip: [
            seeded(n + skip, dtype=dtype)[skip:],
            seeded(n, dtype=dtype, seed=1),
            torch.zeros(n, dtype=dtype),
            n,
            256,
        ],
        lambda x, y, out, n, b: {2: x + y},
    )
case(
    "vector_add_odd_block",
    vector_add,
    5,
    lambda: [seeded(1000), seeded(1000, seed=1), torch.zeros(1000), 1000, 200],
    lambda x, y, out, n, b: {2: x + y},
)


@triton.jit
def masked_fill(x_ptr, m_ptr, out_ptr, n, value, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.load(m_ptr + offs, mask=offs < n, other=False)
    x = tl.load(x_ptr + offs, mask=keep, other=value)
    tl.store(out_ptr + offs, x, mask=offs < n)
    tl.store(m_ptr + offs, ~keep, mask=offs < n)


case(
    "masked_fill",
    masked_fill,
    3,
    lambda: [
        seeded(600, dtype=torch.float16),
        seeded(600) > 0,
        torch.zeros(600, dtype=torch.float16),
        600,
        2.5,
        256,
    ],
    lambda x, m, out, n, v, b: {1: ~m, 2: torch.where(m, x, torch.full_like(x, v))},
)


@triton.jit
def grid_stride_scale(x_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    step = tl.num_programs(0) * BLOCK
    for start in range(tl.program_id(0) * BLOCK, n, step):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0, eviction_policy="evict_first")
        tl.store(out_ptr + offs, x * scale, mask=offs < n, cache_modifier=".cs")


case(
    "grid_stride_scale",
    grid_stride_scale,
    2,
    lambda: [seeded(1111), torch.zeros(1111), 1111, 0.5, 128],
    lambda x, out, n, s, b: {1: x * s},
)


@triton.jit
def moving_pointers(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    x_ptrs = x_ptr + tl.arange(0, BLOCK)
    out_ptrs = out_ptr + tl.arange(0, BLOCK)
    left = n
    while left > 0:
        mask = tl.arange(0, BLOCK) < left
        tl.store(out_ptrs, tl.load(x_ptrs, mask=mask) + 1, mask=mask)
        x_ptrs += BLOCK
        out_ptrs += BLOCK
        left -= BLOCK


case(
    "moving_pointers",
    moving_pointers,
    1,
    lambda: [seeded(300, dtype=torch.int32), torch.zeros(300, dtype=torch.int32), 300, 64],
    lambda x, out, n, b: {1: x + 1},
)


# ---------------------------------------------------------------------- two dimensions
@triton.jit
def copy_2d(x_ptr, out_ptr, M, N, sxm, sxn, som, son, BM: tl.constexpr, BN: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    x = tl.load(x_ptr + rm[:, None] * sxm + rn[None, :] * sxn, mask=mask, other=0)
    tl.store(out_ptr + rm[:, None] * som + rn[None, :] * son, x, mask=mask)


def _copy_args(x: torch.Tensor, out: torch.Tensor, BM: int, BN: int) -> list[Any]:
    return [x, out, *x.shape, *x.stride(), *out.stride(), BM, BN]


for name, make in {
    "rows": lambda: _copy_args(seeded(33, 80), torch.zeros(33, 80), 16, 32),
    "aligned": lambda: _copy_args(
        seeded(64, 96, dtype=torch.float16), torch.zeros(64, 96, dtype=torch.float16), 32, 32
    ),
    "columns": lambda: _copy_args(seeded(80, 33).t(), torch.zeros(80, 33).t(), 16, 32),
    "transposed": lambda: _copy_args(seeded(48, 64).t(), torch.zeros(64, 48), 32, 32),
    "gaps": lambda: _copy_args(seeded(40, 120)[:, ::3], torch.zeros(40, 40), 16, 16),
    "odd_tile": lambda: _copy_args(seeded(40, 50), torch.zeros(40, 50), 12, 20),
}.items():
    case(
        f"copy_2d_{name}",
        copy_2d,
        (8, 6),
        make,
        lambda x, out, *rest: {1: x.clone()},
    )


@triton.jit
def transpose(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    rm = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rn = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + rm[:, None] * N + rn[None, :], mask=(rm[:, None] < M) & (rn[None, :] < N))
    out = out_ptr + rn[:, None] * M + rm[None, :]
    tl.store(out, tl.trans(x), mask=(rn[:, None] < N) & (rm[None, :] < M))


case(
    "transpose",
    transpose,
    (3, 2),
    lambda: [seeded(80, 48), torch.zeros(48, 80), 80, 48, 32],
    lambda x, out, *rest: {1: x.t().contiguous()},
)


@triton.jit
def rows_and_columns(x_ptr, w_ptr, out_ptr, stride, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    inside = cols < N
    w = tl.load(w_ptr + cols, mask=inside, other=0.0)
    x = tl.load(x_ptr + rows[:, None] * stride + cols[None, :], mask=inside[None, :], other=0.0)
    y = x * w[None, :]
    tl.store(x_ptr + rows[:, None] * stride + cols[None, :], y, mask=inside[None, :])
    tl.store(out_ptr + rows, tl.sum(y, axis=1))


case(
    "rows_and_columns",
    rows_and_columns,
    4,
    lambda: [seeded(32, 100), seeded(100, seed=3), torch.zeros(32), 100, 100, 8, 128],
    lambda x, w, out, *rest: {0: x * w, 2: (x * w).sum(1)},
    tolerance=1e-5,
)


# ---------------------------------------------------------------------- gathers
@triton.jit
def embedding(idx_ptr, table_ptr, out_ptr, n, D: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    idx = tl.load(idx_ptr + rows, mask=rows < n, other=0)
    cols = tl.arange(0, D)
    x = tl.load(table_ptr + idx[:, None] * D + cols[None, :], mask=rows[:, None] < n)
    tl.store(out_ptr + rows[:, None] * D + cols[None, :], x, mask=rows[:, None] < n)


for dtype in (torch.int32, torch.int64):
    case(
        f"embedding_{str(dtype)[6:]}",
        embedding,
        3,
        lambda dtype=dtype: [
            torch.randint(0, 50, (37,), generator=torch.Generator().manual_seed(1)).to(dtype),
            seeded(50, 64, dtype=torch.float16),
            torch.zeros(37, 64, dtype=torch.float16),
            37,
            64,
            16,
        ],
        lambda idx, table, out, *rest: {2: table[idx.long()]},
    )


@triton.jit
def row_of_program(idx_ptr, x_ptr, out_ptr, D, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    row = tl.load(idx_ptr + pid)
    before = tl.load(idx_ptr + pid - 1, mask=pid > 0, other=-1)
    cols = tl.arange(0, BLOCK)
    if row >= 0:
        x = tl.load(x_ptr + row * D + cols, mask=cols < D)
        tl.store(out_ptr + pid * D + cols, x + before, mask=cols < D)
    else:
        tl.store(out_ptr + pid * D + cols, 7.0, mask=cols < D)


case(
    "row_of_program",
    row_of_program,
    4,
    lambda: [
        torch.tensor([2, -1, 0, 4], dtype=torch.int32),
        seeded(5, 40),
        torch.zeros(4, 40),
        40,
        64,
    ],
    lambda idx, x, out, *rest: {2: torch.stack([x[2] - 1, torch.full((40,), 7.0), x[0] - 1, x[4]])},
)


@triton.jit
def pointer_table(table_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    x_ptr = tl.load(table_ptr + pid).to(tl.pointer_type(tl.float32))
    offs = tl.arange(0, BLOCK)
    out = out_ptr + pid.to(tl.int64) * n
    tl.store(out + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


# ---------------------------------------------------------------------- atomics
@triton.jit
def histogram(x_ptr, hist_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0)
    tl.atomic_add(hist_ptr + x, 1, mask=mask, sem="relaxed")


case(
    "histogram",
    histogram,
    4,
    lambda: [
        torch.randint(0, 16, (900,), generator=torch.Generator().manual_seed(2)).int(),
        torch.zeros(16, dtype=torch.int32),
        900,
        256,
    ],
    lambda x, h, *rest: {1: torch.bincount(x, minlength=16).int()},
)


@triton.jit
def split_sum(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(1) * n + offs, mask=offs < n, other=0)
    tl.atomic_add(out_ptr + offs, x, mask=offs < n)


for dtype in (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
):
    case(
        f"split_sum_{str(dtype)[6:]}",
        split_sum,
        (2, 3),
        lambda dtype=dtype: [
            seeded(3, 480, dtype=torch.int8).to(dtype),
            torch.zeros(480, dtype=dtype),
            480,
            256,
        ],
        lambda x, out, *rest: {1: x.sum(0).to(x.dtype)},
    )
case(
    "split_sum_odd",
    split_sum,
    (2, 3),
    lambda: [
        seeded(3, 301, dtype=torch.int8).bfloat16(),
        torch.zeros(301, dtype=torch.bfloat16),
        301,
        256,
    ],
    lambda x, out, *rest: {1: x.sum(0).to(x.dtype)},
)


@triton.jit
def extremes(x_ptr, hi_ptr, lo_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.atomic_max(hi_ptr + offs % 8, x, mask=offs < n)
    tl.atomic_min(lo_ptr + offs % 8, x, mask=offs < n)


for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint32):
    case(
        f"extremes_{str(dtype)[6:]}",
        extremes,
        2,
        lambda dtype=dtype: [
            (
                seeded(240, dtype=torch.int32).abs() if dtype == torch.uint32 else seeded(240) * 100
            ).to(dtype),
            torch.zeros(8).to(dtype),
            torch.zeros(8).to(dtype),
            240,
            128,
        ],
        lambda x, hi, lo, *rest: {
            1: x.to(torch.float64).reshape(30, 8).amax(0).clamp_min(0).to(x.dtype),
            2: x.to(torch.float64).reshape(30, 8).amin(0).clamp_max(0).to(x.dtype),
        },
    )


@triton.jit
def bits(x_ptr, or_ptr, and_ptr, xor_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.atomic_or(or_ptr + tl.arange(0, BLOCK) % 4, x)
    tl.atomic_and(and_ptr + tl.arange(0, BLOCK) % 4, x)
    tl.atomic_xor(xor_ptr + tl.arange(0, BLOCK) % 4, x)


def _bits(
    x: torch.Tensor, or_: Any, and_: torch.Tensor, xor: Any, block: int
) -> dict[int, torch.Tensor]:
    rows = x.reshape(-1, 4)
    made = {1: torch.zeros_like(rows[0]), 2: and_.clone(), 3: torch.zeros_like(rows[0])}
    for row in rows:
        made[1] |= row
        made[2] &= row
        made[3] ^= row
    return made


for dtype in (torch.int32, torch.int64):
    case(
        f"bits_{str(dtype)[6:]}",
        bits,
        1,
        lambda dtype=dtype: [
            torch.randint(0, 2**31 - 1, (32,), generator=torch.Generator().manual_seed(3)).to(
                dtype
            ),
            torch.zeros(4, dtype=dtype),
            torch.full((4,), -1, dtype=dtype),
            torch.zeros(4, dtype=dtype),
            32,
        ],
        _bits,
    )


@triton.jit
def tickets(counter_ptr, order_ptr, out_ptr, BLOCK: tl.constexpr):
    """Each program draws a ticket, each lane another one."""
    mine = tl.atomic_add(counter_ptr, 1)
    tl.atomic_add(order_ptr + mine, tl.program_id(0) + 1)
    lanes = tl.atomic_add(counter_ptr + 1 + tl.zeros([BLOCK], tl.int32), 1)
    tl.store(out_ptr + lanes, lanes * 10)


case(
    "tickets",
    tickets,
    5,
    lambda: [
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(5, dtype=torch.int32),
        torch.full((80,), -1, dtype=torch.int32),
        16,
    ],
    lambda c, order, out, b: {
        0: torch.tensor([5, 80], dtype=torch.int32),
        2: torch.arange(80, dtype=torch.int32) * 10,
    },
)


@triton.jit
def locked_sum(x_ptr, lock_ptr, sum_ptr, BLOCK: tl.constexpr):
    """A critical section guarded by a spin lock."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + offs)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    total = tl.load(sum_ptr + offs, volatile=True)
    tl.store(sum_ptr + offs, total + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


case(
    "locked_sum",
    locked_sum,
    6,
    lambda: [
        seeded(6, 64, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(64, dtype=torch.int32),
        64,
    ],
    lambda x, lock, s, b: {1: torch.zeros(1, dtype=torch.int32), 2: x.sum(0).int()},
)


@triton.jit
def swap_tile(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    old = tl.atomic_xchg(y_ptr + offs, x)
    seen = tl.atomic_cas(x_ptr + offs, x, old)
    tl.device_assert(seen == x, "nobody else writes")


case(
    "swap_tile",
    swap_tile,
    1,
    lambda: [seeded(48, dtype=torch.int32), seeded(48, dtype=torch.int32, seed=9), 48],
    lambda x, y, b: {0: y.clone(), 1: x.clone()},
)


# ---------------------------------------------------------------------- blocks
@triton.jit
def block_copy(x_ptr, out_ptr, M, N, sm, sn, BM: tl.constexpr, BN: tl.constexpr):
    x = tl.make_block_ptr(x_ptr, (M, N), (sm, sn), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    out = tl.make_block_ptr(out_ptr, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    for _ in range(0, tl.cdiv(N, BN)):
        tile = tl.load(x, boundary_check=(0, 1), padding_option="zero")
        tl.store(out, tile.to(out.dtype.element_ty), boundary_check=(0, 1))
        x = tl.advance(x, (0, BN))
        out = tl.advance(out, (0, BN))


case(
    "block_copy",
    block_copy,
    3,
    lambda: [seeded(40, 72, dtype=torch.float16), torch.zeros(40, 72), 40, 72, 72, 1, 16, 32],
    lambda x, out, *rest: {1: x.float()},
)
case(
    "block_copy_transposed",
    block_copy,
    3,
    lambda: [seeded(72, 40, dtype=torch.float16).t(), torch.zeros(40, 72), 40, 72, 1, 40, 16, 32],
    lambda x, out, *rest: {1: x.float()},
)


@triton.jit
def descriptor_add(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    out = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    out.store([m, n], x.load([m, n]) + x.load([m - BM, n]))


case(
    "descriptor_add",
    descriptor_add,
    (3, 2),
    lambda: [seeded(40, 56), torch.zeros(40, 56), 40, 56, 16, 32],
    lambda x, out, *rest: {1: x + torch.cat([torch.zeros(16, 56), x])[:40]},
)


# ---------------------------------------------------------------------- products
@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    c = accumulator.to(tl.float16)
    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)


def matmul_args(a: torch.Tensor, b: torch.Tensor, *blocks: int) -> list[Any]:
    c = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    strides = (*a.stride(), *b.stride(), *c.stride())
    return [a, b, c, a.shape[0], b.shape[1], a.shape[1], *strides, *blocks]


for name, make in {
    "small": lambda: matmul_args(
        seeded(96, 80, dtype=torch.float16), seeded(80, 72, dtype=torch.float16), 64, 64, 64, 2
    ),
    "transposed": lambda: matmul_args(
        seeded(80, 96, dtype=torch.float16).t(),
        seeded(72, 80, dtype=torch.float16).t(),
        64,
        64,
        64,
        2,
    ),
    "odd": lambda: matmul_args(
        seeded(67, 33, dtype=torch.float16), seeded(33, 45, dtype=torch.float16), 64, 64, 64, 1
    ),
}.items():
    case(
        f"matmul_{name}",
        matmul,
        4,
        make,
        lambda a, b, c, *rest: {2: (a.float() @ b.float()).half()},
        tolerance=2e-2,
    )


@triton.jit
def attention(
    Q, K, V, Out, sm_scale, stride_z, stride_h, stride_m, H, N_CTX,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0)
    off_z, off_h = tl.program_id(1) // H, tl.program_id(1) % H
    base = off_z.to(tl.int64) * stride_z + off_h.to(tl.int64) * stride_h
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    rows = offs_m[:, None] < N_CTX
    q = tl.load(Q + base + offs_m[:, None] * stride_m + offs_d[None, :], mask=rows, other=0.0)
    m_i = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    hi = tl.minimum((start_m + 1) * BLOCK_M, N_CTX) if CAUSAL else N_CTX
    for start_n in range(0, hi, BLOCK_N):
        n = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(
            K + base + n[None, :] * stride_m + offs_d[:, None], mask=n[None, :] < N_CTX, other=0.0
        )
        v = tl.load(
            V + base + n[:, None] * stride_m + offs_d[None, :], mask=n[:, None] < N_CTX, other=0.0
        )
        s = tl.where(n[None, :] < N_CTX, tl.dot(q, k) * sm_scale, -float("inf"))
        if CAUSAL:
            s = tl.where(offs_m[:, None] >= n[None, :], s, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    out = (acc / l_i[:, None]).to(Out.dtype.element_ty)
    tl.store(Out + base + offs_m[:, None] * stride_m + offs_d[None, :], out, mask=rows)


def attention_args(z: int, h: int, n: int, d: int, causal: bool) -> list[Any]:
    q, k, v = (seeded(z, h, n, d, dtype=torch.float16, seed=i) for i in range(3))
    return [q, k, v, torch.zeros_like(q), 0.18, *q.stride()[:3], h, n, 64, 64, d, causal]


def attention_want(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: Any, scale: float, *rest: Any
) -> Any:
    s = q.float() @ k.float().transpose(-1, -2) * scale * 0.6931471805599453
    if rest[-1]:
        s = s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -float("inf"))
    return {3: (s.softmax(-1) @ v.float()).half()}


for causal in (False, True):
    case(
        f"attention_{'causal' if causal else 'full'}",
        attention,
        (2, 2),
        lambda causal=causal: attention_args(1, 2, 104, 64, causal),
        attention_want,
        tolerance=5e-3,
    )


def check(case: Case, args: list[Any], want: dict[int, torch.Tensor]) -> None:
    """Compares the outputs of a launch with what they should be."""
    for index, expected in want.items():
        got = args[index].cpu()
        assert got.dtype == expected.dtype, f"{case}: argument {index} is {got.dtype}"
        if case.tolerance:
            torch.testing.assert_close(got, expected, rtol=case.tolerance, atol=case.tolerance)
        else:
            wrong = (got.to(torch.float64) != expected.to(torch.float64)).nonzero()
            assert not len(wrong), f"{case}: argument {index} differs at {wrong[:4].tolist()}"
