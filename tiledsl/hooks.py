"""What the process wants to know of compilations: recorders, and the freeze mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Literal

from tiledsl.call import Call
from tiledsl.call import GridLike
from tiledsl.errors import LaunchError
from tiledsl.runtime.programs import Program
from tiledsl.runtime.signature import Signature

FreezeMode = Literal["off", "warn", "error"]


@dataclass(frozen=True)
class Specialisation:
    """One program that a kernel has used, by all that tells it from the others.

    facts: what decided the code, by argument or option, as text.  origin: "compiled", "disk",
    "bundle" or "reused" (a program for other extents, taken because compiling is frozen).
    seconds: until it was ready.
    """

    facts: dict[str, str]
    origin: str = "compiled"
    seconds: float = 0.0


@dataclass(frozen=True)
class Event:
    """A program that a kernel uses for the first time in this process.

    text: of the call, as in the program's key.  grid: as given at launch.
    """

    text: str
    call: Call
    sig: Signature
    grid: GridLike
    program: Program


Recorder = Callable[[Any, Event], None]


@dataclass
class State:
    """freeze: what an unplanned compile does.  recorders: called with a kernel and an event."""

    freeze: FreezeMode = "off"
    recorders: list[Recorder] = field(default_factory=list[Recorder])


STATE = State()


def freeze(mode: FreezeMode = "error") -> None:
    """From now on a compile is unplanned: "error" refuses it, "warn" reports it, "off" allows it.

    Programs in memory, in the disk cache and in loaded bundles are used as before; for extents that
    were not seen, a program with the same argument types and options serves. The message names the
    argument that made a new program necessary.

    Raises:
        LaunchError: an unknown mode.
    """
    if mode not in ("off", "warn", "error"):
        raise LaunchError(f"freeze(): mode {mode!r} is none of error, warn, off")
    STATE.freeze = mode


def unplanned(name: str, cause: str) -> None:
    """Called ahead of a compile. Raises LaunchError when compiling is frozen."""
    if STATE.freeze == "off":
        return
    text = f"kernel {name} needs a compile that was not planned: {cause}"
    if STATE.freeze == "error":
        raise LaunchError(
            text,
            hint="record such a call with tiledsl.record() and compile it with tiledsl.warmup(), "
            "or allow compiles with tiledsl.freeze('off')",
        )
    warnings.warn(text, stacklevel=2)


def differences(new: Specialisation, old: Specialisation) -> list[str]:
    """The facts in which two specialisations differ, in the order of the arguments."""
    names = [*new.facts, *(n for n in old.facts if n not in new.facts)]
    return [
        f"{n}: {old.facts.get(n, 'not given')} -> {new.facts.get(n, 'not given')}"
        for n in names
        if new.facts.get(n) != old.facts.get(n)
    ]


def closest(new: Specialisation, history: list[Specialisation]) -> Specialisation | None:
    """The earlier specialisation with the fewest differences, the latest of equals."""
    return min(reversed(history), key=lambda s: len(differences(new, s)), default=None)


def cause_of(new: Specialisation, history: list[Specialisation]) -> str:
    """Why a specialisation needs a program of its own."""
    near = closest(new, history)
    if near is None:
        return "it is the first of the kernel in this process"
    found = differences(new, near)
    return (
        "; ".join(found) if found else "nothing that shows in the call (a captured value changed)"
    )


def explain(name: str, history: list[Specialisation]) -> str:
    """A line per program of a kernel: where it came from and what made it necessary."""
    lines = [f"{name}: {len(history)} program{'s' * (len(history) != 1)}"]
    for at, item in enumerate(history):
        cost = f"{item.origin}, {item.seconds * 1e3:.0f} ms"
        lines.append(f"  {at + 1}. {cost}: {cause_of(item, history[:at])}")
    return "\n".join(lines)
