"""What warp specialisation accepts, and the reason and line of what it declines."""

from __future__ import annotations

import inspect

import pytest

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import attention_request
from tests.unit.ws.kernels import epilogue_request
from tests.unit.ws.kernels import matmul_request
from tests.unit.ws.kernels import meta
from tests.unit.ws.kernels import tile_graph_of
from tiledsl.lowering import device_graph
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.analysis import analyze
from tiledsl.ws.flow import analyze_flow

TILE = {"BM": 128, "BN": 128, "BK": 64}


# fmt: off
@tiledsl.jit
def reads_what_it_writes(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        a.store((0, k), acc)
    c.store((0, 0), acc)


@tiledsl.jit
def computed_on_the_right(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        scores = b.load((k, 0), (64, 64))
        acc = tl.dot(a.load((0, k), (64, 64)), (scores * 2.0).to(tl.bfloat16), acc)
    c.store((0, 0), acc)


@tiledsl.jit
def no_dot(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    c.store((0, 0), a.load((0, 0), (64, 64)) + b.load((0, 0), (64, 64)))
# fmt: on


def analysis_of(kernel: tiledsl.JitFunction) -> Analysis:
    args = (meta(64, 256), meta(256, 64), meta(64, 64))
    _, request = kernel.request_for(args, {}, (1, 1))
    return analyze(device_graph(request, request.constants))


def line_of(kernel: tiledsl.JitFunction, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_the_matmul_is_one_loop_of_two_loads() -> None:
    found = analyze(tile_graph_of(matmul_request(512, 512, 512, **TILE)))
    assert found.declined == []
    (loop,) = found.loops
    assert [load.name for load in loop.loads] == ["a", "b"]
    assert [load.axes for load in loop.loads] == [frozenset({0}), frozenset({1})]
    assert loop.zero_init == (True,)
    assert len(found.stores) == 1


def test_loads_of_the_epilogue_stay_with_the_consumer() -> None:
    found = analyze(tile_graph_of(epilogue_request(512, 512, 512)))
    assert found.declined == []
    assert found.epilogue_loads == ((128,),)


def test_a_tensor_without_a_map_is_named_with_its_line() -> None:
    found = analyze(tile_graph_of(matmul_request(512, 512, 512, pad=1, **TILE)))
    assert found.loops == []
    first = found.declined[0]
    assert "no legal tensor map" in first.reason
    assert first.loc is not None
    assert "acc = tl.dot" in first.loc.text


DECLINED = [
    (reads_what_it_writes, "a.store"),
    (computed_on_the_right, "tl.dot"),
]


@pytest.mark.parametrize(("kernel", "text"), DECLINED)
def test_declined_with_the_line_of_the_dot(kernel: tiledsl.JitFunction, text: str) -> None:
    found = analysis_of(kernel)
    assert found.loops == []
    assert found.declined
    lines = {d.loc.line for d in found.declined if d.loc}
    assert line_of(kernel, "tl.dot") in lines


def test_nothing_to_specialise_without_a_dot() -> None:
    assert analysis_of(no_dot).loops == []


def test_attention_is_no_accumulation_but_a_flow() -> None:
    graph = tile_graph_of(attention_request())
    assert analyze(graph).loops == []
    flow = analyze_flow(graph)
    assert flow.declined == []
    (loop,) = flow.loops
    assert len(loop.dots) == 2
    assert len(loop.groups) == 2
