"""Every pass of the TILE level keeps what the matmul, epilogue and attention kernels compute."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.ws.kernels import attention_request
from tests.unit.ws.kernels import epilogue_request
from tests.unit.ws.kernels import matmul_request
from tiledsl.compiled import Request
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.interp import interpret
from tiledsl.ir.op import Level
from tiledsl.ir.passes.manager import passes
from tiledsl.ir.passes.manager import run_passes
from tiledsl.lowering import TILE_PASSES

TILE_LEVEL = sorted(name for name, p in passes().items() if p.consumes == Level.TILE)
# These multiply by a reciprocal, sum in another order or move a factor; the others keep every bit.
ROUNDS_ELSEWHERE = ("fast-math", "defer-sums", "fold-scales", "fold-sums")
BLOCK = {"BM": 32, "BN": 32, "BK": 16}


def random(shape: tuple[int, ...], dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(dtype)


def matmul_case() -> tuple[Request, dict[str, Any], str, tuple[int, int, int]]:
    args = {
        "a": random((40, 40)),
        "b": random((40, 48)),
        "c": np.zeros((40, 48), ml_dtypes.bfloat16),
    }
    return matmul_request(40, 48, 40, **BLOCK), args, "c", (2, 2, 1)


def epilogue_case() -> tuple[Request, dict[str, Any], str, tuple[int, int, int]]:
    _, args, out, grid = matmul_case()
    args |= {"bias": random((48,), np.float32), "scale": np.float32(0.5)}
    return epilogue_request(40, 48, 40, **BLOCK), args, out, grid


def attention_case() -> tuple[Request, dict[str, Any], str, tuple[int, int, int]]:
    args: dict[str, Any] = {name: random((80 + i, 16))[:80] for i, name in enumerate("qkv")}
    args |= {"o": np.zeros((80, 16), ml_dtypes.bfloat16), "scale": np.float32(0.25)}
    return attention_request(80, 16, BM=32, BN=16), args, "o", (3, 1, 1)


CASES = {"matmul": matmul_case, "epilogue": epilogue_case, "attention": attention_case}


def result(case: str, names: tuple[str, ...]) -> np.ndarray:
    request, args, out, grid = CASES[case]()
    graph = lower_function(request.fn, request.specs, request.constants)
    run_passes(graph, names, check=2)
    arrays = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    interpret(graph, arrays, grid)
    return arrays[out].astype(np.float32)


@pytest.fixture(scope="module")
def plain() -> dict[str, np.ndarray]:
    return {case: result(case, ()) for case in CASES}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TILE_LEVEL)
def test_a_pass_keeps_the_result(name: str, case: str, plain: dict[str, np.ndarray]) -> None:
    found = result(case, (name,))
    assert np.abs(plain[case]).max() > 0.1
    tolerance = 2**-7 if name in ROUNDS_ELSEWHERE else 0.0
    np.testing.assert_allclose(found, plain[case], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_the_pipeline_keeps_the_result(case: str, plain: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(result(case, TILE_PASSES), plain[case])


def test_the_kernels_are_right(plain: dict[str, np.ndarray]) -> None:
    args = matmul_case()[1]
    want = args["a"].astype(np.float32) @ args["b"].astype(np.float32)
    np.testing.assert_allclose(plain["matmul"], want, rtol=2e-2, atol=2e-2)
    args = epilogue_case()[1]
    np.testing.assert_allclose(
        plain["epilogue"], np.maximum(want * 0.5 + args["bias"], 0), rtol=2e-2, atol=2e-2
    )
    args = attention_case()[1]
    q, k, v = (args[n].astype(np.float32) for n in "qkv")
    scores = np.where(np.tri(80, dtype=bool), q @ k.T * 0.25, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    want = weights / weights.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(plain["attention"], want, rtol=2e-2, atol=2e-2)
