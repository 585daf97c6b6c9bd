"""Names that mean something to the frontend and make no op: annotations, constants, loop ranges."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

import numpy as np

from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.ir.op import Value


class Tensor:
    """Annotation of a kernel parameter that is a strided tensor in global memory.

    In a kernel `a.shape[i]`, `a.shape`, `a.stride(i)`, `a.strides`, `a.ndim`, `a.dtype`,
    `a.load(offsets, block_shape)` and `a.store(offsets, tile)` are available.
    """

    dtype: Any
    ndim: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __init__(self) -> None:
        raise TileError("tl.Tensor is an annotation; pass torch tensors to a kernel")

    def stride(self, dim: int) -> int:
        """Stride of a dimension, in elements."""
        raise NotImplementedError

    def load(self, offsets: Sequence[Any], block_shape: Sequence[int], other: Any = None) -> Any:
        """The block of `block_shape` at `offsets`; `other` (0 if None) outside the tensor."""
        raise NotImplementedError

    def store(self, offsets: Sequence[Any], value: Any) -> None:
        """Writes a tile at `offsets`, cast to the tensor's dtype; what lies outside is dropped."""
        raise NotImplementedError


class tensor:  # noqa: N801
    """Annotation, and class for `isinstance`: any run-time value (a tile or a scalar)."""


class tensor_descriptor:  # noqa: N801
    """Class for `isinstance`: a descriptor, made on the host or in the kernel."""


class constexpr:  # noqa: N801
    """A compile-time constant.

    As an annotation of a parameter: the argument is part of the kernel's identity.
    `tl.constexpr(v)` at module level makes a constant that kernels may capture; Python's operators
    on it give constants.
    """

    def __init__(self, value: object) -> None:
        self.value: Any = value.value if isinstance(value, constexpr) else value

    def __repr__(self) -> str:
        return f"constexpr[{self.value!r}]"

    def __eq__(self, other: object) -> bool:
        return bool(self.value == unwrap(other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __index__(self) -> int:
        return self.value.__index__()

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __neg__(self) -> constexpr:
        return constexpr(-self.value)


def _arithmetic(name: str) -> None:
    """Python's operator between constants, or a constant and a number: a constant."""
    function: Any = getattr(operator, f"__{name}__")

    def forward(self: constexpr, other: object) -> constexpr:
        return constexpr(function(self.value, unwrap(other)))

    def backward(self: constexpr, other: object) -> constexpr:
        return constexpr(function(unwrap(other), self.value))

    setattr(constexpr, f"__{name}__", forward)
    setattr(constexpr, f"__r{name}__", backward)


def _order(name: str) -> None:
    function: Any = getattr(operator, name)

    def compare(self: constexpr, other: object) -> bool:
        return bool(function(self.value, unwrap(other)))

    setattr(constexpr, f"__{name}__", compare)


for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or",
    "xor",
):  # fmt: skip
    _arithmetic(_name)
for _name in ("lt", "le", "gt", "ge"):
    _order(_name)


def unwrap(value: Any) -> Any:
    """The value inside a `constexpr`, and NumPy's numbers as Python's; anything else as it is.

    So in tuples and lists, which stay what they are where nothing in them changes.
    """
    if isinstance(value, constexpr):
        value = value.value
    if isinstance(value, _NUMBERS):
        return cast("Any", value.item())
    if type(value) in (tuple, list):
        items = cast("Sequence[Any]", value)
        found = [unwrap(v) for v in items]
        if any(x is not y for x, y in zip(found, items, strict=True)):
            return tuple(found) if isinstance(value, tuple) else found
    return value


_NUMBERS = (np.bool_, np.integer, np.floating)


class TensorList:
    """Annotation of a kernel parameter that is a list of tensors of one rank and dtype.

    In a kernel it is a tuple of them: `len(a)`, `a[0]`; an index that is known at run time only
    picks one too, `a[i].load(...)`, `a[i].shape[0]`.
    """

    def __init__(self) -> None:
        raise TileError("tl.TensorList is an annotation; pass a list of torch tensors to a kernel")


class LanguageObject:
    """A compile-time object with members of its own in kernels, such as a block pointer."""

    __slots__ = ()
    MISSING = object()

    @property
    def is_descriptor(self) -> bool:
        """Whether this is a `tl.tensor_descriptor`."""
        return False

    def member(self, name: str) -> object:
        """An attribute, a bound method, or `MISSING`."""
        raise NotImplementedError(name)

    @staticmethod
    def method(function: Any, owner: object) -> ObjectMethod:
        """A builtin with its first argument bound."""
        return ObjectMethod(function, owner)


@dataclass(frozen=True, eq=False)
class ObjectMethod:
    """A builtin of the language with the object it is a method of."""

    function: Any
    owner: object


@dataclass(frozen=True)
class Auto:
    """Default of a constexpr parameter that the compiler picks per launch.

    For tiles whose number the grid follows (a function of the meta-parameters), or a loop. What
    only says how large a tile is, such as the width of a row that one program has to hold, is
    refused.

    choices: the values to choose from; empty when every legal value is allowed.
    """

    choices: tuple[int, ...] = ()

    def __call__(self, *choices: int) -> Auto:
        """`tl.auto(64, 128, 192)`: one of these."""
        if not choices:
            raise TileError("tl.auto() needs at least one choice; write tl.auto for any value")
        values = tuple(unwrap(c) for c in choices)
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool):
                raise TileError(f"tl.auto(): choices are ints, got {value!r}")
        return Auto(values)


auto = Auto()


class PropagateNan(Enum):
    """What `maximum`, `minimum`, `clamp` make of NaN: NONE the other operand, ALL NaN."""

    NONE = "none"
    ALL = "all"


@dataclass(frozen=True, eq=False)
class RangeSpec:
    """What `range`, `tl.range` and `tl.static_range` return in a kernel.

    unroll: the factor asked for, 1 for none, 0 for full.  is_static: expanded by the frontend.
    """

    lower: Value | int
    upper: Value | int
    step: Value | int
    unroll: int = 1
    is_static: bool = False
