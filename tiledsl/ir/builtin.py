"""The decorator of functions that kernels call: `tl.dot`, `x.to(...)`, `a.load(...)`.

A builtin stands beside the op it makes, takes the Builder as a hidden first parameter, and is found
by the frontend as an object, so adding one means writing one function:

    @builtin(methods=(TileType, ScalarType))
    def exp(b: Builder, x: Operand) -> Value: ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Concatenate
from typing import Generic
from typing import ParamSpec
from typing import TypeVar
from typing import cast
from typing import overload

from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.ir.builder import Builder
    from tiledsl.ir.types import Type

P = ParamSpec("P")
R = TypeVar("R")

_METHODS: dict[tuple[type[Type], str], Builtin[..., object]] = {}


class Builtin(Generic[P, R]):
    """A function of the language.

    Calling it outside a kernel is an error unless `on_host` is given.
    """

    def __init__(
        self, fn: Callable[Concatenate[Builder, P], R], on_host: Callable[..., R] | None
    ) -> None:
        self.fn = fn
        self.on_host = on_host
        self.name = fn.__name__
        functools.update_wrapper(self, fn)
        parameters = list(inspect.signature(fn).parameters.values())[1:]
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the host's version, if there is one."""
        if self.on_host is not None:
            return self.on_host(*args, **kwargs)
        raise TileError(
            f"tl.{self.name}() was called outside a kernel",
            hint="call it in a function decorated with @tiledsl.jit, "
            "and launch that as kernel[grid](...)",
        )

    def __repr__(self) -> str:
        return f"<builtin tl.{self.name}>"


@overload
def builtin(fn: Callable[Concatenate[Builder, P], R], /) -> Builtin[P, R]: ...
@overload
def builtin(
    *,
    methods: tuple[type[Type], ...] = (),
    also: tuple[str, ...] = (),
    on_host: Callable[..., object] | None = None,
) -> Callable[[Callable[Concatenate[Builder, P], R]], Builtin[P, R]]: ...
def builtin(
    fn: Callable[Concatenate[Builder, P], R] | None = None,
    /,
    *,
    methods: tuple[type[Type], ...] = (),
    also: tuple[str, ...] = (),
    on_host: Callable[..., object] | None = None,
) -> object:
    """Marks a function as part of the language.

    Args:
        fn: the function; its first parameter is the Builder, which users do not see.
        methods: types of values that have the function as a method; the value is its first
            argument.
        also: other names of the method.
        on_host: what a call outside a kernel does; None for an error.
    """

    def mark(function: Callable[Concatenate[Builder, P], R]) -> Builtin[P, R]:
        made: Builtin[P, R] = Builtin(function, on_host)  # type: ignore[arg-type]
        for type_ in methods:
            for name in (made.name, *also):
                _METHODS[type_, name] = cast("Builtin[..., object]", made)
        return made

    return mark if fn is None else mark(fn)


def _load() -> None:
    """Imports every module that declares methods."""
    from tiledsl.ir.op import registry

    registry()


def method_of(type_: Type, name: str) -> Builtin[..., object] | None:
    """The builtin that is method `name` of values of a type, or None."""
    _load()
    return _METHODS.get((type(type_), name))


def method_names(type_: Type) -> list[str]:
    """Names of all methods of values of a type, sorted."""
    _load()
    return sorted(name for owner, name in _METHODS if owner is type(type_))
