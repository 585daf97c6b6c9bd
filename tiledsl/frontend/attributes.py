"""Attributes and subscripts: `a.shape[0]`, `x.dtype`, `x.T`, `x[:, None]`, `tl.name`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any
from typing import cast

import ml_dtypes

from tiledsl.dtypes import DType
from tiledsl.errors import NameUnresolved
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.dispatch import evaluate
from tiledsl.frontend.dispatch import expression
from tiledsl.frontend.dispatch import fold
from tiledsl.frontend.hints import did_you_mean
from tiledsl.frontend.scope import Frame
from tiledsl.frontend.scope import may_capture
from tiledsl.frontend.unsupported import LANGUAGE_MODULE
from tiledsl.frontend.unsupported import capture_hint
from tiledsl.frontend.unsupported import language_hint
from tiledsl.frontend.unsupported import missing_name
from tiledsl.ir.broadcasting import shape_of
from tiledsl.ir.builtin import Builtin
from tiledsl.ir.builtin import method_names
from tiledsl.ir.builtin import method_of
from tiledsl.ir.markers import LanguageObject
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Value
from tiledsl.ir.operands import axis_argument
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import constant
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_number
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.operands import literal_dtype
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Stride
from tiledsl.ir.ops.tile import expand_dims
from tiledsl.ir.ops.tile import trans
from tiledsl.ir.pointer_values import pointer_dtype
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type


@dataclass(frozen=True, eq=False)
class BoundMethod:
    """A builtin with the value it is a method of."""

    function: Builtin[..., object]
    value: Value


_FLOATS: Callable[..., Any] = ml_dtypes.finfo


def _finfo(dtype: DType, name: str) -> float:
    if not dtype.is_float:
        raise NameUnresolved(f"{dtype!r} has no attribute {name!r}")
    return float(getattr(_FLOATS(dtype.numpy), name))


_DTYPE_FACTS: dict[str, Callable[[DType], object]] = {
    "bits": lambda d: d.bits,
    "element_ty": lambda d: d,
    "eps": lambda d: _finfo(d, "eps"),
    "fp_mantissa_width": lambda d: d.mantissa_bits,
    "int_bitwidth": lambda d: d.bits,
    "itemsize": lambda d: d.bytes,
    "name": lambda d: d.name,
    "primitive_bitwidth": lambda d: d.bits,
    "scalar": lambda d: d,
    "tiny": lambda d: _finfo(d, "tiny"),
}
_DTYPE_PREDICATES: dict[str, Callable[[DType], bool]] = {
    "is_bf16": lambda d: d.name == "bf16",
    "is_block": lambda d: False,
    "is_bool": lambda d: d.kind == "bool",
    "is_floating": lambda d: d.is_float,
    "is_fp16": lambda d: d.name == "f16",
    "is_fp32": lambda d: d.name == "f32",
    "is_fp64": lambda d: d.name == "f64",
    "is_fp8": lambda d: d.is_fp8,
    "is_int": lambda d: d.is_int or d.kind == "bool",
    "is_int16": lambda d: d.name == "i16",
    "is_int32": lambda d: d.name == "i32",
    "is_int64": lambda d: d.name == "i64",
    "is_int8": lambda d: d.name == "i8",
    "is_int_signed": lambda d: d.kind == "int",
    "is_int_unsigned": lambda d: d.kind in ("uint", "bool"),
    "is_ptr": lambda d: d.is_pointer,
    "is_uint16": lambda d: d.name == "u16",
    "is_uint32": lambda d: d.name == "u32",
    "is_uint64": lambda d: d.name == "u64",
    "is_uint8": lambda d: d.name == "u8",
}
_ATTRIBUTES: dict[type[Type], tuple[str, ...]] = {
    ScalarType: ("dtype", "ndim", "shape", "type"),
    TensorType: ("dtype", "ndim", "shape", "strides"),
    TileType: ("T", "dtype", "ndim", "numel", "shape", "type"),
}


@expression(ast.Attribute)
def lower_attribute(frame: Frame, node: ast.Attribute) -> object:
    """`base.name`."""
    base = evaluate(frame, node.value)
    if isinstance(base, Value):
        return _value_attribute(frame, node, base)
    if isinstance(base, DType):
        return _dtype_attribute(base, node.attr)
    if isinstance(base, LanguageObject):
        return _member(base, node.attr)
    if isinstance(base, ModuleType):
        return _module_attribute(frame, node, base)
    if isinstance(base, Enum | type | str) or is_number(base) or is_sequence(base):
        found = cast("object", getattr(base, node.attr, frame))
        if isinstance(base, type) and found is not frame:
            return frame.session.capture(base.__qualname__, node.attr, unwrap(found))
        if found is not frame:
            return unwrap(found)
        if node.attr == "value":
            return base  # of a tl.constexpr, which is unwrapped already
    method = _number_method(frame, node, base) if is_number(base) else None
    if method is None:
        raise NameUnresolved(f"{describe(base)} has no attribute {node.attr!r}")
    return method


def _number_method(
    frame: Frame, node: ast.Attribute, base: bool | int | float
) -> BoundMethod | None:
    """`x.to(tl.float32)` after `x = float("-inf")`, which is a scalar in Triton."""
    dtype = literal_dtype(base)
    method = method_of(ScalarType(dtype), node.attr)
    return None if method is None else BoundMethod(method, constant(frame.mark(node), base, dtype))


def _member(base: LanguageObject, name: str) -> object:
    found = base.member(name)
    if found is LanguageObject.MISSING:
        raise NameUnresolved(f"{describe(base)} has no attribute {name!r}")
    return found


def _value_attribute(frame: Frame, node: ast.Attribute, value: Value) -> object:
    fact = _value_fact(frame, node, value)
    if fact is not None:
        return fact
    method = method_of(value.type, node.attr)
    if method is not None:
        return BoundMethod(method, value)
    known = _ATTRIBUTES.get(type(value.type), ())
    hint = did_you_mean(node.attr, [*known, *method_names(value.type)])
    hint = language_hint(node.attr) or hint
    of_tensor = (*_ATTRIBUTES[TensorType], "load", "store", "stride")
    if node.attr in of_tensor and pointer_dtype(value) and isinstance(value.type, ScalarType):
        hint = _annotation_hint(value)
    raise NameUnresolved(f"{describe(value)} has no attribute {node.attr!r}", hint=hint)


def _annotation_hint(pointer: Value) -> str:
    name = pointer.name or "x"
    return f"annotate the parameter: `{name}: tl.Tensor`; without it is a pointer"


def refuse_extents_of_pointer(base: object, attribute: str) -> None:
    """Refuses an index into `pointer.shape`, which is () as that of any scalar."""
    if isinstance(base, Value) and pointer_dtype(base) is not None:
        raise TypeMismatch(
            f"{describe(base)} has no extents: its {attribute} is ()", hint=_annotation_hint(base)
        )


def _value_fact(frame: Frame, node: ast.Attribute, value: Value) -> object:
    """An attribute that is no method; None when there is none of this name."""
    match value.type, node.attr:
        case TensorType(rank=rank), "shape" | "strides":
            return tuple(_extent(frame, node, value, dim) for dim in range(rank))
        case ((TensorType(dtype=dtype) | TileType(dtype=dtype) | ScalarType(dtype=dtype)), "dtype"):
            return dtype
        case ScalarType(dtype=dtype), "type":
            return dtype
        case TileType(shape=shape, dtype=dtype), "type":
            return BlockType(dtype, shape)
        case ((TensorType(rank=rank) | TileType(rank=rank)), "ndim"):
            return rank
        case TileType(shape=shape), "shape":
            return shape
        case TileType(num_elements=count), "numel":
            return count
        case TileType(), "T":
            return trans.fn(frame.mark(node), value)
        case ScalarType(), "ndim" | "shape":
            return 0 if node.attr == "ndim" else ()
        case _:
            return None


def _extent(frame: Frame, node: ast.Attribute, tensor: Value, dim: int) -> Value:
    op = Shape if node.attr == "shape" else Stride
    builder = frame.mark(node)
    return builder.value(op(tensor, dim))


@dataclass(frozen=True)
class BlockType(LanguageObject):
    """The type of a tile, as `x.type` gives it."""

    dtype: DType
    shape: tuple[int, ...]

    def member(self, name: str) -> object:
        """The element type, the shape, or an attribute of the element type."""
        if name in ("element_ty", "scalar"):
            return self.dtype
        if name == "shape":
            return self.shape
        return DtypePredicate(True) if name == "is_block" else _dtype_attribute(self.dtype, name)


def _dtype_attribute(dtype: DType, name: str) -> object:
    if name == "element_ty" and dtype.element is not None:
        return dtype.element
    if name == "value":
        return dtype  # of a tl.constexpr, which is unwrapped already
    if name in _DTYPE_FACTS:
        return _DTYPE_FACTS[name](dtype)
    if name in _DTYPE_PREDICATES:
        predicate = _DTYPE_PREDICATES[name]
        return DtypePredicate(predicate(dtype))
    raise NameUnresolved(
        f"a dtype has no attribute {name!r}",
        hint=did_you_mean(name, [*_DTYPE_FACTS, *_DTYPE_PREDICATES]),
    )


@dataclass(frozen=True)
class DtypePredicate:
    """`dtype.is_floating`, which is called without arguments."""

    result: bool


def _module_attribute(frame: Frame, node: ast.Attribute, module: ModuleType) -> object:
    found = cast("object", getattr(module, node.attr, frame))
    if found is frame:
        spelled = ast.unparse(node)
        raise missing_name(node.attr, spelled, module)
    if not may_capture(found):
        raise TypeMismatch(
            f"{ast.unparse(node)} is a {type(found).__name__}, which a kernel cannot capture",
            hint=capture_hint(found),
        )
    if module.__name__ == LANGUAGE_MODULE:
        return unwrap(found)
    return frame.session.capture(module.__name__, node.attr, unwrap(found))


# ---------------------------------------------------------------------- subscripts
@expression(ast.Subscript)
def lower_subscript(frame: Frame, node: ast.Subscript) -> object:
    """`x[:, None]` adds axes to a tile; tuples and shapes take a compile-time index or slice."""
    tensor = _tensor_of_extents(frame, node.value)
    if tensor is not None and not isinstance(node.slice, ast.Slice):
        assert isinstance(node.value, ast.Attribute)
        assert isinstance(tensor.type, TensorType)
        what = f"the index of {ast.unparse(node.value)}"
        index = axis_argument(evaluate(frame, node.slice), tensor.type.rank, what)
        return _extent(frame, node.value, tensor, index)
    base = evaluate(frame, node.value)
    if base == () and isinstance(node.value, ast.Attribute):
        refuse_extents_of_pointer(evaluate(frame, node.value.value), node.value.attr)
    if isinstance(base, Value):
        return _index_value(frame, node, base)
    if not is_sequence(base) and not isinstance(base, str):
        raise TypeMismatch(f"{describe(base)} cannot be subscripted")
    if isinstance(node.slice, ast.Slice):
        bounds = _slice(frame, node.slice)
        return fold(lambda: base[bounds])
    given = evaluate(frame, node.slice)
    tensors = [x for x in base if isinstance(x, Value) and isinstance(x.type, TensorType)]
    if isinstance(given, Value) and tensors and len(tensors) == len(base):
        same = len(tensors) == 1
        return tensors[0] if same else frame.mark(node).value(Pick(given, tuple(tensors)))
    index = compile_time_int(given, "a tuple's index")
    return fold(lambda: base[index])


def _tensor_of_extents(frame: Frame, node: ast.expr) -> Value | None:
    """The tensor t of an expression `t.shape` or `t.strides`: only the wanted extent is read."""
    if not isinstance(node, ast.Attribute) or node.attr not in ("shape", "strides"):
        return None
    if not isinstance(node.value, ast.Name):
        return None
    base = evaluate(frame, node.value)
    return base if isinstance(base, Value) and isinstance(base.type, TensorType) else None


def _slice(frame: Frame, node: ast.Slice) -> slice:
    bounds = [
        None if part is None else evaluate(frame, part)
        for part in (node.lower, node.upper, node.step)
    ]
    return slice(
        *(None if bound is None else compile_time_int(bound, "a slice bound") for bound in bounds)
    )


def _index_value(frame: Frame, node: ast.Subscript, value: Value) -> Value:
    if isinstance(value.type, TensorType):
        raise TypeMismatch(
            f"{describe(value)} cannot be subscripted",
            hint=f"load a block of it: {value.name or 'a'}.load(offsets, block_shape)",
        )
    if pointer_dtype(value) is not None and not _adds_axes(frame, node.slice):
        raise TypeMismatch(
            f"{describe(value)} cannot be subscripted",
            hint=f"tl.load({moved_pointer(node)}) reads what lies there",
        )
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    new_axes = [i for i, item in enumerate(items) if _is_new_axis(frame, item)]
    kept = len(items) - len(new_axes)
    rank = len(shape_of(value) or ())
    if kept > rank:
        raise TypeMismatch(f"{kept} axes are indexed, but {describe(value)} has {rank}")
    return expand_dims.fn(frame.mark(node), value, tuple(new_axes)) if new_axes else value


def moved_pointer(node: ast.Subscript) -> str:
    """`x + i` for `x[i]`, as source."""
    indexes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if len(indexes) != 1 or isinstance(indexes[0], ast.Slice):
        return f"{ast.unparse(node.value)} + offsets"
    return f"{ast.unparse(node.value)} + {ast.unparse(indexes[0])}"


def _adds_axes(frame: Frame, index: ast.expr) -> bool:
    """Whether an index is made of `:` and None."""
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(isinstance(i, ast.Slice) or evaluate(frame, i) is None for i in items)


def _is_new_axis(frame: Frame, item: ast.expr) -> bool:
    if isinstance(item, ast.Slice) and item.lower is item.upper is item.step is None:
        return False
    if not isinstance(item, ast.Slice) and evaluate(frame, item) is None:
        return True
    raise TypeMismatch(
        f"a tile's elements cannot be selected by [{ast.unparse(item)}]: "
        "only `:` and None index a tile",
        hint="load the block that is needed, or choose elements with tl.where",
    )
