"""Kernel parameters: a graph argument becomes the parameters that the text uses of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.module import GridParam
from tiledsl.codegen.module import LaunchSlotParam
from tiledsl.codegen.module import Param
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.codegen.names import Names
from tiledsl.errors import InternalError
from tiledsl.ir.op import Value
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.tma import TensorMap
from tiledsl.ir.specs import TensorView
from tiledsl.ir.types import ScalarType

__all__ = ["Params", "declaration"]

UNBOUNDED = 2**31 - 1
"""Extent of a dimension that a kernel does not check."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What a parameter stands for."""

    arg: int
    kind: str
    detail: tuple[object, ...] = ()


class Params:
    """Hands out parameters on first use.

    `ordered()` lists them in the order of the user's arguments.
    """

    def __init__(
        self,
        args: tuple[Value, ...],
        arg_names: tuple[str, ...],
        names: Names,
        views: tuple[TensorView, ...] = (),
    ) -> None:
        if len(args) != len(arg_names):
            raise InternalError(f"{len(args)} arguments but {len(arg_names)} argument names")
        self._index = {value: i for i, value in enumerate(args)}
        self._arg_names = arg_names
        self._names = names
        self._stems = [names.exact(name) for name in arg_names]
        self._views = {v.name: v for v in views}
        self._params: dict[_Key, Param] = {}

    def pointer(self, tensor: Value) -> str:
        """Name of the data pointer of a tensor argument."""
        view = self._views.get(tensor.name)
        if view is not None:
            return self.scalar(self._by_name(view.pointer))
        i, arg, stem = self._argument(tensor)
        dtype = tensor_type(tensor, "pointer").dtype
        return self._add(_Key(i, "0pointer"), PointerParam(stem, arg, dtype))

    def shape(self, tensor: Value, dim: int) -> str:
        """Name of an extent (i64)."""
        view = self._views.get(tensor.name)
        if view is not None:
            extent = view.shape[dim]
            return self._number(UNBOUNDED if extent is None else extent)
        i, arg, stem = self._argument(tensor)
        return self._add(_Key(i, "2shape", (dim,)), ShapeParam(f"{stem}_shape_{dim}", arg, dim))

    def stride(self, tensor: Value, dim: int) -> str:
        """Name of a stride in elements (i64)."""
        view = self._views.get(tensor.name)
        if view is not None:
            return self._number(view.strides[dim])
        i, arg, stem = self._argument(tensor)
        return self._add(_Key(i, "3stride", (dim,)), StrideParam(f"{stem}_stride_{dim}", arg, dim))

    def scalar(self, value: Value) -> str:
        """Name of a scalar argument."""
        i, arg, stem = self._argument(value)
        assert isinstance(value.type, ScalarType)
        if value.type.dtype.element is not None:
            return self._add(_Key(i, "0pointer"), PointerParam(stem, arg, value.type.dtype.element))
        return self._add(_Key(i, "0scalar"), ScalarParam(stem, arg, value.type.dtype))

    def tensor_map(self, op: TensorMap) -> str:
        """Name of a tensor map; equal maps of one tensor are one parameter."""
        i, arg, stem = self._argument(op.tensor)
        form = (op.dims, op.box, op.swizzle_bytes, op.l2_promotion_bytes)
        key = _Key(i, "1map", form)
        if key in self._params:
            return self._params[key].name
        count = sum(k.arg == i and k.kind == "1map" for k in self._params)
        name = f"{stem}_map" if count == 0 else f"{stem}_map_{count + 1}"
        dtype = tensor_type(op.tensor, "tensor map").dtype
        view = self._views.get(op.tensor.name)
        if view is None:
            return self._add(key, TensorMapParam(name, arg, dtype, *form))
        shape = tuple(UNBOUNDED if n is None else n for n in view.shape)
        return self._add(
            key, TensorMapParam(name, view.pointer, dtype, *form, shape=shape, strides=view.strides)
        )

    def _by_name(self, name: str) -> Value:
        return next(v for v, i in self._index.items() if self._arg_names[i] == name)

    def _number(self, item: int | str) -> str:
        """An extent or a stride of a view, as i64."""
        if isinstance(item, int):
            return f"{item}ll"
        return f"(i64){self.scalar(self._by_name(item))}"

    def grid(self, axis: int) -> str:
        """Name of an extent of the user's grid (i32)."""
        return self._add(
            _Key(len(self._arg_names), "grid", (axis,)), GridParam(f"grid_{axis}", axis)
        )

    def launch_slot(self) -> str:
        """Name of the index of this launch's tile counter (i32)."""
        return self._add(_Key(len(self._arg_names), "slot"), LaunchSlotParam("launch_slot"))

    @property
    def has_launch_slot(self) -> bool:
        """Whether the kernel draws its tiles from a counter."""
        return any(isinstance(p, LaunchSlotParam) for p in self._params.values())

    def ordered(self) -> tuple[Param, ...]:
        """All parameters in use: by argument, then pointer, maps, extents, strides.

        The grid last.
        """
        keys = sorted(self._params, key=lambda k: (k.arg, k.kind, repr(k.detail)))
        return tuple(self._params[k] for k in keys)

    def _argument(self, value: Value) -> tuple[int, str, str]:
        if value not in self._index:
            raise InternalError(f"{value!r} is no kernel argument")
        i = self._index[value]
        return i, self._arg_names[i], self._stems[i]

    def _add(self, key: _Key, param: Param) -> str:
        return self._params.setdefault(key, param).name


def declaration(param: Param) -> str:
    """The parameter in the kernel's signature."""
    match param:
        case PointerParam():
            return f"{memory_type(param.dtype)}* {param.name}"
        case ShapeParam() | StrideParam():
            return f"i64 {param.name}"
        case ScalarParam():
            return f"{memory_type(param.dtype)} {param.name}"
        case GridParam() | LaunchSlotParam():
            return f"int {param.name}"
        case TensorMapParam():
            return f"const __grid_constant__ TensorMap {param.name}"
        case _:
            assert_never(param)
