"""The matmul family's examples in the interpreter, against fp64."""

from __future__ import annotations

import pytest
import torch

from examples import batched_matmul
from examples import block_scaled_matmul
from examples import fp8_attention
from examples import fp8_matmul
from examples import fused_epilogues
from examples import grouped_matmul
from examples import norm_matmul
from examples import weight_only

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SHAPES = [(128, 128, 128), (1, 136, 272), (70, 200, 400)]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("limit", [None, fp8_matmul.FAST])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fp8_matmul(shape, limit):
    assert fp8_matmul.run(*shape, "cpu", limit=limit) <= 2e-3


@pytest.mark.parametrize("dtypes", [(E5M2, E4M3), (E5M2, E5M2)], ids=["mixed", "e5m2"])
def test_fp8_rows_and_columns(dtypes):
    assert fp8_matmul.run(70, 200, 400, "cpu", rowwise=True, dtypes=dtypes) <= 2e-3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_block_scaled_matmul(shape):
    assert block_scaled_matmul.run(*shape, "cpu") <= 2e-3


def test_block_scales_of_another_shape_are_refused():
    (a, sa), (b, sb) = (
        block_scaled_matmul.quantised(torch.randn(n, 256), rows)
        for n, rows in ((70, 1), (200, 128))
    )
    with pytest.raises(ValueError, match="expected sa of float32"):
        block_scaled_matmul.block_scaled(a, b.t(), sa.t(), sb)
    with pytest.raises(ValueError, match=r"expected sb of float32 \[2, 2\]"):
        block_scaled_matmul.block_scaled(a, b.t(), sa, sb[:1])


@pytest.mark.parametrize("sizes", [[128, 128], [0, 1, 200, 0, 131], [5]], ids=str)
def test_grouped_matmul(sizes):
    assert grouped_matmul.run(sizes, 136, 72, "cpu") <= 4e-3


@pytest.mark.parametrize(
    ("ends", "message"),
    [([0, 9, 5, 20], "ascend"), ([0, 5, 9, 21], "at most 20"), ([0, 20], "4 offsets")],
    ids=str,
)
def test_offsets_that_fit_nothing_are_refused(ends, message):
    x, w = torch.zeros(20, 16), torch.zeros(3, 16, 8)
    with pytest.raises(ValueError, match=message):
        grouped_matmul.grouped(x, w, torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize("shared", [False, True])
def test_batched_matmul(shared):
    assert batched_matmul.run(3, 70, 136, 80, "cpu", shared=shared) <= 4e-3


def test_batches_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="expected"):
        batched_matmul.batched(torch.zeros(2, 8, 8), torch.zeros(3, 8, 8))
    shared = torch.randn(1, 8, 8).expand(4, 8, 8)
    a = torch.randn(4, 8, 8)
    torch.testing.assert_close(batched_matmul.batched(a, shared), a @ shared)


@pytest.mark.parametrize("kind", fused_epilogues.KINDS)
def test_fused_epilogues(kind):
    assert fused_epilogues.run(kind, 96, 200, 80, "cpu") <= fused_epilogues.limit_of(kind)


@pytest.mark.parametrize("kind", weight_only.KINDS)
def test_weight_only(kind):
    assert weight_only.run(kind, 20, 136, 192, "cpu") <= 4e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 128, 64), (1, 1, 70, 64)], ids=str)
def test_fp8_attention(shape, causal):
    assert fp8_attention.run(shape, "cpu", causal=causal) <= 4e-2


def test_fp8_attention_refuses_scales_of_another_shape():
    q, k, vt, scales, _ = fp8_attention.inputs((1, 2, 32, 64), "cpu")
    with pytest.raises(ValueError, match="expected scales"):
        fp8_attention.fp8_attention(q, k, vt, scales[:, :1], causal=False)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("shape", [(70, 200, 400), (1, 136, 80)], ids=str)
def test_norms_before_a_product(kind, shape):
    assert norm_matmul.run(*shape, "cpu", kind) <= 4e-3
