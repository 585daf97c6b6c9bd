"""Branches and `while`, and the copies that yields need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import enters
from tiledsl.codegen.registry import yields_to
from tiledsl.codegen.watch import leave_condition
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control as ops
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.types import TileType


@dataclass(frozen=True)
class IfContext:
    """Both branches; `orelse` may be empty. condition: without parentheses."""

    condition: str
    then: str
    orelse: str


@dataclass(frozen=True)
class WhileContext:
    """before: computes the condition and what the body and the code after the loop see."""

    before: str
    body: str


@dataclass(frozen=True)
class CopiesContext:
    """Statements that move yielded values into the variables that wait for them."""

    copies: str
    leave: str = ""
    variant: str = ""


# ---------------------------------------------------------------------- if
@enters("control.if")
def enter_if(op: ops.If, e: Emission) -> None:
    """Results are declared before the branch."""
    for result in op.results:
        if e.users(result):
            e.declare(result)


@emits("control.if")
def if_(op: ops.If, e: Emission, then: str, orelse: str) -> IfContext | None:
    """`if (c) { ... } else { ... }`; a branch without statements is left out."""
    condition = e.text(op.condition)
    if not then and not orelse:
        return None
    if not then:
        return IfContext(f"!{e.atom(op.condition)}", orelse, "")
    return IfContext(condition, then, orelse)


@yields_to("control.if")
def yield_if(op: ops.Yield, e: Emission) -> CopiesContext | None:
    """The results of the branch."""
    branch = op.parent.parent if op.parent else None
    assert isinstance(branch, ops.If)
    used = [(r, v) for r, v in zip(branch.results, op.values, strict=True) if e.users(r)]
    return copies(e, [r for r, _ in used], [v for _, v in used])


# ---------------------------------------------------------------------- while
@enters("control.while")
def enter_while(op: ops.While, e: Emission) -> None:
    """Carried variables take their initial values; what `before` yields is declared."""
    start_carried(op.before.args, op.init, e)
    for arg in op.body.args:
        e.declare(arg)


@emits("control.while")
def while_(op: ops.While, e: Emission, before: str, body: str) -> WhileContext:
    """`while (true) { before; if (!c) break; body }`."""
    del op, e
    return WhileContext(before, body)


@yields_to("control.while")
def yield_while(op: ops.Yield, e: Emission) -> CopiesContext | None:
    """From `before`: the values seen by the body and after the loop, then the exit; from the body.

    The next ones. A debug build asks first whether a wait was given up: what the condition was read
    from may then differ from warp to warp.
    """
    loop = op.parent.parent if op.parent else None
    assert isinstance(loop, ops.While)
    if op.parent is loop.body:
        return copies(e, loop.before.args, op.values)
    condition, values = yielded(loop.before)[0], op.values[1:]
    moved = copies(e, loop.body.args, values)
    leave = leave_condition(e)
    lines = [moved.copies] if moved else []
    lines += [f"if ({leave}) break;"] if leave else []
    return CopiesContext("\n".join(lines), f"!{e.atom(condition)}", "exit")


# ---------------------------------------------------------------------- copies
def start_carried(args: Sequence[Value], init: Sequence[Value], e: Emission) -> None:
    """Declares carried variables with their initial values.

    Those that share the initial value's are there already.
    """
    late: list[tuple[Value, Value]] = []
    for arg, value in zip(args, init, strict=True):
        if e.variables.root(arg) is e.variables.root(value) and e.is_declared(arg):
            continue
        if e.is_declared(arg):
            late.append((arg, value))
        elif isinstance(arg.type, TileType):
            e.before(_copy(e, arg, e.text(value)))
        else:
            text = e.text(value)
            e.before(f"{e.assignment(arg)} = {text};")
    moved = copies(e, [a for a, _ in late], [v for _, v in late])
    if moved:
        e.before(moved.copies)


def copies(e: Emission, targets: Sequence[Value], sources: Sequence[Value]) -> CopiesContext | None:
    """Moves all sources into their targets at once: nothing is overwritten before it is read."""
    root = e.variables.root
    todo: list[tuple[Value, Value | None, str]] = [
        (target, root(source), e.text(source))
        for target, source in zip(targets, sources, strict=True)
        if root(target) is not root(source)
    ]
    lines: list[str] = []
    while todo:
        read = [key for _, key, _ in todo]
        free = next((i for i, (target, _, _) in enumerate(todo) if root(target) not in read), None)
        if free is not None:
            target, _, text = todo.pop(free)
            lines.append(_copy(e, target, text))
            continue
        victim = todo[0][0]
        saved = e.names.fresh("saved")
        lines += _save(e, victim, saved)
        gone = root(victim)
        todo = [(t, None, saved) if key is gone else (t, key, text) for t, key, text in todo]
    return CopiesContext("\n".join(lines)) if lines else None


def _copy(e: Emission, target: Value, text: str) -> str:
    name = e.declare(target)
    if not isinstance(target.type, TileType):
        return f"{name} = {text};"
    pin = f"\nkeep({name});" if e.is_accumulator(target) else ""
    return f"copy({name}, {text});{pin}"


def _save(e: Emission, value: Value, saved: str) -> list[str]:
    """A temporary that breaks a cycle of copies."""
    name = e.text(value)
    if isinstance(value.type, TileType):
        return [f"{e.tile_declaration(value.type, saved)};", f"copy({saved}, {name});"]
    return [f"const {e.value_type(value)} {saved} = {name};"]
