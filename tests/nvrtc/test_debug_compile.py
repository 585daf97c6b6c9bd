"""Debug builds and builds with delays compile as the plain one does: no spills, nothing serialised."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tests.unit.ws.machine_kernels import attention
from tiledsl.compiled import Kernel

pytestmark = pytest.mark.nvrtc
BUILD = {"debug": True, "delay": 3}
MATMULS = {
    "cluster": {"BM": 128, "BN": 128, "ping_pong": True, "cluster": 2, "num_stages": 4},
    "cooperative": {"BM": 256, "BN": 128, "num_consumers": 2, "ping_pong": False, "cluster": 1,
                    "num_stages": 3},
    "split-K": {"BM": 128, "BN": 64, "split_k": 2, "num_stages": 3},
    "single role": {"BM": 64, "BN": 64, "warp_specialize": False},
}  # fmt: skip


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=torch.bfloat16)


def check(kernel: Kernel, plain: Kernel) -> None:
    made = kernel.compiled
    assert made is not None
    assert kernel.plan == plain.plan
    assert (made.spill_bytes, made.stack_bytes, made.serialized) == (0, 0, ()), made.log
    assert kernel.module.is_debug
    assert not plain.module.is_debug


@pytest.mark.slow
@pytest.mark.parametrize("name", MATMULS)
def test_matmul(name: str) -> None:
    tensors = (meta(4096, 4096), meta(4096, 4096), meta(4096, 4096))
    options: dict[str, Any] = {"grid": grid_of(4096, 4096), **MATMULS[name]}
    check(matmul.compile(*tensors, **options, **BUILD), matmul.compile(*tensors, **options))


@pytest.mark.parametrize("D", [64, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_attention(D: int, *, causal: bool) -> None:
    arguments = (*(meta(2, 8, 2048, D) for _ in range(4)), D**-0.5, causal, D)
    options: dict[str, Any] = {"grid": (16, 8, 2), "fast_math": True}
    made = attention.compile(*arguments, **options, **BUILD)
    check(made, attention.compile(*arguments, **options))
    assert {s.channel for s in made.module.sites if s.kind == "full"} == {"x", "y", "z", "tiles"}
    assert {s.role for s in made.module.sites} == {"producer", "consumer"}
