"""Generated matmul kernels for the emulation: compiled without NVRTC, run, compared with fp64."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch

from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tiledsl import emulate
from tiledsl.codegen.module import KernelModule
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.runtime.interop import from_numpy

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
TOLERANCE = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-20}


@dataclass(frozen=True)
class Problem:
    """C[M, N] = A[M, K] B[K, N]; order: N for row-major, T for column-major, of A, B and C."""

    M: int
    N: int
    K: int
    dtype: np.dtype = BF16
    out_dtype: np.dtype = BF16
    order: str = "NNN"

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.M + 7 * self.N + 31 * self.K)
        shapes = ((self.M, self.K), (self.K, self.N))
        a, b = (
            laid_out(rng.standard_normal(shape).astype(self.dtype), order)
            for shape, order in zip(shapes, self.order, strict=False)
        )
        return a, b

    def output(self) -> np.ndarray:
        return laid_out(np.full((self.M, self.N), np.nan, self.out_dtype), self.order[2])


def laid_out(array: np.ndarray, order: str) -> np.ndarray:
    return np.ascontiguousarray(array.T).T if order == "T" else np.ascontiguousarray(array)


def compiled(kernel, arguments: tuple[object, ...], grid, **options) -> Kernel:
    """The first choice of the compiler, which need not have been through NVRTC."""
    call = kernel._bind(arguments, options)
    sig, _ = kernel._signature(call)
    return next(iter(modules(kernel._request(call, sig, grid, call.constants))))


@functools.cache
def _matmul(problem: Problem, options: tuple[tuple[str, object], ...]) -> Kernel:
    a, b = problem.inputs()
    tensors = tuple(map(tensor, (a, b, problem.output())))
    return compiled(matmul, tensors, grid_of(problem.M, problem.N), **dict(options))


def matmul_kernel(problem: Problem, **options: object) -> Kernel:
    return _matmul(problem, tuple(sorted(options.items())))


def tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor of the array's shape and strides; numpy says nothing about the strides of empty arrays."""
    if array.size:
        return from_numpy(array)
    return torch.empty(array.shape, dtype=from_numpy(np.zeros(1, array.dtype)).dtype)


def run_matmul(
    problem: Problem,
    kernel: Kernel,
    *,
    module: KernelModule | None = None,
    seed: int = 0,
    **options: int,
) -> np.ndarray:
    """C, as the emulation computes it."""
    a, b = problem.inputs()
    c = problem.output()
    grid = grid_of(problem.M, problem.N)(kernel.constants)
    emulate.run(module or kernel.module, {"a": a, "b": b, "c": c}, grid, seed=seed, **options)
    return c


def expected(problem: Problem) -> np.ndarray:
    a, b = problem.inputs()
    return a.astype(np.float64) @ b.astype(np.float64)


def is_right(problem: Problem, c: np.ndarray) -> bool:
    """Within one rounding of the output and of fp32 sums."""
    want = expected(problem)
    bound = (
        TOLERANCE[problem.out_dtype] * np.abs(want) + 2.0**-18 * math.sqrt(max(problem.K, 1)) * 4
    )
    return bool((np.abs(c.astype(np.float64) - want) <= bound).all())


def check(problem: Problem, *, seeds: tuple[int, ...] = (0, 1), **options: object) -> Kernel:
    """Compiles, runs under each seed and compares; returns the kernel."""
    kernel = matmul_kernel(problem, **options)
    for seed in seeds:
        c = run_matmul(problem, kernel, seed=seed)
        if not is_right(problem, c):
            wrong = np.abs(c.astype(np.float64) - expected(problem))
            bad = np.argwhere(~(wrong <= 2.0**-6 * math.sqrt(problem.K + 1)))
            raise AssertionError(
                f"seed {seed}: {len(bad)} elements are wrong, first {bad[:4].tolist()}; {kernel.plan}"
            )
    return kernel
