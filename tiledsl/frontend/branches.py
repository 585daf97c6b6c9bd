"""`if`: one branch when the condition is known at compile time, `control.if` otherwise."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tiledsl.dtypes import int1
from tiledsl.errors import SourceLoc
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.dispatch import Return
from tiledsl.frontend.dispatch import ReturnsEarly
from tiledsl.frontend.dispatch import Signal
from tiledsl.frontend.dispatch import evaluate
from tiledsl.frontend.dispatch import run_block
from tiledsl.frontend.dispatch import statement
from tiledsl.frontend.liveness import assigned
from tiledsl.frontend.liveness import liveness_of
from tiledsl.frontend.merge import Conflict
from tiledsl.frontend.merge import conflict_error
from tiledsl.frontend.merge import convert
from tiledsl.frontend.merge import leaves
from tiledsl.frontend.merge import meet
from tiledsl.frontend.merge import rebuild
from tiledsl.frontend.merge import same_leaf
from tiledsl.frontend.merge import same_structure
from tiledsl.frontend.scope import POISON
from tiledsl.frontend.scope import Frame
from tiledsl.frontend.scope import Undefined
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import describe
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.pointer_values import pointer_dtype
from tiledsl.ir.pointer_values import read_hint
from tiledsl.ir.pointer_values import truth
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type


@statement(ast.If)
def run_if(frame: Frame, node: ast.If) -> Signal:
    """`if`, `elif`, `else`."""
    condition = truth(evaluate(frame, node.test))
    if not isinstance(condition, Value):
        return run_block(frame, node.body if condition else node.orelse)
    condition = scalar_condition(frame, node.test, condition, "if")
    if not frame.may_return:
        return _if_that_joins(frame, node, condition)
    try:
        return _if_that_joins(frame, node, condition)
    except ReturnsEarly:
        return _if_with_return(frame, node, condition)


def scalar_condition(frame: Frame, node: ast.expr, condition: Value, word: str) -> Value:
    """A condition as a scalar bool. Raises TypeMismatch for a tile."""
    if not isinstance(condition.type, ScalarType):
        raise not_a_condition(condition, word).at(frame.loc(node))
    if pointer_dtype(condition) is not None:
        raise pointer_condition(condition, word).at(frame.loc(node))
    return as_value(frame.mark(node), condition, int1)


def pointer_condition(pointer: Value, word: str) -> TypeMismatch:
    """The error for a pointer as a condition that is no argument: what it points to?"""
    return TypeMismatch(
        f"the condition of `{word}` must be a number, got {describe(pointer)}",
        hint=read_hint(pointer),
    )


def not_a_condition(condition: Value, word: str) -> TypeMismatch:
    """The error for a tile or tensor where a scalar decides."""
    hint = f"`{condition.name or 'tensor'} is not None` asks whether it was given"
    if isinstance(condition.type, TileType):
        hint = "use tl.where(condition, x, y) to choose per element"
    return TypeMismatch(
        f"the condition of `{word}` must be a scalar, got {describe(condition)}", hint=hint
    )


class _Branch:
    """One branch, lowered: its region and the variables at its end."""

    def __init__(
        self,
        frame: Frame,
        body: Sequence[ast.stmt],
        rest: Sequence[ast.stmt] = (),
        *,
        may_return: bool,
    ) -> None:
        self.frame = frame
        self.region = Region()
        with frame.builder.at(self.region), frame.branch(may_return=may_return):
            try:
                self.signal = run_block(frame, [*body, *rest])
            except ReturnsEarly:
                self.drop()
                raise
            self.variables = frame.variables

    def drop(self) -> None:
        """Takes the ops of the branch out of the graph."""
        for op in reversed(list(self.region.ops)):
            self.frame.builder.graph.erase(op)


# ---------------------------------------------------------------------- both branches go on
def _if_that_joins(frame: Frame, node: ast.If, condition: Value) -> Signal:
    then = _Branch(frame, node.body, may_return=False)
    try:
        orelse = _Branch(frame, node.orelse, may_return=False)
    except ReturnsEarly:
        then.drop()
        raise
    merger = _Merger(frame, node, then, orelse)
    live = liveness_of(frame.source).after[node]
    for name in assigned([*node.body, *node.orelse]):
        merger.add(name, is_live=name in live)
    merger.finish(condition)
    return None


class _Merger:
    """Gives each variable of two branches one value."""

    def __init__(self, frame: Frame, node: ast.If, then: _Branch, orelse: _Branch) -> None:
        self.frame = frame
        self.node = node
        self.then = then
        self.orelse = orelse
        self.types: list[Type] = []
        self.names: list[str] = []
        self.values: tuple[list[object], list[object]] = ([], [])
        self.merged: dict[str, tuple[object, list[object]]] = {}

    def add(self, name: str, *, is_live: bool) -> None:
        """Merges one variable."""
        x, y = self.then.variables.get(name), self.orelse.variables.get(name)
        variables = self.frame.variables
        if x is POISON or y is POISON:
            variables[name] = POISON
        elif not is_live:
            if not (x is y and name in variables):
                variables[name] = Undefined(
                    "it is assigned in a branch of an `if`", self._place(name)
                )
        elif self._lacks(self.then, name) or self._lacks(self.orelse, name):
            variables[name] = Undefined(
                "it is assigned in only one branch of an `if` at run time",
                self._place(name),
                hint=f"assign {name!r} before the `if`",
            )
        elif not same_structure(x, y):
            variables[name] = Undefined(
                f"it is {describe(x)} in one branch of an `if` and {describe(y)} in the other",
                self._place(name),
            )
        else:
            self.add_tree(name, x, y)

    def _place(self, name: str) -> SourceLoc:
        return self.frame.assignment_of(name) or self.frame.loc(self.node)

    def _lacks(self, branch: _Branch, name: str) -> bool:
        return name not in branch.variables or isinstance(branch.variables[name], Undefined)

    def add_tree(self, name: str, x: object, y: object) -> None:
        """Merges two equally nested values under a name."""
        slots: list[object] = []
        for a, b in zip(leaves(x), leaves(y), strict=True):
            slots.append(a if same_leaf(a, b) else self._slot(name, a, b))
        self.merged[name] = (x, slots)

    def _slot(self, name: str, a: object, b: object) -> object:
        found = meet(a, b)
        if isinstance(found, Conflict):
            message = f"{name!r} has two types after the `if`: {describe(a)} and {describe(b)}"
            raise conflict_error(
                message, (a, "in the first branch", None), (b, "in the other branch", None)
            )
        self.types.append(found)
        self.names.append(name)
        self.values[0].append(a)
        self.values[1].append(b)
        return _Slot(len(self.types) - 1)

    def finish(self, condition: Value) -> None:
        """Ends the regions, makes the op and binds the variables to its results."""
        builder = self.frame.mark(self.node)
        for branch, values in zip((self.then, self.orelse), self.values, strict=True):
            with builder.at(branch.region):
                ends = tuple(
                    convert(builder, v, t) for v, t in zip(values, self.types, strict=True)
                )
                builder.add(Yield(ends))
        then, orelse = self.then.region, self.orelse.region
        op = If(condition, result_types=tuple(self.types), then=then, orelse=orelse)
        builder.add(op)
        for result, name in zip(op.results, self.names, strict=True):
            result.name = name
        for name, (like, slots) in self.merged.items():
            done = [op.results[s.index] if isinstance(s, _Slot) else s for s in slots]
            self.frame.variables[name] = rebuild(like, iter(done))


class _Slot:
    """A leaf that is a result of the `if`."""

    def __init__(self, index: int) -> None:
        self.index = index


# ---------------------------------------------------------------------- a branch returns
def _if_with_return(frame: Frame, node: ast.If, condition: Value) -> Signal:
    """The rest of the function moves into the branches that do not return."""
    if frame.loops:
        raise SyntaxNotSupported(
            "return under a condition at run time inside a loop is not supported",
            hint="keep the result in a variable, and return it after the loop",
        )
    rest = [stmt for block in reversed(frame.pending) for stmt in block]
    if rest and not _leaves(node.body) and not _leaves(node.orelse):
        frame.session.count_copy()
    saved, frame.pending = frame.pending, []
    try:
        then = _Branch(frame, node.body, rest, may_return=True)
        orelse = _Branch(frame, node.orelse, rest, may_return=True)
    finally:
        frame.pending = saved
    results = [b.signal.value if isinstance(b.signal, Return) else None for b in (then, orelse)]
    merger = _Merger(frame, node, then, orelse)
    if POISON in results:
        merger.finish(condition)
        return Return(POISON)
    if [r is None for r in results] in ([True, False], [False, True]):
        raise TypeMismatch(
            f"{frame.source.name}() returns {describe(results[0] or results[1])} on one path "
            "and nothing on another",
            hint="return a value on every path",
        )
    if not same_structure(*results):
        raise TypeMismatch(
            f"the function returns {describe(results[0])} on one path "
            f"and {describe(results[1])} on another"
        )
    name = f"{frame.source.name}_result"
    merger.add_tree(name, *results)
    merger.finish(condition)
    return Return(frame.variables.pop(name))


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether a block surely ends in a return statement."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _leaves(last.body) and _leaves(last.orelse)
    return isinstance(last, ast.Return)
