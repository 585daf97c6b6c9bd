"""Conditional expressions at run time: a branch where a side touches memory, a select otherwise."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.errors import TypeMismatch


@tiledsl.jit
def guarded_reads(x, out, n):
    pid = tl.program_id(0)
    before = tl.load(x + pid - 1) if pid > 0 else 100
    pair = (tl.load(x + n), 1) if pid == 99 else (before, 2)
    tl.store(out + pid, before + pair[0] * pair[1])


def test_only_the_chosen_side_reads() -> None:
    x, out = torch.arange(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    guarded_reads[(3,)](x, out, 3)
    assert out.tolist() == [300, 0, 3]


@tiledsl.jit
def pure_sides(out):
    pid = tl.program_id(0)
    tl.store(out + pid, pid * 2 if pid > 1 else pid - 1.5)


def test_pure_sides_are_a_select() -> None:
    out = torch.zeros(3)
    tiledsl.jit(pure_sides)[(3,)](out)
    assert out.tolist() == [-1.5, -0.5, 4.0]


@tiledsl.jit
def two_kinds(x):
    pid = tl.program_id(0)
    tl.store(x, tl.load(x) if pid == 0 else (1.0, 2.0))


def test_sides_must_fit() -> None:
    with pytest.raises(TypeMismatch, match=r"if \.\.\. else: one side is a run-time tl.float32"):
        two_kinds[(1,)](torch.zeros(1))
