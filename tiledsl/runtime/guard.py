"""The fast path of a launch: two generated functions, a guard per kernel and an entry per program.

The guard reads each fact of an argument once, looks the call up by everything that could change the
compiled code, and hands the facts to the entry, which packs and launches. Calls that the guard does
not know go the slow way, which compiles and adds an entry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any
from typing import Literal

import torch

from tiledsl.dtypes import INT32_ROOM
from tiledsl.runtime.descriptor import TensorDescriptor

Kind = Literal[
    "tensor", "pointer", "descriptor", "int", "long", "float", "bool", "none", "constant", "other"
]
Slow = Callable[[Any, Mapping[str, Any], tuple[Any, ...], dict[str, Any]], None]

MAX_ENTRIES = 4096
READ = {"int": "int", "long": "int", "float": "float", "bool": "bool", "none": "NONE"}


class Missing:
    """Stands for an argument that was not given."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = Missing()


def kind_of(value: object, *, is_pointer: bool) -> Kind:
    """What the guard may do with a run-time argument; "other" sends the call the slow way."""
    if isinstance(value, torch.Tensor):
        return "pointer" if is_pointer else "tensor"
    if type(value) is TensorDescriptor:
        return "descriptor"
    if value is None:
        return "none"
    if type(value) is bool:
        return "bool"
    if type(value) is int:
        return "int" if -(2**31) <= value < INT32_ROOM else "long"
    return "float" if type(value) is float else "other"


@dataclass(frozen=True)
class Shape:
    """The arguments of a call, as far as the text of a guard depends on them.

    kinds: per parameter.  by_value: plans depend on extents, integers and the grid.
    plain: parameters whose integers are not looked at.  defaults: parameters that have one.
    factors: parameters for which it matters that an integer is 1; None for all.
    """

    kinds: tuple[tuple[str, Kind], ...]
    by_value: bool
    plain: frozenset[str] = frozenset()
    defaults: frozenset[str] = frozenset()
    factors: frozenset[str] | None = None


def facts_of(shape: Shape) -> tuple[str, ...]:
    """Parameters of an entry: names of the facts that a guard hands over."""
    out: list[str] = []
    for name, kind in shape.kinds:
        match kind:
            case "tensor" | "descriptor":
                out += [f"p_{name}", f"s_{name}", f"t_{name}"]
            case "pointer":
                out.append(f"p_{name}")
            case "int" | "long" | "float" | "bool":
                out.append(f"v_{name}")
            case _:
                pass
    return tuple(out)


class Guard:
    """The generated guard for one kernel and one shape of calls.

    launch: called as `launch(grid, *args, **options)`.  entries: by key.  source: its text.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, inspect.Parameter],
        shape: Shape,
        slow: Slow,
        watched: list[tuple[Mapping[str, Any], str, Any]],
    ) -> None:
        self.shape = shape
        self.entries: dict[Any, Callable[..., bool | None]] = {}
        names: dict[str, Any] = {
            "tdsl_entries": self.entries,
            "tdsl_slow": slow,
            "tdsl_watched": watched,
            "tdsl_changed": changed,
            "MISSING": MISSING,
            "NONE": type(None),
            "DESCRIPTOR": TensorDescriptor,
        }
        for parameter in parameters.values():
            empty = parameter.default is parameter.empty
            names[f"d_{parameter.name}"] = MISSING if empty else parameter.default
        self.source = _text(parameters, shape)
        exec(self.source, names)
        self.launch: Callable[..., None] = names["tdsl_launch"]
        self.launch.__name__ = self.launch.__qualname__ = name
        self._key: Callable[..., tuple[Any, tuple[Any, ...]]] = names["tdsl_key"]

    def add(
        self,
        grid: object,
        values: Mapping[str, Any],
        options: dict[str, Any],
        entry: Callable[..., bool | None],
    ) -> bool:
        """Keeps an entry for calls like this one; False when the call has no hashable key.

        entry: called as `entry(token, grid, *facts)`; the token is one object per key.
        """
        try:
            key, _ = self._key(grid, options, **values)
            if len(self.entries) >= MAX_ENTRIES:
                self.entries.clear()
            # The key is what tells the launches of an entry apart: extents, strides, dtypes.
            self.entries[key] = MethodType(entry, object())
        except (TypeError, AttributeError, RuntimeError):
            return False
        return True

    def facts(self, grid: object, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The facts of a call, in the order of `facts_of`."""
        return self._key(grid, {}, **values)[1]


def changed(watched: list[tuple[Mapping[str, Any], str, Any]]) -> bool:
    """Whether a captured value is not what it was."""
    for space, name, value in watched:  # noqa: SIM110
        if space.get(name, MISSING) is not value:
            return True
    return False


def _text(parameters: Mapping[str, inspect.Parameter], shape: Shape) -> str:
    names = list(parameters)
    kinds = dict(shape.kinds)
    keyword_only = [n for n in names if parameters[n].kind is inspect.Parameter.KEYWORD_ONLY]
    positional = [n for n in names if n not in keyword_only]
    listed = ["tdsl_grid", "/", *(f"{n}=d_{n}" for n in positional), "*tdsl_more"]
    listed += [*(f"{n}=d_{n}" for n in keyword_only), "**tdsl_options"]
    everything = "{" + ", ".join(f"{n!r}: {n}" for n in names) + "}"
    slow = f"return tdsl_slow(tdsl_grid, {everything}, tdsl_more, tdsl_options)"
    odd = ["tdsl_more", *(f"{n}.__class__ is not {READ[k]}" for n, k in kinds.items() if k in READ)]
    odd += [f"{n}.__class__ is not DESCRIPTOR" for n, k in kinds.items() if k == "descriptor"]
    reads, key = _reads(shape)
    key.append("tuple(tdsl_options.items()) if tdsl_options else None")
    if shape.by_value:
        key.append("tdsl_grid if tdsl_grid.__class__ is tuple else None")
    facts = "".join(f"{f}, " for f in facts_of(shape))
    indent = "\n        "
    return f"""\
def tdsl_launch({", ".join(listed)}):
    if {" or ".join(odd)} or (tdsl_watched and tdsl_changed(tdsl_watched)):
        {slow}
    try:
        {indent.join([*reads, f"tdsl_entry = tdsl_entries[{', '.join(key)}]"])}
    except (AttributeError, KeyError, TypeError, RuntimeError):
        {slow}
    if tdsl_entry(tdsl_grid, {facts}):
        {slow}

def tdsl_key(tdsl_grid, tdsl_options, /, {", ".join(names)}):
        {indent.join(reads or ["pass"])}
        return ({", ".join(key)},), ({facts})
"""


def _reads(shape: Shape) -> tuple[list[str], list[str]]:
    """Statements that read the facts, and expressions of the key."""
    reads: list[str] = []
    key: list[str] = []
    pointers: list[str] = []
    for name, kind in shape.kinds:
        match kind:
            case "tensor" | "descriptor":
                reads += [
                    f"p_{name} = {name}.data_ptr()",
                    f"s_{name} = {name}.shape",
                    f"t_{name} = {name}.stride()",
                ]
                key += [f"{name}.dtype", f"{name}.get_device()", f"s_{name}", f"t_{name}"]
                pointers.append(f"p_{name}")
                key += [f"{name}.block"] if kind == "descriptor" else []
            case "pointer":
                reads.append(f"p_{name} = {name}.data_ptr()")
                key += [f"{name}.dtype", f"{name}.get_device()"]
                pointers.append(f"p_{name}")
            case "int" | "long":
                # An "int" over 32 bits fails to pack, which sends the call the slow way.
                reads.append(f"v_{name} = {name}")
                key += [f"{name} >> 31"] if kind == "long" else []
                if shape.by_value:
                    key.append(name)
                elif name not in shape.plain:
                    key.append(_divisor(name, one=shape.factors is None or name in shape.factors))
                else:
                    key.append(f"{name} >= {INT32_ROOM}")
            case "float" | "bool":
                reads.append(f"v_{name} = {name}")
                if shape.by_value:
                    key.append(name)
            case "constant":
                key += _constant(name, has_default=name in shape.defaults)
            case _:
                pass
    return reads, key + _alignment(pointers)


def _divisor(name: str, *, one: bool) -> str:
    """What is known of an integer: its low bits, and of a factor whether it is 1."""
    low = f"({name} == 1 or ({name} & 15) + 2)" if one else f"{name} & 15"
    return f"{low} if 0 < {name} < {INT32_ROOM} else -1 - ({name} > 0)"


def _constant(name: str, *, has_default: bool) -> list[str]:
    """1, 1.0 and True are different constants; a default need not be hashable."""
    if has_default:
        return [f"{name} is d_{name} or ({name}, {name}.__class__)"]
    return [name, f"{name}.__class__"]


def _alignment(pointers: list[str]) -> list[str]:
    """The low bits of all addresses: mostly all of them are 0, which one test tells."""
    each = "".join(f"{p} & 15, " for p in pointers)
    return [f"({' | '.join(pointers)}) & 15 and ({each})"] if pointers else []
