"""What a run of a case is asked for, and what became of it."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from types import FrameType

SECONDS = 120.0
"""Processor time that one level of one case may take on the CPU."""
COMPILE_SECONDS = 20.0
"""Processor time that the compiler may take for a case, all plans that it tries together."""


@dataclass(frozen=True)
class Levels:
    """What to run beside the interpreter.

    plans: how many plans of a kernel, in the order in which the compiler would try them.
    emulation, nvrtc: share of the cases that are also run as emitted text, and compiled.
    """

    simulation: bool = True
    plans: int = 2
    emulation: float = 0.0
    nvrtc: float = 0.0
    device: bool = False


@dataclass(frozen=True)
class Finding:
    """What is wrong. kind: differs, fault, crash, hang or compile, and the level."""

    kind: str
    text: str


@dataclass
class Outcome:
    """What became of a case.

    compared: how often results were compared at each level.  refused: by the language;
    declined: launch options that cannot be honoured.  unproved: plans that the checker refused.
    same_bits: simulations that gave the interpreter's bits.  stayed: whether CTAs of a single role
    stay for the next program.  walked: whether CTAs on the device had several tiles each.
    """

    name: str
    family: str = ""
    specialised: int = 0
    refused: str = ""
    declined: str = ""
    unproved: list[str] = field(default_factory=list[str])
    reasons: list[str] = field(default_factory=list[str])
    compared: dict[str, int] = field(default_factory=dict[str, int])
    same_bits: int = 0
    vague: bool = False
    spilled: int = 0
    serialised: int = 0
    stayed: bool = False
    walked: bool = False
    findings: list[Finding] = field(default_factory=list[Finding])

    def count(self, level: str) -> None:
        self.compared[level] = self.compared.get(level, 0) + 1


class TooLong(Exception):
    """A level did not end in time."""


@contextmanager
def limited(seconds: float, *, wall: bool = False) -> Generator[None]:
    """Raises TooLong in a block that takes longer: of processor time, or of time on the wall."""

    def ring(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TooLong

    number, timer = signal.SIGPROF, signal.ITIMER_PROF
    if wall:
        number, timer = signal.SIGALRM, signal.ITIMER_REAL
    before = signal.signal(number, ring)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0.0)
        signal.signal(number, before)
