"""The signature of a kernel: kinds of parameters, annotations, defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Literal

from tiledsl.dtypes import BY_USER_NAME
from tiledsl.dtypes import DType
from tiledsl.errors import SyntaxNotSupported
from tiledsl.frontend.source import plain_function
from tiledsl.frontend.source import source_of
from tiledsl.ir.markers import Tensor
from tiledsl.ir.markers import TensorList
from tiledsl.ir.markers import constexpr
from tiledsl.ir.markers import unwrap

ParameterKind = Literal["run-time", "constexpr"]
Annotation = Literal["tensor", "tensors", "constexpr"] | DType | None


class Missing:
    """The default of a parameter that has none."""

    def __repr__(self) -> str:
        return "<no default>"


MISSING = Missing()


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    annotation: "tensor", "tensors", "constexpr", a dtype that fixes a scalar's type, or None for
    anything else.
    default: `MISSING`, an `Auto`, or a Python value.
    """

    name: str
    kind: ParameterKind
    annotation: Annotation
    default: object = MISSING

    @property
    def is_constexpr(self) -> bool:
        return self.kind == "constexpr"

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING


@dataclass(frozen=True)
class Signature:
    """A kernel's name and parameters, in order."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.names)})"


def signature_of(fn: Callable[..., object]) -> Signature:
    """The parameters of a kernel: kinds, annotations, defaults.

    Raises: SyntaxNotSupported for `*args`, `**kwargs` and things that are no function.
    """
    function = plain_function(fn)
    if function is None:
        raise SyntaxNotSupported(f"a kernel must be a Python function, got {fn!r}")
    return _signature_of(function)


@lru_cache(maxsize=1024)
def _signature_of(function: FunctionType) -> Signature:
    parameters: list[Parameter] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise SyntaxNotSupported(
                f"{function.__name__}(): a kernel has a fixed list of parameters, got {p}",
                source_of(function).loc(source_of(function).node),
            )
        annotation = _annotation(p.annotation)
        default = MISSING if p.default is p.empty else unwrap(p.default)
        kind: ParameterKind = "constexpr" if annotation == "constexpr" else "run-time"
        parameters.append(Parameter(p.name, kind, annotation, default))
    return Signature(function.__name__, tuple(parameters))


def item_name(name: str, number: int) -> str:
    """The name of the argument that a tensor of a list is."""
    return f"{name}_{number}"


def _annotation(given: object) -> Annotation:
    if given is constexpr or isinstance(given, constexpr):
        return "constexpr"
    if given is Tensor:
        return "tensor"
    if given is TensorList:
        return "tensors"
    if isinstance(given, DType):
        return given
    if isinstance(given, str):
        last = given.strip("'\" ").rsplit(".", 1)[-1]
        if last == "constexpr":
            return "constexpr"
        if last == "Tensor":
            return None if given.strip("'\" ").startswith("torch.") else "tensor"
        return "tensors" if last == "TensorList" else BY_USER_NAME.get(last)
    return None
