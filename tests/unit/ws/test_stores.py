"""How a result is cut into 128-byte chunks for its way through shared memory."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import dtypes as dt
from tiledsl.compiler import modules
from tiledsl.dtypes import DType
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.types import TensorType
from tiledsl.runtime.interop import numpy_view
from tiledsl.ws.plan import Plan
from tiledsl.ws.simulate import simulate
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.stores import store_geometry

COOPERATIVE = Plan(num_consumers=2)
PING_PONG = Plan(num_consumers=2, ping_pong=True)


def store(
    shape: tuple[int, int], dtype: DType, inner: int | None = 1, *, tma: bool = True
) -> Store:
    graph = TileGraph("k")
    tensor = graph.body.add_arg(TensorType(2, dtype, inner, tma, 16), "c")
    b = Builder(graph)
    zero = b.value(Constant(0, dt.int32))
    value = b.value(Splat(b.value(Constant(0, dtype)), shape))
    op = Store(tensor, (zero, zero), value, shape)
    b.add(op)
    return op


CASES = [
    # Two warpgroups share the rows; a chunk is 128 bytes of a row.
    ((128, 256), dt.bfloat16, 1, COOPERATIVE, StoreGeometry(1, (64, 256), 64, 4, 2, 0)),
    ((128, 192), dt.bfloat16, 1, PING_PONG, StoreGeometry(1, (128, 192), 64, 3, 2)),
    ((128, 128), dt.float32, 1, COOPERATIVE, StoreGeometry(1, (64, 128), 32, 4, 4, 0)),
    # A column-major output: chunks run down the columns.
    ((128, 64), dt.bfloat16, 0, COOPERATIVE, StoreGeometry(0, (64, 64), 64, 1, 2, 0)),
    # The last chunk overlaps its neighbour.
    ((128, 176), dt.bfloat16, 1, COOPERATIVE, StoreGeometry(1, (64, 176), 64, 3, 2, 0)),
]


@pytest.mark.parametrize(("shape", "dtype", "inner", "plan", "expected"), CASES)
def test_geometry(
    shape: tuple[int, int], dtype: DType, inner: int, plan: Plan, expected: StoreGeometry
) -> None:
    found = store_geometry(store(shape, dtype, inner), plan)
    assert found == expected


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}")
def test_chunks_cover_the_part(case: tuple[tuple[int, int], DType, int, Plan, object]) -> None:
    shape, dtype, inner, plan, _ = case
    found = store_geometry(store(shape, dtype, inner), plan)
    assert isinstance(found, StoreGeometry)
    covered: set[int] = set()
    for chunk in range(found.num_chunks):
        at = found.start(chunk)[found.major]
        assert found.start(chunk)[1 - found.major] == 0
        covered |= set(range(at, at + found.width))
    assert covered == set(range(found.part[found.major]))
    assert found.buffer_bytes == found.rows * 128


REASONS = [
    (store((128, 128), dt.bfloat16, tma=False), COOPERATIVE, "no legal tensor map"),
    (store((128, 128), dt.bfloat16, None), COOPERATIVE, "no legal tensor map"),
    (store((128, 32), dt.bfloat16), COOPERATIVE, "too narrow"),
    (store((128, 128), dt.int64), COOPERATIVE, "is not staged"),
]


@pytest.mark.parametrize(("op", "plan", "reason"), REASONS, ids=["tma", "inner", "narrow", "dtype"])
def test_reasons_for_a_store_from_registers(op: Store, plan: Plan, reason: str) -> None:
    found = store_geometry(op, plan)
    assert isinstance(found, str)
    assert reason in found


# fmt: off
@tiledsl.jit
def turned(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((n, m), tl.trans(acc * 2.0))
# fmt: on


@pytest.mark.parametrize(("BM", "BN"), [(128, 16), (128, 256)])
def test_warpgroups_share_out_a_product_that_is_turned_around(BM: int, BN: int) -> None:
    """The part of a warpgroup is some columns of what is stored."""
    M, N, K = 2 * BM, BN + 16, 128
    a, b, c = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16(), torch.zeros(N, M)
    options = {"BM": BM, "BN": BN, "num_consumers": 2, "ping_pong": False}
    grid = (2, 2, 1)
    made = next(modules(turned.request_for((a, b, c), options, grid)[1]))
    assert made.machine is not None
    arrays = {"a": numpy_view(a), "b": numpy_view(b), "c": numpy_view(c)}
    simulate(made.machine, arrays, grid)
    torch.testing.assert_close(c, 2 * (a.float() @ b.float()).T, rtol=1e-3, atol=1e-3)
