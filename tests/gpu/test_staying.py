"""CTAs that stay for the next row: many rows for each, in one CTA and in clusters, again and again."""

from __future__ import annotations

import pytest
import torch

from examples import norms
from examples import softmax

pytestmark = pytest.mark.gpu
F32, BF16 = torch.float32, torch.bfloat16
LIMITS = {F32: 2e-6, BF16: 6e-3}
WIDTHS = (4096, 5001, 16384, 16381, 32768, 33333, 50257, 65500, 65535, 65536, 131072)
ELEMENTS = 40_000_000


def rows_of(width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(ELEMENTS // width, width, device="cuda", dtype=dtype)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("persistent", [False, True])
def test_softmax(width: int, dtype: torch.dtype, persistent: bool) -> None:
    x = rows_of(width, dtype)
    want = x.double().softmax(-1)
    assert error(softmax.softmax(x, persistent=persistent), want) <= LIMITS[dtype]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("persistent", [False, True])
def test_layer_norm(width: int, dtype: torch.dtype, persistent: bool) -> None:
    x = rows_of(width, dtype)
    w, b = (torch.randn(width, device="cuda", dtype=dtype) for _ in range(2))
    want = torch.nn.functional.layer_norm(x.double(), (width,), w.double(), b.double(), 1e-5)
    got, mean, _ = norms.forward(x, w, b, 1e-5, persistent=persistent)
    assert error(got, want) <= LIMITS[dtype]
    torch.testing.assert_close(mean.double(), x.double().mean(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 29, 61, 200])
def test_few_rows(rows: int) -> None:
    """Fewer than clusters, and some more."""
    x = torch.randn(rows, 131072, device="cuda")
    assert error(softmax.softmax(x), x.double().softmax(-1)) <= LIMITS[F32]


@pytest.mark.parametrize("width", [16384, 131072])
def test_again_and_again(width: int) -> None:
    """The counter is set back by each launch, in a graph and on two streams."""
    x = rows_of(width, BF16)
    want = x.double().softmax(-1)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    softmax.softmax(x, persistent=True)
    with torch.cuda.graph(graph):
        got = [softmax.softmax(x, persistent=True) for _ in range(3)]
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    assert all(error(y, want) <= LIMITS[BF16] for y in got)
    with torch.cuda.stream(side):
        there = [softmax.softmax(x, persistent=True) for _ in range(10)]
    here = [softmax.softmax(x, persistent=True) for _ in range(10)]
    torch.cuda.synchronize()
    assert all(error(y, want) <= LIMITS[BF16] for y in (*there, *here))


@pytest.mark.parametrize("width", [8192, 65536, 100000, 131072])
def test_layer_norm_of_a_mean_far_from_0(width: int) -> None:
    """1000 times what the elements differ by; rows of one CTA, and ones that a cluster shares."""
    x = torch.randn(37, width, device="cuda") + 1000.0
    w, b = torch.randn(width, device="cuda"), torch.randn(width, device="cuda")
    exact = x.double()
    want = torch.nn.functional.layer_norm(exact, (width,), w.double(), b.double(), 1e-5)
    got, _, rstd = norms.forward(x, w, b, 1e-5)
    assert error(rstd, (exact.var(-1, unbiased=False) + 1e-5).rsqrt()) < 1e-6
    assert error(got, want) < 1e-4  # the mean has 24 bits
