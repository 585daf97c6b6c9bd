"""Functions of scalars over tiles, several neighbours at a time."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.errors import TypeMismatch


@tiledsl.jit
def two(x0, x1, y0, y1):
    return x0 + x1, x0 - x1, y0 * 2, y1 * 3


@tiledsl.jit
def four(a, b, c, d):
    return d, c, b, a


@tiledsl.jit
def mapped(x, y, out, N: tl.constexpr, PACK: tl.constexpr):
    at = tl.arange(0, N)
    if PACK == 4:
        tl.store(out + at, tl.map_elementwise(four, tl.load(x + at), pack=4))
    else:
        r, s = tl.map_elementwise(two, tl.load(x + at), tl.load(y + at), pack=PACK)
        tl.store(out + at, r)
        tl.store(out + N + at, s)


def test_pairs() -> None:
    x, y, out = torch.arange(8.0), torch.arange(8.0) + 100, torch.zeros(2, 8)
    mapped[(1,)](x, y, out, 8, 2)
    a, b = x[::2], x[1::2]
    assert out[0].tolist() == torch.stack([a + b, a - b], 1).flatten().tolist()
    assert out[1].tolist() == (y * torch.tensor([2.0, 3.0]).repeat(4)).tolist()


def test_groups_of_four() -> None:
    x, out = torch.arange(8.0), torch.zeros(1, 8)
    mapped[(1,)](x, x, out, 8, 4)
    assert out[0].tolist() == [3, 2, 1, 0, 7, 6, 5, 4]


def test_pack_must_divide() -> None:
    x = torch.zeros(6)
    with pytest.raises(TypeMismatch, match="pack must be a power of two that divides"):
        mapped[(1,)](x, x, x, 6, 4)
