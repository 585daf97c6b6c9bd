"""The matmul family against fp64, on the GPU: fp8, block scales, groups, batches, work on the result.

Outputs start as NaN. Run by `python tests/gpu/run_isolated.py tests/gpu/test_gemm_family.py`.
"""

from __future__ import annotations

import pytest
import torch

from examples import batched_matmul
from examples import block_scaled_matmul
from examples import fp8_attention
from examples import fp8_matmul
from examples import fused_epilogues
from examples import grouped_list
from examples import grouped_matmul
from examples import norm_matmul
from examples import weight_only
from tests.emulation.test_emulated_half_sums import half_matmul

pytestmark = pytest.mark.gpu

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # new memory is filled with NaN
    yield
    torch.use_deterministic_algorithms(False)


SHAPES = [
    (8192, 8192, 512),
    (4096, 4096, 4096),
    (1000, 2064, 1040),
    (1, 8192, 8192),
    (16, 8192, 8192),
    (64, 4096, 16384),
    (129, 272, 144),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_f32_sums(shape):
    """As accurate as f32 sums, rounded to bf16, whatever K is."""
    assert fp8_matmul.run(*shape, DEVICE) <= 2e-3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_of_the_tensor_core(shape):
    assert fp8_matmul.run(*shape, DEVICE, limit=fp8_matmul.FAST) <= 8e-3


PROMOTED = [
    {"BM": 128, "BN": 192, "cluster": 2},
    {"BM": 128, "BN": 160, "cluster": 1},
    {"BM": 192, "BN": 128},
    {"BM": 192, "BN": 112, "cluster": 2},
    {"BM": 256, "BN": 96},
    {"BM": 128, "BN": 128, "BK": 256},
    {"BM": 64, "BN": 128, "split_k": 2},
    {"BM": 16, "BN": 64, "BK": 512, "swap_operands": True},
    {"BM": 128, "BN": 128, "persistent": False},
    {"BM": 64, "BN": 64, "warp_specialize": False},
]


@pytest.mark.parametrize("options", PROMOTED, ids=str)
def test_plans_with_f32_sums(options):
    m, n, k = 1040, 1296, 2064
    a = fp8_matmul.fp8(m, k, device=DEVICE)
    b = fp8_matmul.fp8(n, k, device=DEVICE).t()
    want, seen = a.double() @ b.double(), []
    for _ in range(3):
        c = torch.full((m, n), float("nan"), device=DEVICE, dtype=torch.bfloat16)
        fp8_matmul.fp8_matmul[fp8_matmul.grid_of(m, n)](a, b, c, 1.0, **options)
        assert fp8_matmul.relative(c, want) <= 2e-3
        seen.append(c)
    assert all(torch.equal(seen[0], c) for c in seen), "a repeat differs"


@pytest.mark.parametrize("dtypes", [(E5M2, E4M3), (E4M3, E5M2), (E5M2, E5M2)], ids=str)
@pytest.mark.parametrize("limit", [None, fp8_matmul.FAST])
def test_rows_and_columns(dtypes, limit):
    error = fp8_matmul.run(1000, 1296, 1040, DEVICE, limit=limit, rowwise=True, dtypes=dtypes)
    assert error <= 4e-3


@pytest.mark.parametrize(
    "shape",
    [
        (4096, 7168, 2048), (512, 7168, 2048), (128, 7168, 2048), (64, 7168, 2048), (32, 7168, 1040), (16, 7168, 2048), (1, 512, 7168),
        (1000, 1296, 1040), (200, 1936, 1040), (131, 640, 1040),
    ],
    ids=str,
)  # fmt: skip
def test_block_scales(shape):
    """Scales in the slots of the operands, and, where no tensor map brings them, loaded ahead."""
    assert block_scaled_matmul.run(*shape, DEVICE) <= 2e-3


@pytest.mark.parametrize(
    "options",
    [
        {"BM": 128, "BN": 112}, {"BM": 128, "BN": 224}, {"BM": 256, "BN": 112}, {"BM": 192, "BN": 96},
        {"BM": 128, "BN": 144}, {"BM": 64, "BN": 112, "split_k": 2}, {"BM": 16, "BN": 192},
        {"BM": 128, "BN": 112, "cluster": 2, "ping_pong": False},
        {"BM": 64, "BN": 80, "warp_specialize": False},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("shape", [(512, 7168, 2048), (136, 1936, 1040)], ids=str)
def test_scales_of_several_blocks(shape, options):
    m, n, k = shape
    x, w = torch.randn(m, k, device=DEVICE), torch.randn(n, k, device=DEVICE)
    w *= torch.rand(-(-n // 128), device=DEVICE).repeat_interleave(128)[:n, None] * 4
    (a, sa), (b, sb) = block_scaled_matmul.quantised(x, 1), block_scaled_matmul.quantised(w, 128)
    c = torch.full((m, n), float("nan"), device=DEVICE, dtype=torch.bfloat16)
    grid = block_scaled_matmul.grid_of(m, n)
    block_scaled_matmul.block_scaled_matmul[grid](a, b.t(), sa, sb, c, **options)
    spread = block_scaled_matmul.spread
    want = (a.double() * spread(sa, 1, (m, k))) @ (b.double() * spread(sb, 128, (n, k))).t()
    assert (c.double() - want).norm() / want.norm() <= 2e-3


@pytest.mark.parametrize(
    "sizes",
    [
        [1024] * 8,
        [4000, 0, 1, 8500, 129, 3500],
        [0, 0, 5],
        [1],
        [127] * 64,
        [65 + i for i in range(64)],
        [0, 128, 0],
    ],
    ids=lambda s: f"{len(s)} of {sum(s)}",
)
def test_groups(sizes):
    assert grouped_matmul.run(sizes, 1032, 520, DEVICE) <= 4e-3


def test_rows_behind_the_last_group_are_left_alone():
    x = torch.randn(300, 64, device=DEVICE, dtype=torch.bfloat16)
    w = torch.randn(2, 72, 64, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2)
    offsets = torch.tensor([0, 70, 199], device=DEVICE, dtype=torch.int32)
    out = grouped_matmul.grouped(x, w, offsets)
    want = torch.cat([x[:70].double() @ w[0].double(), x[70:199].double() @ w[1].double()])
    torch.testing.assert_close(out[:199].double(), want, rtol=2e-2, atol=2e-2 * 8)
    assert out[199:].isnan().all()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", [(16, 1024, 1024, 512), (5, 130, 264, 72)], ids=str)
def test_batches(shape, shared):
    assert batched_matmul.run(*shape, DEVICE, shared=shared) <= 4e-3


@pytest.mark.parametrize("shape", [(4096, 4096, 1024), (1000, 1296, 520)], ids=str)
@pytest.mark.parametrize("kind", fused_epilogues.KINDS)
def test_epilogues(kind, shape):
    assert fused_epilogues.run(kind, *shape, DEVICE) <= fused_epilogues.limit_of(kind)


@pytest.mark.parametrize("shape", [(64, 8192, 8192), (20, 136, 272)], ids=str)
@pytest.mark.parametrize("kind", weight_only.KINDS)
def test_weights_widened_in_the_loop(kind, shape):
    assert weight_only.run(kind, *shape, DEVICE) <= 4e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 16, 4096, 128), (1, 4, 1000, 64), (1, 1, 70, 128)], ids=str)
def test_fp8_attention(shape, causal):
    assert fp8_attention.run(shape, DEVICE, causal=causal) <= 4e-2


@pytest.mark.parametrize(
    "options",
    [{}, {"BM": 256, "BN": 256}, {"BM": 128, "BN": 256, "ping_pong": False}, {"BM": 16, "BN": 64}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float16, E4M3], ids=str)
def test_sums_in_half(options, dtype):
    """Products of small whole numbers, whose sums f16 holds."""
    m, n, k = 1000, 1296, 528
    a, b = (torch.randint(-1, 2, (x, k), device=DEVICE).to(dtype) for x in (m, n))
    c = torch.full((m, n), float("nan"), device=DEVICE, dtype=torch.float16)
    half_matmul[fp8_matmul.grid_of(m, n)](a, b.t(), c, **options)
    assert torch.equal(c.double(), a.double() @ b.double().t())


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1000, 1296, 520), (1, 136, 80)], ids=str)
def test_norms_before_a_product(kind, shape):
    assert norm_matmul.run(*shape, DEVICE, kind) <= 4e-3


SIZES = {
    "ragged": [(130, 136, 72), (0, 64, 64), (1, 200, 80), (70, 8, 264), (4096, 2048, 1024)],
    "64": [(128 * (i % 5) + 8 * i, 1024, 512) for i in range(64)],
    "one": [(1000, 520, 264)],
}


@pytest.mark.parametrize("name", SIZES)
def test_lists_of_problems(name):
    assert grouped_list.run(SIZES[name], DEVICE) <= 4e-3


def test_a_handle_of_a_list():
    """Also in a graph: the tensor maps are parameters of the launch."""
    shapes = SIZES["ragged"]
    a, b = grouped_list.tensors(shapes, DEVICE)
    c = [torch.full((m, n), float("nan"), device=DEVICE, dtype=a[0].dtype) for m, n, _ in shapes]
    handle = grouped_list.grouped_list.bind(a, b, c, grid=grouped_list.grid_of(shapes))
    handle()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        handle()
    for z in c:
        z.fill_(float("nan"))
    graph.replay()
    for x, y, z in zip(a, b, c, strict=True):
        torch.testing.assert_close(z.double(), x.double() @ y.double(), rtol=2e-2, atol=0.3)
