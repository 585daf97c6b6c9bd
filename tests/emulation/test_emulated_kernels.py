"""Other generated kernels: epilogues, batches, kernels without a dot; compared with the interpreter."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import F16
from tests.emulation.matmuls import F32
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import tensor
from tests.gpu.matmul_kernels import batched
from tests.gpu.matmul_kernels import column_bias
from tests.gpu.matmul_kernels import gelu
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import linear
from tests.gpu.matmul_kernels import matmul_trans
from tests.gpu.matmul_kernels import relu
from tests.gpu.matmul_kernels import residual
from tiledsl import emulate
from tiledsl import simulator
from tiledsl.jit import normalize_grid

SEEDS = (0, 1, 2)
RNG = np.random.default_rng(0)


def normal(shape: tuple[int, ...], dtype: np.dtype = BF16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def same_as_interpreter(
    kernel,
    args: dict[str, object],
    out: tuple[str, ...],
    grid,
    *,
    tolerance: float = 0.0,
    **constants,
) -> None:
    """Emulates under each seed and compares the outputs with the interpreter's.

    tolerance: of the error relative to the largest value.
    """

    def fresh() -> dict[str, object]:
        return {k: v.copy("K") if isinstance(v, np.ndarray) else v for k, v in args.items()}

    def tensors(values: dict[str, object]) -> dict[str, object]:
        return {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in values.items()}

    made = compiled(kernel, tuple(tensors(args).values()), grid, **constants)
    want = fresh()
    names = [p for p in kernel.description.parameters if not p.is_constexpr]
    assert [p.name for p in names] == list(args)
    chosen = {k: made.constants[k] for k in kernel._constexprs if k not in constants}
    options = {k: v for k, v in constants.items() if k in kernel._constexprs}
    kernel[grid](*tensors(want).values(), **options, **chosen)
    for seed in SEEDS:
        got = fresh()
        emulate.run(made.module, got, normalize_grid(grid, made.constants), seed=seed)
        for name in out:
            g, w = (np.asarray(x[name]).astype(np.float64) for x in (got, want))
            np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
            bound = tolerance * np.nanmax(np.abs(w), initial=0.0)
            assert np.nanmax(np.abs(g - w), initial=0.0) <= bound, f"seed {seed}, {name}"


TILES = {
    "ping-pong": {"BM": 128, "BN": 128, "ping_pong": True, "cluster": 2},
    "cooperative": {"BM": 128, "BN": 256, "num_consumers": 2, "ping_pong": False, "cluster": 1},
    "single role": {"BM": 64, "BN": 64, "warp_specialize": False},
}


@pytest.mark.parametrize("name", TILES)
def test_linear_layers(name: str) -> None:
    M, N, K = 200, 264, 136
    args = {
        "a": normal((M, K)),
        "b": normal((K, N)),
        "bias": normal((N,), F32),
        "c": normal((M, N)),
        "scale": 0.25,
    }
    for activation in (relu, gelu):
        same_as_interpreter(
            linear,
            args,
            ("c",),
            grid_of(M, N),
            tolerance=2.0**-8,
            activation=activation,
            **TILES[name],
        )


@pytest.mark.parametrize("name", TILES)
def test_bias_along_rows_and_residuals(name: str) -> None:
    M, N, K = 136, 200, 72
    a, b, c = normal((M, K), F16), normal((K, N), F16), normal((M, N), F16)
    bias = {"a": a, "b": b, "bias": normal((M,), F16), "c": c}
    same_as_interpreter(column_bias, bias, ("c",), grid_of(M, N), tolerance=2.0**-10, **TILES[name])
    added = {"a": a, "b": b, "r": normal((M, N), F16), "c": c}
    free = {k: v for k, v in TILES[name].items() if k in ("BM", "BN", "warp_specialize")}
    same_as_interpreter(residual, added, ("c",), grid_of(M, N), tolerance=2.0**-10, **free)


@pytest.mark.parametrize("name", TILES)
def test_batches(name: str) -> None:
    Z, M, N, K = 3, 136, 136, 72
    args = {"a": normal((Z, M, K)), "b": normal((Z, K, N)), "c": normal((Z, M, N))}
    same_as_interpreter(batched, args, ("c",), grid_of(M, N, Z), tolerance=2.0**-8, **TILES[name])


@pytest.mark.parametrize(("TA", "TB"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("name", TILES)
def test_transposed_in_the_kernel(name: str, TA: bool, TB: bool) -> None:
    M, N, K = 136, 264, 136
    a, b = normal((K, M) if TA else (M, K)), normal((N, K) if TB else (K, N))
    args = {"a": a, "b": b, "c": normal((M, N))}
    same_as_interpreter(
        matmul_trans, args, ("c",), grid_of(M, N), tolerance=2.0**-8, TA=TA, TB=TB, **TILES[name]
    )


@tiledsl.jit
def add_scaled(x: tl.Tensor, y: tl.Tensor, out: tl.Tensor, scale: tl.float32, B: tl.constexpr):
    i = tl.program_id(0) * B
    out.store((i,), x.load((i,), (B,)) * scale + y.load((i,), (B,)))


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("n", [1, 100, 1024, 3001])
def test_vectors(n: int, dtype: np.dtype) -> None:
    args = {
        "x": normal((n,), dtype),
        "y": normal((n,), dtype),
        "out": normal((n,), dtype),
        "scale": 0.5,
    }
    same_as_interpreter(add_scaled, args, ("out",), (-(-n // 512),), tolerance=2.0**-20, B=512)


@tiledsl.jit
def softmax_rows(x: tl.Tensor, out: tl.Tensor, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R
    v = x.load((r, 0), (R, C)).to(tl.float32)
    inside = tl.arange(0, C) < x.shape[1]
    v = tl.where(inside[None, :], v, float("-inf"))
    e = tl.exp(v - tl.max(v, axis=1)[:, None])
    out.store((r, 0), e / tl.sum(e, axis=1)[:, None])


@pytest.mark.parametrize(("R", "C"), [(1, 256), (4, 64), (16, 128)])
def test_softmax(R: int, C: int) -> None:
    rows, cols = 37, C - 5
    args = {"x": normal((rows, cols)), "out": normal((rows, cols), F32)}
    same_as_interpreter(
        softmax_rows, args, ("out",), (-(-rows // R),), tolerance=2.0**-20, R=R, C=C
    )


@tiledsl.jit
def transpose(x: tl.Tensor, out: tl.Tensor, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.program_id(0) * R, tl.program_id(1) * C
    out.store((c, r), tl.trans(x.load((r, c), (R, C))))


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_transposes(dtype: np.dtype) -> None:
    args = {"x": normal((70, 130), dtype), "out": normal((130, 70), dtype)}
    same_as_interpreter(transpose, args, ("out",), (3, 3), R=32, C=64)


# fmt: off
@tiledsl.jit
def within(q: tl.Tensor, k: tl.Tensor, o: tl.Tensor, lengths):
    """Softmax over as many keys as a loaded int64 says."""
    end = tl.load(lengths)
    x = q.load((0, 0), (128, 64))
    top = tl.full((128,), -1e30, tl.float32)
    acc = tl.zeros((128, 64), tl.float32)
    for n in range(0, end, 64):
        y = k.load((n, 0), (64, 64))
        s = tl.dot(x, tl.trans(y))
        s = tl.where((n + tl.arange(0, 64) < end)[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        acc = tl.dot(p.to(tl.bfloat16), y, acc * tl.exp(top - new)[:, None])
        top = new
    o.store((0, 0), acc)
# fmt: on


@pytest.mark.parametrize("length", [64, 150])
@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=str)
def test_lengths_as_torch_has_them(length: int, dtype: np.dtype) -> None:
    args = {
        "q": normal((128, 64)), "k": normal((200, 64)),
        "o": np.full((128, 64), np.nan, F32), "lengths": np.array([length], dtype),
    }  # fmt: skip
    same_as_interpreter(within, args, ("o",), (1, 1, 1), tolerance=1e-2)


NAMED = """
@tiledsl.jit
def {kernel}(x, {arg}, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store({arg} + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)
"""


@pytest.mark.parametrize(
    ("kernel", "arg"),
    [
        ("stat", "y"), ("write", "Load"), ("main", "main"), ("Load", "Store"), ("Store", "read"),
        ("__syncthreads", "__fdividef"), ("__", "_"), ("AtomicAdd", "inline_asm_1"),
    ],
    ids=str,
)  # fmt: skip
def test_names_of_others(
    kernel: str, arg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of functions of libc and CUDA, and of what the text defines."""
    module = f"named_{kernel.strip('_')}_{arg.strip('_')}"
    text = f"import tiledsl\nimport tiledsl.language as tl\n{NAMED.format(kernel=kernel, arg=arg)}"
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = getattr(importlib.import_module(module), kernel)
    x, y = torch.rand(100), torch.zeros(100)
    simulator.emulate(made.compile(x, y, 100, 128, grid=(1,)), {"x": x, arg: y, "n": 100}, (1,))
    torch.testing.assert_close(y, x + 1.0)
