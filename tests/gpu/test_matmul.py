"""Matmuls of every supported kind of input against fp64: fresh random normals, poisoned outputs.

A hung kernel hangs plain pytest: `python tests/gpu/run_isolated.py` runs the same cases in worker
processes with a time limit for each.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from tests.gpu.guarded import BF16
from tests.gpu.guarded import FP16
from tests.gpu.guarded import FP32
from tests.gpu.guarded import LAYOUTS
from tests.gpu.guarded import NAMES
from tests.gpu.guarded import SEED
from tests.gpu.guarded import Guarded
from tests.gpu.guarded import check
from tests.gpu.guarded import random_input
from tests.gpu.guarded import verify
from tests.gpu.matmul_kernels import DEVICE
from tests.gpu.matmul_kernels import batched
from tests.gpu.matmul_kernels import batched_shared
from tests.gpu.matmul_kernels import column_bias
from tests.gpu.matmul_kernels import gelu
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import identity
from tests.gpu.matmul_kernels import linear
from tests.gpu.matmul_kernels import matmul
from tests.gpu.matmul_kernels import matmul_trans
from tests.gpu.matmul_kernels import relu
from tests.gpu.matmul_kernels import residual
from tests.gpu.matmul_kernels import run
from tiledsl.errors import TileError

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


# ---------------------------------------------------------------------- dtypes, orders, extents
ORDERS = {"NN": ("row", "row"), "NT": ("row", "col"), "TN": ("col", "row"), "TT": ("col", "col")}
IO = [
    pytest.param(i, o, id=f"{NAMES[i]}-{NAMES[o]}")
    for i in (BF16, FP16)
    for o in (BF16, FP16, FP32)
]


@pytest.mark.parametrize("shape", [(200, 136, 96), (1000, 1048, 1096)], ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype"), IO)
def test_dtypes(dtype, out_dtype, shape):
    run(*shape, dtype=dtype, out_dtype=out_dtype)


@pytest.mark.parametrize("out_dtype", [BF16, FP32], ids=NAMES.get)
@pytest.mark.parametrize("out", ["row", "col"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(264, 520, 200), (1152, 1536, 512), (65, 63, 129)], ids=str)
def test_orders(shape, order, out, out_dtype):
    run(*shape, layouts=(*ORDERS[order], out), out_dtype=out_dtype)


@pytest.mark.parametrize("order", ORDERS)
def test_orders_fp16(order):
    run(520, 392, 328, layouts=(*ORDERS[order], "row"), dtype=FP16, out_dtype=FP16)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(264, 520, 200), (65, 63, 129)], ids=str)
def test_transposed_in_the_kernel(shape, order):
    m, n, k = shape
    ta, tb = order[0] == "T", order[1] == "T"
    a = random_input("row", (k, m) if ta else (m, k), BF16, DEVICE)
    b = random_input("row", (n, k) if tb else (k, n), BF16, DEVICE)
    out = Guarded.output("row", (m, n), BF16, DEVICE)
    want = (a.t() if ta else a).double() @ (b.t() if tb else b).double()
    verify(partial(matmul_trans[grid_of(m, n)], a, b, out.view, ta, tb), out, want, k)


ODD = (1, 7, 63, 65, 127, 129)
ALONE = [(v, 200, 192) for v in ODD] + [(136, v, 192) for v in ODD] + [(136, 200, v) for v in ODD]
CUBES = [(v, v, v) for v in ODD]
MIXED = [tuple(random.Random(i).choice((*ODD, 33, 255, 257)) for _ in range(3)) for i in range(16)]
LARGE = [
    (4104, 4104, 4104),
    (4104, 128, 64),
    (64, 4104, 4104),
    (4097, 1, 129),
    (1, 4104, 4104),
    (1, 1, 4104),
]
SHORT = [(200, 136, k) for k in (0, 1, 8, 40, 64, 72)] + [
    (1, 1, 0),
    (4104, 4104, 0),
    (1000, 1000, 8),
]


@pytest.mark.parametrize("order", ["NN", "NT"])
@pytest.mark.parametrize("shape", ALONE + CUBES + MIXED + LARGE + SHORT, ids=str)
def test_extents(shape, order):
    run(*shape, layouts=(*ORDERS[order], "row"))


@pytest.mark.parametrize("out_dtype", [FP16, FP32], ids=NAMES.get)
@pytest.mark.parametrize("shape", [(1, 1, 1), (63, 65, 7), (129, 127, 0), (257, 1025, 72)], ids=str)
def test_extents_of_other_outputs(shape, out_dtype):
    run(*shape, dtype=FP16, out_dtype=out_dtype)


def test_empty_grid():
    a, b = random_input("row", (8, 64), BF16, DEVICE), random_input("row", (64, 8), BF16, DEVICE)
    out = Guarded.output("row", (8, 8), BF16, DEVICE)
    matmul[0, 1](a, b, out.view, BM=64, BN=64)
    assert out.is_untouched()


# ---------------------------------------------------------------------- slices and strides
SLICED = [
    *[(name, "row", "row") for name in LAYOUTS if name != "row"],
    *[("row", name, "row") for name in LAYOUTS if name != "row"],
    *[("row", "row", name) for name in LAYOUTS if name != "row"],
    *[(name, name, name) for name in LAYOUTS if name != "row"],
    ("odd", "col_odd", "pitch"),
    ("pitch", "step", "odd"),
]


@pytest.mark.parametrize("layouts", SLICED, ids="-".join)
@pytest.mark.parametrize("shape", [(200, 136, 96), (515, 392, 328)], ids=str)
def test_slices(layouts, shape):
    run(*shape, layouts=layouts)


@pytest.mark.parametrize("layout", ["odd", "shifted", "step", "col_odd"])
def test_slices_fp32_output(layout):
    run(300, 200, 100, layouts=("pitch", "col", layout), out_dtype=FP32)


@pytest.mark.parametrize("side", ["a", "b", "both"])
def test_stride_zero(side):
    m, n, k = 200, 136, 96
    a = random_input("row", (1 if side != "b" else m, k), BF16, DEVICE).expand(m, k)
    b = random_input("row", (k, 1 if side != "a" else n), BF16, DEVICE).expand(k, n)
    out = Guarded.output("row", (m, n), BF16, DEVICE)
    verify(partial(matmul[grid_of(m, n)], a, b, out.view), out, a.double() @ b.double(), k)


# ---------------------------------------------------------------------- batch and grids
BATCHES = [
    (5, 200, 136, 96),
    (1, 264, 520, 200),
    (150, 65, 63, 129),
    (64, 256, 256, 64),
    (3, 1000, 328, 1096),
    (7, 1, 8, 0),
]


@pytest.mark.parametrize(
    "layouts",
    [("row", "row", "row"), ("row", "col", "row"), ("col", "odd", "pitch"), ("odd", "odd", "odd")],
    ids="-".join,
)
@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_batch(shape, layouts):
    z, m, n, k = shape
    a = random_input(layouts[0], (z, m, k), BF16, DEVICE)
    b = random_input(layouts[1], (z, k, n), BF16, DEVICE)
    out = Guarded.output(layouts[2], (z, m, n), BF16, DEVICE)
    verify(
        partial(batched[grid_of(m, n, z)], a, b, out.view),
        out,
        a.double() @ b.double(),
        k,
        repeats=2,
    )


@pytest.mark.parametrize("shape", [(5, 200, 136, 96), (9, 1000, 520, 328)], ids=str)
def test_batch_with_one_b(shape):
    z, m, n, k = shape
    a = random_input("row", (z, m, k), BF16, DEVICE)
    b = random_input("row", (k, n), BF16, DEVICE)
    out = Guarded.output("row", (z, m, n), BF16, DEVICE)
    verify(
        partial(batched_shared[grid_of(m, n, z)], a, b, out.view), out, a.double() @ b.double(), k
    )


def test_batch_in_the_middle_of_memory():
    """[M, Z, K] in memory: the batch is neither the slowest nor the fastest dimension."""
    z, m, n, k = 6, 264, 136, 200
    a = random_input("row", (m, z, k), BF16, DEVICE).transpose(0, 1)
    b = random_input("row", (k, z, n), BF16, DEVICE).transpose(0, 1)
    out = Guarded.output("row", (m, z, n), BF16, DEVICE)
    out.view = out.view.transpose(0, 1)
    verify(partial(batched[grid_of(m, n, z)], a, b, out.view), out, a.double() @ b.double(), k)


@pytest.mark.parametrize(
    "options", [{}, {"persistent": False}, {"warp_specialize": False}], ids=str
)
@pytest.mark.parametrize(
    "shape", [(64, 64, 192), (128, 128, 64), (16384, 2048, 128), (100, 30000, 72)], ids=str
)
def test_grids(shape, options):
    run(*shape, BM=128, BN=128, repeats=2, **options)


@pytest.mark.parametrize(
    "shape", [(2048, 2048, 2048), (8192, 8192, 512), (4096, 4096, 64), (333, 777, 555)], ids=str
)
@pytest.mark.parametrize("order", ["NN", "NT"])
def test_repeated(shape, order):
    run(*shape, layouts=(*ORDERS[order], "row"), repeats=5)


SKINNY = [(m, n, k) for m in (1, 8, 16, 32, 64, 128) for n, k in ((2048, 4096), (4096, 1000))]


@pytest.mark.parametrize("order", ["NN", "NT"])
@pytest.mark.parametrize(
    "shape",
    [
        *SKINNY,
        (16, 8192, 8192),
        (128, 4096, 4096),
        (24, 129, 8200),
        (4096, 16, 4096),
        (2048, 8, 512),
    ],
    ids=str,
)
def test_skinny(shape, order):
    run(*shape, layouts=(*ORDERS[order], "row"), repeats=3)


# ---------------------------------------------------------------------- streams, graphs, devices
def triple(m: int, n: int, k: int):
    make = partial(torch.randn, device=DEVICE, dtype=BF16)
    return make(m, k), make(n, k).t(), torch.full((m, n), float("nan"), device=DEVICE, dtype=BF16)


def test_side_stream():
    """The launch must wait for work on its stream: inputs arrive there late."""
    m, n, k = 512, 768, 256
    a, b, c = triple(m, n, k)
    matmul[grid_of(m, n)](a, b, c)
    late = torch.randn_like(a)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        a.copy_(late)
        c.fill_(float("nan"))
        matmul[grid_of(m, n)](a, b, c)
    side.synchronize()
    check(c, late.double() @ b.double(), k)


def test_two_streams():
    m, n, k = 1000, 1048, 1096
    work = [(torch.cuda.Stream(), [triple(m, n, k) for _ in range(8)]) for _ in range(2)]
    torch.cuda.synchronize()
    for (s, xs), (t, ys) in [work]:
        for x, y in zip(xs, ys, strict=True):
            with torch.cuda.stream(s):
                matmul[grid_of(m, n)](*x)
            with torch.cuda.stream(t):
                matmul[grid_of(m, n)](*y)
    torch.cuda.synchronize()
    for _, items in work:
        for a, b, c in items:
            check(c, a.double() @ b.double(), k)


@pytest.mark.parametrize(
    "options", [{}, {"split_k": 2}, {"cluster": 2}, {"warp_specialize": False}], ids=str
)
def test_cuda_graph(options):
    m, n, k = 640, 768, 512
    a, b, c = triple(m, n, k)
    matmul[grid_of(m, n)](a, b, c, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul[grid_of(m, n)](a, b, c, **options)
        matmul[grid_of(m, n)](a, b, c, **options)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        b.copy_(torch.randn_like(b))
        c.fill_(float("nan"))
        graph.replay()
        check(c, a.double() @ b.double(), k)


def test_many_tensors_and_reused_addresses():
    """Tensor maps follow the tensors, not the addresses."""
    for i in range(12):
        m, n, k = 256 + 8 * (i % 3), 320 - 8 * (i % 5), 128 + 64 * (i % 2)
        a, b, c = triple(m, n, k)
        matmul[grid_of(m, n)](a, b, c)
        check(c, a.double() @ b.double(), k, f"launch {i}")
        del a, b, c


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("inside", [True, False], ids=["current", "not-current"])
def test_second_device(inside):
    if inside:
        with torch.cuda.device(1):
            run(520, 392, 328, device="cuda:1", repeats=2)
    else:
        run(520, 392, 328, device="cuda:0")
        run(520, 392, 328, device="cuda:1", repeats=2)
        run(520, 392, 328, device="cuda:0")
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_two_devices_are_refused():
    a, b, c = triple(128, 128, 128)
    with pytest.raises(TileError, match="argument b is on cuda:1"):
        matmul[grid_of(128, 128)](a, b.to("cuda:1"), c)


# ---------------------------------------------------------------------- tiles
TILES = [
    (bm, bn)
    for bm in (64, 128, 192, 256)
    for bn in (8, 16, 32, 64, 80, 96, 112, 160, 176, 192, 208, 256)
    if bm * bn <= 256 * 192
]
SWAPPED_TILES = [(bm, bn) for bm in (8, 16, 32, 48, 80, 112, 176) for bn in (64, 128, 192)]


@pytest.mark.parametrize("order", ["NN", "NT"])
@pytest.mark.parametrize("tile", TILES + SWAPPED_TILES, ids=str)
def test_tiles(tile, order):
    if (tile, order) == ((192, 208), "NN"):
        # Columns of a row-major B go to warpgroups in blocks of 64, and one holds 208 at most alone.
        with pytest.raises(TileError, match="registers"):
            run(1000, 1048, 200, BM=tile[0], BN=tile[1], layouts=(*ORDERS[order], "row"))
        return
    run(1000, 1048, 200, BM=tile[0], BN=tile[1], layouts=(*ORDERS[order], "row"), repeats=2)


@pytest.mark.parametrize("bk", [16, 32, 128])
@pytest.mark.parametrize("order", ORDERS)
def test_other_block_k(bk, order):
    run(520, 392, 328, BM=128, BN=128, BK=bk, layouts=(*ORDERS[order], "row"), repeats=2)


# ---------------------------------------------------------------------- epilogues
ACTIVATIONS = {
    "identity": (identity, lambda x: x),
    "relu": (relu, torch.relu),
    "gelu": (gelu, torch.nn.functional.gelu),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ping_pong": True, "BM": 128, "BN": 160},
        {"num_consumers": 2, "ping_pong": False, "BM": 128, "BN": 256},
        {"warp_specialize": False},
    ],
    ids=["auto", "pingpong", "coop", "single"],
)
@pytest.mark.parametrize(
    ("bias_dtype", "out_dtype"),
    [(BF16, BF16), (FP32, FP16), (BF16, FP32)],
    ids=["bf16", "fp16", "fp32"],
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(264, 520, 200), (1000, 1048, 520)], ids=str)
def test_linear(shape, activation, bias_dtype, out_dtype, options):
    m, n, k = shape
    ours, theirs = ACTIVATIONS[activation]
    a = random_input("row", (m, k), BF16, DEVICE)
    b = random_input("col", (k, n), BF16, DEVICE)
    bias = random_input("row", (1, n), bias_dtype, DEVICE)[0]
    out = Guarded.output("row", (m, n), out_dtype, DEVICE)
    scale = k**-0.5
    want = theirs(
        torch.tensor(scale, dtype=FP32).double().item() * (a.double() @ b.double()) + bias.double()
    )
    verify(
        partial(linear[grid_of(m, n)], a, b, bias, out.view, scale, ours, **options),
        out,
        want,
        k,
        repeats=2,
    )


@pytest.mark.parametrize("layout", ["row", "odd"])
@pytest.mark.parametrize("shape", [(264, 520, 200), (129, 65, 72)], ids=str)
def test_column_bias(shape, layout):
    m, n, k = shape
    a = random_input("row", (m, k), BF16, DEVICE)
    b = random_input("row", (k, n), BF16, DEVICE)
    bias = random_input("row", (1, m), BF16, DEVICE)[0]
    out = Guarded.output(layout, (m, n), BF16, DEVICE)
    want = a.double() @ b.double() + bias.double()[:, None]
    verify(partial(column_bias[grid_of(m, n)], a, b, bias, out.view), out, want, k)


@pytest.mark.parametrize("shape", [(264, 520, 200), (129, 65, 72), (1000, 1048, 520)], ids=str)
def test_residual(shape):
    m, n, k = shape
    a = random_input("row", (m, k), BF16, DEVICE)
    b = random_input("col", (k, n), BF16, DEVICE)
    r = random_input("row", (m, n), BF16, DEVICE)
    out = Guarded.output("row", (m, n), BF16, DEVICE)
    want = a.double() @ b.double() + r.double()
    verify(partial(residual[grid_of(m, n)], a, b, r, out.view), out, want, k)


def test_bias_with_stride_and_offset():
    m, n, k = 200, 136, 96
    a = random_input("row", (m, k), BF16, DEVICE)
    b = random_input("row", (k, n), BF16, DEVICE)
    bias = random_input("step", (1, n), BF16, DEVICE)[0]
    out = Guarded.output("row", (m, n), BF16, DEVICE)
    want = 2.0 * (a.double() @ b.double()) + bias.double()
    verify(partial(linear[grid_of(m, n)], a, b, bias, out.view, 2.0, identity), out, want, 2 * k)
