"""`examples/attention_varlen_backward.py` in the interpreter against fp64 autograd."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from examples.attention import add_bias
from examples.attention import alibi
from examples.attention import softcap
from examples.attention_backward import softcap_slope
from examples.attention_varlen_backward import differentiable_attention_varlen
from tests.unit.examples.attention_reference import attention_fp64

BF16, FP16, NAN = torch.bfloat16, torch.float16, float("nan")
LIMITS = {BF16: 6e-3, FP16: 1.5e-3}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def starts_of(lengths) -> torch.Tensor:
    return torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)


def gradients(inputs, do, starts, lengths, **options) -> tuple[torch.Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    longest = max(lengths[0]), max(lengths[1])
    out = differentiable_attention_varlen(*leaves, *starts, longest, **options)
    return torch.autograd.grad(out, leaves, do)


def exact_gradients(inputs, do, starts, score=None, **options) -> list[torch.Tensor]:
    """Each sequence by itself in fp64; a row that sees no key gives none."""
    leaves = [x.double().requires_grad_() for x in inputs]
    q, k, v = (x.transpose(0, 1)[None] for x in leaves)
    total = torch.zeros((), dtype=torch.float64)
    for (q0, q1), (k0, k1) in zip(*(pairwise(s.tolist()) for s in starts), strict=True):
        part = q[:, :, q0:q1], k[:, :, k0:k1], v[:, :, k0:k1]
        o, lse = attention_fp64(*part, score=score, **options)
        weight = do[q0:q1].transpose(0, 1)[None].double()
        total = total + torch.where(lse.isfinite()[..., None], o * weight, 0.0).sum()
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]


def compare(lengths, H=2, HK=1, D=64, DV=None, dtype=BF16, score_fp64=None, behind=0, **options):
    """behind: rows that belong to no sequence, all NaN."""
    starts = [starts_of(n) for n in lengths]
    rows, keys = (sum(n) + behind for n in lengths)
    shapes = ((rows, H, D), (keys, HK, D), (keys, HK, DV or D))
    inputs = [torch.randn(s).to(dtype) for s in shapes]
    do = torch.randn(rows, H, DV or D).to(dtype)
    masks = {n: options[n] for n in options if n not in ("score", "slope", "extra")}
    want = exact_gradients(inputs, do, starts, score=score_fp64, **masks)
    if behind:
        for x in (*inputs, do):
            x[-behind:] = NAN
    got = gradients(inputs, do, starts, lengths, **options)
    for name, x, y in zip("qkv", got, want, strict=True):
        assert not x.isnan().any(), f"NaN in the gradient of {name}"
        expected = y.nan_to_num(0.0)
        without = expected.abs().amax((1, 2)) == 0
        assert (x[without].abs() <= 1e-5).all(), f"gradient of {name}: rows without one"
        error = (x.double() - expected).norm() / expected.norm().clamp(min=1e-30)
        assert error <= LIMITS[dtype], f"gradient of {name}: relative error {error:.2e}"


SAME = ((5, 70, 1, 66), (5, 70, 1, 66))
LENGTHS = [SAME, ((3, 64, 20), (90, 64, 10)), ((0, 65, 9), (7, 65, 0)), ((90, 0), (68, 0))]
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 30},
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_masks(lengths, name):
    """Sequences without queries or keys, more queries than keys: rows that see nothing get zeros."""
    compare(lengths, **MASKS[name])


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
def test_grouped_heads_and_rows_outside_of_all_sequences(dtype):
    compare(((5, 70), (5, 70)), H=4, HK=2, dtype=dtype, causal=True, behind=9)


@pytest.mark.parametrize("dims", [(72, 40), (128, 128), (192, 128)], ids=str)
def test_head_dims(dims):
    compare(((5, 66), (40, 70)), H=1, D=dims[0], DV=dims[1], causal=True, scale=0.1)


def test_functions_of_the_scores():
    """A bias is indexed by positions in a sequence, the same for all; a slope is applied."""
    bias = torch.randn(1, 2, 70, 70)
    slopes = 2.0 ** -torch.arange(1.0, 3.0)

    def biased(s, rows, cols):
        return s + bias.double()[:, :, : s.shape[2], : s.shape[3]]

    def tilted(s, rows, cols):
        return s - slopes.double()[:, None, None] * (rows - cols).abs()

    lengths = ((5, 70), (5, 70))
    compare(lengths, score=add_bias, extra=bias, score_fp64=biased)
    compare(lengths, score=alibi, extra=slopes, score_fp64=tilted, causal=True)
    compare(
        lengths, score=softcap(2.0), slope=softcap_slope(2.0),
        score_fp64=lambda s, r, c: 2.0 * torch.tanh(s / 2.0),
    )  # fmt: skip
    with pytest.raises(ValueError, match="extra gets no gradient"):
        compare(lengths, score=add_bias, extra=bias.requires_grad_())


@pytest.mark.parametrize("name", ["full", "causal"])
def test_sequences_keep_to_themselves(name):
    """Every second sequence is NaN: the gradients of the others stay the same bits."""
    lengths = (5, 70, 64, 2, 40)
    starts = starts_of(lengths)
    inputs = [torch.randn(sum(lengths), h, 64).to(BF16) for h in (2, 1, 1)]
    do = torch.randn(sum(lengths), 2, 64).to(BF16)
    want = gradients(inputs, do, (starts, starts), (lengths, lengths), **MASKS[name])
    spans = [slice(a, b) for a, b in pairwise(starts.tolist())]
    for x in (*inputs, do):
        for at in spans[1::2]:
            x[at] = NAN
    got = gradients(inputs, do, (starts, starts), (lengths, lengths), **MASKS[name])
    for x, y in zip(got, want, strict=True):
        for at in spans[::2]:
            assert torch.equal(x[at], y[at])


def test_gradients_follow_differences():
    """Along a random direction, against central differences of the fp64 output."""
    lengths = ((5, 70), (40, 30))
    starts = [starts_of(n) for n in lengths]
    rows, keys = (sum(n) for n in lengths)
    shapes = ((rows, 2, 64), (keys, 1, 64), (keys, 1, 64))
    inputs = [torch.randn(s).to(FP16) for s in shapes]
    do = torch.randn(rows, 2, 64).to(FP16)
    got = gradients(inputs, do, starts, lengths, causal=True)

    def value(step, which, direction):
        moved = [x.double() for x in inputs]
        moved[which] = moved[which] + step * direction
        total = 0.0
        for (q0, q1), (k0, k1) in zip(*(pairwise(s.tolist()) for s in starts), strict=True):
            ends = ((q0, q1), (k0, k1), (k0, k1))
            part = [x[a:b].transpose(0, 1)[None] for x, (a, b) in zip(moved, ends, strict=True)]
            o, _ = attention_fp64(*part, causal=True)
            total += (o[0].transpose(0, 1).nan_to_num(0.0) * do[q0:q1].double()).sum().item()
        return total

    for which, grad in enumerate(got):
        direction = torch.randn(grad.shape, dtype=torch.float64)
        want = (value(1e-4, which, direction) - value(-1e-4, which, direction)) / 2e-4
        bound = 4e-3 * (grad.double().norm() * direction.norm() / grad.numel() ** 0.5).item()
        assert abs((grad.double() * direction).sum().item() - want) <= bound


def test_the_same_bits_each_time():
    lengths = ((5, 70), (5, 70))
    starts = [starts_of(n) for n in lengths]
    inputs = [torch.randn(75, h, 64).to(BF16) for h in (2, 1, 1)]
    do = torch.randn(75, 2, 64).to(BF16)
    a, b = (gradients(inputs, do, starts, lengths) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
