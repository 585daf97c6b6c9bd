"""`examples/attention_backward.py` in the interpreter against fp64 autograd."""

from __future__ import annotations

import pytest
import torch

from examples.attention import add_bias
from examples.attention import alibi
from examples.attention import softcap
from examples.attention_backward import differentiable_attention
from examples.attention_backward import softcap_slope
from tests.unit.examples.attention_reference import attention_fp64

BF16, FP16 = torch.bfloat16, torch.float16
LIMITS = {BF16: 6e-3, FP16: 1.5e-3}
CASES = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 40},
    "window alone": {"window": 40},
    "scale": {"scale": 0.3},
    "rows without keys": {"causal": True, "offset": -20},
    "last rows without keys": {"causal": True, "window": 30, "offset": 60},
}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def compare(
    H=2, HK=2, Lq=100, Lk=100, D=64, DV=None, dtype=BF16, order="BHLD", score_fp64=None, **options
) -> None:
    shapes = ((H, Lq, D), (HK, Lk, D), (HK, Lk, DV or D))
    if order == "BHLD":
        inputs = [torch.randn(1, *s).to(dtype) for s in shapes]
    else:
        inputs = [torch.randn(1, n, h, d).to(dtype).transpose(1, 2) for h, n, d in shapes]
    inputs = [x.requires_grad_() for x in inputs]
    out = differentiable_attention(*inputs, **options)
    do = torch.randn(out.shape).to(dtype)
    out.backward(do)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    masks = {n: options[n] for n in options if n not in ("score", "slope", "extra")}
    want, _ = attention_fp64(*exact, **masks, score=score_fp64)
    want.backward(do.double())
    for name, x, y in zip("qkv", inputs, exact, strict=True):
        assert x.grad is not None
        assert y.grad is not None
        assert not x.grad.isnan().any(), f"NaN in the gradient of {name}"
        got, expected = x.grad.double(), y.grad.nan_to_num(0.0)
        error = (got - expected).norm() / expected.norm().clamp(min=1e-30)
        assert error <= LIMITS[dtype], f"gradient of {name}: relative error {error:.2e}"


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_masks(name, dtype):
    compare(dtype=dtype, **CASES[name])


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("lengths", [(1, 70), (65, 64), (70, 130), (130, 63)], ids=str)
def test_lengths(lengths, causal):
    compare(H=1, HK=1, Lq=lengths[0], Lk=lengths[1], causal=causal)


@pytest.mark.parametrize("heads", [(4, 2), (4, 1)], ids=str)
def test_grouped_heads(heads):
    compare(*heads, Lq=70, Lk=90, causal=True, order="BLHD")


@pytest.mark.parametrize("dims", [(72, 40), (96, 96), (128, 128), (192, 128), (256, 256)], ids=str)
def test_head_dims(dims):
    compare(H=1, HK=1, Lq=70, Lk=80, D=dims[0], DV=dims[1], causal=True)


def test_scores_of_every_kind():
    """Grouped heads, a bias with -inf in it, ALiBi, softcap; the last one has a slope."""
    bias = torch.randn(1, 4, 70, 90).masked_fill(torch.rand(1, 4, 70, 90) < 0.2, -float("inf"))
    slopes = 2.0 ** -torch.arange(1.0, 5.0)
    shape = {"H": 4, "HK": 2, "Lq": 70, "Lk": 90, "causal": True}
    compare(**shape, score=add_bias, extra=bias, score_fp64=lambda s, r, c: s + bias.double())
    compare(
        **shape, score=alibi, extra=slopes,
        score_fp64=lambda s, r, c: s - slopes.double()[:, None, None] * (r - c).abs(),
    )  # fmt: skip
    compare(
        **shape, score=softcap(2.0), slope=softcap_slope(2.0),
        score_fp64=lambda s, r, c: 2.0 * torch.tanh(s / 2.0),
    )  # fmt: skip
    with pytest.raises(ValueError, match="gradient under add_bias, and score is alibi"):
        compare(**shape, score=alibi, extra=slopes.requires_grad_())


BIASES = [(2, 4, 70, 90), (1, 4, 70, 90), (2, 1, 1, 90), (4, 1, 1), (70, 1), (1, 1, 1, 1)]


@pytest.mark.parametrize("shape", BIASES, ids=str)
def test_bias(shape):
    """Its gradient has its shape: sums over batches, heads, rows, columns that share an element."""
    q, do = (torch.randn(2, 4, 70, 64).to(BF16) for _ in range(2))
    k, v = (torch.randn(2, 2, 90, 64).to(BF16) for _ in range(2))
    bias = torch.randn(shape)
    if shape[-1] > 1:
        bias[..., 3] = -float("inf")
    bias = bias.to(BF16).requires_grad_()
    options = {"causal": True, "window": 50, "score": add_bias}
    (got,) = torch.autograd.grad(differentiable_attention(q, k, v, extra=bias, **options), bias, do)
    exact = bias.detach().double().requires_grad_()
    inputs = (q.double(), k.double(), v.double())
    o, _ = attention_fp64(*inputs, causal=True, window=50, score=lambda s, r, c: s + exact)
    (want,) = torch.autograd.grad(o, exact, do.double())
    assert got.shape == bias.shape
    assert not got.isnan().any()
    # One number for all keys of a row cancels: its gradient is 0, but for the rounding of terms.
    size = want.norm() if shape[-1] > 1 else (got.numel() * 70 * 8) ** 0.5
    assert (got.double() - want.nan_to_num(0.0)).norm() <= LIMITS[BF16] * size


def test_the_same_bits_each_time():
    q, k, v = (torch.randn(1, 2, 100, 64).to(BF16).requires_grad_() for _ in range(3))
    do = torch.randn(1, 2, 100, 64).to(BF16)
    grads = [
        torch.autograd.grad(differentiable_attention(q, k, v), (q, k, v), do) for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_gradient_of_a_sum():
    """One number, repeated by strides of 0."""
    leaves = [torch.randn(1, 2, 70, 64).to(BF16).requires_grad_() for _ in range(3)]
    out = differentiable_attention(*leaves)
    got = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    want = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
