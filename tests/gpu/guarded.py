"""Tensors in guarded buffers, and comparisons with fp64.

A kernel that reads outside an input shows NaN in its result; one that writes outside its output changes
the guards; one that leaves an element out leaves a NaN there.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

import torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
SEED = int(os.environ.get("TILEDSL_SEED", time.time_ns() % 2**31))
GUARD = 512
"""Elements before and after a buffer."""
SENTINEL = -96.0


def row(shape: tuple[int, ...], dtype: torch.dtype, device: str):
    """Contiguous, with guards before and after."""
    flat = torch.full((math.prod(shape) + 2 * GUARD,), float("nan"), dtype=dtype, device=device)
    return flat, flat[GUARD : GUARD + math.prod(shape)].view(shape)


def col(shape: tuple[int, ...], dtype: torch.dtype, device: str):
    """The last two dimensions swapped in memory."""
    base, view = row((*shape[:-2], shape[-1], shape[-2]), dtype, device)
    return base, view.transpose(-1, -2)


def pitch(shape: tuple[int, ...], dtype: torch.dtype, device: str):
    """Rows further apart than they are long; base and pitch are multiples of 16 bytes."""
    cols = -(-shape[-1] // 8) * 8 + 24
    base, view = row((*shape[:-2], shape[-2] + 4, cols), dtype, device)
    return base, view[..., 2 : 2 + shape[-2], 8 : 8 + shape[-1]]


def odd(shape: tuple[int, ...], dtype: torch.dtype, device: str):
    """A slice whose base and row pitch are odd numbers of elements."""
    cols = (shape[-1] + 8) | 1
    base, view = row((*shape[:-2], shape[-2] + 4, cols), dtype, device)
    return base, view[..., 1 : 1 + shape[-2], 2 : 2 + shape[-1]]


def shifted(shape: tuple[int, ...], dtype: torch.dtype, device: str):
    """An aligned pitch, a base that is not."""
    cols = -(-shape[-1] // 8) * 8 + 24
    base, view = row((*shape[:-2], shape[-2] + 4, cols), dtype, device)
    return base, view[..., 1 : 1 + shape[-2], 3 : 3 + shape[-1]]


def step(shape: tuple[int, ...], dtype: torch.dtype, device: str):
    """Every second row and column: no dimension of stride 1."""
    base, view = row((*shape[:-2], 2 * shape[-2], 2 * shape[-1]), dtype, device)
    return base, view[..., ::2, ::2]


def col_odd(shape: tuple[int, ...], dtype: torch.dtype, device: str):
    """Column-major, base and pitch odd."""
    base, view = odd((*shape[:-2], shape[-1], shape[-2]), dtype, device)
    return base, view.transpose(-1, -2)


LAYOUTS = {f.__name__: f for f in (row, col, pitch, odd, shifted, step, col_odd)}


@dataclass
class Guarded:
    """A tensor inside a buffer; `base` is the buffer, `view` the tensor."""

    base: torch.Tensor
    view: torch.Tensor

    @staticmethod
    def output(layout: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Guarded:
        """An output: all of the buffer holds SENTINEL."""
        made = Guarded(*LAYOUTS[layout](shape, dtype, device))
        made.base.fill_(SENTINEL)
        return made

    def poison(self) -> None:
        self.view.fill_(float("nan"))

    def is_untouched(self) -> bool:
        """Whether nothing was written to the buffer since it was made."""
        return bool((self.base == SENTINEL).all())

    def guards_are_intact(self) -> bool:
        """Whether all of the buffer outside the view is as it was; clears the view."""
        self.view.fill_(SENTINEL)
        return self.is_untouched()


def random_input(
    layout: str, shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Random normals in a buffer whose other elements are NaN."""
    _, view = LAYOUTS[layout](shape, dtype, device)
    view.copy_(torch.randn(shape, device=device).to(dtype))
    return view


def limit(dtype: torch.dtype, k: int) -> float:
    """Relative Frobenius error: the output's rounding, or fp32 accumulation over k products."""
    return {BF16: 4e-3, FP16: 1e-3}.get(dtype, 2e-6 * (1 + math.sqrt(k)))


def check(out: torch.Tensor, want: torch.Tensor, k: int, what: str = "") -> None:
    """Compares with an fp64 reference, as a whole and element by element."""
    unwritten = int(out.isnan().sum())
    assert unwritten == 0, (
        f"{unwritten} of {out.numel()} elements are NaN {where(out.isnan())} {what} seed {SEED}"
    )
    got = out.double()
    norm = want.norm().item()
    error = (got - want).norm().item() / norm if norm else got.abs().max().item()
    assert error <= limit(out.dtype, k), (
        f"relative error {error:.2e} over {limit(out.dtype, k):.1e} {what} seed {SEED}"
    )
    relative = {BF16: 2**-8, FP16: 2**-10}.get(out.dtype, 1e-6)
    bad = (got - want).abs() > relative * want.abs() + 2e-6 * k + 2e-5
    assert not bad.any(), f"{int(bad.sum())} elements are off {where(bad)} {what} seed {SEED}"


def where(mask: torch.Tensor) -> str:
    """The box around the set elements of a mask."""
    if not mask.any():
        return ""
    at = mask.nonzero()
    low, high = at.min(0).values.tolist(), at.max(0).values.tolist()
    return "in " + ", ".join(f"{a}..{b}" for a, b in zip(low, high, strict=True))


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.int32 if t.dtype == FP32 else torch.int16)


def verify(launch, out: Guarded, want: torch.Tensor, k: int, *, repeats: int = 1) -> None:
    """Launches into a poisoned output, checks it and its guards; repeats must give the same bits."""
    first = None
    for i in range(repeats):
        out.poison()
        launch()
        if first is None:
            check(out.view, want, k)
            first = bits(out.view)
        else:
            assert torch.equal(first, bits(out.view)), (
                f"launch {i + 1} differs from the first {where(first != bits(out.view))}"
            )
    assert out.guards_are_intact(), f"something was written outside the output, seed {SEED}"
