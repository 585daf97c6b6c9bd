"""Helpers of the IR tests: run one op, build graphs from short texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.dtypes import ALL
from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import interpret
from tiledsl.ir.op import Op
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.parser import parse_graph
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ir.verifier import verify

GRID = (1, 1, 1)
BY_NUMPY = {d.numpy: d for d in ALL}


def run_op(cls: type[Op], *arrays: Any, **attributes: Any) -> np.ndarray:
    """Loads whole arrays, applies one op to the tiles, stores its result; runs that in the interpreter."""
    graph = TileGraph("one_op")
    inputs = [np.asarray(a) for a in arrays]
    values = [
        graph.body.add_arg(TensorType(a.ndim, BY_NUMPY[a.dtype]), f"a{i}")
        for i, a in enumerate(inputs)
    ]
    build = Builder(graph)
    zero = build.value(Constant(0, int32))
    tiles = [
        build.value(Load(v, (zero,) * a.ndim, block_shape=a.shape))
        for v, a in zip(values, inputs, strict=True)
    ]
    fields = [s.name for s in cls.fields if s.kind == "operand"][: len(tiles)]
    op = cls(**dict(zip(fields, tiles, strict=True)), **attributes)
    result = build.value(op)
    assert isinstance(result.type, TileType)
    shape, dtype = result.type.shape, result.type.dtype
    out = graph.body.add_arg(TensorType(len(shape), dtype), "out")
    build.add(Store(out, (zero,) * len(shape), result, shape))
    verify(graph)
    array = np.zeros(shape, dtype.numpy)
    interpret(graph, {f"a{i}": a for i, a in enumerate(inputs)} | {"out": array}, GRID)
    return array


def tensor_arg(name: str, dtype: DType, rank: int = 1) -> str:
    """An argument in the text form."""
    return f"%{name} : {TensorType(rank, dtype, rank - 1, tma=True, align_bytes=16)}"


def graph_of(body: str, *args: str, name: str = "kernel") -> TileGraph:
    """A verified TILE graph from the lines of its body."""
    graph = parse_graph(f"graph @{name} level=TILE\nbody({', '.join(args)}) {{\n{body}\n}}\n")
    verify(graph)
    return graph


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit, any NaN being equal to any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = f"u{a.dtype.itemsize}"
    equal = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    if a.dtype.kind not in "biu":
        wide = np.float64
        equal |= np.isnan(a.astype(wide)) & np.isnan(b.astype(wide))
    return bool(equal.all())
