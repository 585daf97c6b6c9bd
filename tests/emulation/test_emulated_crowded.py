"""Kernels whose buffers do not all fit at once: dots share the memory of their operands, exchanges theirs."""

from __future__ import annotations

import numpy as np
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.recorded import Launch
from tests.emulation.recorded import both
from tests.emulation.recorded import differences
from tests.emulation.recorded import distance


@tiledsl.jit
def causal_step(q, k, v, state, out, T: tl.constexpr, D: tl.constexpr, E: tl.constexpr):
    """One step of linear attention in f32: three products of different shapes."""
    rows, inner, cols = tl.arange(0, T), tl.arange(0, D), tl.arange(0, E)
    queries = tl.load(q + rows[:, None] * D + inner)
    scores = tl.dot(queries, tl.load(k + inner[:, None] * T + rows))
    scores = tl.where(rows[:, None] >= rows[None, :], scores, 0.0)
    past = tl.dot(queries, tl.load(state + inner[:, None] * E + cols))
    here = tl.dot(scores, tl.load(v + rows[:, None] * E + cols))
    tl.store(out + rows[:, None] * E + cols, past + here)


def test_f32_dots_share_the_memory_of_their_operands() -> None:
    generator = torch.Generator().manual_seed(1)
    T, D, E = 64, 128, 128
    q, k, v, state = (torch.randn(s, generator=generator) for s in ((T, D), (D, T), (T, E), (D, E)))
    args = (q, k, v, state, torch.zeros(T, E), T, D, E)
    launch = Launch(causal_step, (1,), args, {})
    module, _ = launch.program()
    assert 2 * (T * D + D * E) * 4 <= module.smem_bytes <= 2 * (T * D + D * E) * 4 + 2048
    wide = [t.double() for t in (q, k, v, state)]
    want = wide[0] @ wide[3] + (wide[0] @ wide[1]).tril() @ wide[2]
    for name, interpreted, got in both(launch, lambda *_: None):
        if name == "out":
            assert distance(want.numpy(), interpreted) < 2e-6
            assert distance(want.numpy(), got) < 2e-6


@tiledsl.jit
def many_turns(x, y, COUNT: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(x + at)
    for i in tl.static_range(COUNT):
        tile = (tl.trans(tl.cumsum(tile, 0)) + i) & 1023
    tl.store(y + at, tile)


def test_small_exchanges_share_memory_where_there_are_many() -> None:
    x = torch.arange(256, dtype=torch.int32).reshape(16, 16)
    want, used = x, {}
    for i in range(64):
        want = (want.cumsum(0, dtype=torch.int32).T + i) & 1023
    for count in (4, 64):
        launch = Launch(many_turns, (1,), (x, torch.zeros_like(x), count), {})
        used[count] = launch.program()[0].smem_bytes
        for name, interpreted, got in both(launch, lambda *_: None):
            assert differences(interpreted, got) == 0
            if name == "y" and count == 64:
                assert np.array_equal(want.numpy(), got)
    assert 2 * used[4] <= used[64] <= 40000
