"""Streams that are fetched into L2 before the wait for the kernel before: also where that kernel writes them."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.guarded import BF16
from tests.gpu.guarded import SEED
from tests.gpu.matmul_kernels import DEVICE
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tests.gpu.matmul_kernels import run

pytestmark = pytest.mark.gpu
OPTIONS = {
    "default": {},
    "persistent": {"BM": 16, "BN": 64, "BK": 128, "persistent": True, "cluster": 1, "prefetch": 5},
    "two on an SM": {"BM": 16, "BN": 64, "BK": 128, "num_stages": 4, "split_k": 1, "prefetch": 5},
    "one shot": {"BM": 16, "BN": 64, "BK": 64, "persistent": False, "split_k": 1, "prefetch": 4},
    "split K": {"BM": 16, "BN": 64, "BK": 64, "split_k": 2, "prefetch": 3},
}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


@pytest.mark.parametrize(
    "shape", [(16, 8192, 4096), (16, 16384, 200), (13, 1032, 200), (16, 520, 64)], ids=str
)
@pytest.mark.parametrize("name", OPTIONS)
def test_values(name, shape):
    run(*shape, repeats=5, **OPTIONS[name])


@pytest.mark.parametrize("graph", [False, True], ids=["stream", "graph"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_stream_that_the_kernel_before_writes(name, graph):
    """Weights made by the launch before, new ones each time: what is in L2 early may not be what was there."""
    m, n, k, inner = 16, 2048, 1024, 64
    rounds = 8
    left = torch.randint(-2, 3, (rounds, k, inner), device=DEVICE).to(BF16)
    right = torch.randint(-2, 3, (inner, n), device=DEVICE).to(BF16)
    a = torch.randint(-1, 2, (m, k), device=DEVICE).to(BF16)
    weights = torch.empty(k, n, device=DEVICE, dtype=BF16)
    out = torch.empty(rounds, m, n, device=DEVICE, dtype=torch.float32)

    def chain():
        for i in range(rounds):
            matmul[grid_of(k, n)](left[i], right, weights)
            matmul[grid_of(m, n)](a, weights, out[i], **OPTIONS[name])

    chain()
    torch.cuda.synchronize()
    again = chain
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            chain()
        again = captured.replay
    for _ in range(20):
        out.fill_(float("nan"))
        again()
    torch.cuda.synchronize()
    made = (left.double() @ right.double()).to(BF16).double()
    assert torch.equal(out.double(), a.double() @ made)
