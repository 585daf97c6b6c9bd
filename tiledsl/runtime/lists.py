"""Lists of tensors as arguments: each tensor is an argument of its own, and all are known alike."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from typing import Protocol
from typing import TypeVar

from tiledsl.errors import LaunchError
from tiledsl.frontend.signature import item_name
from tiledsl.ir.specs import TMA_ALIGN_BYTES
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import TensorSpec
from tiledsl.runtime.signature import Signature
from tiledsl.runtime.signature import has_pointer

MOST_TENSORS = 64
"""Of a list: the parameters of a kernel, tensor maps above all, may take 32764 bytes."""


class HasRuntime(Protocol):
    """What is read of a call."""

    @property
    def runtime(self) -> dict[str, Any]: ...


CallT = TypeVar("CallT", bound=HasRuntime)


def expanded(call: CallT, lists: Collection[str]) -> CallT:
    """The call with each list of tensors as arguments `a_0`, `a_1`, ... in its place.

    Raises:
        LaunchError: something else than tensors; names the argument.
    """
    if not lists:
        return call
    runtime: dict[str, Any] = {}
    for name, value in call.runtime.items():
        if name not in lists:
            runtime[name] = value
            continue
        for i, item in enumerate(_items(name, value)):
            if item_name(name, i) in call.runtime:
                raise LaunchError(
                    f"argument {name}: its tensors are called {name}_0, {name}_1, ... in the "
                    f"kernel, which has a parameter {item_name(name, i)!r}"
                )
            runtime[item_name(name, i)] = item
    return replace(call, runtime=runtime)  # type: ignore[type-var]


def refuse_lists(args: Mapping[str, Any], pointers: Collection[str]) -> None:
    """Refuses a list that was given for a tensor; the lists of a call are `expanded` before.

    pointers: names of the parameters without annotation.

    Raises LaunchError.
    """
    for name, value in args.items():
        got = type(value).__name__
        if isinstance(value, list | tuple) and name not in pointers:
            raise LaunchError(
                f"argument {name}: expected a tensor (a list needs tl.TensorList), got {got}",
                hint=f"a kernel of several tensors declares `{name}: tl.TensorList`",
            )


def _items(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        got = type(value).__name__
        raise LaunchError(f"argument {name}: expected a list of tensors, got {got}")
    items: list[Any] = list(value)  # type: ignore[arg-type]
    if not 1 <= len(items) <= MOST_TENSORS:
        raise LaunchError(
            f"argument {name}: expected 1 to {MOST_TENSORS} tensors, got {len(items)}",
            hint="launch the kernel for parts of the list",
        )
    for i, item in enumerate(items):
        if not has_pointer(item):
            got = type(item).__name__
            raise LaunchError(f"argument {name}[{i}]: expected a tensor, got {got}")
    return items


def alike(sig: Signature, name: str, runtime: Mapping[str, Any]) -> Signature:
    """The signature with one spec for all tensors of a list: what is known of each of them.

    Tensors without elements fit every list. Raises LaunchError for other ranks or dtypes.
    """
    places = [i for i, n in enumerate(sig.names) if _is_item(n, name)]
    specs = [sig.specs[i] for i in places]
    found = [s for s in specs if isinstance(s, TensorSpec)]
    filled = [
        s
        for s, i in zip(specs, places, strict=True)
        if isinstance(s, TensorSpec) and 0 not in tuple(runtime[sig.names[i]].shape)
    ]
    for number, spec in enumerate(found):
        if (spec.rank, spec.dtype) != (found[0].rank, found[0].dtype):
            raise LaunchError(
                f"argument {name}[{number}]: expected rank {found[0].rank} and {found[0].dtype} as "
                f"the tensors before, got rank {spec.rank} and {spec.dtype}"
            )
    merged = _merged(filled or found)
    new: list[Spec] = list(sig.specs)
    for i in places:
        new[i] = merged
    return Signature(sig.names, tuple(new))


def _is_item(argument: str, name: str) -> bool:
    rest = argument.removeprefix(f"{name}_")
    return argument.startswith(f"{name}_") and rest.isdigit()


def _merged(specs: list[TensorSpec]) -> TensorSpec:
    """What is known of all of some tensors."""
    first = specs[0]
    inner = first.inner_dim if all(s.inner_dim == first.inner_dim for s in specs) else None
    reason = next((s.tma_reason for s in specs if not s.tma), "")
    if inner is None and not reason:
        reason = "the tensors of the list are contiguous along different dimensions"
    return replace(
        first,
        inner_dim=inner,
        tma=not reason,
        tma_reason=reason,
        pitch_128=all(s.pitch_128 for s in specs),
        align_bytes=min(s.align_bytes for s in specs),
        fours=all(s.fours for s in specs),
        ragged=any(s.ragged for s in specs),
        pitch_bytes=min(TMA_ALIGN_BYTES if s.tma else s.pitch_bytes for s in specs)
        if reason
        else 1,
    )
