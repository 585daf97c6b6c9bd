"""What tells compile-time values apart: constants of a call, and what a kernel captures.

Values that are equal may make different code: 1, 1.0 and True, or the two zeros, by themselves or
within a tuple. Lists, and what holds one, may change and stay the same object.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from enum import Enum
from operator import is_
from types import BuiltinFunctionType
from types import ModuleType
from typing import Any
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.frontend.source import plain_function
from tiledsl.ir.markers import Auto
from tiledsl.ir.markers import constexpr

Watched = tuple[Mapping[str, Any], str, Any]
"""A namespace, a name in it, and the object that it had there."""

PLAIN: frozenset[type] = frozenset({bool, int, str, type(None)})
"""Classes whose equal values are the same constant."""
_SAME = (Enum, DType, Auto, ModuleType, BuiltinFunctionType, type)


def told(value: Any) -> Any:
    """What is equal for two values if and only if they are the same constant; hashable."""
    kind = value.__class__
    if kind in PLAIN:
        return (value, kind)
    if kind is constexpr:
        return told(value.value)
    if isinstance(value, list | tuple):
        return (kind, *map(told, cast("tuple[object, ...]", value)))
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value).items()
        return (kind, *((told(k), told(v)) for k, v in pairs))
    if isinstance(value, _SAME) or plain_function(value) is not None:
        return (value, kind)
    return (kind, repr(value))  # of numbers, tells zeros apart


def is_fixed(value: Any) -> bool:
    """Whether a value can only be another one if it is another object."""
    kind = value.__class__
    if kind in PLAIN or kind in (float, complex, bytes):
        return True
    if isinstance(value, tuple):
        return all(map(is_fixed, cast("tuple[object, ...]", value)))
    return isinstance(value, _SAME) or plain_function(value) is not None


def fixed(value: Any) -> Any:
    """The value, or where it may change an object that is no other one."""
    return value if is_fixed(value) else object()


def compared(value: Any) -> type | None:
    """The class of a value if all values of this class that are equal to it are the same."""
    kind = value.__class__
    if kind in PLAIN or (kind is float and value != 0 and not math.isnan(value)):
        return kind
    return None


def changes_within(value: Any) -> Iterator[Watched]:
    """What to watch of a captured value beside the name that holds it."""
    if value.__class__ is constexpr:
        yield vars(value), "value", value.value
        yield from changes_within(value.value)
    elif isinstance(value, tuple):
        for item in cast("tuple[object, ...]", value):
            yield from changes_within(item)
    elif isinstance(value, list | dict):
        content = _Content(cast("object", value))
        yield content, "", content.told


class _Content(dict[str, Any]):
    """What a list holds, read like a namespace."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value, self.told = value, told(value)
        self.items_before: tuple[object, ...] | None = None
        if isinstance(value, list) and all(map(is_fixed, cast("list[object]", value))):
            self.items_before = tuple(cast("list[object]", value))

    def get(self, key: str, default: Any = None, /) -> Any:
        before, now = self.items_before, cast("list[object]", self.value)
        if before is not None and len(before) == len(now) and all(map(is_, now, before)):
            return self.told  # a launch asks this
        return self.told if told(now) == self.told else default
