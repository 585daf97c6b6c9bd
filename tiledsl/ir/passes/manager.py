"""Registers passes and runs lists of them: verified, timed, dumped, errors naming the pass.

The graph's rules are checked before the first pass of a list and after its last one. The
environment variable TILEDSL_CHECK asks for more or less: 0 nothing, 1 around every pass, which
tells the pass that broke a graph, 2 also that the text form reads back to the same text.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Concatenate
from typing import ParamSpec

from tiledsl.errors import InternalError
from tiledsl.errors import TileError
from tiledsl.errors import VerifyError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.parser import parse_attributes
from tiledsl.ir.parser import parse_graph
from tiledsl.ir.printer import attribute_text
from tiledsl.ir.printer import print_graph
from tiledsl.ir.verifier import verify
from tiledsl.target import HOPPER
from tiledsl.target import Target

P = ParamSpec("P")


@dataclass(frozen=True)
class PassReport:
    """What a pass did.

    changes: how many rewrites it made.  details: lines for the report.
    seconds: time taken, filled in by the manager.
    """

    name: str
    changes: int = 0
    details: tuple[str, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.changes} changes, {self.seconds * 1e3:.2f} ms"]
        return "\n".join([*lines, *(f"  {line}" for line in self.details)])


PassFunction = Callable[Concatenate[TileGraph, Target, P], PassReport]


@dataclass(frozen=True)
class Pass:
    """A registered pass.

    consumes: levels that it accepts.  produces: levels it may leave a graph on.
    """

    name: str
    run: Callable[..., PassReport]
    consumes: Level
    produces: Level


@dataclass(frozen=True)
class PassCall:
    """A pass of a run list with its options, printed and parsed as `insert-aref{depth = 2}`."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        body = ", ".join(f"{name} = {attribute_text(value)}" for name, value in self.options)
        return f"{self.name}{{{body}}}" if body else self.name


_PASSES: dict[str, Pass] = {}


def register_pass(
    name: str, *, consumes: Level, produces: Level
) -> Callable[[PassFunction[P]], PassFunction[P]]:
    """Makes a function `(graph, target, *, options...) -> PassReport` a pass of that name."""

    def register(function: PassFunction[P]) -> PassFunction[P]:
        if name in _PASSES and _PASSES[name].run.__module__ != function.__module__:
            raise InternalError(f"two passes are named {name!r}")
        _PASSES[name] = Pass(name, function, consumes, produces)
        return function

    return register


def passes() -> Mapping[str, Pass]:
    """All registered passes by name; imports every module of tiledsl.ir.passes."""
    package = importlib.import_module("tiledsl.ir.passes")
    for info in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"tiledsl.ir.passes.{info.name}")
    return _PASSES


def find_pass(name: str) -> Pass:
    """The pass of a name. Raises TileError listing the known ones."""
    found = _PASSES.get(name) or passes().get(name)
    if found is None:
        raise TileError(f"no pass is named {name!r}", hint=f"passes: {', '.join(sorted(_PASSES))}")
    return found


def parse_pass(text: str) -> PassCall:
    """`insert-aref{depth = 2}` as a call."""
    found = re.fullmatch(r"\s*([\w-]+)\s*(\{.*\})?\s*", text)
    if found is None:
        raise TileError(f"expected a pass name with options in braces, got {text!r}")
    options = parse_attributes(found[2]) if found[2] else {}
    return PassCall(found[1], tuple(options.items()))


def run_passes(
    graph: TileGraph,
    run: Sequence[str | PassCall],
    target: Target = HOPPER,
    *,
    dump: Path | None = None,
    stop_after: str | None = None,
    check: int | None = None,
) -> list[PassReport]:
    """Runs passes on a graph in place.

    Args:
        graph: the graph.
        run: the passes in order.
        target: the hardware they compile for.
        dump: folder that gets `NN_name.tir` after each pass, and `00_input.tir`.
        stop_after: name of the last pass to run (its first occurrence).
        check: overrides TILEDSL_CHECK, 1 being around every pass.

    Raises:
        TileError: from a pass or the verifier, with a note that names the pass.
    """
    asked = os.environ.get("TILEDSL_CHECK") if check is None else check
    level, around_each = (1, False) if asked is None else (int(asked), True)
    calls = [parse_pass(call) if isinstance(call, str) else call for call in run]
    if stop_after is not None and stop_after not in [call.name for call in calls]:
        names = ", ".join(call.name for call in calls)
        raise TileError(f"stop_after: {stop_after!r} is not in the run list", hint=names)
    _check(graph, target, level, "before the first pass")
    if dump is not None:
        _dump(graph, dump, 0, "input")
    reports: list[PassReport] = []
    for number, call in enumerate(calls, 1):
        reports.append(_run_one(graph, call, target))
        if around_each and (reports[-1].changes or level > 1):
            _check(graph, target, level, f"after pass {call}")
        if dump is not None:
            _dump(graph, dump, number, call.name)
        if call.name == stop_after:
            break
    if not around_each and any(report.changes for report in reports):
        _check(graph, target, level, "after the last pass; TILEDSL_CHECK=1 tells which broke it")
    return reports


def _run_one(graph: TileGraph, call: PassCall, target: Target) -> PassReport:
    entry = find_pass(call.name)
    if not graph.level & entry.consumes:
        raise InternalError(f"pass {call}: the graph is at level {graph.level.name}")
    start = time.perf_counter()
    try:
        report = entry.run(graph, target, **dict(call.options))
    except TileError as error:
        raise error.note(f"while running pass {call}") from error.__cause__
    except Exception as error:
        raise InternalError(
            f"pass {call} failed: {type(error).__name__}: {error}", hint="please report this"
        ) from error
    seconds = time.perf_counter() - start
    if not graph.level & entry.produces:
        raise InternalError(f"pass {call} left the graph at level {graph.level.name}")
    return PassReport(report.name, report.changes, report.details, seconds)


def _check(graph: TileGraph, target: Target, level: int, when: str) -> None:
    if level < 1:
        return
    try:
        verify(graph, target)
        if level > 1:
            check_round_trip(graph)
    except TileError as error:
        raise error.note(f"the graph was checked {when}") from error.__cause__


def check_round_trip(graph: TileGraph) -> None:
    """Raises VerifyError unless the graph's text reads back to the same text."""
    text = print_graph(graph)
    again = print_graph(parse_graph(text))
    if text != again:
        pairs = zip(text.splitlines(), again.splitlines(), strict=False)
        first = next(((a, b) for a, b in pairs if a != b), ("", ""))
        raise VerifyError(
            f"{graph.name}: the text form does not read back: {first[0]!r} became {first[1]!r}"
        )


def _dump(graph: TileGraph, folder: Path, number: int, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:02}_{name}.tir").write_text(print_graph(graph), encoding="utf-8")
