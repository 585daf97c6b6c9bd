"""The emitted kernels of the matmul family run in the emulation and agree with the interpreter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from examples import fp8_attention
from examples.block_scaled_matmul import block_scaled_matmul
from examples.fp8_matmul import fp8_matmul
from examples.fp8_matmul import fp8_matmul_rowwise
from examples.fused_epilogues import both_ways
from examples.fused_epilogues import quantised
from examples.fused_epilogues import residual
from examples.fused_epilogues import with_squares
from examples.grouped_matmul import grouped_matmul
from examples.norm_matmul import layer_norm_matmul
from examples.norm_matmul import norm_matmul
from examples.weight_only import tiles as weight_tiles
from examples.weight_only import weight_only
from examples.weight_only import weight_only_int4
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import F32
from tests.emulation.test_emulated_kernels import same_as_interpreter
from tests.gpu.matmul_kernels import grid_of

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
RNG = np.random.default_rng(0)
TOLERANCE = 2.0**-8


def normal(*shape: int, dtype: np.dtype = E4M3) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def nothing(*shape: int, dtype: np.dtype = BF16) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


PROMOTED = {
    "cooperative": {"BM": 128, "BN": 192},
    "three consumers": {"BM": 192, "BN": 112},
    "two parts": {"BM": 128, "BN": 128, "BK": 256},
    "split": {"BM": 64, "BN": 128, "split_k": 2},
    "swapped": {"BM": 16, "BN": 64, "BK": 256, "swap_operands": True},
    "single role": {"BM": 64, "BN": 64, "warp_specialize": False},
}


@pytest.mark.parametrize("name", PROMOTED)
def test_f32_sums(name: str) -> None:
    M, N, K = 136, 208, 400
    args = {"a": normal(M, K), "b": normal(N, K).T, "c": nothing(M, N), "scale": 0.5}
    same_as_interpreter(
        fp8_matmul, args, ("c",), grid_of(M, N), tolerance=TOLERANCE, **PROMOTED[name]
    )


@pytest.mark.parametrize("limit", [None, 1 << 20])
def test_scales_of_rows_and_columns(limit: int | None) -> None:
    M, N, K = 136, 208, 272
    args = {
        "a": normal(M, K, dtype=E5M2), "b": normal(N, K).T, "rows": normal(M, dtype=F32),
        "cols": normal(N, dtype=F32), "c": nothing(M, N),
    }  # fmt: skip
    same_as_interpreter(
        fp8_matmul_rowwise, args, ("c",), grid_of(M, N), tolerance=TOLERANCE, LIMIT=limit
    )


SCALED = {
    "cluster": {"BM": 128, "BN": 128, "cluster": 2},
    "three in turns": {"BM": 192, "BN": 128, "ping_pong": True},
    "split": {"BM": 64, "BN": 128, "split_k": 2},
    "swapped": {"BM": 16, "BN": 64},
    "two iterations at a time": {"BM": 64, "BN": 64, "mma_depth": 2},
    "two iterations, then one": {"BM": 64, "BN": 64, "mma_depth": 2},
    "two warpgroups, not in turns": {"BM": 128, "BN": 64, "ping_pong": False},
    "single role": {"BM": 64, "BN": 64, "warp_specialize": False},
    "two blocks of columns": {"BM": 128, "BN": 112},
    "three blocks": {"BM": 128, "BN": 224},
    "two blocks, three warpgroups": {"BM": 192, "BN": 80},
    "two blocks, not in turns": {"BM": 128, "BN": 48, "ping_pong": False},
    "two blocks, split": {"BM": 64, "BN": 112, "split_k": 2},
    "two blocks, swapped": {"BM": 16, "BN": 192},
    "three blocks, single role": {"BM": 64, "BN": 144, "warp_specialize": False},
}


@pytest.mark.parametrize("N", [208, 400])
@pytest.mark.parametrize("name", SCALED)
def test_block_scales(name: str, N: int) -> None:
    """Scales of 4 blocks of columns come in the slots, those of 2 in loads of their own."""
    M, K = 136, 272 if name == "two iterations, then one" else 400
    args = {
        "a": normal(M, K), "b": normal(N, K).T, "sa": RNG.random((-(-K // 128), M), dtype=np.float32),
        "sb": RNG.random((-(-K // 128), -(-N // 128)), dtype=np.float32), "c": nothing(M, N),
    }  # fmt: skip
    same_as_interpreter(
        block_scaled_matmul, args, ("c",), grid_of(M, N), tolerance=TOLERANCE, **SCALED[name]
    )


@pytest.mark.parametrize(
    "options",
    [
        {"BN": 128, "split_k": 1},
        {"BN": 128, "num_consumers": 2},
        {"BN": 64, "num_consumers": 2},
        {"BN": 64, "warp_specialize": False},
    ],
    ids=["one consumer", "two", "more tiles than SMs", "single role"],
)
@pytest.mark.parametrize("sizes", [(130, 0, 1, 70, 64, 65), (0, 5)], ids=str)
def test_groups(sizes: tuple[int, ...], options: dict[str, object]) -> None:
    """Rows of c behind the last group keep what they hold."""
    G, N, K = len(sizes), 1472 if options["BN"] == 64 else 120, 72
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    starts = np.cumsum([0, *(-(-s // 128) for s in sizes)]).astype(np.int32)
    T = int(offsets[-1]) + 3
    args = {
        "x": normal(T, K, dtype=BF16), "w": normal(G, K, N, dtype=BF16), "offsets": offsets,
        "starts": starts, "c": nothing(T, N),
    }  # fmt: skip
    same_as_interpreter(
        grouped_matmul, args, ("c",), lambda meta: (T // 128 + G, -(-N // meta["BN"])),
        tolerance=TOLERANCE, G=G, STEPS=(G - 1).bit_length(), **options,
    )  # fmt: skip


EPILOGUES = {
    "residual": (residual, ("old", "out"), {"old": BF16}),
    "quantised": (quantised, ("out", "scales"), {"out": E4M3, "scales": F32}),
    "with_squares": (with_squares, ("out", "squares"), {"squares": F32}),
    "both_ways": (both_ways, ("out", "turned"), {}),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str) -> None:
    M, N, K = 136, 264, 72
    kernel, outputs, dtypes = EPILOGUES[name]
    shapes = {"scales": (M, 3), "squares": (3, M), "turned": (N, M)}
    args: dict[str, object] = {"x": normal(M, K, dtype=BF16), "w": normal(N, K, dtype=BF16).T}
    for out in outputs:
        make = normal if out == "old" else nothing
        args[out] = make(*shapes.get(out, (M, N)), dtype=dtypes.get(out, BF16))
    # One value of fp8 next to a half-way point may be rounded the other way.
    tolerance = 2.0**-3 if name == "quantised" else TOLERANCE
    same_as_interpreter(kernel, args, outputs, grid_of(M, N), tolerance=tolerance)


NORMS = {
    "flow": {"BM": 128, "BN": 128, "BK": 64},
    "three consumers": {"BM": 192, "BN": 64, "BK": 64, "num_consumers": 3},
    "two consumers": {"BM": 128, "BN": 128, "BK": 64, "num_consumers": 2, "ping_pong": False},
    "ping-pong": {"BM": 128, "BN": 128, "BK": 64, "ping_pong": True, "cluster": 2},
    "one consumer": {"BM": 64, "BN": 72, "BK": 128},
    "single role": {"BM": 64, "BN": 64, "BK": 64, "warp_specialize": False},
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_before_a_product(name: str) -> None:
    """Rows beyond x and columns beyond K read as zeros and add nothing to the sums."""
    M, N, K = 136, 200, 200
    args = {"x": normal(M, K, dtype=BF16), "w": normal(N, K, dtype=BF16).T, "out": nothing(M, N)}
    grid, options = grid_of(M, N), NORMS[name]
    same_as_interpreter(
        norm_matmul, {**args, "eps": 1e-6}, ("out",), grid, tolerance=TOLERANCE, **options
    )
    if name != "two consumers":
        return
    sums = args["w"].astype(np.float32).sum(0)
    layer = {"x": args["x"], "w": args["w"], "sums": sums, "out": args["out"], "eps": 1e-6}
    same_as_interpreter(layer_norm_matmul, layer, ("out",), grid, tolerance=TOLERANCE, **options)


# fmt: off
@tiledsl.jit
def scaled_by_maximum(x: tl.Tensor, w: tl.Tensor, out: tl.Tensor, BM: tl.constexpr = tl.auto,
                      BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc, top = tl.zeros((BM, BN), tl.float32), tl.zeros((BM,), tl.float32)
    for k in range(0, x.shape[1], BK):
        tile = x.load((m, k), (BM, BK))
        acc = tl.dot(tile, w.load((k, n), (BK, BN)), acc)
        top = tl.maximum(top, tl.max(tl.abs(tile.to(tl.float32)), axis=1))
    out.store((m, n), acc / (top[:, None] + 1.0))
# fmt: on


@pytest.mark.parametrize("name", ["flow", "two consumers", "ping-pong", "single role"])
def test_maxima_of_rows_beside_a_product(name: str) -> None:
    M, N, K = 136, 200, 200
    args = {"x": normal(M, K, dtype=BF16), "w": normal(N, K, dtype=BF16).T, "out": nothing(M, N)}
    grid, options = grid_of(M, N), NORMS[name]
    same_as_interpreter(scaled_by_maximum, args, ("out",), grid, tolerance=TOLERANCE, **options)


CHUNKED = {
    "ping-pong": {"BM": 64, "BN": 136, "ping_pong": True, "cluster": 1},
    "cooperative": {"BM": 128, "BN": 256, "ping_pong": False, "num_consumers": 2, "cluster": 1},
}


@pytest.mark.parametrize("name", CHUNKED)
def test_epilogues_in_chunks(name: str) -> None:
    """Blocks that the epilogue reads come with the chunk that needs them; chunks overlap at the end."""
    M, N, K = 136, 360, 72
    args = {
        "x": normal(M, K, dtype=BF16), "w": normal(N, K, dtype=BF16).T,
        "old": normal(M, N, dtype=BF16), "out": nothing(M, N),
    }  # fmt: skip
    same_as_interpreter(
        residual, args, ("out",), grid_of(M, N), tolerance=TOLERANCE, **CHUNKED[name]
    )


@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_weights_that_are_widened_in_the_loop(kind: str) -> None:
    M, N, K = 40, 136, 272
    wide = RNG.integers(-128, 128, (N, K if kind != "int4" else 2 * 128)).astype(np.int8)
    args = {
        "w": normal(N, K) if kind == "fp8" else wide, "x": normal(M, K, dtype=BF16),
        "scales": RNG.random(N, dtype=np.float32), "out": nothing(M, N),
    }  # fmt: skip
    kernel = weight_only_int4 if kind == "int4" else weight_only
    same_as_interpreter(kernel, args, ("out",), weight_tiles(M, N), tolerance=TOLERANCE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("L", "D"), [(180, 64), (182, 64), (308, 128)])
def test_fp8_attention(L: int, D: int, causal: bool) -> None:
    B, H = 1, 1 if D == 128 else 2
    sizes = fp8_attention.tiles(D, causal=causal)
    args = {
        "q": normal(B, H, L, D), "k": normal(B, H, L, D), "vt": normal(B, H, D, -(-L // 16) * 16),
        "scales": RNG.random((B, H, 2), dtype=np.float32), "eighths": np.full((8, 256), 0.125, E4M3),
        "o": nothing(B, H, L, D),
    }  # fmt: skip
    # Weights next to a half-way point of e4m3 may be rounded the other way.
    same_as_interpreter(
        fp8_attention.fp8_attention_kernel, args, ("o",), (-(-L // sizes["BM"]), H, B),
        tolerance=2.0**-6, scale=D**-0.5, causal=causal, D=D, fast_math=True, **sizes,
    )  # fmt: skip


def test_fp8_attention_whose_scores_are_negative() -> None:
    """Maxima are found by the bits of the scores, three at a time; those of negative ones count down."""
    L, D = 308, 128
    sizes = fp8_attention.tiles(D, causal=False)
    args = {
        "q": normal(1, 1, L, D), "k": normal(1, 1, L, D), "vt": normal(1, 1, D, -(-L // 16) * 16),
        "scales": np.ones((1, 1, 2), np.float32), "eighths": np.full((8, 256), 0.125, E4M3),
        "o": nothing(1, 1, L, D),
    }  # fmt: skip
    args["q"][..., 0], args["k"][..., 0] = 4, -30
    args["k"][:, :, ::7, 0] = 0  # rows of a warp with scores of both signs beside rows without
    same_as_interpreter(
        fp8_attention.fp8_attention_kernel, args, ("o",), (-(-L // sizes["BM"]), 1, 1),
        tolerance=2.0**-6, scale=D**-0.5, causal=False, D=D, fast_math=True, **sizes,
    )  # fmt: skip


# fmt: off
@tiledsl.jit
def int8_matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr = 128,
                BN: tl.constexpr = 96, BK: tl.constexpr = 128):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.int32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def gathered_matmul(x, index, w: tl.Tensor, c: tl.Tensor, K, T, BM: tl.constexpr = 64,
                    BN: tl.constexpr = 64, BK: tl.constexpr = 64):
    """Rows of x by index: the threads of the load role copy the left operand."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    at = m + tl.arange(0, BM)
    rows = tl.load(index + at, mask=at < T, other=0).to(tl.int64)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        cols = k + tl.arange(0, BK)
        a = tl.load(x + rows[:, None] * K + cols[None, :], mask=(cols < K)[None, :], other=0.0)
        acc = tl.dot(a, w.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


def test_int8_sums_are_exact() -> None:
    M, N, K = 136, 200, 400
    a, b = (RNG.integers(-128, 128, shape).astype(np.int8) for shape in ((M, K), (N, K)))
    args = {"a": a, "b": b.T, "c": np.zeros((M, N), np.int32)}
    same_as_interpreter(int8_matmul, args, ("c",), grid_of(M, N))


def test_gathered_rows() -> None:
    M, N, K = 70, 136, 136
    args = {
        "x": normal(40, K, dtype=BF16), "index": RNG.integers(0, 40, M).astype(np.int32),
        "w": normal(N, K, dtype=BF16).T, "c": nothing(M, N), "K": K, "T": M,
    }  # fmt: skip
    same_as_interpreter(gathered_matmul, args, ("c",), grid_of(M, N), tolerance=TOLERANCE)
