"""The matmul family compiles specialised, without spills or waits that ptxas injects."""

from __future__ import annotations

import pytest
import torch

from examples import grouped_list
from examples.block_scaled_matmul import block_scaled_matmul
from examples.block_scaled_matmul import meta_arguments
from examples.epilogue import linear
from examples.fp8_attention import eighths
from examples.fp8_attention import fp8_attention_kernel
from examples.fp8_attention import tiles
from examples.fp8_matmul import fp8_matmul
from examples.fp8_matmul import grid_of
from examples.fused_epilogues import residual
from examples.grouped_matmul import grouped_matmul
from examples.norm_matmul import norm_matmul
from examples.weight_only import tiles as weight_tiles
from examples.weight_only import weight_only
from tests.nvrtc.test_attention_compile import check
from tiledsl.compiled import Kernel
from tiledsl.ir.ops.tile import Shift

pytestmark = pytest.mark.nvrtc

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16


def fp8(m: int, n: int, k: int, **options) -> Kernel:
    a, b = (torch.empty(x, k, device="meta", dtype=E4M3) for x in (m, n))
    c = torch.empty(m, n, device="meta", dtype=BF16)
    return fp8_matmul.compile(a, b.t(), c, 1.0, grid=grid_of(m, n), **options)


@pytest.mark.parametrize(
    "shape", [(8192, 8192, 512), (8192, 8192, 4096), (16, 8192, 8192)], ids=str
)
def test_f32_sums(shape):
    check(fp8(*shape))


@pytest.mark.parametrize(
    "options", [{"BM": 128, "BN": 192, "cluster": 2}, {"BM": 192, "BN": 128}], ids=str
)
def test_large_tiles_with_f32_sums(options):
    plan = check(fp8(8192, 8192, 4096, **options))
    assert plan.num_consumers == options["BM"] // 64


@pytest.mark.parametrize(
    "shape",
    [
        (8192, 8192, 4096),
        (512, 7168, 2048),
        (64, 7168, 7168),
        (32, 7168, 2048),
        (16, 7168, 4096),
        (131, 640, 1024),
    ],
    ids=str,
)
def test_block_scales(shape):
    m, n, _ = shape
    check(block_scaled_matmul.compile(*meta_arguments(*shape), grid=grid_of(m, n)))


@pytest.mark.parametrize(
    "tile", [(128, 112), (128, 224), (256, 112), (192, 112), (128, 144), (64, 112)], ids=str
)
def test_scales_of_several_blocks(tile):
    """Also where the sums and products of a warpgroup take 224 registers."""
    options = dict(zip(("BM", "BN"), tile, strict=True))
    kernel = block_scaled_matmul.compile(
        *meta_arguments(512, 7168, 2048), grid=grid_of(512, 7168), **options
    )
    plan = check(kernel, at_once=tile[0] > 64)
    assert (plan.consumer_registers == 240) == (tile in ((128, 224), (256, 112)))
    loops = kernel.module.source.partition("consumer")[2].count("wgmma_commit")
    assert loops == {112: 7, 224: 4, 144: 8}[tile[1]]


def test_groups():
    t, g, n, k = 65536, 64, 4096, 2048
    x, c = (torch.empty(t, d, device="meta", dtype=BF16) for d in (k, n))
    w = torch.empty(g, n, k, device="meta", dtype=BF16).transpose(1, 2)
    offsets, starts = (torch.empty(g + 1, device="meta", dtype=torch.int32) for _ in range(2))
    kernel = grouped_matmul.compile(
        x, w, offsets, starts, c, g, 6, grid=lambda meta: (t // 128 + g, -(-n // meta["BN"]))
    )
    plan = check(kernel)
    assert plan.num_consumers == 2
    assert "tma_store_rows" in kernel.module.source
    consumer = kernel.module.source.partition("consumer")[2]
    assert "load_one" not in consumer


def test_a_list_of_64():
    """Searched for by the consumers, the problems of a list take registers that sums need."""
    shapes = [(1024 + 64 * i, 4096, 2048) for i in range(64)]
    a, b = grouped_list.tensors(shapes, "meta")
    c = [torch.empty(m, n, device="meta", dtype=BF16) for m, n, _ in shapes]
    kernel = grouped_list.grouped_list.compile(a, b, c, grid=grouped_list.grid_of(shapes))
    assert check(kernel).deferred
    assert kernel.constants["BN"] == 256
    assert not kernel.notes


def test_a_norm_is_made_beside_the_product():
    """A quad of lanes reads whole rows of x, and adds them up without another warp."""
    x, w, out = (torch.empty(4096, 4096, device="meta", dtype=BF16) for _ in range(3))
    grid = grid_of(4096, 4096)
    kernel = norm_matmul.compile(x, w.t(), out, 1e-6, grid=grid)
    assert check(kernel).num_consumers == 2
    tile = {"BM": 128, "BN": 192, "ping_pong": True}
    kernel = norm_matmul.compile(x, w.t(), out, 1e-6, grid=grid, **tile)
    assert check(kernel).ping_pong
    assert "read_rows<" in kernel.module.source
    assert "reduce_partials" not in kernel.module.source


def test_a_residual_fits_a_large_tile():
    shapes = ((8192, 4096), (4096, 8192), (8192, 8192), (8192, 8192))
    args = [torch.empty(s, device="meta", dtype=BF16) for s in shapes]
    kernel = residual.compile(*args, grid=grid_of(8192, 8192))
    assert check(kernel).num_consumers >= 2
    assert kernel.constants["BM"] * kernel.constants["BN"] >= 128 * 160


@pytest.mark.parametrize("turned", [False, True], ids=["row-major", "column-major"])
def test_an_activation_is_a_loop_over_chunks(turned):
    """The plan of the bare product, with registers that move down from chunk to chunk."""
    x, w, out = (torch.empty(8192, 8192, device="meta", dtype=BF16) for _ in range(3))
    bias = torch.empty(8192, device="meta", dtype=BF16)
    kernel = linear.compile(x, w.t() if turned else w, bias, out, 0.02, grid=grid_of(8192, 8192))
    assert check(kernel).in_place
    assert not [n for n in kernel.notes if "given up" in n]
    assert kernel.machine is not None
    assert len(kernel.machine.find(Shift)) == 1


def test_weights_are_streamed_and_widened_in_registers():
    shapes = {"w": (8192, 8192), "x": (64, 8192), "scales": (8192,), "out": (64, 8192)}
    dtypes = {"w": torch.int8, "scales": torch.float32}
    args = [
        torch.empty(s, device="meta", dtype=dtypes.get(name, BF16)) for name, s in shapes.items()
    ]
    kernel = weight_only.compile(*args, grid=weight_tiles(64, 8192))
    check(kernel)
    assert "prefetch" in kernel.plan.describe()
    assert "_bf16_rs(" in kernel.module.source
    assert "widen<0, 8, true, 0>(" in kernel.module.source


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L", [4096, 4098])
def test_fp8_attention(L, causal):
    B, H, D = 2, 16, 128
    q, k = (torch.empty(B, H, L, D, device="meta", dtype=E4M3) for _ in range(2))
    vt = torch.empty(B, H, D, -(-L // 16) * 16, device="meta", dtype=E4M3)[..., :L]
    scales = torch.empty(B, H, 2, device="meta")
    o = torch.empty(B, H, L, D, device="meta", dtype=BF16)
    args = (q, k, vt, scales, eighths("meta"), o, D**-0.5, causal, D)
    sizes = tiles(D, causal=causal)
    kernel = fp8_attention_kernel.compile(
        *args, grid=(-(-L // sizes["BM"]), H, B), fast_math=True, **sizes
    )
    check(kernel)
    # Rows that come in fours are loaded in the order of the next operand; others are shuffled.
    assert ("spread_quads(" in kernel.module.source) == (L % 4 != 0)
