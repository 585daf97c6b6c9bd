"""What stands between `kernel[grid](...)` and a kernel: decorators, among them `heuristics`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import cast

from tiledsl.call import OPTIONS
from tiledsl.call import GridLike
from tiledsl.errors import LaunchError
from tiledsl.errors import TypeMismatch
from tiledsl.jit import JitFunction
from tiledsl.runtime.launching import located


class KernelInterface:
    """What is launched as `kernel[grid](...)` and passes the launch on to another kernel."""

    fn: Any
    arg_names: list[str]

    def __getitem__(self, grid: GridLike) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid)

    def run(self, *args: Any, grid: GridLike, warmup: bool = False, **kwargs: Any) -> Any:
        """Launches; with `warmup` compiles only."""
        raise NotImplementedError

    def chosen(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike | None = None
    ) -> dict[str, Any]:
        """The keywords of a launch, with what this decorator chooses."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Everything else is the kernel's; calls that take arguments get the choice too."""
        if name.startswith("__") or name == "fn":
            raise AttributeError(name)
        found = getattr(self.kernel(), name)
        if name not in ("bind", "compile", "cuda", "ptx", "report", "sass", "warmup"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            given = {k: kwargs.pop(k) for k in ("grid", "dump") if k in kwargs}
            return found(*args, **self.chosen(args, kwargs, given.get("grid")), **given)

        return call

    def kernel(self) -> JitFunction:
        """The kernel under all decorators."""
        inner = self.fn
        while isinstance(inner, KernelInterface):
            inner = inner.fn
        return inner

    def _inner(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike | None = None
    ) -> dict[str, Any]:
        """The keywords with what the decorators below choose."""
        is_kernel = not isinstance(self.fn, KernelInterface)
        return kwargs if is_kernel else self.fn.chosen(args, kwargs, grid)

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.arg_names, args, strict=False)), **kwargs}


class Heuristics(KernelInterface):
    """A kernel with constants and launch options that functions of the arguments give."""

    def __init__(self, fn: Any, values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        functools.update_wrapper(cast("Any", self), getattr(fn, "fn", fn))
        self.fn = fn
        self.arg_names = list(fn.arg_names)
        self.values = dict(values)
        for name in self.values:
            if name not in self.arg_names and name not in OPTIONS:
                raise TypeMismatch(
                    f"heuristics(): {name!r} is no parameter of the kernel and no launch option"
                )

    def run(self, *args: Any, grid: GridLike, warmup: bool = False, **kwargs: Any) -> Any:
        """Launches with the values of the functions."""
        if warmup:
            return self.fn.run(*args, grid=grid, warmup=True, **self.own(args, kwargs))
        return self.fn[grid](*args, **self.own(args, kwargs))

    def own(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keywords with this decorator's values; later ones see earlier ones."""
        merged = dict(kwargs)
        for name, function in self.values.items():
            named = self.named(args, merged)
            try:
                merged[name] = function(named)
            except (KeyError, TypeError) as fault:
                late = [n for n in self.kernel().autos(named) if n != name]
                if not late:
                    raise
                error = LaunchError(
                    f"heuristics(): {name} cannot be computed: {type(fault).__name__}: {fault}; "
                    f"{' and '.join(late)} {'are' if late[1:] else 'is'} picked by the compiler "
                    "(tl.auto), later",
                    hint=f"compute {name} in the kernel, or give a value for {late[0]}",
                )
                raise located(error, self.kernel().fn) from fault
        return merged

    def chosen(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike | None = None
    ) -> dict[str, Any]:
        return self._inner(args, self.own(args, kwargs), grid)


def heuristics(
    values: Mapping[str, Callable[[dict[str, Any]], Any]],
) -> Callable[[Any], Heuristics]:
    """Constants as functions of the arguments: `{"EVEN": lambda args: args["n"] % 128 == 0}`.

    Launch options too: `{"num_warps": lambda args: 8 if args["n"] > 4096 else 4}`.
    """
    return lambda fn: Heuristics(fn, values)
