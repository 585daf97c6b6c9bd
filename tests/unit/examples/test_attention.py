"""`examples/attention.py` in the interpreter against fp64: every option, and inputs that make NaNs."""

from __future__ import annotations

import pytest
import torch

from examples import attention as example
from examples.attention import attention
from examples.attention import attention_varlen
from tests.unit.examples.attention_reference import attention_fp64
from tests.unit.examples.attention_reference import check

BF16, FP16 = torch.bfloat16, torch.float16
INF = float("inf")
SMALL = {"BM": 64, "BN": 64}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inputs(B=1, H=2, HK=2, Lq=100, Lk=100, D=64, DV=None, dtype=BF16, order="BHLD"):
    shapes = ((H, Lq, D), (HK, Lk, D), (HK, Lk, DV or D))
    if order == "BHLD":
        return tuple(torch.randn(B, h, n, d).to(dtype) for h, n, d in shapes)
    return tuple(torch.randn(B, n, h, d).to(dtype).transpose(1, 2) for h, n, d in shapes)


def compare(q, k, v, score_fp64=None, tile=SMALL, **options) -> None:
    want = {n: options[n] for n in ("causal", "window", "offset", "scale") if n in options}
    check(
        attention(q, k, v, **options, **tile),
        attention_fp64(q, k, v, score=score_fp64, **want),
    )


CASES = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 20},
    "window of one": {"causal": True, "window": 1},
    "window alone": {"window": 30},
    "scale": {"scale": 0.3, "causal": True},
}


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_masks(name, dtype):
    compare(*inputs(dtype=dtype), **CASES[name])


LENGTHS = [(1, 1), (1, 150), (63, 65), (64, 64), (65, 129), (130, 70), (100, 1), (7, 0), (200, 64)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_lengths(lengths, causal):
    compare(*inputs(H=1, HK=1, Lq=lengths[0], Lk=lengths[1]), causal=causal)


@pytest.mark.parametrize("offset", [-70, -1, 0, 1, 64, 500])
@pytest.mark.parametrize("window", [0, 40])
def test_offsets(offset, window):
    """Where no key is seen the row is 0."""
    compare(*inputs(H=1, HK=1, Lk=140), causal=True, offset=offset, window=window)


@pytest.mark.parametrize("heads", [(4, 2), (4, 1), (6, 3)], ids=str)
def test_grouped_heads(heads):
    compare(*inputs(H=heads[0], HK=heads[1], Lq=70, Lk=90), causal=True)


@pytest.mark.parametrize("order", ["BHLD", "BLHD"])
@pytest.mark.parametrize(
    "dims", [(64, 64), (72, 40), (96, 96), (128, 128), (192, 128), (256, 256)], ids=str
)
def test_head_dims(dims, order):
    q, k, v = inputs(H=2, HK=1, Lq=70, Lk=140, D=dims[0], DV=dims[1], order=order)
    compare(q, k, v, causal=True, tile={})
    if dims[0] == dims[1]:
        assert attention(q, k, v)[0].stride() == q.stride()


# ---------------------------------------------------------------------- functions of the scores
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_bias(causal):
    bias = torch.randn(2, 1, 1, 100).to(BF16).expand(2, 2, 100, 100)
    compare(
        *inputs(B=2), lambda s, r, c: s + bias.double(),
        score=example.add_bias, extra=bias, causal=causal,
    )  # fmt: skip


def test_alibi():
    slopes = 2.0 ** -torch.arange(1.0, 5.0)
    compare(
        *inputs(H=4), lambda s, r, c: s - slopes.double()[:, None, None] * (r - c).abs(),
        score=example.alibi, extra=slopes, causal=True,
    )  # fmt: skip


def test_softcap():
    q, k, v = inputs()
    compare(
        8 * q, k, v, lambda s, r, c: 5 * torch.tanh(s / 5), score=example.softcap(5.0), causal=True
    )


def test_function_of_positions():
    """A user's own function, here a mask in blocks."""

    def same_block(s, rows, cols, at, extra):
        return example.tl.where(rows // 16 == cols // 16, s, -float("inf"))

    compare(*inputs(), lambda s, r, c: s.masked_fill(r // 16 != c // 16, -INF), score=same_block)


# ---------------------------------------------------------------------- numbers that make NaNs
@pytest.mark.parametrize("lowest", [-INF, torch.finfo(BF16).min, -1e4], ids=str)
def test_mask_tensors(lowest):
    """Rows of which all, the first or the last tile of keys is masked, by -inf or a finite number."""
    mask = torch.zeros(1, 1, 100, 100)
    mask[..., :70] = torch.where(torch.rand(100, 70) < 0.9, lowest, 0.0)
    mask[..., 10:20, :] = lowest
    mask[..., 20:30, :64] = lowest
    mask[..., 30:40, 64:] = lowest
    mask = mask.to(BF16)

    def masked(s, rows, cols):
        return (s.float() + mask.float()).double()

    q, k, v = inputs(H=1, HK=1)
    got = attention(q, k, v, score=example.add_bias, extra=mask, **SMALL)
    want = attention_fp64(q, k, v, score=masked)
    check((got[0], want[1].float()), want)


@pytest.mark.parametrize("size", [1e2, 1e3, 3e4])
def test_large_logits(size):
    q, k, v = inputs(H=1, HK=1, dtype=FP16)
    q, k = (q * size**0.5).to(FP16), (k * size**0.5).to(FP16)
    compare(q, k, v, causal=True)


# ---------------------------------------------------------------------- packed sequences
PACKED = [((5, 70, 1, 130), (5, 70, 1, 130)), ((3, 64, 20), (90, 64, 10)), ((0, 65, 0), (7, 65, 0))]


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"causal": True, "window": 30}],
    ids=["full", "causal", "window"],
)
@pytest.mark.parametrize("lengths", PACKED, ids=str)
def test_varlen(lengths, options):
    starts = [torch.tensor((0, *n)).cumsum(0).to(torch.int32) for n in lengths]
    q = torch.randn(int(starts[0][-1]), 4, 64).to(BF16)
    k, v = (torch.randn(int(starts[1][-1]), 2, 64).to(BF16) for _ in range(2))
    o, lse = attention_varlen(q, k, v, *starts, max(lengths[0]), **options, **SMALL)
    for i in range(len(lengths[0])):
        rows, keys = (slice(int(s[i]), int(s[i + 1])) for s in starts)
        part = [x[at].transpose(0, 1)[None] for x, at in ((q, rows), (k, keys), (v, keys))]
        got = o[rows].transpose(0, 1)[None], lse[:, rows][None]
        check(got, attention_fp64(*part, **options))
