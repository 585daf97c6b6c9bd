"""Arguments bound to the signature of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import assert_never

from tiledsl.dtypes import DType
from tiledsl.dtypes import pointer_to
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.hints import did_you_mean
from tiledsl.frontend.signature import MISSING
from tiledsl.frontend.signature import Annotation
from tiledsl.frontend.signature import Parameter
from tiledsl.frontend.signature import Signature
from tiledsl.frontend.signature import item_name
from tiledsl.frontend.signature import signature_of
from tiledsl.ir.markers import Auto
from tiledsl.ir.markers import unwrap
from tiledsl.ir.specs import NoneSpec
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import TensorSpec
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import Type


@dataclass(frozen=True)
class Bound:
    """Arguments by the part they play: run-time ones with their types, constants, and None.

    divisors: what divides addresses (bytes) and integers over 0 for certain; strides of 0 and less
    are for no tensor map. numbers: of integers of a known sign, what divides them and whether they
    are over 0. known: integers whose value is known.
    lists: the arguments of each list of tensors. fixed: numbers whose dtype an annotation fixes.
    """

    arguments: tuple[tuple[str, Type], ...]
    constants: dict[str, object]
    absent: tuple[str, ...]
    divisors: dict[str, int] = field(default_factory=dict[str, int])
    known: dict[str, int] = field(default_factory=dict[str, int])
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    numbers: dict[str, tuple[int, bool]] = field(default_factory=dict[str, tuple[int, bool]])
    fixed: frozenset[str] = frozenset()


def bind(
    fn: Callable[..., object], specs: Mapping[str, Spec], constexprs: Mapping[str, object]
) -> Bound:
    """Sorts specs and constexprs by the signature.

    Raises: TypeMismatch for missing and unknown names.
    """
    signature = signature_of(fn)
    lists = {p.name: _items(p, specs) for p in signature.parameters if p.annotation == "tensors"}
    items = {n for names in lists.values() for n in names}
    _check_names(signature, [n for n in (*specs, *constexprs) if n not in items])
    arguments: list[tuple[str, Type]] = []
    constants: dict[str, object] = {}
    absent: list[str] = []
    divisors = {name: n for name, spec in specs.items() if (n := _divisor(spec)) > 1}
    for parameter in signature.parameters:
        name = parameter.name
        if name in lists:
            arguments += [(n, t) for n in lists[name] if (t := argument_type(specs[n], "tensor"))]
        elif name in constexprs:
            constants[name] = unwrap(constexprs[name])
        elif name not in specs:
            constants[name] = _default(signature, parameter)
        elif parameter.is_constexpr and not isinstance(specs[name], NoneSpec):
            raise TypeMismatch(f"{signature.name}(): {name!r} is a tl.constexpr, got {specs[name]}")
        else:
            _check_number(signature, parameter, specs[name])
            type_ = argument_type(specs[name], parameter.annotation)
            if type_ is None:
                absent.append(name)
            else:
                arguments.append((name, type_))
    known = {n: s.value for n, s in specs.items() if isinstance(s, ScalarSpec) and s.value}
    numbers = {
        n: (s.divisible, s.sign > 0)
        for n, s in specs.items()
        if isinstance(s, ScalarSpec) and s.sign
    }
    fixed = frozenset(p.name for p in signature.parameters if isinstance(p.annotation, DType))
    return Bound(tuple(arguments), constants, tuple(absent), divisors, known, lists, numbers, fixed)


def _items(parameter: Parameter, specs: Mapping[str, Spec]) -> tuple[str, ...]:
    """Names of the tensors of a list."""
    names: list[str] = []
    while (name := item_name(parameter.name, len(names))) in specs:
        names.append(name)
    return tuple(names)


def _divisor(spec: Spec) -> int:
    match spec:
        case ScalarSpec(sign=sign) if sign < 0:
            return 1
        case TensorSpec(align_bytes=n) | PointerSpec(align_bytes=n) | ScalarSpec(divisible=n):
            return n
        case NoneSpec():
            return 1
        case _:
            assert_never(spec)


def _check_names(signature: Signature, given: list[str]) -> None:
    for name in given:
        if name not in signature.names:
            raise TypeMismatch(
                f"{signature.name}() has no parameter {name!r}",
                hint=did_you_mean(name, signature.names),
            )


def _check_number(signature: Signature, parameter: Parameter, spec: Spec) -> None:
    """Refuses a tensor for a parameter whose annotation is the dtype of a number."""
    wanted, name = parameter.annotation, parameter.name
    is_number = isinstance(wanted, DType) and not wanted.is_pointer
    if is_number and isinstance(spec, TensorSpec | PointerSpec):
        raise TypeMismatch(
            f"{signature.name}(): {name!r} is declared {wanted!r}, got a tensor",
            hint=f"pass {name}.item(), or leave out the annotation to get a pointer",
        )


def _default(signature: Signature, parameter: Parameter) -> object:
    if isinstance(parameter.default, Auto):
        raise TypeMismatch(
            f"{signature.name}(): {parameter.name!r} is tl.auto, and no value was chosen for it"
        )
    if parameter.default is MISSING:
        kind = "constexpr" if parameter.is_constexpr else "argument"
        raise TypeMismatch(f"{signature.name}(): {kind} {parameter.name!r} is missing")
    return parameter.default


def argument_type(spec: Spec, annotation: Annotation = None) -> Type | None:
    """The type of a run-time argument; None for an argument that is None.

    A tensor is a pointer unless the parameter is annotated `tl.Tensor`; a dtype as annotation fixes
    the type of a number.
    """
    match spec:
        case TensorSpec() if annotation == "tensor" or spec.block_shape:
            return TensorType(
                spec.rank,
                spec.dtype,
                spec.inner_dim,
                spec.tma,
                spec.align_bytes,
                spec.ragged,
                1 if spec.tma else spec.pitch_bytes,
            )
        case TensorSpec() | PointerSpec():
            return ScalarType(pointer_to(spec.dtype))
        case ScalarSpec():
            if isinstance(annotation, DType) and not annotation.is_pointer:
                return ScalarType(annotation)
            return ScalarType(spec.dtype)
        case NoneSpec():
            return None
        case _:
            assert_never(spec)
