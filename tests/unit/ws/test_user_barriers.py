"""`tl.debug_barrier()`: gone where all accesses are blocks of tensors, kept beside pointers."""

from __future__ import annotations

from typing import Any

import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.pointer import Barrier
from tiledsl.lowering import device_graph


@tiledsl.jit
def blocks(x: tl.Tensor, y: tl.Tensor):
    y.store(0, x.load(0, (64,)))
    tl.debug_barrier()
    y.store(0, x.load(0, (64,)) + 1)


@tiledsl.jit
def pointers(x, y):
    at = tl.arange(0, 64)
    tl.store(y + at, tl.load(x + at))
    tl.debug_barrier()
    tl.store(y + at, tl.load(y + 63 - at))


def graph_of(kernel: Any) -> TileGraph:
    call, request = kernel.request_for((torch.zeros(64), torch.zeros(64)), {}, (1,))
    return device_graph(request, call.constants)


def test_blocks_of_tensors_need_none() -> None:
    graph = graph_of(blocks)
    assert not graph.find(Barrier)
    assert "debug_barrier: not needed" in graph.facts["block_notes"][-1]


def test_pointers_keep_it() -> None:
    assert len(graph_of(pointers).find(Barrier)) == 1
