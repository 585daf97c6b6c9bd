"""How far apart neighbours most often lie, where no run of consecutive addresses is proven."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl.language as tl
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.axis_steps import FAR
from tiledsl.ir.analysis.axis_steps import least_step
from tiledsl.ir.ops import pointer
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ws.access_layouts import wanted_shape

N16, N1 = ScalarSpec(tl.int32, 16), ScalarSpec(tl.int32)


def image(p, out, W, plane):  # type: ignore[no-untyped-def]
    x, c = tl.arange(0, 32), tl.arange(0, 8)
    tl.store(
        out + x[:, None] + c[None, :],
        tl.load(p + (x // W * W + x % W)[:, None] + (c * plane)[None, :]),
    )


def strides(p, out, W, plane):  # type: ignore[no-untyped-def]
    x, c = tl.arange(0, 32), tl.arange(0, 8)
    tl.store(out + x[:, None] + c[None, :], tl.load(p + (x * plane)[:, None] + c[None, :] * W))


def table(p, out, W, plane):  # type: ignore[no-untyped-def]
    x, c = tl.arange(0, 32), tl.arange(0, 8)
    rows = tl.load(p + x * W)
    tl.store(out + x[:, None] + c[None, :], tl.load(p + rows[:, None] + ((c << 3) - W)[None, :]))


def walking(p, out, W, plane):  # type: ignore[no-untyped-def]
    x, c = tl.arange(0, 32), tl.arange(0, 8)
    at = p + x[:, None] * 3 + (c * plane)[None, :]
    for _ in range(W):
        tl.store(out + x[:, None] + c[None, :], tl.load(at))
        at += plane


@pytest.mark.parametrize(
    ("fn", "plane", "steps", "fast"),
    [
        (image, N16, (1, 16), 0),
        (image, N1, (1, 1), 1),
        (strides, N16, (16, 1), 1),
        (strides, N1, (1, 1), 1),
        (table, N1, (FAR, 8), 1),
        (walking, N16, (3, 16), 0),
    ],
)
def test_steps(fn: Any, plane: ScalarSpec, steps: tuple[int, int], fast: int) -> None:
    pointers = {"p": PointerSpec(tl.int32), "out": PointerSpec(tl.int32)}
    graph = lower_function(fn, {**pointers, "W": N1, "plane": plane}, {})
    facts = axis_facts(graph.body, graph.facts["divisors"])
    load = [op for op in graph.walk() if isinstance(op, pointer.Load)][-1]
    assert tuple(least_step(load.pointer, dim, facts) for dim in range(2)) == steps
    assert wanted_shape(load, facts).order[0] == fast
