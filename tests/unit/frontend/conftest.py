"""Kernels lowered from numpy arguments, and run in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tiledsl.dtypes import ALL
from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.frontend.specialize import signature_of
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import interpret
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.specs import NoneSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import spec_of
from tiledsl.ir.verifier import verify

BY_NUMPY: dict[np.dtype, DType] = {d.numpy: d for d in ALL}


def spec_for(argument: Any) -> Spec:
    """The spec that a launch would make of an argument."""
    if argument is None:
        return NoneSpec()
    if isinstance(argument, np.ndarray):
        strides = [s // argument.itemsize for s in argument.strides]
        return spec_of(BY_NUMPY[argument.dtype], argument.shape, strides)
    if isinstance(argument, np.generic):
        return ScalarSpec(BY_NUMPY[argument.dtype])
    if isinstance(argument, bool):
        return ScalarSpec(int1)
    if isinstance(argument, int):
        return ScalarSpec(int32 if -(2**31) <= argument < 2**31 else int64)
    return ScalarSpec(float32)


def lowered(fn: Callable[..., Any], *args: Any, **constants: Any) -> TileGraph:
    """The verified graph of a kernel for run-time arguments in order and constexprs by name."""
    parameters = [p.name for p in signature_of(fn).parameters if p.name not in constants]
    specs = {name: spec_for(argument) for name, argument in zip(parameters, args, strict=False)}
    graph = lower_function(fn, specs, constants)
    verify(graph)
    return graph


def executed(
    fn: Callable[..., Any], *args: Any, grid: tuple[int, int, int] = (1, 1, 1), **constants: Any
) -> TileGraph:
    """Lowers a kernel and runs it; arrays among the arguments are written in place."""
    graph = lowered(fn, *args, **constants)
    parameters = [p.name for p in signature_of(fn).parameters if p.name not in constants]
    given = {n: a for n, a in zip(parameters, args, strict=False) if a is not None}
    interpret(graph, given, grid)
    return graph


@pytest.fixture
def lower() -> Callable[..., TileGraph]:
    """`lower(kernel, *arguments, **constexprs)`: the verified graph."""
    return lowered


@pytest.fixture
def run() -> Callable[..., TileGraph]:
    """`run(kernel, *arguments, grid=(1, 1, 1), **constexprs)`: runs the kernel in the interpreter."""
    return executed


@pytest.fixture
def opcodes() -> Callable[[TileGraph], list[str]]:
    """Opcodes of a graph in program order."""
    return lambda graph: [op.opcode for op in graph.walk()]


@pytest.fixture
def stored() -> Callable[[TileGraph], Value]:
    """The value that a kernel's only store writes, before its cast to the tensor's dtype."""

    def find(graph: TileGraph) -> Value:
        (store,) = [op for op in graph.walk() if op.opcode == "memory.store"]
        return uncast(store)

    return find


def uncast(store: Op) -> Value:
    value: Value = store.value  # type: ignore[attr-defined]
    maker = value.defining_op
    return maker.operands[0] if maker is not None and maker.opcode == "elementwise.cast" else value
