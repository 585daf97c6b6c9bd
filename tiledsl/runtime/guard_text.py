"""The text of a kernel's guard, and of the functions that serve calls which are alike."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tiledsl.dtypes import INT32_ROOM

Kind = Literal[
    "tensor", "pointer", "descriptor", "int", "long", "float", "bool", "none", "constant", "other"
]

MEMORY = ("tensor", "descriptor", "pointer")
READ = {"int": "int", "long": "int", "float": "float", "bool": "bool"}
PREFIX = "tdsl_"
"""Of all names in generated text: a kernel's parameters have no such names."""
FAST = "_fast"
"""Attribute of a kernel: what its launches call."""
REFUSED = "tdsl_refused"
"""In the body of an entry: what it returns for a number that does not fit."""
ASKS = "tdsl_asks"
"""In the body of an entry: what it returns for a grid function that reads more than it has."""
PACKED = "tdsl_packed"
"""In the body of an entry: a statement after the parameters are in the buffer."""
ARGUMENTS = "tdsl_arguments"
"""In the body of an entry: the arguments of the call by name, as far as they are known there."""
ASKED = "tdsl_asked"
"""In the body of an entry: the grid as the user gave it, for calls that go to another program."""


@dataclass(frozen=True)
class Shape:
    """The arguments of a call, as far as the text of a guard depends on them.

    kinds: per parameter.  by_value: plans depend on extents, integers and the grid.
    plain: parameters whose integers are not looked at.  defaults: parameters that have one which
    does not change.
    factors: parameters for which it matters that an integer is 1; None for all.
    limits: for parameters, constants whose value it matters to have.
    """

    kinds: tuple[tuple[str, Kind], ...]
    by_value: bool
    plain: frozenset[str] = frozenset()
    defaults: frozenset[str] = frozenset()
    factors: frozenset[str] | None = None
    limits: tuple[tuple[str, tuple[str, ...]], ...] = ()


def fact_name(letter: str, name: str) -> str:
    """Name of a fact: p for an address, s extents, t strides, v a value."""
    return f"{PREFIX}{letter}_{name}"


def split_fact(text: str) -> tuple[str, str]:
    """(letter, name of the argument)."""
    letter, _, name = text.removeprefix(PREFIX).partition("_")
    return letter, name


def facts_of(shape: Shape) -> tuple[str, ...]:
    """Parameters of an entry: names of the facts that a guard hands over."""
    out: list[str] = []
    for name, kind in shape.kinds:
        match kind:
            case "tensor" | "descriptor":
                out += [fact_name(letter, name) for letter in "pst"]
            case "pointer":
                out.append(fact_name("p", name))
            case "int" | "long" | "float" | "bool":
                out.append(fact_name("v", name))
            case _:
                pass
    return tuple(out)


class GuardText:
    """Text for the calls of one shape."""

    def __init__(self, parameters: Mapping[str, inspect.Parameter], shape: Shape) -> None:
        names = list(parameters)
        last = [n for n in names if parameters[n].kind is inspect.Parameter.KEYWORD_ONLY]
        first = [n for n in names if n not in last]
        defaults = {n: f"{n}=tdsl_default_{n}" for n in names}
        listed = ["tdsl_grid", "/", *(defaults[n] for n in first), "*tdsl_more"]
        self.listed = ", ".join([*listed, *(defaults[n] for n in last), "**tdsl_options"])
        passed = ["tdsl_grid", *first, "*tdsl_more", *(f"{n}={n}" for n in last), "**tdsl_options"]
        self.passed = ", ".join(passed)
        self.everything = "{" + ", ".join(f"{n!r}: {n}" for n in names) + "}"
        self.slow = f"tdsl_slow(tdsl_grid, {self.everything}, tdsl_more, tdsl_options)"
        self.names = ", ".join(names)
        self.facts = "".join(f"{f}, " for f in facts_of(shape))
        self.made = _Facts(shape)
        self.reads = "\n        ".join(self.made.reads or ["pass"])
        self.key = ", ".join(self.made.key)

    def guard(self) -> str:
        """The function that looks a call up, and the one that makes its key."""
        odd = ["tdsl_more", *self.made.odd, "tdsl_watched and tdsl_changed(tdsl_watched)"]
        return f"""\
def tdsl_launch({self.listed}):
    if {" or ".join(odd)}:
        return {self.slow}
    try:
        {self.reads}
        if {" or ".join(self.made.lazy) or "False"}:
            return {self.slow}
        tdsl_run, tdsl_fast = tdsl_entries[{self.key}]
    except (AttributeError, KeyError, TypeError, RuntimeError):
        return {self.slow}
    tdsl_space["{FAST}"] = tdsl_fast
    tdsl_odd = tdsl_run(tdsl_grid, {self.facts})
    if tdsl_odd is {ASKS}:
        tdsl_odd = tdsl_run(tdsl_reading(tdsl_grid, {self.everything}), {self.facts})
    if tdsl_odd:
        {self.slow}

def tdsl_key(tdsl_grid, tdsl_options, /, {self.names}):
        {self.reads}
        return ({self.key},), ({", ".join(self.made.values)},), ({self.facts})
"""

    def fast(self, body: str, lows: tuple[str, ...], *, reads_once: bool, has_check: bool) -> str:
        """The function for calls of one key.

        body: packs the facts and launches.  lows: arguments whose addresses' low bytes are
        `tdsl_lows`.  reads_once: whether the body uses each address once.  has_check: whether
        there is one for all the tensors.
        """
        made = self.made
        first = "; ".join(made.first)
        tests, packed, again = [*made.tests], "pass", f"return tdsl_launch({self.passed})"
        if made.exact and lows == made.memory:
            # One look at the buffer is cheaper than the bits of each address.
            odd = f"tdsl_lows != {made.lows} and not ({made.exact})"
            packed = f"if {odd}: tdsl_give(tdsl_pooled); {_as_asked(again)}"
            if reads_once:
                first = ""
        elif made.exact:
            tests.append(made.exact)
        if made.tensors:
            each = " and ".join(made.tensor_tests)
            listed = ", ".join(made.tensors)
            if has_check:
                each = f"tdsl_alike({listed}) or {each} and tdsl_learn({listed})"
            tests.insert(0, f"({each})")
        known = "".join(f"    {line}\n" for line in made.known)
        joined = ("\n" + " " * 12 + "and ").join(tests)
        body = _with_arguments(body).replace(ARGUMENTS, self.everything)
        for odd in (REFUSED, ASKS):
            body = body.replace(odd, _as_asked(self.slow))
        body = body.replace(PACKED, packed)
        text = f"""\
def tdsl_fast({self.listed}):
    try:
        {first or "pass"}
        if tdsl_more or tdsl_watched and tdsl_changed(tdsl_watched) or not (
            {joined}
        ):
            {again}
    except (AttributeError, TypeError, RuntimeError):
        {again}
{known}{body}"""
        return text if first else _with_addresses(text)


def _as_asked(call: str) -> str:
    """A call with the user's grid, which the body has replaced."""
    return call.replace("(tdsl_grid, ", f"({ASKED}, ")


def _with_arguments(body: str) -> str:
    """A body that reads numbers where they are: in the arguments."""
    return re.sub(rf"\b{fact_name('v', '')}", "", body)


def _with_addresses(text: str) -> str:
    """A function that asks for addresses where it uses them."""
    return re.sub(rf"\b{fact_name('p', '')}(\w+)", r"\1.data_ptr()", text)


class _Facts:
    """The text that reads and tells apart calls of a shape.

    reads: statements that read the facts.  key: expressions that decide the program.
    tests: true for a call with the key of another one, whose `values` are `tdsl_0`, ...
    odd: tests that are true for calls of other shapes.  tensors: names of torch's tensors, with
    tests of their own.  lazy: tests for negations still to be done, which no kernel takes.
    first: reads of what the tests do not tell.  known: of what they tell.
    memory: names of all arguments with addresses.  exact: the test of their alignment, lows: their
    low bytes, as bytes of the buffer compare with.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.reads: list[str] = []
        self.key: list[str] = []
        self.tests: list[str] = []
        self.values: list[str] = []
        self.odd: list[str] = []
        self.tensors: list[str] = []
        self.tensor_tests: list[str] = []
        self.lazy: list[str] = []
        self.first: list[str] = []
        self.known: list[str] = []
        for name, kind in shape.kinds:
            match kind:
                case "tensor" | "descriptor" | "pointer":
                    self._tensor(name, kind)
                case "int" | "long" | "float" | "bool":
                    self._number(name, kind)
                case "none":
                    self.tests.append(f"{name} is None")
                    self.odd.append(f"{name} is not None")
                case "constant":
                    self._constant(name)
                case "other":
                    pass
        self.memory = tuple(n for n, k in shape.kinds if k in MEMORY)
        self.exact = self.lows = ""
        self._alignment([fact_name("p", n) for n in self.memory])
        self._equal("tdsl_tuple(tdsl_options.items()) if tdsl_options else None")
        if shape.by_value:
            # Numbers that are no tuple are none that a function gave.
            self._equal("tdsl_grid if tdsl_grid.__class__ is tdsl_tuple else tdsl_grid.__class__")

    def _last(self, value: str) -> str:
        self.values.append(value)
        return f"tdsl_{len(self.values) - 1}"

    def _equal(self, value: str, test: str = "==") -> None:
        self.key.append(value)
        self.tests.append(f"({value}) {test} {self._last(value)}")

    def _tensor(self, name: str, kind: Kind) -> None:
        address, tests = f"{fact_name('p', name)} = {name}.data_ptr()", self.tensor_tests
        self.reads.append(address)
        self.first.append(address)
        if kind == "descriptor":
            self.tests.append(f"{name}.__class__ is tdsl_descriptor")
            self.odd.append(f"{name}.__class__ is not tdsl_descriptor")
            self._equal(f"{name}.block")
            tests = self.tests
        else:
            self.tensors.append(name)
            # Where all tensors are looked at in one call, that tells a lazy negation as well.
            tests.append(f"not {name}.is_neg()")
            self.lazy.append(f"{name}.is_neg()")
        compared = [(f"{name}.dtype", "is"), (f"{name}.get_device()", "==")]
        if kind != "pointer":
            compared += [(f"{name}.shape", "=="), (f"{name}.stride()", "==")]
        for (value, test), letter in zip(compared, ("", "", "s", "t"), strict=False):
            last = self._last(value)
            tests.append(f"{value} {test} {last}")
            if letter:
                fact = fact_name(letter, name)
                self.reads.append(f"{fact} = {value}")
                self.known.append(f"{fact} = {last}")
            self.key.append(fact_name(letter, name) if letter else value)

    def _number(self, name: str, kind: Kind) -> None:
        is_kind = f"{name}.__class__ is tdsl_{READ[kind]}"
        self.odd.append(f"not {is_kind}")
        self.reads.append(f"{fact_name('v', name)} = {name}")
        known = self._known(name, kind)
        if not known:
            self.tests.append(is_kind)
            return
        # The same object as before needs no look at what is known of it.
        self.key.append(known)
        last, lasts = self._last(name), self._last(known)
        self.tests.append(f"({name} is {last} or {is_kind} and ({known}) == {lasts})")

    def _known(self, name: str, kind: Kind) -> str:
        """Expression for what a program may know of a number."""
        shape = self.shape
        if kind == "float":
            return ""
        if shape.by_value:
            return name
        if kind == "bool":
            return ""
        if name in shape.plain:
            known = f"{name} >= {INT32_ROOM}"
        else:
            known = _divisor(name, one=shape.factors is None or name in shape.factors)
            if name in (limits := dict(shape.limits)):
                fills = " or ".join(f"{name} == {n}" for n in limits[name])
                known = f"({known}, {name} if {fills} else 0)"
        # An "int" over 32 bits fails to pack, which sends the call the slow way.
        return known if kind == "int" else f"({name} >> 31, {known})"

    def _constant(self, name: str) -> None:
        """Constants that are equal may be different ones, and one object may have changed."""
        both = f"({name}, {name}.__class__)"
        both = f"{both} if {name}.__class__ in tdsl_plain else tdsl_told({name})"
        default = name in self.shape.defaults
        self.key.append(f"{name} is tdsl_default_{name} or ({both})" if default else f"({both})")
        last, kind = self._last(f"tdsl_fixed({name})"), self._last(f"tdsl_compared({name})")
        self.tests.append(f"({name} is {last} or {name}.__class__ is {kind} and {name} == {last})")

    def _alignment(self, pointers: list[str]) -> None:
        """The low bits of all addresses: mostly all of them are 0, which one test tells."""
        if pointers:
            each = "".join(f"{p} & 15, " for p in pointers)
            value = f"({' | '.join(pointers)}) & 15 and ({each})"
            self.key.append(value)
            self.exact = f"({value}) == {self._last(value)}"
            low = "".join(f"{p} & 255, " for p in pointers)
            self.lows = self._last(f"tdsl_memoryview(tdsl_bytes(({low})))")


def _divisor(name: str, *, one: bool) -> str:
    """What is known of an integer: its low bits, and of a factor whether it is 1."""
    low = f"({name} == 1 or ({name} & 15) + 2)" if one else f"{name} & 15"
    return f"{low} if 0 < {name} < {INT32_ROOM} else ({name} & 15) + ({name} > 0 or -64) + 32"
