"""Maps over pairs of registers: words of two 16-bit floats."""

from __future__ import annotations

import re

from tiledsl.codegen.cpp import literal
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.types import ScalarType


def is_of_pairs(op: Op) -> bool:
    """Whether an op stands in the body of a map over pairs."""
    around = op.parent.parent if op.parent is not None else None
    return isinstance(around, Map) and around.pairs


def pair_of_tile(e: Emission, value: Value, index: str, counter: str) -> str:
    """Two elements of a tile. index: of the first, by a register counter."""
    following = re.sub(rf"\b{counter}\b", f"({counter} + 1)", index)
    return f"pair_at({e.text(value)}, {index}, {following})"


def pair_of_scalar(e: Emission, value: Value) -> str:
    """A scalar twice."""
    assert isinstance(value.type, ScalarType)
    return f"pair_of<{memory_type(value.type.dtype)}>({e.text(value)})"


def pair_math(e: Emission, op: Op, name: str) -> str:
    """`mul_pair<f16>(pair_at(b_1, i, (i + 1)), pair_of<f16>(0.5f))`."""
    type_ = op.results[0].type
    assert isinstance(type_, ScalarType)
    texts: list[str] = []
    for value in op.operands:
        constant = constant_value(value)
        if constant is None:
            texts.append(e.text(value))
        else:
            texts.append(f"pair_of<{memory_type(type_.dtype)}>({literal(constant, type_.dtype)})")
    return f"{name}_pair<{memory_type(type_.dtype)}>({', '.join(texts)})"
