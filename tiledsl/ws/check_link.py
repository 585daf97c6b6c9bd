"""Makes the steps of a program from its ops: the blocks of a crew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import cast

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Stride
from tiledsl.ir.ops.mma import ClusterReduce
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import OwnRow
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.role import ClusterRank
from tiledsl.ir.ops.role import FirstTile
from tiledsl.ir.ops.role import NumTiles
from tiledsl.ir.ops.role import TileStep
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.ops.smem import Slot
from tiledsl.ir.ops.smem import WriteScalars
from tiledsl.ws.check_program import CONTROL
from tiledsl.ws.check_program import END
from tiledsl.ws.check_program import HANDLED
from tiledsl.ws.check_program import USE
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import Step
from tiledsl.ws.check_program import asked_of
from tiledsl.ws.check_repeats import Part
from tiledsl.ws.check_repeats import with_repeats
from tiledsl.ws.check_scalars import Env
from tiledsl.ws.check_scalars import function_of
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_steps import ASKS
from tiledsl.ws.check_steps import BRANCH
from tiledsl.ws.check_steps import HEAD
from tiledsl.ws.check_steps import LOOP
from tiledsl.ws.check_steps import NOTHING
from tiledsl.ws.check_steps import PAUSING
from tiledsl.ws.check_steps import ROWS
from tiledsl.ws.check_steps import SCALARS
from tiledsl.ws.check_steps import STRAIGHT
from tiledsl.ws.check_steps import WAITING
from tiledsl.ws.check_steps import WAITS
from tiledsl.ws.check_steps import WHILE
from tiledsl.ws.check_steps import WORDS
from tiledsl.ws.check_steps import Asking
from tiledsl.ws.check_steps import Block
from tiledsl.ws.check_steps import Branch
from tiledsl.ws.check_steps import Call
from tiledsl.ws.check_steps import Endless
from tiledsl.ws.check_steps import Item
from tiledsl.ws.check_steps import Link
from tiledsl.ws.check_steps import Loop
from tiledsl.ws.check_steps import Maker
from tiledsl.ws.check_steps import Moves
from tiledsl.ws.check_steps import Row
from tiledsl.ws.check_steps import Rule
from tiledsl.ws.check_steps import row_of

COUNTED = (barrier.CursorCreate, barrier.CursorNext, barrier.CursorSkip, Slot)
"""Ops that move cursors, or stop one in a slot."""
PLACES = (WarpgroupIndex, ClusterRank)
"""Ops that tell where a thread is."""
GIVEN = (*PLACES, FirstTile, TileStep, NumTiles, ProgramId, NumPrograms, OwnRow, Stride, Pick)
"""Ops whose scalars follow from the launch, or from where a thread is."""
NO_PART = Part(pure=True)
"""Of rows, which depend on no scalars."""


def decides(code: Program, op: ReadScalars) -> bool:
    """Whether control flow depends on words that are read."""
    return not code.needed.isdisjoint(op.results)


def counted_values(code: Program) -> set[Value]:
    """Buffers of words that decide, and the cursors by which their slots are told apart."""
    if "counted" not in code.tables:
        ops = [s.op for steps in code.code.values() for s in steps if s.kind == HANDLED]
        reads = [o for o in ops if isinstance(o, ReadScalars) and decides(code, o)]
        slots = [o.smem.defining_op for o in reads]
        buffers = {s.buffer for s in slots if isinstance(s, Slot)}
        found = [s for s in ops if isinstance(s, Slot) and s.buffer in buffers]
        code.tables["counted"] = buffers | {s.cursor for s in found if s.cursor is not None}
    return code.tables["counted"]


class Linker:
    """Makes the blocks of a crew.

    rules: by op; other ops by `link_scalar` and `link_taken` of the run. whole: everything is
    computed with its data, and threads pause after every op.
    """

    def __init__(
        self,
        run: Any,
        crew: list[Thread],
        rules: Mapping[type[Op], Rule],
        *,
        whole: bool,
    ) -> None:
        self._run = run
        self._crew = crew
        self._lead = crew[0]
        self._rules = rules
        self._whole = whole
        self._code: Program = run.code
        self._known: dict[Value | None, Any] = {None: None, **self._code.constants}
        self._given: list[Call] = []
        self._fixed: set[Value] = {*self._code.constants, *self._code.graph.args}
        self._indexes: set[Value | None] = set()
        self._ranks: set[Value | None] = set()
        self._counted: set[Value] = set() if whole else counted_values(self._code)

    def role(self, region: Region) -> Block:
        """All that a role does."""
        made, _ = self._block(region)
        made.given = self._given
        return made

    def _block(self, region: Region) -> tuple[Block, list[Part]]:
        """A region and those within, with the ops of its items."""
        made = Block(region)
        writer = _Writer(made.items, hoists=not self._whole)
        loads: list[tma.Load] = []
        for s in self._code.code.get(region, ()):
            op = s.op
            if loads and not (type(op) is tma.Load and _goes_with(loads[0], op)):
                self._add_loads(writer, loads)
                loads = []
            if s.kind == HANDLED:
                if type(op) is tma.Load and not self._whole:
                    loads.append(op)
                else:
                    self._add_handled(writer, op)
            elif s.kind == CONTROL:
                writer.add(*self._control(op))
            elif s.kind != END:
                self._add_scalar(writer, s)
        self._add_loads(writer, loads)
        if not made.items:
            made.rows = []
        elif len(made.items) == 1 and made.items[0][0] == ROWS:
            made.rows = made.items[0][1]
        made.pure = all(p.pure for p in writer.parts)
        made.loops = any(p.loops for p in writer.parts)
        return made, writer.parts

    # ------------------------------------------------------------------ ops
    def _add_loads(self, writer: _Writer, loads: list[tma.Load]) -> None:
        """Loads of the boxes of a slot, one behind the other: as one copy, if they may be."""
        known, ranks = self._known, self._ranks
        if len(loads) < 2 or not all(
            v in known or v in ranks for op in loads for v in (op.mask, op.part)
        ):
            for op in loads:
                self._add_handled(writer, op)
            return

        def link(run: Any, t: Thread, _: Op) -> Call:
            own = {**known, **dict.fromkeys(ranks, t.cta.rank)}
            return run.link_boxes(t, [(op, own[op.mask], own[op.part]) for op in loads])

        writer.row(row_of(self._run, self._crew, loads[0], link, STRAIGHT))

    def _add_handled(self, writer: _Writer, op: Any) -> None:
        cls, lead = cast("type[Op]", type(op)), self._lead
        calc, link, names = self._rules[cls]
        if calc is not None:
            self._compute(writer, calc(self._run, lead, op), op, pure=cls is ClusterReduce)
            if cls in PLACES and not self._whole:
                (self._ranks if cls is ClusterRank else self._indexes).add(op.result)
        if link is None:
            return
        if cls in COUNTED and self._is_counted(op):
            writer.compute(_count(lead.env, op), op, pure=False)
        kind = WAITING if cls in WAITS else STRAIGHT
        if self._whole or (lead.loads and cls is barrier.CursorNext):
            kind = PAUSING
        if names:
            self._add_asking(writer, op, link, kind, names)
        elif cls is ReadScalars and (self._whole or decides(self._code, op)):
            maker = Maker(self._run, self._crew, op, link, kind, [], [])
            writer.add((WORDS, (op, Asking(maker, []))), Part(op, pure=False))
        else:
            writer.row(row_of(self._run, self._crew, op, link, kind))

    def _add_asking(
        self, writer: _Writer, op: Op, link: Link, kind: int, names: tuple[str, ...]
    ) -> None:
        """An op that asks for scalars: those that each thread knows by itself, and others."""
        asked, known = asked_of(op, names), self._known
        notes = self._notes(op)
        indexes = [] if notes else [i for i, v in enumerate(asked) if v in self._indexes]
        ranks = [] if notes else [i for i, v in enumerate(asked) if v in self._ranks]
        for i in (*indexes, *ranks):
            asked[i] = None
        maker = Maker(self._run, self._crew, op, link, kind, indexes, ranks)
        if not notes and all(v in known for v in asked):
            writer.row(maker.row([known[v] for v in asked]))
        else:
            writer.add((ASKS, Asking(maker, asked)), Part(op, pure=not notes))

    def _is_counted(self, op: Any) -> bool:
        """Whether a cursor, or a slot, is one of words that decide."""
        if isinstance(op, Slot):
            return op.buffer in self._counted or op.cursor in self._counted
        return (op.result if isinstance(op, barrier.CursorCreate) else op.cursor) in self._counted

    def _notes(self, op: Op) -> bool:
        """Whether an op writes words that decide."""
        made = op.smem.defining_op if isinstance(op, WriteScalars) else None
        return isinstance(made, Slot) and made.buffer in self._counted

    def _add_scalar(self, writer: _Writer, step: Step) -> None:
        run, op = self._run, step.op
        if step.kind == USE and run.in_flight(*op.operands):
            takes = [[run.link_taken(t, op, *op.operands)] for t in self._crew]
            writer.row((STRAIGHT, takes, op))
        if (compute := run.link_scalar(self._lead, step)) is not None:
            self._compute(writer, compute, op, pure=op.effect is Effect.PURE)

    def _compute(self, writer: _Writer, call: Call, op: Op, *, pure: bool) -> None:
        """A scalar; what follows from the launch is computed ahead of everything."""
        if not self._whole and self._is_given(op):
            self._given.append(call)
            self._fixed.update(op.results)
        else:
            writer.compute(call, op, pure=pure)

    def _is_given(self, op: Op) -> bool:
        """Whether a scalar follows from the launch, and the thread's place, alone."""
        if type(op) is Shape:
            return not isinstance(op.tensor.defining_op, Pick)  # these differ from tile to tile
        return type(op) in GIVEN or (
            function_of(op) is not None and self._fixed.issuperset(op.operands)
        )

    # ------------------------------------------------------------------ control flow
    def _control(self, op: Op) -> tuple[Item, Part]:
        match op:
            case If():
                branch = self._branch(op)
                inner = (branch.then[0], branch.orelse[0])
                pure, loops = all(b.pure for b in inner), any(b.loops for b in inner)
                pure = pure and op not in self._code.chosen
                return (BRANCH, branch), Part(op, pure=pure, loops=loops)
            case For():
                loop = self._loop(op)
                return (LOOP, loop), Part(op, pure=loop.body.pure, loops=True)
            case _:
                return (WHILE, self._while(cast("While", op))), Part(op, pure=False, loops=True)

    def _body(self, region: Region) -> Block:
        """The body of a loop, of which parts may be the same in many trips."""
        made, parts = self._block(region)
        if made.loops and not self._whole:
            with_repeats(self._code, made, self._fixed, parts)
        return made

    def _branch(self, op: If) -> Branch:
        made = [
            (self._block(r)[0], self._moves(self._yielded(r), op.results))
            for r in (op.then, op.orelse)
        ]
        return Branch(op, made[0], made[1])

    def _loop(self, op: For) -> Loop:
        carried, yielded = tuple(op.carried), self._yielded(op.body)
        body = self._body(op.body)
        pairs = [(op.init, carried), (yielded, carried), (yielded, op.results)]
        pairs.append((op.init, op.results))
        enter, again, done, skipped = (self._moves(a, b, carried, op.results) for a, b in pairs)
        heads = (HEAD, True, op), (HEAD, False, op)
        return Loop(op, body, enter, again, done, skipped, *heads)

    def _while(self, op: While) -> Endless:
        before, body = self._body(op.before), self._body(op.body)
        condition, *given = self._yielded(op.before)
        values = tuple(given)
        return Endless(
            op,
            before,
            body,
            condition,
            self._moves(op.init, tuple(op.before.args)),
            self._moves(values, tuple(op.body.args)),
            self._moves(self._yielded(op.body), tuple(op.before.args)),
            self._moves(values, op.results),
            (HEAD, True, op),
            (HEAD, False, op),
        )

    def _yielded(self, region: Region) -> tuple[Value, ...]:
        steps = self._code.code.get(region, ())
        return steps[-1].op.operands if steps and steps[-1].kind == END else ()

    def _moves(
        self, sources: tuple[Value, ...], targets: tuple[Value, ...], *others: tuple[Value, ...]
    ) -> Moves:
        """What becomes of values; of tiles, those in flight. others: that stand for the targets."""
        if not targets and not sources:
            return NOTHING
        flight, needed = self._code.flight, self._code.needed
        pairs = list(zip(sources, targets, *others, strict=True))
        if self._whole:
            return Moves(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), [])
        kept = [p for p in pairs if not needed.isdisjoint(p[1:])]
        tiles = [p for p in pairs if not flight.isdisjoint(p[1:])]
        rows: list[Row] = []
        if tiles:
            before, after = [p[0] for p in tiles], [p[1] for p in tiles]
            rows.append((STRAIGHT, [[_move(t.env, before, after)] for t in self._crew], None))
        return Moves(tuple(p[0] for p in kept), tuple(p[1] for p in kept), rows)


def _count(env: Env, op: Any) -> Call:
    """Counts slots as cursors do: what a cursor, and a slot as a value, stands for."""

    def create() -> None:
        env[op.result] = 0

    def move() -> None:
        env[op.cursor] += env[op.count] if type(op) is barrier.CursorSkip else 1

    def stop() -> None:
        env[op.results[0]] = env[op.cursor] if op.cursor is not None else -1

    return stop if type(op) is Slot else create if type(op) is barrier.CursorCreate else move


def _move(env: Env, sources: list[Value], targets: list[Value]) -> Call:
    def move() -> None:
        env.update(zip(targets, [env.get(v) for v in sources], strict=True))

    return move


def _goes_with(first: tma.Load, other: tma.Load) -> bool:
    """Whether two copies fill the same slot, and tell the same mbarriers."""
    names = ("smem", "barriers", "cursor", "mask")
    return all(getattr(first, n) is getattr(other, n) for n in names)


class _Writer:
    """Fills the items of a block, and notes their ops.

    hoists: scalars are computed ahead of the rows that stand before them.
    """

    def __init__(self, items: list[Item], *, hoists: bool) -> None:
        self._items = items
        self._hoists = hoists
        self.parts: list[Part] = []
        self._scalars: list[Call] | None = None
        self._part = NO_PART

    def add(self, item: Item, part: Part) -> None:
        """Any item; one that asks for scalars gives none that those behind it may need."""
        self._items.append(item)
        self.parts.append(part)
        if item[0] != ASKS:
            self._scalars = None

    def compute(self, call: Call, op: Op, *, pure: bool) -> None:
        """A scalar; those that follow from others alone are kept apart."""
        if (
            self._scalars is None
            or self._part.pure != pure
            or not (self._hoists or self._items[-1][0] == SCALARS)
        ):
            self._scalars = []
            self._part = Part(pure=pure)
            self._items.append((SCALARS, self._scalars))
            self.parts.append(self._part)
        self._scalars.append(call)
        self._part.ops.append(op)

    def row(self, row: Row) -> None:
        """A row that depends on no scalars. Those that are done at once are done in one go."""
        if not self._items or self._items[-1][0] != ROWS:
            self._items.append((ROWS, []))
            self.parts.append(NO_PART)
        rows = cast("list[Row]", self._items[-1][1])
        if row[0] == STRAIGHT and rows and rows[-1][0] == STRAIGHT:
            for calls, more in zip(rows[-1][1], row[1], strict=True):
                calls.extend(more)
        elif row[0] != STRAIGHT or any(row[1]):
            rows.append(row)
