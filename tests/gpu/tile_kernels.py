"""Kernels that move data between threads, and cases over dtypes and shapes, for the GPU and the emulation."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import Any

import torch

import tiledsl
import tiledsl.language as tl

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
I8, I16, I32, I64, U8, BOOL = (
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
)  # fmt: skip
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@dataclass(frozen=True)
class Case:
    """One launch. args: tensors; outs: indexes of those it writes. tol: relative to the largest value wanted."""

    name: str
    kernel: Any
    args: tuple[torch.Tensor, ...]
    outs: tuple[int, ...]
    constants: dict[str, Any] = field(default_factory=dict)
    grid: tuple[int, ...] = (1,)
    tol: float = 0.0
    num_warps: int = 4

    def __str__(self) -> str:
        return self.name

    def fresh(self, device: str = "cpu") -> list[torch.Tensor]:
        """The arguments on a device, outputs filled with a pattern."""
        return [a.clone().to(device) for a in self.args]


def values(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers of a dtype: small integers, or normal floats."""
    g = torch.Generator().manual_seed(seed + sum(shape))
    if dtype == BOOL:
        return torch.randint(0, 2, shape, generator=g).to(BOOL)
    if dtype in (I8, I16, I32, I64):
        return torch.randint(-100, 100, shape, generator=g).to(dtype)
    if dtype == U8:
        return torch.randint(0, 200, shape, generator=g).to(dtype)
    return torch.randn(shape, generator=g).to(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """A dtype that holds every result exactly."""
    return F64 if dtype.is_floating_point else I64


# ---------------------------------------------------------------------- reductions
@tiledsl.jit
def reduce_rank2(
    x: tl.Tensor,
    o: tl.Tensor,
    F: tl.constexpr,
    AXIS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    o.store(0, F(x.load((0, 0), (M, N)), AXIS))


@tiledsl.jit
def reduce_rank3(
    x: tl.Tensor,
    o: tl.Tensor,
    F: tl.constexpr,
    AXIS: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    C: tl.constexpr,
):
    o.store((0, 0), F(x.load((0, 0, 0), (A, B, C)), AXIS))


def product(a, b):
    return a * b


def prod(x, axis):
    return tl.reduce(x, axis, product)


def welford_combine(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta = mean_b - mean_a
    n = n_a + n_b
    ratio = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * ratio, m2_a + m2_b + delta * delta * n_a * ratio, n


def variance(x, axis):
    y = x.to(tl.float32)
    mean, m2, n = tl.reduce((y, tl.zeros_like(y), tl.full_like(y, 1.0)), axis, welford_combine)
    return m2 / n + mean


def index_of_max(x, axis):
    best, at = tl.max(x, axis, return_indices=True)
    return best.to(tl.float32) * 1000 + at


def sum_kept(x, axis):
    return tl.reshape(tl.sum(x, axis, keep_dims=True), (x.numel // x.shape[axis],))


REDUCTIONS = {
    "sum": (tl.sum, (F32, F64, BF16, F16, I8, I16, I32, I64, U8, BOOL)),
    "max": (tl.max, (F32, BF16, F64, I8, I32, I64, U8)),
    "min": (tl.min, (F32, F16, I16, I64)),
    "argmax": (tl.argmax, (F32, BF16, I32, I8)),
    "argmin": (tl.argmin, (F32, I64)),
    "max+index": (index_of_max, (F32, I8)),
    "xor": (tl.xor_sum, (I32, U8, I64)),
    "or": (tl.reduce_or, (I32, BOOL)),
    "prod": (prod, (F32, I32)),
    "variance": (variance, (F32, BF16)),
    "sum_kept": (sum_kept, (F32,)),
}
SHAPES = [(1, 1), (7, 5), (16, 64), (33, 100), (128, 128), (1, 5000), (3, 257), (256, 3), (64, 1)]


def reduction_cases(shapes=SHAPES, warps=(4,)) -> list[Case]:
    out: list[Case] = []
    for name, (function, dtypes) in REDUCTIONS.items():
        for n, shape in enumerate(shapes):
            for axis in (0, 1, None):
                if axis is None and name in ("sum_kept", "variance"):
                    continue
                dtype = dtypes[(n + (axis or 0)) % len(dtypes)]
                x = values(dtype, *shape)
                if name == "prod" and dtype.is_floating_point:
                    x = (1 + x / 100).to(dtype)
                size = 1 if axis is None else shape[1 - axis]
                o = torch.zeros(size, dtype=wide(dtype))
                constants = {"F": function, "AXIS": axis, "M": shape[0], "N": shape[1]}
                tol = 1e-5 if dtype in (F32, F64) else 1e-2 if dtype.is_floating_point else 0.0
                for w in warps:
                    label = f"{name}-{str(dtype)[6:]}-{shape[0]}x{shape[1]}-{axis}-{w}"
                    out.append(
                        Case(label, reduce_rank2, (x, o), (1,), constants, tol=tol, num_warps=w)
                    )
    for axis in range(3):
        x, rest = values(F32, 5, 16, 24), [5, 16, 24]
        del rest[axis]
        constants = {"F": tl.sum, "AXIS": axis, "A": 5, "B": 16, "C": 24}
        out.append(
            Case(f"sum-3d-{axis}", reduce_rank3, (x, torch.zeros(*rest)), (1,), constants, tol=1e-5)
        )
    return out


@tiledsl.jit
def softmax_rows(x: tl.Tensor, o: tl.Tensor, M: tl.constexpr, N: tl.constexpr):
    m = tl.program_id(0) * M
    t = x.load((m, 0), (M, N), other=float("-inf")).to(tl.float32)
    e = tl.exp(t - tl.max(t, 1)[:, None])
    o.store((m, 0), e / tl.sum(e, 1)[:, None])


@tiledsl.jit
def online_rows(x: tl.Tensor, o: tl.Tensor, M: tl.constexpr, N: tl.constexpr):
    """Reductions in a loop: shared memory that is used again."""
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    for j in range(0, x.shape[1], N):
        t = x.load((0, j), (M, N), other=float("-inf"))
        new = tl.maximum(top, tl.max(t, 1))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(t - new[:, None]), 1)
        top = new
    o.store(0, top + tl.log(total))


@tiledsl.jit
def loop_of_one(x: tl.Tensor, o: tl.Tensor, N: tl.constexpr):
    """One reduction over warps in a loop."""
    total = 0.0
    for i in range(x.shape[0]):
        total = total * 0.5 + tl.sum(x.load((i, 0), (1, N)))
    o.store(0, total)


def loop_cases() -> list[Case]:
    x = values(F32, 24, 1000)
    out = [
        Case(
            "loop_of_one",
            loop_of_one,
            (values(F32, 9, 4096), torch.zeros(1)),
            (1,),
            {"N": 4096},
            tol=1e-5,
        ),
        Case("online_rows", online_rows, (x, torch.zeros(24)), (1,), {"M": 24, "N": 96}, tol=1e-5),
        Case(
            "online_one",
            online_rows,
            (x[:2].clone(), torch.zeros(2)),
            (1,),
            {"M": 2, "N": 512},
            tol=1e-5,
        ),
    ]
    for dtype, (m, n), block, w in (
        (F32, (5, 37), (5, 37), 4), (BF16, (3, 5000), (1, 5000), 8), (F32, (16, 1024), (8, 1024), 4),
        (F16, (4, 50257), (1, 50257), 16), (F32, (64, 64), (64, 64), 1), (BF16, (6, 256), (2, 256), 2),
    ):  # fmt: skip
        x = values(dtype, m, n)
        out.append(
            Case(
                f"softmax-{str(dtype)[6:]}-{m}x{n}-{w}", softmax_rows, (x, torch.zeros(m, n, dtype=dtype)), (1,),
                {"M": block[0], "N": block[1]}, (-(-m // block[0]),), 1e-5 if dtype == F32 else 1e-2, w,
            )
        )  # fmt: skip
    return out


# ---------------------------------------------------------------------- scans
@tiledsl.jit
def scan_rank2(
    x: tl.Tensor,
    o: tl.Tensor,
    F: tl.constexpr,
    AXIS: tl.constexpr,
    REV: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    o.store((0, 0), F(x.load((0, 0), (M, N)), AXIS, REV))


def linear(a, x, b, y):
    return a * b, b * x + y


def recurrence(x, axis, reverse):
    a = x * 0.3
    _, h = tl.associative_scan((a, x), axis, linear, reverse)
    return h


def running_max(x, axis, reverse):
    return tl.associative_scan(x, axis, tl.maximum, reverse)


def cumulative(x, axis, reverse):
    return tl.cumsum(x, axis, reverse)


def cumulative_product(x, axis, reverse):
    return tl.cumprod(1 + x * 0.01, axis, reverse)


SCANS = {
    "cumsum": (cumulative, (F32, I32, BF16, I8, BOOL, F64)),
    "cumprod": (cumulative_product, (F32,)),
    "recurrence": (recurrence, (F32,)),
    "max": (running_max, (F32, I64)),
}


def scan_cases(
    shapes=((7, 5), (16, 64), (33, 100), (64, 64), (1, 3000), (3, 257), (256, 3)),
) -> list[Case]:
    out: list[Case] = []
    for name, (function, dtypes) in SCANS.items():
        for n, shape in enumerate(shapes):
            for axis in (0, 1):
                for reverse in (False, True):
                    dtype = dtypes[(n + axis) % len(dtypes)]
                    x = values(dtype, *shape)
                    constants = {
                        "F": function,
                        "AXIS": axis,
                        "REV": reverse,
                        "M": shape[0],
                        "N": shape[1],
                    }
                    tol = 1e-5 if dtype in (F32, F64) else 1e-2 if dtype.is_floating_point else 0.0
                    label = f"{name}-{str(dtype)[6:]}-{shape[0]}x{shape[1]}-{axis}-{'rev' if reverse else 'fwd'}"
                    o = torch.zeros(shape, dtype=wide(dtype))
                    out.append(Case(label, scan_rank2, (x, o), (1,), constants, tol=tol))
    return out


# ---------------------------------------------------------------------- shapes
@tiledsl.jit
def move(
    x: tl.Tensor,
    o: tl.Tensor,
    F: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
):
    o.store((0, 0), tl.reshape(F(x.load((0, 0), (M, N))), (P, Q)))


def same(x):
    return x


def transposed(x):
    return tl.trans(x)


def flipped(x):
    return tl.flip(tl.flip(x, 0))


def doubled(x):
    return tl.cat(x, x + x, dim=1)


def stacked(x):
    return tl.cat(x, tl.flip(x), dim=0)


def woven(x):
    return tl.interleave(x, tl.flip(x))


def swapped_pairs(x):
    a, b = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return tl.join(b, a)


def gathered(x):
    index = (
        tl.arange(0, x.shape[0])[:, None] * 7 + tl.arange(0, 2 * x.shape[1])[None, :] * 3
    ) % x.shape[1]
    return tl.gather(x, index, 1)


def gathered_rows(x):
    index = (tl.arange(0, 5)[:, None] * 7 + tl.arange(0, x.shape[1])[None, :]) % x.shape[0]
    return tl.gather(x, index.to(tl.int64), 0)


def permuted(x):
    return tl.permute(tl.reshape(x, (x.shape[0], x.shape[1] // 4, 4)), (2, 0, 1))


MOVES = {
    "reshape": same, "trans": transposed, "flip": flipped, "cat1": doubled, "cat0": stacked, "interleave": woven,
    "split": swapped_pairs, "gather": gathered, "gather0": gathered_rows, "permute": permuted,
}  # fmt: skip


def move_cases(shapes=((16, 64), (8, 20), (33, 12), (128, 128), (1, 256), (256, 4))) -> list[Case]:
    out: list[Case] = []
    dtypes = (F32, BF16, I8, I64, F16, U8)
    for k, (name, function) in enumerate(MOVES.items()):
        for n, (m, c) in enumerate(shapes):
            count = m * c
            count *= 2 if name in ("cat1", "cat0", "interleave", "gather") else 1
            count = 5 * c if name == "gather0" else count
            rows = next(r for r in (8, 4, 5, 3, 1) if count % r == 0)
            dtype = dtypes[(n + k) % len(dtypes)]
            constants = {"F": function, "M": m, "N": c, "P": rows, "Q": count // rows}
            o = torch.zeros(rows, count // rows, dtype=dtype)
            label = f"{name}-{str(dtype)[6:]}-{m}x{c}"
            out.append(Case(label, move, (values(dtype, m, c), o), (1,), constants))
    return out


# ---------------------------------------------------------------------- order and counting
@tiledsl.jit
def sorted_rows(
    x: tl.Tensor,
    o: tl.Tensor,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    DESC: tl.constexpr,
):
    t = x.load((0, 0), (M, N))
    o.store((0, 0), tl.topk(t, K) if K < N else tl.sort(t, descending=DESC))


@tiledsl.jit
def merged_rows(x: tl.Tensor, o: tl.Tensor, M: tl.constexpr, N: tl.constexpr):
    t = x.load((0, 0), (M, N))
    o.store((0, 0), tl.bitonic_merge(tl.cat(tl.sort(t), tl.flip(tl.sort(t)), dim=1)))


@tiledsl.jit
def counted(x: tl.Tensor, o: tl.Tensor, N: tl.constexpr, BINS: tl.constexpr):
    t = x.load(0, N)
    o.store(0, tl.histogram(t, BINS) * 1000 + tl.histogram(t, BINS, mask=tl.arange(0, N) % 3 == 0))


def order_cases() -> list[Case]:
    out: list[Case] = []
    sizes = ((1, 1), (4, 50), (3, 64), (1, 1000), (16, 7))
    for n, (m, c) in enumerate(sizes):
        for j, dtype in enumerate((F32, BF16, I8, I64, U8, F64)):
            if (n + j) % 2:
                continue
            x = values(dtype, m, c)
            if dtype.is_floating_point:
                x.view(-1)[:: max(1, m * c // 3)] = float("inf")
                x.view(-1)[1 :: max(2, m * c // 2)] = float("nan")
            k = max(1, min(c, 5))
            for count, descending in ((c, False), (c, True), (k, True)):
                constants = {"M": m, "N": c, "K": count, "DESC": descending}
                label = f"sort-{str(dtype)[6:]}-{m}x{c}-{count}-{descending}"
                o = torch.zeros(m, count, dtype=dtype)
                out.append(Case(label, sorted_rows, (x, o), (1,), constants))
    x = values(F32, 2, 64)
    out.append(Case("merge", merged_rows, (x, torch.zeros(2, 128)), (1,), {"M": 2, "N": 64}))
    for size, bins, dtype in ((1000, 24, I32), (4096, 256, U8), (77, 500, I64)):
        constants = {"N": size, "BINS": bins}
        o = torch.zeros(bins, dtype=I32)
        out.append(
            Case(f"histogram-{size}-{bins}", counted, (values(dtype, size), o), (1,), constants)
        )
    return out


# ---------------------------------------------------------------------- dots
@tiledsl.jit
def product_rank2(
    a: tl.Tensor,
    b: tl.Tensor,
    o: tl.Tensor,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    P: tl.constexpr,
):
    o.store((0, 0), tl.dot(a.load((0, 0), (M, K)), b.load((0, 0), (K, N)), input_precision=P))


@tiledsl.jit
def product_rank3(
    a: tl.Tensor,
    b: tl.Tensor,
    o: tl.Tensor,
    B: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    x, y = a.load((0, 0, 0), (B, M, K)), b.load((0, 0, 0), (B, K, N))
    o.store((0, 0, 0), tl.dot(x, y, tl.full((B, M, N), 2, tl.float32)))


@tiledsl.jit
def product_loop(
    a: tl.Tensor, b: tl.Tensor, o: tl.Tensor, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """A dot in a loop beside other tile math: the operand is computed."""
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, a.shape[1], K):
        x = a.load((0, k), (M, K))
        acc = tl.dot(x * 2, tl.trans(b.load((0, k), (N, K))), acc) * 0.5
    o.store((0, 0), acc / tl.max(tl.abs(acc), 1)[:, None])


def dot_cases() -> list[Case]:
    out: list[Case] = []
    rows = (
        (16, 32, 24, BF16, None, 1e-5), (1, 8, 16, BF16, None, 1e-5), (128, 128, 64, F16, None, 1e-5),
        (64, 64, 32, F32, "tf32", 1e-5), (64, 64, 32, F32, None, 1e-6), (32, 48, 40, F32, "tf32x3", 1e-6),
        (33, 20, 18, F32, "ieee", 1e-6), (128, 64, 256, E4M3, None, 2e-3), (64, 48, 160, E5M2, None, 2e-3),
        (64, 40, 64, I8, None, 0.0), (30, 70, 50, I8, None, 0.0), (64, 64, 32, U8, None, 0.0),
        (256, 128, 64, BF16, None, 1e-5), (16, 512, 16, BF16, None, 1e-5), (80, 96, 112, F16, None, 1e-5),
    )  # fmt: skip
    for m, n, k, dtype, precision, tol in rows:
        big = dtype in (I8, U8)
        a, b = (
            values(dtype if big or dtype in (F32, F16, BF16) else F32, *s, seed=3).to(dtype)
            for s in ((m, k), (k, n))
        )
        o = torch.zeros(m, n, dtype=I32 if big else F32)
        constants = {"M": m, "N": n, "K": k, "P": precision}
        label = f"dot-{str(dtype)[6:]}-{m}x{n}x{k}-{precision}"
        out.append(Case(label, product_rank2, (a, b, o), (2,), constants, tol=tol))
    for batch, m, n, k in ((3, 16, 24, 32), (2, 64, 64, 64), (4, 8, 8, 16)):
        a, b = values(BF16, batch, m, k), values(BF16, batch, k, n)
        constants = {"B": batch, "M": m, "N": n, "K": k}
        label = f"dot-batch-{batch}x{m}x{n}x{k}"
        out.append(
            Case(label, product_rank3, (a, b, torch.zeros(batch, m, n)), (2,), constants, tol=1e-5)
        )
    a, b = values(F16, 64, 100), values(F16, 32, 100)
    out.append(
        Case(
            "dot-loop",
            product_loop,
            (a, b, torch.zeros(64, 32)),
            (2,),
            {"M": 64, "N": 32, "K": 32},
            tol=1e-3,
        )
    )
    return out


# ---------------------------------------------------------------------- random numbers
@tiledsl.jit
def noise(o: tl.Tensor, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    o.store((0, 0), tl.rand(seed, at))
    o.store((1, 0), tl.randn(seed, at.to(tl.int64) + (1 << 40)))
    o.store((2, 0), tl.randint(seed, at).to(tl.float64))
    a, b, c, d = tl.philox(
        seed, at.to(tl.uint64), at.to(tl.uint64), at.to(tl.uint64), at.to(tl.uint64)
    )
    o.store((3, 0), ((a ^ b ^ c ^ d) >> 12).to(tl.float64))


def all_cases() -> list[Case]:
    """Every case, in a fixed order."""
    return [
        *reduction_cases(), *reduction_cases(((16, 64), (3, 257)), warps=(1, 8)), *loop_cases(), *scan_cases(),
        *move_cases(), *order_cases(), *dot_cases(),
    ]  # fmt: skip
