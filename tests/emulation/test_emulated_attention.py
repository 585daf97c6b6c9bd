"""The emitted attention kernels, and the other loops with several dots, run in the emulation."""

from __future__ import annotations

import numpy as np
import pytest

from examples import attention as example
from examples.attention_backward import grad_bias_kernel
from examples.attention_backward import grad_kv_kernel
from examples.attention_backward import grad_q_kernel
from examples.attention_backward import softcap_slope
from examples.attention_varlen_backward import varlen_grad_kv_kernel
from examples.attention_varlen_backward import varlen_grad_q_kernel
from examples.back_to_back import back_to_back
from examples.back_to_back import relu
from examples.gated_mlp import gated_mlp
from examples.linear_attention import linear_attention_kernel
from tests.emulation.matmuls import BF16
from tests.emulation.test_emulated_kernels import same_as_interpreter
from tests.unit.ws.test_staged_operands import weighted
from tiledsl.language import cdiv

RNG = np.random.default_rng(0)
TOLERANCE = 2.0**-7
"""One rounding of a bf16 result."""


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(BF16)


def nothing(*shape: int, dtype: type = BF16) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def forward(
    *,
    D: int = 64,
    DV: int | None = None,
    lengths: tuple[int, int] = (140, 300),
    causal: bool = True,
    window: int = 0,
    offset: int | None = None,
    score=None,
    extra: np.ndarray | None = None,
    tile: tuple[int, int] = (128, 64),
) -> None:
    (Lq, Lk), H, HK, DV = lengths, 2, 1, DV or D
    q, k, v = normal(1, H, Lq, D), normal(1, HK, Lk, D), normal(1, HK, Lk, DV)
    args = {
        "q": q, "k": k, "v": v, "o": nothing(1, H, Lq, DV), "lse": nothing(1, H, Lq, dtype=np.float32),
        "extra": q if extra is None else extra, "offset": Lk - Lq if offset is None else offset,
    }  # fmt: skip
    same_as_interpreter(
        example.attention_kernel, args, ("o", "lse"), (cdiv(Lq, tile[0]), H, 1), tolerance=TOLERANCE,
        scale=D**-0.5, causal=causal, window=window, score=score, group=H // HK, D=D, DV=DV,
        BM=tile[0], BN=tile[1], fast_math=True,
    )  # fmt: skip


FORWARD = {
    "full": {"causal": False},
    "causal": {},
    "window": {"window": 70},
    "three consumers": {"tile": (192, 128), "lengths": (200, 300)},
    "one consumer": {"tile": (64, 128), "lengths": (1, 300)},
    "D = 128": {"D": 128, "tile": (128, 128)},
    "window shorter than a tile": {
        "D": 128,
        "tile": (128, 128),
        "window": 64,
        "lengths": (200, 300),
    },
    "D = 192 and 128": {"D": 192, "DV": 128, "tile": (128, 112)},
    "softcap": {"score": example.softcap(5.0)},
    "bias": {"score": example.add_bias, "extra": normal(1, 2, 140, 301), "lengths": (140, 301)},
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name):
    forward(**FORWARD[name])


@pytest.mark.parametrize(
    ("D", "lengths", "poison"),
    [
        (64, ((5, 70, 1, 130), (5, 70, 1, 130)), True),
        (64, ((0, 65, 0), (7, 65, 0)), False),
        (128, ((64, 70), (64, 70)), True),
    ],
    ids=["", "empty", "whole tiles"],
)
def test_varlen(D, lengths, poison):
    """Tiles without rows or keys give their slot of x back without a wgmma in between.

    What belongs to other sequences does not matter, NaN or not.
    """
    H = 2
    starts = [np.cumsum((0, *n), dtype=np.int32) for n in lengths]
    q, k, v = (normal(1, int(starts[i][-1]), h, D)[0] for i, h in ((0, H), (1, 1), (1, 1)))
    if poison:  # of the second sequence, whose rows follow those of the first
        k[starts[1][1] : starts[1][2]], v[starts[1][1] : starts[1][2]] = np.nan, np.nan
    args = {
        "q": q.transpose(1, 0, 2)[None], "k": k.transpose(1, 0, 2)[None],
        "v": v.transpose(1, 0, 2)[None], "o": np.zeros_like(q).transpose(1, 0, 2)[None],
        "ragged": np.zeros_like(q),
        "lse": np.zeros((H, len(q)), np.float32), "extra": q,
        "q_starts": starts[0], "k_starts": starts[1],
    }  # fmt: skip
    grid = (cdiv(max(lengths[0]), 64), H, len(lengths[0]))
    same_as_interpreter(
        example.varlen_kernel, args, ("o", "ragged"), grid, tolerance=TOLERANCE, scale=D**-0.5, causal=True,
        window=0, score=None, group=H, D=D, DV=D, BM=64, BN=64, fast_math=True,
    )  # fmt: skip


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_gradients(causal):
    Lq, Lk, H, HK, D = 130, 200, 2, 1, 64
    q, k, v, do = (
        normal(1, H, Lq, D),
        normal(1, HK, Lk, D),
        normal(1, HK, Lk, D),
        normal(1, H, Lq, D),
    )
    lse, delta = (RNG.standard_normal((1, H, Lq)).astype(np.float32) for _ in range(2))
    args = {"q": q, "k": k, "v": v, "do": do, "lse": lse + 5, "delta": delta}
    masks = {"scale": D**-0.5, "causal": causal, "window": 0, "group": H // HK, "D": D, "DV": D}
    masks |= {"score": None, "slope": None}
    if not causal:
        masks |= {"score": example.softcap(3.0), "slope": softcap_slope(3.0)}
    options = {**masks, "BM": 64, "BN": 64, "fast_math": True, "tolerance": TOLERANCE}
    rest = {"extra": q, "offset": Lk - Lq}
    dq = {**args, "dq": nothing(*q.shape), **rest}
    same_as_interpreter(grad_q_kernel, dq, ("dq",), (cdiv(Lq, 64), H, 1), **options)
    dkv = {**args, "dk": nothing(*k.shape), "dv": nothing(*v.shape), **rest}
    same_as_interpreter(grad_kv_kernel, dkv, ("dk", "dv"), (cdiv(Lk, 64), HK, 1), **options)


@pytest.mark.parametrize(
    ("D", "lengths"),
    [
        (64, ((5, 70, 0, 130), (5, 90, 64, 100))),
        pytest.param(128, ((64, 70), (64, 70)), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_varlen_gradients(D, lengths):
    """What belongs to the second sequence is NaN, and lies behind the first one's rows."""
    H = 2
    starts = [np.cumsum((0, *n), dtype=np.int32) for n in lengths]
    q, k, v, do = (
        normal(1, int(starts[i][-1]), h, D)[0] for i, h in ((0, H), (1, 1), (1, 1), (0, H))
    )
    lse, delta = (RNG.standard_normal((1, H, len(q))).astype(np.float32) for _ in range(2))
    lse += 5
    rows, keys = (slice(s[1], s[2]) for s in starts)
    q[rows], do[rows], k[keys], v[keys] = np.nan, np.nan, np.nan, np.nan
    lse[..., rows], delta[..., rows] = np.nan, np.nan
    inputs = {"q": q, "k": k, "v": v, "do": do}
    args = {n: x.transpose(1, 0, 2)[None] for n, x in inputs.items()}
    args |= {"lse": lse, "delta": delta}
    rest = {"extra": q, "q_starts": starts[0], "k_starts": starts[1]}
    options = {
        "scale": D**-0.5, "causal": True, "window": 0, "score": None, "slope": None, "group": H, "D": D,
        "DV": D, "BM": 64, "BN": 64, "exact": True, "fast_math": True, "tolerance": TOLERANCE,
    }  # fmt: skip

    def outputs(x, *names):
        empty = [np.zeros_like(x) for _ in names]
        views = {n: e.transpose(1, 0, 2)[None] for n, e in zip(names, empty, strict=True)}
        return views, empty

    views, (ragged,) = outputs(q, "dq")
    grid = (cdiv(max(lengths[0]), 64), H, len(lengths[0]))
    every = {**args, **views, "ragged": ragged, **rest}
    same_as_interpreter(varlen_grad_q_kernel, every, ("dq", "ragged"), grid, **options)
    views, (ragged_k, ragged_v) = outputs(k, "dk", "dv")
    grid = (cdiv(max(lengths[1]), 64), 1, len(lengths[0]))
    every = {**args, **views, "ragged_k": ragged_k, "ragged_v": ragged_v, **rest}
    names = ("dk", "dv", "ragged_k", "ragged_v")
    same_as_interpreter(varlen_grad_kv_kernel, every, names, grid, **options)


@pytest.mark.parametrize("shape", [(1, 2, 70, 100), (2, 1, 1, 100)], ids=str)
def test_bias_gradient(shape):
    """Sums over batches, or over heads and rows."""
    B, H, Lq, Lk, D = 2, 2, 70, 100, 64
    q, do, k, v = (normal(B, H, n, D) for n in (Lq, Lq, Lk, Lk))
    lse, delta = (RNG.standard_normal((B, H, Lq)).astype(np.float32) for _ in range(2))
    bias = np.ascontiguousarray(np.broadcast_to(normal(*shape), (B, H, Lq, Lk)))
    args = {"q": q, "k": k, "v": v, "do": do, "lse": lse + 5, "delta": delta, "bias": bias}
    args |= {"out": nothing(*shape), "offset": Lk - Lq}
    same_as_interpreter(
        grad_bias_kernel, args, ("out",), (cdiv(shape[2], 64), 2, shape[0] * shape[1]),
        tolerance=TOLERANCE, scale=D**-0.5, causal=True, window=0, group=1, one_row=shape[2] == 1,
        one_col=False, D=D, DV=D, BM=64, BN=64, fast_math=True,
    )  # fmt: skip


def test_back_to_back():
    M, N, K, P = 140, 200, 64, 96
    args = {
        "a": normal(2, M, K),
        "b": normal(2, K, N),
        "c": normal(2, N, P),
        "out": nothing(2, M, P),
    }
    options = {"between": relu, "K": K, "P": P, "tolerance": TOLERANCE}
    same_as_interpreter(back_to_back, args, ("out",), (cdiv(M, 128), 2), **options)


def test_gated_mlp():
    M, N, K = 140, 200, 136
    args = {"x": normal(M, K), "gate": normal(K, N), "up": normal(K, N), "out": nothing(M, N)}
    grid = (cdiv(M, 128), cdiv(N, 128))
    same_as_interpreter(gated_mlp, args, ("out",), grid, tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("D", "DV", "C"), [(64, 64, 64), pytest.param(128, 64, 128, marks=pytest.mark.slow)], ids=str
)
def test_linear_attention(D, DV, C):
    """The state is a right operand that the loop computes; a tile of keys feeds a dot and math."""
    B, H, L = 1, 2, 150
    args = {
        "q": normal(B, H, L, D), "k": normal(B, H, L, D), "v": normal(B, H, L, DV),
        "o": nothing(B, H, L, DV), "rates": np.log2(np.linspace(0.9, 1, H, dtype=np.float32)),
    }  # fmt: skip
    sizes = {"D": D, "DV": DV, "C": C, "tolerance": 4 * TOLERANCE}
    same_as_interpreter(linear_attention_kernel, args, ("o",), (H, B), **sizes)


@pytest.mark.parametrize("left", [False, True], ids=["right", "transposed left"])
def test_computed_operands(left):
    args = {
        "x": normal(128, 256),
        "y": normal(256, 64),
        "w": normal(64, 128),
        "o": nothing(128, 128),
    }
    sizes = {"BM": 128, "BK": 128, "LEFT": left, "tolerance": TOLERANCE}
    same_as_interpreter(weighted, args, ("o",), (1,), **sizes)
