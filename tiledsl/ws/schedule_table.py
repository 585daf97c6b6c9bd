"""The table of a loop schedule: what runs where and when, and how many registers live then."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.types import TileType
from tiledsl.ws.free import VIEWS

if TYPE_CHECKING:
    from tiledsl.ws.loop_schedule import Body
    from tiledsl.ws.loop_schedule import Step

Key = tuple[Value, bool]
"""A value of an iteration, and whether that is the iteration before."""
UNITS = {"issue": "tensor core", "stage": "CUDA cores", "op": "CUDA cores"}
HEADER = ("op", "unit", "distance", "start", "registers")


def table(body: Body, steps: tuple[Step, ...], warpgroups: int) -> str:
    """The steady state as text, a row for each step.

    distance: iterations behind the newest one. start: clocks from the start of an iteration.
    registers: of tiles that live during the step, per thread; loop invariants are among them. Views
    and coordinates are left out: they are made where they are read.
    """
    rows: list[tuple[str, ...]] = [HEADER]
    for step, live in zip(steps, live_registers(body, steps, warpgroups), strict=True):
        if isinstance(step.op, VIEWS):
            continue
        unit, distance = UNITS.get(step.kind, ""), str(int(step.late))
        rows.append((_what(step), unit, distance, f"{step.start:.0f}", str(live)))
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEADER))]
    return "\n".join(_line(r, widths) for r in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    texts = [f"{t:<{w}}" for t, w in zip(row[:2], widths, strict=False)]
    numbers = [f"{t:>{w}}" for t, w in zip(row[2:], widths[2:], strict=True)]
    return "    " + "  ".join((*texts, *numbers))


def _what(step: Step) -> str:
    if step.kind == "wait":
        return f"wait pending {step.pending}"
    if step.kind == "release":
        return f"release channel {step.group}"
    assert step.op is not None
    name = step.op.results[0].name if step.op.results else ""
    return f"{step.kind} {step.op.opcode} {name}".rstrip()


def tile_registers(value: Value, warpgroups: int) -> int:
    """Registers of a tile per thread; a row or column takes two."""
    type_ = value.type
    if not isinstance(type_, TileType):
        return 0
    if type_.rank < 2 or 1 in type_.shape:
        return 2
    return type_.num_elements * type_.dtype.bits // 32 // (128 * warpgroups)


class _Liveness:
    """Which values of the steady state live at each step, backwards."""

    def __init__(self, body: Body, steps: tuple[Step, ...]) -> None:
        self.body = body
        self.steps = steps
        loop = body.flow.loop
        inside = {v for op in loop.body.walk() for v in op.results} | set(loop.body.args)
        used = [v for op in body.ops for v in body.uses(op) if v not in inside]
        self.fixed = list(dict.fromkeys(used))

    def key(self, value: Value, *, late: bool) -> tuple[Key, bool] | None:
        """The value that a use reads, and whether the body before has made it."""
        if value in self.body.carried:
            following = self.body.carried[value]
            made_late = self._is_late(following)
            return (following, made_late), late or not made_late
        if value not in self.body.made:
            return None
        made_late = self._is_late(value)
        return (value, made_late), late and not made_late

    def _is_late(self, value: Value) -> bool:
        op = self.body.made.get(value)
        return op is not None and op.id in self.body.late

    def walk(self) -> list[set[Key]]:
        """Per step, the values that live while it runs."""
        live: set[Key] = set()
        out: list[set[Key]] = []
        for _ in range(2):  # the second time with what the next body needs
            from_before: set[Key] = set()
            out = []
            for step in reversed(self.steps):
                made = self._made(step)
                out.append(live | from_before | made)
                live -= made if step.kind in ("op", "issue") else set()
                for key, before in self._used(step):
                    (from_before if before else live).add(key)
            live = from_before | live
        return out[::-1]

    def _made(self, step: Step) -> set[Key]:
        if step.kind not in ("op", "issue", "wait") or step.op is None:
            return set()
        return {(r, step.late) for r in step.op.results}

    def _used(self, step: Step) -> Iterator[tuple[Key, bool]]:
        if step.op is None:
            return
        values = self.body.uses(step.op)
        if step.kind == "wait":
            # A wgmma reads its left operand until then; its accumulator has become its result.
            dot = self.body.dots[step.op.id]
            values = [dot.dot.a] if dot.register_a else []
        for value in values:
            found = self.key(value, late=step.late)
            if found is not None:
                yield found


def live_registers(body: Body, steps: tuple[Step, ...], warpgroups: int) -> list[int]:
    """Registers of tiles per thread during each step of the steady state."""
    liveness = _Liveness(body, steps)
    sizes: dict[Value, int] = {}

    def total(values: Iterable[Value]) -> int:
        for v in values:
            if v not in sizes:
                kept = _is_kept(v.defining_op, body)
                sizes[v] = tile_registers(v, warpgroups) if kept else 0
        return sum(sizes[v] for v in values)

    fixed = total(liveness.fixed)
    return [fixed + total({v for v, _ in live}) for live in liveness.walk()]


def _is_kept(op: Op | None, body: Body) -> bool:
    """Whether a value is held: masks, splats and views are made where they are read."""
    if op is None:
        return True
    if op.opcode.startswith("tile.") and op.opcode not in ("tile.map",):
        return False
    type_ = op.results[0].type if op.results else None
    if isinstance(type_, TileType) and not type_.dtype.is_float:
        return False
    users = [o for o in body.ops if any(r in body.uses(o) for r in op.results)]
    return not _joins(op, users)


def _joins(op: Op, users: list[Op]) -> bool:
    """Whether tile math is part of the loop of its only user."""
    is_math = op.opcode.startswith("elementwise.")
    return is_math and len(users) == 1 and users[0].opcode.startswith(("elementwise.", "reduce."))
