"""Small specialised kernels of every structure, with inputs and what they should give."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tiledsl
import tiledsl.language as tl
from tests.emulation.matmuls import compiled
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tests.ring_kernels import copied_kernel
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import gathered_want
from tiledsl.compiled import Kernel
from tiledsl.ir.graph import TileGraph
from tiledsl.runtime.interop import from_numpy
from tiledsl.runtime.interop import numpy_view
from tiledsl.simulator import bound_arguments

BF16 = np.dtype(ml_dtypes.bfloat16)
sys.setrecursionlimit(100_000)  # Graphs are copied by pickling.


# fmt: off
@tiledsl.jit
def attention(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, scale: tl.constexpr,
              CAUSAL: tl.constexpr, D: tl.constexpr, BM: tl.constexpr = 128, BN: tl.constexpr = 64):
    m0, h, b = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    rows, cols = m0 + tl.arange(0, BM), tl.arange(0, BN)
    x = q.load((b, h, m0, 0), (1, 1, BM, D)).reshape((BM, D))
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = k.shape[2]
    if CAUSAL:
        end = min(end, m0 + BM)
    for n in range(0, end, BN):
        y = k.load((b, h, n, 0), (1, 1, BN, D)).reshape((BN, D))
        s = tl.dot(x, tl.trans(y))
        seen = (n + cols < k.shape[2])[None, :]
        if CAUSAL:
            seen = seen & (rows[:, None] >= (n + cols)[None, :])
        s = tl.where(seen, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s * (scale * 1.4426950408889634) - (new * (scale * 1.4426950408889634))[:, None])
        fade = tl.exp2((top - new) * (scale * 1.4426950408889634))
        total = total * fade + tl.sum(p, 1)
        z = v.load((b, h, n, 0), (1, 1, BN, D)).reshape((BN, D))
        acc = tl.dot(p.to(v.dtype), z, acc * fade[:, None])
        top = new
    o.store((b, h, m0, 0), (acc / total[:, None]).reshape((1, 1, BM, D)))
# fmt: on


@dataclass(frozen=True)
class Case:
    """A compiled kernel, a launch of it and the result that the launch should have."""

    kernel: Kernel
    inputs: dict[str, Any]
    result: str
    grid: tuple[int, int, int]
    want: np.ndarray
    bound: float

    @property
    def graph(self) -> TileGraph:
        assert self.kernel.machine is not None
        return self.kernel.machine

    def arguments(self) -> dict[str, Any]:
        """Arguments with a fresh result of NaNs, and the views of pointers among them."""
        given = {**self.inputs, self.result: np.full(self.want.shape, np.nan, BF16)}
        return {**given, **bound_arguments(self.graph, given)}

    def is_right(self, got: np.ndarray) -> bool:
        return bool((np.abs(got.astype(np.float32) - self.want) <= self.bound).all())


STRUCTURES: dict[str, dict[str, object]] = {
    "cooperative": {"BM": 128, "BN": 128, "num_consumers": 2, "ping_pong": False, "cluster": 1, "split_k": 1,
                    "persistent": True, "num_stages": 3},
    "ping-pong": {"BM": 64, "BN": 64, "ping_pong": True, "cluster": 1, "num_stages": 3},
    "cluster": {"BM": 64, "BN": 64, "ping_pong": True, "cluster": 2, "num_stages": 3},
    "split-K": {"BM": 128, "BN": 64, "split_k": 2, "num_stages": 3},
    "single tile": {"BM": 64, "BN": 64, "persistent": False, "split_k": 1, "num_stages": 3},
}  # fmt: skip
NAMES = [*STRUCTURES, "attention", "causal attention", "copies"]


@functools.cache
def case(name: str) -> Case:
    """A case by name."""
    if name == "copies":
        return _copies()
    return _attention(causal="causal" in name) if name not in STRUCTURES else _matmul(name)


def _matmul(name: str) -> Case:
    M, N, K = (256, 256, 64 * 8) if name != "single tile" else (64, 128, 64 * 8)
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((M, K), (K, N)))
    c = np.zeros((M, N), BF16)
    grid: Callable[..., Any] = grid_of(M, N)
    kernel = compiled(matmul, tuple(map(from_numpy, (a, b, c))), grid, **STRUCTURES[name])
    want = a.astype(np.float32) @ b.astype(np.float32)
    return Case(kernel, {"a": a, "b": b}, "c", (*grid(kernel.constants)[:2], 1), want, 0.5)


def _copies() -> Case:
    """Rows by an index tensor, which the threads of the load role copy."""
    arguments = gathered_args(256, 256, 64 * 8, (128, 128, 64))
    structure = {k: v for k, v in STRUCTURES["cooperative"].items() if k not in ("BM", "BN")}
    kernel, given = copied_kernel(gathered_matmul, arguments, grid=(2, 2, 1), **structure)
    inputs = {n: numpy_view(v) if hasattr(v, "numel") else v for n, v in given.items()}
    want = gathered_want(arguments).numpy()
    return Case(kernel, inputs, "c_ptr", (2, 2, 1), want, 0.5)


def _attention(*, causal: bool) -> Case:
    B, H, L, D = 1, 2, 384, 64
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((B, H, L, D)).astype(BF16) for _ in range(3))
    o = np.zeros((B, H, L, D), BF16)
    grid = (-(-L // 128), H, B)
    arguments = (*map(from_numpy, (q, k, v, o)), D**-0.5, causal, D)
    kernel = compiled(attention, arguments, grid, fast_math=True)
    scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(2, 3) * D**-0.5
    if causal:
        scores = np.where(np.tril(np.ones((L, L))) > 0, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    want = p @ v.astype(np.float32) / p.sum(-1, keepdims=True)
    return Case(kernel, {"q": q, "k": k, "v": v}, "o", grid, want, 0.03)


@functools.cache
def _pickled(name: str) -> bytes:
    return pickle.dumps(case(name).graph)


def copy_of(name: str) -> TileGraph:
    """A graph of its own to break."""
    return pickle.loads(_pickled(name))
