"""The fast path of a launch: generated functions, a guard per kernel and an entry per program.

The function of a call reads each fact of an argument once, compares all that decides the program
with what it was made for, packs and launches. A call that differs goes to the guard, which looks it
up by everything that could change the compiled code. Calls that the guard does not know go the slow
way, which compiles and adds an entry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from types import FunctionType
from types import MethodType
from typing import TYPE_CHECKING
from typing import Any

import torch

from tiledsl.dtypes import INT32_ROOM
from tiledsl.runtime.alike import alike_check
from tiledsl.runtime.descriptor import TensorDescriptor
from tiledsl.runtime.guard_text import ASKS
from tiledsl.runtime.guard_text import PREFIX
from tiledsl.runtime.guard_text import GuardText
from tiledsl.runtime.guard_text import Kind
from tiledsl.runtime.guard_text import Shape
from tiledsl.runtime.told import PLAIN
from tiledsl.runtime.told import Watched
from tiledsl.runtime.told import compared
from tiledsl.runtime.told import fixed
from tiledsl.runtime.told import told

if TYPE_CHECKING:
    from tiledsl.runtime.entry import Entry

Slow = Callable[[Any, Mapping[str, Any], tuple[Any, ...], dict[str, Any]], None]
Launch = Callable[..., None]

MAX_ENTRIES = 4096
MAX_LEARNT = 8
"""Times that the check of a function's tensors is made anew."""


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


class Guard:
    """What is known of the calls of one kernel that have one shape.

    launch: called as `launch(grid, *args, **options)`: looks the call up.  entries: by key, how to
    launch, and the function for such calls.  source: its text.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, inspect.Parameter],
        shape: Shape,
        slow: Slow,
        watched: list[Watched],
        space: dict[str, Any],
    ) -> None:
        """slow: takes calls that are not known.  space: the kernel's attributes."""
        self.shape = shape
        self.entries: dict[Any, tuple[MethodType, Launch]] = {}
        self._name, self._watched = name, watched
        self._text = GuardText(parameters, shape)
        self._names: dict[str, Any] = {
            "tdsl_entries": self.entries,
            "tdsl_slow": slow,
            "tdsl_watched": watched,
            "tdsl_changed": changed,
            "tdsl_space": space,
            "tdsl_descriptor": TensorDescriptor,
            "tdsl_compared": compared,
            "tdsl_fixed": fixed,
            "tdsl_told": told,
            "tdsl_reading": reading,
            ASKS: ASKS,
            "tdsl_plain": PLAIN,
            **{
                PREFIX + kind.__name__: kind
                for kind in (int, float, bool, tuple, bytes, memoryview, callable)
            },
        }
        for parameter in parameters.values():
            empty = parameter.default is parameter.empty
            default = MISSING if empty else parameter.default
            self._names[f"tdsl_default_{parameter.name}"] = default
        self.source = self._text.guard()
        exec(self.source, self._names)
        self.launch: Launch = self._names["tdsl_launch"]
        self._key: Callable[..., tuple[Any, Any, tuple[Any, ...]]] = self._names["tdsl_key"]
        self._made: dict[tuple[Entry, bool], FunctionType] = {}

    def add(
        self, grid: object, values: Mapping[str, Any], options: dict[str, Any], entry: Entry
    ) -> Launch | None:
        """Keeps an entry for calls like this one; the function for them.

        None when the call has no hashable key.
        """
        try:
            key, compared, _ = self._key(grid, options, **values)
            if len(self.entries) >= MAX_ENTRIES:
                self.entries.clear()
                self._made.clear()
            token = object()  # one per key: tells launches of an entry apart
            fast = self._fast(entry, token, compared, values)
            self.entries[key] = MethodType(entry.run, token), fast
        except (TypeError, AttributeError, RuntimeError):
            return None
        return fast

    def _fast(
        self, entry: Entry, token: object, compared: tuple[Any, ...], values: Mapping[str, Any]
    ) -> Launch:
        names: dict[str, Any] = {"tdsl_token": token, "tdsl_watched": tuple(self._watched)}
        names |= {f"tdsl_{at}": value for at, value in enumerate(compared)}
        has_check = self._learn(names, values)
        if (entry, has_check) not in self._made:
            space: dict[str, Any] = {**self._names, **entry.names}
            text = self._text.fast(
                entry.body, entry.lows, reads_once=entry.reads_once, has_check=has_check
            )
            exec(text, space)
            self._made[entry, has_check] = space["tdsl_fast"]
        made = self._made[entry, has_check]
        names |= {name: v for name, v in made.__globals__.items() if name not in names}
        fast = FunctionType(made.__code__, names, self._name, made.__defaults__)
        fast.__kwdefaults__ = made.__kwdefaults__
        return fast

    def _learn(self, names: dict[str, Any], values: Mapping[str, Any]) -> bool:
        """Adds the check of the tensors, if there is one."""
        kinds = dict(self.shape.kinds)
        exact = [kinds[name] == "tensor" for name in self._text.made.tensors]
        left = MAX_LEARNT

        def learn(*tensors: Any) -> bool:
            """Tensors of the same key that the check does not know, such as ones with gradients."""
            nonlocal left
            if left:
                left -= 1
                names["tdsl_alike"] = alike_check(tensors, exact)
            return True

        check = alike_check([values[name] for name in self._text.made.tensors], exact)
        names |= {} if check is None else {"tdsl_alike": check, "tdsl_learn": learn}
        return check is not None

    def facts(self, grid: object, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The facts of a call, in the order of `facts_of`."""
        return self._key(grid, {}, **values)[2]


def reading(grid: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """A grid function that may read these arguments beside the constants."""

    def read(constants: Mapping[str, Any]) -> Any:
        return grid({**arguments, **constants})

    return read


def changed(watched: Sequence[Watched]) -> bool:
    """Whether a captured value is not what it was."""
    for space, name, value in watched:  # noqa: SIM110
        if space.get(name, MISSING) is not value:
            return True
    return False
