"""Pointers where numbers are wanted: the error, and the hint that reads what they point to.

A pointer used as a value is nearly always a forgotten `tl.load`. It converts to another type only
where the source says so: `x.to(tl.int64)`, `address.to(tl.pointer_type(tl.float32))`. As a
condition, an argument says whether it was given: `if bias_ptr:`.
"""

from __future__ import annotations

from tiledsl.dtypes import DType
from tiledsl.errors import TypeMismatch
from tiledsl.ir.op import Value
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

_SIGNS = {"elementwise.add": "+", "elementwise.sub": "-", "elementwise.mul": "*"}
_VIEWS = ("elementwise.cast", "tile.splat", "tile.broadcast")
_DEEPEST = 8


def pointer_dtype(x: object) -> DType | None:
    """The dtype of a pointer or a tile of pointers; None for anything else."""
    if isinstance(x, Value) and isinstance(x.type, ScalarType | TileType):
        return x.type.dtype if x.type.dtype.is_pointer else None
    return None


def truth(x: object) -> object:
    """What decides a condition: True for an argument that is a pointer, which was given then.

    Anything else stays what it is. A parameter that got None is None, and decides as such.
    """
    if isinstance(x, Value) and x.is_argument and isinstance(x.type, ScalarType):
        return True if x.type.dtype.is_pointer else x
    return x


def need_numbers(what: str, *xs: object) -> None:
    """Raises TypeMismatch where one of the operands is a pointer or a tile of pointers."""
    for x in xs:
        if isinstance(x, Value) and pointer_dtype(x) is not None:
            raise not_a_number(x, what)


def not_a_number(x: Value, what: str) -> TypeMismatch:
    """The error for a pointer where numbers are wanted."""
    assert isinstance(x.type, ScalarType | TileType)
    wanted = "a tile of numbers" if isinstance(x.type, TileType) else "a number"
    return TypeMismatch(f"{what}: expected {wanted}, got {spelled(x.type)}", hint=read_hint(x))


def spelled(type_: ScalarType | TileType) -> str:
    """How error messages call a pointer or a tile of pointers."""
    element = type_.dtype.element
    if isinstance(type_, TileType):
        return f"a tile of shape {list(type_.shape)} of pointers to {element!r}"
    return f"a pointer to {element!r}"


def read_hint(x: Value) -> str:
    """How to get the numbers that a pointer or a tile of pointers points to."""
    if x.defining_op is None and x.name and isinstance(x.type, ScalarType):
        return (
            f"the argument {x.name!r} is a tensor, and so a pointer: pass {x.name}.item(), "
            f"or read it with tl.load({x.name})"
        )
    return f"tl.load({_source(x)}) reads {'them' if isinstance(x.type, TileType) else 'it'}"


def _source(x: Value) -> str:
    """An expression like the one that made a pointer, by the names of its variables."""
    if x.name:
        return x.name
    op = x.defining_op
    if op is None or not op.operands:
        return "pointer"
    base = _source(op.operands[0])
    if op.opcode != "pointer.add":
        return base
    offset = _offset(op.operands[1], _DEEPEST) or "offsets"
    return base if base.endswith(offset) and offset == "offsets" else f"{base} + {offset}"


def _offset(x: Value, depth: int) -> str | None:
    """An offset by the names of variables; None where it has a part without one."""
    op = x.defining_op
    if x.name:
        return x.name
    if op is None or depth == 0:
        return None
    if op.opcode in _VIEWS:
        return _offset(op.operands[0], depth - 1)
    if op.opcode == "elementwise.constant":
        return str(op.attributes["value"])
    if op.opcode == "tile.expand_dims" and isinstance(op.result.type, TileType):
        inner = _offset(op.operands[0], depth - 1)
        axes = [":"] * op.result.type.rank
        axes[op.attributes["axis"]] = "None"
        return f"{inner}[{', '.join(axes)}]" if inner else None
    sides = [_offset(v, depth - 1) for v in op.operands] if op.opcode in _SIGNS else [None]
    if None in sides:
        return None
    text = f" {_SIGNS[op.opcode]} ".join(s for s in sides if s)
    return f"({text})" if depth < _DEEPEST and op.opcode != "elementwise.mul" else text
