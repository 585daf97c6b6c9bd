"""Kernel parameters: a graph argument becomes the parameters that the text uses of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.tma import TensorMap
from tiledsl.ir.specs import TensorView
from tiledsl.ir.specs import factors_in
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
        self.text: Callable[[Value], str] = repr

    def pointer(self, tensor: Value) -> str:
        """Name of the data pointer of a tensor argument."""
        view = self._views.get(tensor.name)
        if view is not None:
            return self.scalar(self._by_name(view.pointer))
        dtype = tensor_type(tensor, "pointer").dtype

        def made(name: str, arg: str) -> Param:
            return PointerParam(name, arg, dtype)

        if isinstance(tensor.defining_op, Pick):
            return self._entry(tensor, "0pointer", "ptr", made)
        i, arg, stem = self._argument(tensor)
        return self._add(_Key(i, "0pointer"), made(stem, arg))

    def shape(self, tensor: Value, dim: int) -> str:
        """Name of an extent (i64)."""
        view = self._views.get(tensor.name)
        if view is not None:
            extent = view.shape[dim]
            return self._number(UNBOUNDED if extent is None else extent)
        if isinstance(tensor.defining_op, Pick):
            name = f"shape_{dim}"
            return self._entry(tensor, "2shape", name, lambda n, a: ShapeParam(n, a, dim))
        i, arg, stem = self._argument(tensor)
        return self._add(_Key(i, "2shape", (dim,)), ShapeParam(f"{stem}_shape_{dim}", arg, dim))

    def stride(self, tensor: Value, dim: int) -> str:
        """Name of a stride in elements (i64)."""
        view = self._views.get(tensor.name)
        if view is not None:
            return self._number(view.strides[dim])
        if isinstance(tensor.defining_op, Pick):
            name = f"stride_{dim}"
            return self._entry(tensor, "3stride", name, lambda n, a: StrideParam(n, a, dim))
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
        if op.more:
            dtype = tensor_type(op.tensor, "tensor map").dtype
            tensors = (op.tensor, *op.more)
            return self._table(
                tensors,
                "1map",
                "map",
                form,
                lambda n, a: TensorMapParam(n, a, dtype, *form, in_table=True),
            )
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

    def _entry(self, tensor: Value, kind: str, what: str, made: Callable[[str, str], Param]) -> str:
        """The entry of a table that a picked tensor has."""
        op = tensor.defining_op
        assert isinstance(op, Pick)
        return f"{self._table(op.tensors, kind, what, (), made)}.at[{self.text(op.index)}]"

    def _table(
        self,
        tensors: tuple[Value, ...],
        kind: str,
        what: str,
        form: tuple[object, ...],
        made: Callable[[str, str], Param],
    ) -> str:
        """Name of a table with a parameter of each tensor, which lie one after the other.

        The first one has the name, the others have none.
        """
        first, _, stem = self._argument(tensors[0])
        base = f"{stem.removesuffix('_0')}_{what}s"
        text = repr(form)
        forms = [
            k.detail[1]
            for k in self._params
            if (k.arg, k.kind, k.detail[:1], k.detail[2:]) == (first, kind, (base,), ("0000",))
        ]
        if text in forms:
            return self._params[_Key(first, kind, (base, text, "0000"))].name  # type: ignore[union-attr]
        name = f"{base}_{len(forms) + 1}" if forms else base
        for i, tensor in enumerate(tensors):
            key = _Key(first, kind, (base, text, f"{i:04d}"))
            self._params[key] = made("" if i else name, self._argument(tensor)[1])
        return name

    def _by_name(self, name: str) -> Value:
        return next(v for v, i in self._index.items() if self._arg_names[i] == name)

    def _number(self, item: int | str) -> str:
        """An extent or a stride of a view, as i64."""
        number, names = factors_in(item)
        factors = [f"(i64){self.scalar(self._by_name(name))}" for name in names]
        if number != 1 or not factors:
            factors = [f"{number}ll", *factors]
        return factors[0] if len(factors) == 1 else f"({' * '.join(factors)})"

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


def declarations(params: tuple[Param, ...]) -> str:
    """The signature of a kernel; parameters without a name belong to the table before them."""
    out: list[str] = []
    for i, param in enumerate(params):
        rest = itertools.takewhile(lambda p: not p.name, params[i + 1 :])
        count = 1 + sum(1 for _ in rest)
        if param.name:
            out.append(declaration(param) if count == 1 else table_declaration(param, count))
    return ", ".join(out)


def table_declaration(param: Param, count: int) -> str:
    """A table of parameters of one kind."""
    match param:
        case PointerParam():
            kind = f"{memory_type(param.dtype)}*"
        case TensorMapParam():
            kind = "TensorMap"
        case _:
            kind = "i64"
    return f"const __grid_constant__ Table<{kind}, {count}> {param.name}"


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
