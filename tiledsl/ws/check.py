"""The proof that a specialised kernel neither hangs nor races, on the program that is emitted.

The MACHINE program is run without its data (check_run) at launch points that together reach every
branch and every trip count up to the one from which its state repeats (check_points). What one run
shows holds for all interleavings; what the repeated state shows holds for all larger trip counts.

Ref: marked graphs: a net without choices is live if one of its firing sequences ends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from dataclasses import field

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ws.check_bounds import among_all
from tiledsl.ws.check_bounds import bounds_of
from tiledsl.ws.check_data import ALWAYS
from tiledsl.ws.check_data import IN_TURNS
from tiledsl.ws.check_data import NEVER
from tiledsl.ws.check_empty import is_empty
from tiledsl.ws.check_empty import is_never
from tiledsl.ws.check_machine import RULES
from tiledsl.ws.check_points import Entries
from tiledsl.ws.check_points import PointRun
from tiledsl.ws.check_points import launch_points
from tiledsl.ws.check_points import more_points
from tiledsl.ws.check_points import place
from tiledsl.ws.check_points import steady_lines
from tiledsl.ws.check_points import trips_seen
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import cut_down
from tiledsl.ws.check_program import never_runs
from tiledsl.ws.check_program import role_of
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_static import check_objects
from tiledsl.ws.check_steps import MALFORMED
from tiledsl.ws.check_wide import varied_points
from tiledsl.ws.check_wide import wide_point

SCALES = (1, 2, 4)
"""How much longer to look for the trip from which on loops repeat their state."""
OBLIGATIONS = {
    "balance": "every mbarrier phase gets exactly its arrivals and bytes; nothing is left over",
    "liveness": "no circular wait: with every barrier a counter, one complete run shows that "
    "all end",
    "ordering": "every write of a slot comes after the last read and write of its tenant before, "
    "wgmma and bulk copies counted until their waits; no wait can miss its phase",
    "fences": "generic writes reach the async proxy through a fence and a barrier, copies of "
    "threads through a barrier and a fence; wgmma registers are fenced",
    "named barriers": "ids in 1..15, participants and counts agree, nobody arrives twice in one "
    "generation",
    "staging": "a slab is rewritten after its bulk store has read it, and outlives it",
    "cluster": "remote arrivals and copies go to CTAs that run; the cluster leaves together",
    "memory": "buffers, mbarriers and scratch do not overlap",
}
"""What is proved, by name."""


@dataclass(frozen=True)
class Obligation:
    """One obligation: whether it is proved, by which argument, and where it came up."""

    name: str
    proved: bool
    argument: str
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" [{', '.join(self.lines)}]" if self.lines else ""
        return f"{'proved' if self.proved else 'NOT PROVED'} {self.name}: {self.argument}{where}"


@dataclass
class Certificate:
    """The obligations of one kernel.

    points: launches run; steady: loops and the iteration from which their state repeats; empty:
    loops that never run.
    """

    obligations: list[Obligation] = field(default_factory=list[Obligation])
    points: int = 0
    seconds: float = 0.0
    steady: list[str] = field(default_factory=list[str])
    empty: list[str] = field(default_factory=list[str])

    @property
    def proved(self) -> bool:
        return all(o.proved for o in self.obligations)

    @property
    def failure(self) -> str:
        """The first obligation that is not proved, with its lines; empty if all are."""
        failed = next((o for o in self.obligations if not o.proved), None)
        if failed is None:
            return ""
        where = f" [{', '.join(failed.lines)}]" if failed.lines else ""
        return f"{failed.name}: {failed.argument}{where}"

    def render(self) -> list[str]:
        """Lines for the report."""
        word = "proved" if self.proved else "NOT proved"
        cost = f"{self.points} launches, {self.seconds * 1e3:.0f} ms"
        head = f"{word} for all trip counts and interleavings ({cost})"
        return [
            head,
            *(f"  {o}" for o in self.obligations),
            *(f"  steady: {s}" for s in self.steady),
        ]


def check(graph: TileGraph) -> Certificate:
    """The certificate of a specialised MACHINE graph. Never raises for a faulty program."""
    start = time.thread_time()
    made = Certificate()
    try:
        code = cut_down(graph, RULES)
        _prove(graph, code, made)
    except Fault as fault:
        _record(made, None, fault)
    except MALFORMED as error:
        _record(made, None, Fault("liveness", f"the program cannot be run: {error!r}"))
    made.seconds = time.thread_time() - start
    return made


def _prove(graph: TileGraph, code: Program, made: Certificate) -> None:
    if code.unknown:
        op = code.unknown[0]
        raise Fault("liveness", f"the checker does not know op {op.opcode}", op)
    check_objects(graph)
    run = PointRun(code, int(graph.facts.get("cluster_size", 1)))
    try:
        steady = _run_all(run)
        made.empty = _reach(run)
    finally:
        made.points = run.count
        run.close()
    made.steady = steady + made.empty
    _record(made, code, None)


def _run_all(run: PointRun) -> list[str]:
    """Runs the launches that stand for all; returns what to report of their loops."""
    code, size = run.code, run.cluster_size
    points = launch_points(code, size, SCALES[0])
    ways = (NEVER, ALWAYS, IN_TURNS) if code.chosen else (NEVER,)
    for run.way in ways:
        for point in points.few:
            run.launch(point)
    steady: list[str] | Fault = []
    for scale in SCALES:
        if scale != SCALES[0]:
            points = launch_points(code, size, scale)
        noted: list[Entries] = []
        for run.way in ways:
            noted += [run.watch(p) for p in points.many]
        noted += _wide_runs(run, noted)
        steady = steady_lines(noted)
        if not isinstance(steady, Fault):
            return steady
    assert isinstance(steady, Fault)
    raise steady


def _wide_runs(run: PointRun, noted: list[Entries]) -> list[Entries]:
    """Runs for the loops of the watched role that the others leave before they repeat."""
    seen = trips_seen(noted)
    out: list[Entries] = []
    loops = [b.loop for b in bounds_of(run.code)]
    for loop in [loop for loop in loops if role_of(loop.body) is run.last.role]:
        trips, first = seen.get(loop, (0, -1))
        if first < 0:
            point = wide_point(run.code, loop, trips, run.cluster_size)
            if point is not None:
                out.append(run.watch(point))
                seen = trips_seen([*noted, *out])
    watched = [loop for loop in loops if role_of(loop.body) is run.last.role]
    few = [loop for loop in watched if seen.get(loop, (0, -1))[1] < 0]
    return out + [run.watch(p) for p in varied_points(run.code, few, run.cluster_size)]


def _reach(run: PointRun) -> list[str]:
    """Every part of the program has to be run; returns what to report of loops that never are.

    By more launches, and where no launch is found that takes a branch, by taking it always.
    """
    code, reached = run.code, run.reached
    for point in more_points(code, run.cluster_size):
        if reached >= code.code.keys():
            return []
        run.launch(point)
    points = [
        *reversed(launch_points(code, run.cluster_size, 1).many),
        *more_points(code, run.cluster_size),
    ]
    dead: set[Region] = set()
    empty: list[str] = []
    for region in [r for r in code.code if r not in reached]:
        branch = region.parent
        if region in reached:
            continue
        is_free = branch in code.chosen
        if branch is not None and (
            branch.parent in dead
            or (not is_free and (never_runs(region, reached) or is_never(region)))
            or (isinstance(branch, If) and _is_contradicted(code, branch, region))
        ):
            dead.add(region)
        elif isinstance(branch, For) and is_empty(branch):
            dead.add(region)
            empty.append(f"{place(branch)}: no trips, its bounds cross in every launch")
        elif isinstance(branch, If):
            _force(run, branch, region, points)
        else:
            raise Fault("liveness", "no launch was found that reaches this loop", branch)
    return empty


def _is_contradicted(code: Program, branch: If, region: Region) -> bool:
    """Whether a branch around a side of a branch asks the same, and has it on its other side."""
    among = among_all(code)
    formulas, inner = among.formulas, branch.parent
    number = formulas.number(branch.condition)
    leaves = [among.leaves()[i] for i in formulas.uses[number]]
    if any(kind == "loaded" or (kind == "symbol" and at < 0) for kind, at in leaves):
        return False  # one leaf may stand for several numbers
    while inner is not None and inner.parent is not None:
        op = inner.parent
        if isinstance(op, If) and formulas.number(op.condition) == number:
            return (inner is op.then) != (region is branch.then)
        inner = op.parent
    return False


def _force(run: PointRun, branch: If, region: Region, points: list[LaunchPoint]) -> None:
    """Runs a side of a branch by taking it always.

    So are its clones in other roles, and those around it that follow from data.
    """
    formulas = among_all(run.code).formulas
    number = formulas.number(branch.condition)
    for steps in run.code.code.values():
        for op in [s.op for s in steps if isinstance(s.op, If)]:
            if formulas.number(op.condition) == number:
                run.forced[op] = region is branch.then
    inner: Region | None = branch.parent
    while inner is not None and inner.parent is not None:
        if isinstance(inner.parent, If) and inner.parent in run.code.chosen:
            run.forced[inner.parent] = inner is inner.parent.then
        inner = inner.parent.parent
    for point in points:
        run.launch(point)
        if region in run.reached:
            break
    else:
        raise Fault("liveness", "no launch was found that reaches this branch", branch)
    run.forced.clear()


def _record(made: Certificate, code: Program | None, fault: Fault | None) -> None:
    lines = _lines_by_obligation(code) if code is not None else {}
    for name, argument in OBLIGATIONS.items():
        if fault is not None and name == fault.obligation:
            where = (fault.loc.short,) if fault.loc else ()
            text = fault.message + (f" ({fault.op.opcode})" if fault.op is not None else "")
            made.obligations.append(Obligation(name, False, text, where))
        elif fault is None:
            made.obligations.append(Obligation(name, True, argument, lines.get(name, ())))


FAMILIES = {
    "balance": ("barrier.expect_tx", "barrier.arrive", "barrier.arrive_copies", "tma.load"),
    "liveness": ("barrier.wait",),
    "ordering": ("mma.issue", "mma.wait"),
    "fences": ("barrier.async_fence", "mma.fence"),
    "named barriers": ("barrier.named_sync", "barrier.named_arrive"),
    "staging": ("tma.store",),
    "cluster": ("mma.cluster_reduce",),
}
"""Ops in which an obligation comes up."""


def _lines_by_obligation(code: Program) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    by_opcode: dict[str, list[Op]] = {}
    for steps in code.code.values():
        for s in steps:
            by_opcode.setdefault(s.op.opcode, []).append(s.op)
    for name, opcodes in FAMILIES.items():
        for opcode in opcodes:
            for op in by_opcode.get(opcode, ()):
                if op.loc is not None:
                    found.setdefault(name, {})[op.loc.short] = None
    return {name: tuple(lines)[:4] for name, lines in found.items()}
