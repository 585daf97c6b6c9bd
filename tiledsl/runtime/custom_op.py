"""`tiledsl.op`: functions that launch kernels as operators of torch.

The function takes inputs, tensors it changes, and outputs; what each is, is declared. From that
come the operator's schema, the allocation of outputs, the fake kernel for `torch.compile`, and
autograd.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import torch

from tiledsl.errors import TypeMismatch

Allocate = str | Callable[..., torch.Tensor]
Backward = Callable[..., Any]

SCHEMA_TYPES: dict[Any, str] = {
    torch.Tensor: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    torch.dtype: "ScalarType",
    list[int]: "SymInt[]",
    tuple[int, ...]: "SymInt[]",
    list[torch.Tensor]: "Tensor[]",
}


class Saved:
    """Arguments and outputs of an operator's call, by name, for its backward function."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the operator has no argument or output {name!r}")


def op(
    name: str,
    *,
    out: Mapping[str, Allocate] | None = None,
    inout: Sequence[str] = (),
    backward: Backward | None = None,
) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """Makes an operator of torch of a function that launches kernels.

    Args:
        name: `namespace::operator`.
        out: parameters that are outputs, in the order in which the operator returns them. Each is
            allocated as the named input (`torch.empty_like`), or by a function of the inputs (those
            that its parameters name).
        inout: tensors that the function changes.
        backward: `(saved, *grads)` gives gradients: a dictionary by input, or for the tensors in
            order one value or a tuple. `saved.x` is argument or output x of the call.

    The parameters of the function are annotated with `torch.Tensor`, `torch.Tensor | None`, int,
    float, bool, str, `torch.dtype` or lists of int; the operator takes those that are no outputs.

    Raises:
        TypeMismatch: names that are no parameters, or annotations that torch has no type for.
    """
    outputs = dict(out or {})

    def decorate(fn: Callable[..., None]) -> Callable[..., Any]:
        made = _Operator(name, fn, outputs, tuple(inout))
        return made.register(backward)

    return decorate


class _Operator:
    """An operator being made."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., None],
        outputs: dict[str, Allocate],
        inout: tuple[str, ...],
    ) -> None:
        self.name, self.fn, self.outputs, self.inout = name, fn, outputs, inout
        self.parameters = inspect.signature(fn).parameters
        self.inputs = [n for n in self.parameters if n not in outputs]
        self.hints = typing.get_type_hints(fn)
        if name.count("::") != 1:
            raise TypeMismatch(f"op(): name {name!r} must be namespace::operator")
        for given in (*outputs, *inout):
            if given not in self.parameters:
                raise TypeMismatch(f"op {name}: {given!r} is no parameter of {fn.__name__}()")
        for given, like in outputs.items():
            if isinstance(like, str) and like not in self.inputs:
                raise TypeMismatch(f"op {name}: output {given} is like {like!r}, which is no input")
        self.schema = self._schema()

    def _schema(self) -> str:
        items: list[str] = []
        for at, name in enumerate(self.inputs):
            kind = self._type(name)
            if name in self.inout:
                kind = kind.replace("Tensor", f"Tensor(a{at}!)")
            default = self.parameters[name].default
            items.append(
                f"{kind} {name}" + ("" if default is inspect.Parameter.empty else f"={default}")
            )
        results = ["Tensor"] * len(self.outputs)
        returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"({', '.join(items)}) -> {returned}"

    def _type(self, name: str) -> str:
        hint = self.hints.get(name)
        optional = ""
        if isinstance(hint, types.UnionType) and len(hint.__args__) == 2:
            rest = [a for a in hint.__args__ if a is not type(None)]
            if len(rest) == 1:
                hint, optional = rest[0], "?"
        if hint not in SCHEMA_TYPES:
            known = ", ".join(getattr(t, "__name__", str(t)) for t in SCHEMA_TYPES)
            raise TypeMismatch(
                f"op {self.name}: parameter {name} is annotated {hint}", hint=f"known are {known}"
            )
        return SCHEMA_TYPES[hint] + optional

    # ------------------------------------------------------------------ running
    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs by name, with defaults."""
        values = dict(zip(self.inputs, args, strict=False)) | dict(kwargs)
        for name in self.inputs:
            if name not in values:
                values[name] = self.parameters[name].default
        return values

    def allocate(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """New outputs for some inputs."""
        made: dict[str, torch.Tensor] = {}
        for name, how in self.outputs.items():
            if isinstance(how, str):
                made[name] = torch.empty_like(values[how])
            else:
                wanted = inspect.signature(how).parameters
                made[name] = how(**{n: values[n] for n in wanted})
        return made

    def result(self, made: Mapping[str, torch.Tensor]) -> Any:
        """What the operator returns."""
        found = tuple(made.values())
        return found[0] if len(found) == 1 else found or None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The operator on real tensors."""
        values = self.bound(args, kwargs)
        made = self.allocate(values)
        self.fn(**values, **made)
        return self.result(made)

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """The operator on tensors without data."""
        return self.result(self.allocate(self.bound(args, kwargs)))

    # ------------------------------------------------------------------ registering
    def register(self, backward: Backward | None) -> Callable[..., Any]:
        """Makes the operator known to torch; returns what is called."""
        made: Any = torch.library.custom_op(
            self.name, self.run, mutates_args=self.inout, schema=self.schema
        )
        made.register_fake(self.fake)
        if backward is not None:
            if self.inout:
                raise TypeMismatch(
                    f"op {self.name}: torch has no autograd for an operator that changes "
                    f"{', '.join(self.inout)}",
                    hint="declare an output in place of the changed tensor",
                )
            made.register_autograd(
                functools.partial(self.gradients, backward), setup_context=self.save
            )

        @functools.wraps(self.fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return made(*args, **kwargs)

        call.op = made  # type: ignore[attr-defined]
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [self.parameters[n] for n in self.inputs]
        )
        return call

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keeps a call's arguments and outputs for its backward function."""
        values = self.bound(inputs, {})
        found: tuple[Any, ...] = output if len(self.outputs) > 1 else (output,)
        values |= dict(zip(self.outputs, found, strict=False))
        ctx.names = [n for n, v in values.items() if isinstance(v, torch.Tensor)]
        ctx.rest = {n: v for n, v in values.items() if n not in ctx.names}
        ctx.save_for_backward(*(values[n] for n in ctx.names))

    def gradients(self, backward: Backward, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """A gradient or None per input."""
        saved = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        found = backward(Saved({**ctx.rest, **saved}), *grads)
        if isinstance(found, dict):
            return tuple(typing.cast("dict[str, Any]", found).get(n) for n in self.inputs)
        given = list(
            typing.cast("tuple[Any, ...]", found) if isinstance(found, tuple) else (found,)
        )
        tensors = [n for n in self.inputs if n in ctx.names]
        if len(given) > len(tensors):
            raise TypeMismatch(
                f"op {self.name}: backward gave {len(given)} gradients for {len(tensors)} tensors"
            )
        by_name = dict(zip(tensors, given, strict=False))
        return tuple(by_name.get(n) for n in self.inputs)
