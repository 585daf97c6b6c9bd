"""Operators of torch made of kernels: schema, fake kernel, autograd, torch.compile; on the CPU."""

from __future__ import annotations

import inspect

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.errors import TypeMismatch


@tiledsl.jit
def axpy_kernel(x, y, o, a, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(x + i, mask=i < n) * a
    if y is not None:
        r += tl.load(y + i, mask=i < n)
    tl.store(o + i, r, mask=i < n)


def axpy_backward(saved, grad):
    return {"x": grad * saved.a, "y": grad if saved.y is not None else None}


@tiledsl.op("tiledsl_test::axpy", out={"o": "x"}, backward=axpy_backward)
def axpy(x: torch.Tensor, y: torch.Tensor | None, o: torch.Tensor, a: float = 2.0) -> None:
    """a * x + y."""
    n = x.numel()
    axpy_kernel[(tl.cdiv(n, 64),)](x, y, o, a, n, BLOCK=64)


@tiledsl.op(
    "tiledsl_test::halves",
    out={
        "low": lambda x, n: x.new_empty(n),
        "high": lambda x, n: torch.empty(x.shape[0] - n, device=x.device, dtype=x.dtype),
    },
    backward=lambda saved, low, high: torch.cat([low, high]),
)
def halves(x: torch.Tensor, n: int, low: torch.Tensor, high: torch.Tensor) -> None:
    for part, result in ((x[:n], low), (x[n:], high)):
        count = part.shape[0]
        axpy_kernel[(tl.cdiv(count, 64),)](part, None, result, 1.0, count, BLOCK=64)


@tiledsl.op("tiledsl_test::scale_", inout=["x"])
def scale_(x: torch.Tensor, a: float) -> None:
    axpy_kernel[(tl.cdiv(x.numel(), 64),)](x, None, x, a, x.numel(), BLOCK=64)


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(100, dtype=dtype), torch.randn(100, dtype=dtype)


def test_call():
    x, y = inputs()
    torch.testing.assert_close(axpy(x, y), 2 * x + y)
    torch.testing.assert_close(axpy(x, None, a=3.0), 3 * x)
    assert torch.equal(torch.ops.tiledsl_test.axpy(x, y, 1.0), x + y)
    low, high = halves(x, 30)
    assert torch.equal(torch.cat([low, high]), x)
    assert str(inspect.signature(axpy)).startswith("(x: ")
    assert axpy.__doc__ == "a * x + y."


def test_inout():
    x, _ = inputs()
    want = x * 4
    assert scale_(x, 4.0) is None
    assert torch.equal(x, want)
    assert "Tensor(a0!) x" in str(torch.ops.tiledsl_test.scale_.default._schema)


def test_torch_checks_the_registration():
    x, y = inputs()
    for leaf in (x, y):
        leaf.requires_grad_()
    torch.library.opcheck(axpy.op, (x, y, 2.0))
    torch.library.opcheck(axpy.op, (x, None))
    torch.library.opcheck(halves.op, (x, 30))
    torch.library.opcheck(scale_.op, (torch.ones(8), 2.0))


def test_gradcheck():
    x, y = (t[:10].requires_grad_() for t in inputs(torch.float64))
    assert torch.autograd.gradcheck(lambda x, y: axpy(x, y, a=3.0), (x, y))
    assert torch.autograd.gradcheck(lambda x: halves(x, 4), (x,))


def test_compile_in_one_graph():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(x, y):
        z = axpy(x * 2, y)
        scale_(z, 2.0)
        return z + 1

    x, y = inputs()
    torch.testing.assert_close(f(x, y), (4 * x + y) * 2 + 1)
    g = torch.compile(lambda x, y: axpy(x, y).sum(), fullgraph=True, backend="aot_eager")
    x.requires_grad_()
    g(x, y).backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2.0))


def test_fake_tensors():
    x = torch.empty(6, device="meta")
    assert axpy(x, None).shape == (6,)
    assert [t.shape[0] for t in halves(x, 2)] == [2, 4]


def test_mistakes():
    def f(x: torch.Tensor, o: torch.Tensor) -> None: ...

    def g(x: complex) -> None: ...

    for fn, kwargs, text in (
        (f, {"out": {"p": "x"}}, "'p' is no parameter"),
        (f, {"out": {"o": "y"}}, "like 'y', which is no input"),
        (f, {"inout": ["q"]}, "'q' is no parameter"),
        (g, {}, "parameter x is annotated"),
    ):
        with pytest.raises(TypeMismatch, match=text):
            tiledsl.op("tiledsl_test::bad", **kwargs)(fn)
    with pytest.raises(TypeMismatch, match="namespace::operator"):
        tiledsl.op("bad")(f)
    with pytest.raises(TypeMismatch, match="no autograd for an operator that changes x"):
        tiledsl.op("tiledsl_test::bad2", inout=["x"], backward=lambda s: None)(f)
