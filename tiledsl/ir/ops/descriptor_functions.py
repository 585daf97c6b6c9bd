"""Methods of tensor descriptors that the host made: block loads and stores of an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import LanguageObject
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.ops import memory
from tiledsl.ir.types import TensorType

Offsets = Sequence[Operand]


@dataclass(frozen=True, eq=False)
class HostDescriptor(LanguageObject):
    """A tensor argument with the block shape in which it is read and written.

    shape, strides: scalars of the kernel.  padding: what loads give outside, "zero" or "nan".
    """

    tensor: Value
    block_shape: tuple[int, ...]
    padding: str
    shape: tuple[Value, ...]
    strides: tuple[Value, ...]

    @property
    def is_descriptor(self) -> bool:
        """It is one."""
        return True

    @staticmethod
    def of(b: Builder, tensor: Value, block_shape: tuple[int, ...], padding: str) -> HostDescriptor:
        """The descriptor of a tensor argument."""
        assert isinstance(tensor.type, TensorType)
        dims = range(tensor.type.rank)
        shape = tuple(b.value(memory.Shape(tensor, d)) for d in dims)
        strides = tuple(b.value(memory.Stride(tensor, d)) for d in dims)
        return HostDescriptor(tensor, block_shape, padding, shape, strides)

    def member(self, name: str) -> object:
        """Attributes and methods in kernels."""
        assert isinstance(self.tensor.type, TensorType)
        facts: dict[str, object] = {
            "shape": self.shape,
            "strides": self.strides,
            "block_shape": self.block_shape,
            "dtype": self.tensor.type.dtype,
        }
        methods: dict[str, Any] = {"load": load, "store": store}
        if name in methods:
            return LanguageObject.method(methods[name], self)
        return facts.get(name, LanguageObject.MISSING)


@builtin
def load(b: Builder, desc: HostDescriptor, offsets: Offsets) -> Value:
    """The block at offsets; outside the tensor it holds zeros (or NaN, see the descriptor)."""
    other = float("nan") if desc.padding == "nan" else None
    if other is not None and not desc.member("dtype").is_float:  # type: ignore[attr-defined]
        raise TypeMismatch(f"load(): padding 'nan' needs floats, got {desc.member('dtype')!r}")
    return memory.load.fn(b, desc.tensor, offsets, desc.block_shape, other)


@builtin
def store(b: Builder, desc: HostDescriptor, offsets: Offsets, value: Operand) -> None:
    """Writes a tile at offsets, cast to the tensor's type; what lies outside is dropped."""
    memory.store.fn(b, desc.tensor, offsets, value)
