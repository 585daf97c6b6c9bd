"""Checks of the memory-bound examples that the CPU and the GPU tests share: one function a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from examples import cross_entropy
from examples import dropout
from examples import histogram
from examples import norms
from examples import reductions
from examples import rope
from examples import softmax
from examples import swiglu
from examples import top_k
from examples import transpose

F32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
LIMITS = {F32: 2e-6, BF16: 6e-3, FP16: 1e-3}
"""Relative errors against fp64: one rounding of the result, and sums in fp32."""


@dataclass(frozen=True)
class Case:
    """run(device, dtype) gives a relative error."""

    name: str
    run: Callable[[str, torch.dtype], float]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.name}-{str(self.dtype).partition('.')[2]}"

    def check(self, device: str) -> None:
        """Fails where the error is too large; new memory is filled with NaN before."""
        torch.manual_seed(0)
        error = self.run(device, self.dtype)
        assert error <= LIMITS[self.dtype]


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is wanted."""
    assert got.shape == want.shape
    norm = want.double().norm()
    error = (got.double() - want.double()).norm()
    return (error / norm if norm else error).item()


def softmax_of(x: torch.Tensor) -> float:
    return relative(softmax.softmax(x), x.double().softmax(-1))


def rows(n_rows: int, n_cols: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    return 3 * torch.randn(n_rows, n_cols, device=device, dtype=dtype)


def strided(n_rows: int, n_cols: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """A matrix cut out of a wider one at an odd place."""
    return rows(n_rows, n_cols + 5, device, dtype)[:, 3 : n_cols + 3]


def masked_softmax(device: str, dtype: torch.dtype) -> float:
    """Rows with -inf and with large values."""
    x = rows(4, 100, device, dtype)
    x[0, ::2] = -float("inf")
    x[1, 0] = -float("inf")
    x[2] += 200
    return softmax_of(x)


def norm_of_strided(device: str, dtype: torch.dtype) -> float:
    """Inputs that are slices of wider rows."""
    x, w = strided(5, 130, device, dtype), torch.randn(130, device=device, dtype=dtype)
    want = torch.nn.functional.rms_norm(x.double(), (130,), w.double(), 1e-6)
    return relative(norms.rms_norm(x, w), want)


def strided_rope(device: str, dtype: torch.dtype) -> float:
    """Heads before tokens."""
    x = torch.randn(2, 4, 7, 32, device=device, dtype=dtype).transpose(1, 2)
    cos, sin = rope.angles(7, 32, device)
    return relative(rope.rope(x, cos, sin), rope.reference(x.double(), cos, sin))


def ignored_targets(device: str, dtype: torch.dtype) -> float:
    """Rows that do not count give no loss and no gradient."""
    x = rows(4, 33, device, dtype).requires_grad_()
    target = torch.tensor([3, -100, 32, -100], device=device)
    cross_entropy.cross_entropy(x, target).backward()
    exact = x.detach().double().requires_grad_()
    torch.nn.functional.cross_entropy(exact, target).backward()
    return relative(x.grad, exact.grad)


def counted(n: int, bins: int, device: str) -> float:
    x = torch.randint(-3, bins + 4, (n,), device=device, dtype=torch.int32)
    want = torch.bincount(x[(x >= 0) & (x < bins)].long(), minlength=bins)
    return relative(histogram.histogram(x, bins), want)


def cases(widths: tuple[int, ...], n_rows: int) -> list[Case]:
    """Cases with rows of some widths in bf16 and fp32, and those of one size."""
    out: list[Case] = []

    def add(name: str, run: Callable[[str, torch.dtype], float], *dtypes: torch.dtype) -> None:
        out.extend(Case(name, run, t) for t in dtypes or (F32, BF16))

    for n, r in ((n, n_rows if n < 10000 else -(-n_rows // 3)) for n in widths):
        add(f"softmax-{n}", lambda d, t, n=n, r=r: softmax_of(rows(r, n, d, t)))
        add(f"swiglu-{n}", lambda d, t, n=n, r=r: swiglu.run((r, n), d, t))
        if n > 1:  # The exact gradient of one element alone is next to nothing.
            add(f"cross_entropy-{n}", lambda d, t, n=n, r=r: cross_entropy.run(r, n, d, t))
            for name, c in (("rms_norm", False), ("layer_norm", True)):
                run = lambda d, t, n=n, r=r, c=c: norms.run(r, n, d, t, centred=c)  # noqa: E731
                add(f"{name}-{n}", run, *([F32] if r < n_rows < 10 else []))
    add("softmax-strided", lambda d, t: softmax_of(strided(5, 100, d, t)))
    add("softmax-transposed", lambda d, t: softmax_of(rows(100, 7, d, t).t()))
    add("softmax-3d", lambda d, t: softmax_of(torch.randn(3, 5, 64, device=d, dtype=t)), FP16)
    add("softmax-masked", masked_softmax)
    add("rms_norm-strided", norm_of_strided)
    add("cross_entropy-ignored", ignored_targets)
    add("rope", lambda d, t: rope.run((2, 9, 3, 64), d, t))
    add("rope-strided", strided_rope)
    add("dropout", lambda d, t: dropout.run((4001,), d, t))
    add("dropout-one", lambda d, t: dropout.run((1,), d, t, p=0.0), F32)
    add("reductions", lambda d, t: reductions.run(101, 130, 7, d, t))
    add("reductions-narrow", lambda d, t: reductions.run(33, 1, 3, d, t), F32)
    for shape in ((70, 130), (1, 7), (129, 64)):
        name = "x".join(map(str, shape))
        make = lambda d, t, s=shape: torch.randn(s, device=d, dtype=t)  # noqa: E731
        add(f"transpose-{name}", lambda d, t, m=make: relative_transpose(m(d, t)))
    add("histogram", lambda d, t: counted(10001, 256, d), F32)
    add("histogram-small", lambda d, t: counted(7, 2, d), F32)
    add("top_k", lambda d, t: top_k.run(3, 781, 8, d, t))
    add("top_k-one", lambda d, t: top_k.run(2, 1, 1, d, t), F32)
    return out


def relative_transpose(x: torch.Tensor) -> float:
    return relative(transpose.transpose(x), x.t())
