"""Simple statements: assignments, expressions, assert, raise, pass and return."""

from __future__ import annotations

import ast

from tiledsl.errors import StaticFailure
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.attributes import moved_pointer
from tiledsl.frontend.attributes import refuse_extents_of_pointer
from tiledsl.frontend.dispatch import Jump
from tiledsl.frontend.dispatch import Return
from tiledsl.frontend.dispatch import ReturnsEarly
from tiledsl.frontend.dispatch import Signal
from tiledsl.frontend.dispatch import evaluate
from tiledsl.frontend.dispatch import statement
from tiledsl.frontend.expressions import apply_binary
from tiledsl.frontend.scope import Frame
from tiledsl.ir.markers import RangeSpec
from tiledsl.ir.op import Value
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.pointer_values import pointer_dtype


@statement(ast.Assign)
def run_assign(frame: Frame, node: ast.Assign) -> Signal:
    """`x = ...`, `x, y = ...`, `x = y = ...`."""
    value = evaluate(frame, node.value)
    is_unpacked = any(isinstance(t, ast.Tuple | ast.List) for t in node.targets)
    if value == () and is_unpacked and isinstance(node.value, ast.Attribute):
        refuse_extents_of_pointer(evaluate(frame, node.value.value), node.value.attr)
    for target in node.targets:
        assign(frame, target, value)
    return None


def assign(frame: Frame, target: ast.expr, value: object) -> None:
    """Binds a target to a value; the value takes the variable's name unless it has one."""
    match target:
        case ast.Name(id=name):
            if isinstance(value, Value) and not value.name:
                value.name = name
            frame.variables[name] = value
            frame.assigned_by[name] = target
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            _unpack(frame, target, elements, value)
        case ast.Subscript():
            raise SyntaxNotSupported(
                "assignment to a subscript is not part of the language",
                hint=_store_hint(evaluate(frame, target.value), target),
            ).at(frame.loc(target))
        case ast.Attribute():
            raise SyntaxNotSupported("assignment to an attribute is not part of the language").at(
                frame.loc(target)
            )
        case _:
            raise SyntaxNotSupported("a starred target is not part of the language").at(
                frame.loc(target)
            )


def _store_hint(base: object, target: ast.Subscript) -> str:
    if pointer_dtype(base) is not None:
        return f"tl.store({moved_pointer(target)}, value) writes what lies there"
    return (
        "tiles and tuples do not change; build a new one, "
        "or store to a tensor with a.store(offsets, tile)"
    )


def _unpack(frame: Frame, target: ast.expr, elements: list[ast.expr], value: object) -> None:
    if not is_sequence(value):
        raise TypeMismatch(f"cannot unpack {describe(value)} into {len(elements)} variables").at(
            frame.loc(target)
        )
    items = tuple(value)
    if len(items) != len(elements) and not any(isinstance(e, ast.Starred) for e in elements):
        raise TypeMismatch(f"cannot unpack {len(items)} values into {len(elements)} variables").at(
            frame.loc(target)
        )
    for element, item in zip(elements, items, strict=False):
        assign(frame, element, item)


@statement(ast.AnnAssign)
def run_annotated(frame: Frame, node: ast.AnnAssign) -> Signal:
    """`x: tl.constexpr = ...` wants a compile-time value; other annotations say nothing."""
    if node.value is None:
        return None
    value = evaluate(frame, node.value)
    if is_constexpr_annotation(node.annotation) and isinstance(value, Value):
        raise TypeMismatch(
            f"{ast.unparse(node.target)!r} is annotated tl.constexpr, got {describe(value)}",
            hint="a constexpr is computed from constants, constexpr parameters and shapes of tiles",
        )
    assign(frame, node.target, value)
    return None


def is_constexpr_annotation(node: ast.expr) -> bool:
    """Whether an annotation is `tl.constexpr`, `constexpr`, or one of them as a string."""
    text = (
        node.value
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        else ast.unparse(node)
    )
    return text.rsplit(".", 1)[-1] == "constexpr"


@statement(ast.AugAssign)
def run_augmented(frame: Frame, node: ast.AugAssign) -> Signal:
    """`x += ...`."""
    if not isinstance(node.target, ast.Name):
        assign(frame, node.target, None)  # raises
        return None
    old = frame.read(node.target.id)
    if isinstance(old, list):
        raise SyntaxNotSupported(
            "a list cannot be changed in place",
            hint=f"write {node.target.id} = {node.target.id} + ...",
        )
    value = apply_binary(frame, node, node.op, old, evaluate(frame, node.value))
    assign(frame, node.target, value)
    return None


@statement(ast.Expr)
def run_expression(frame: Frame, node: ast.Expr) -> Signal:
    """A call for its effect, or a docstring."""
    if isinstance(node.value, ast.Constant):
        return None
    value = evaluate(frame, node.value)
    if isinstance(value, RangeSpec):
        raise TypeMismatch("a range is good for a `for` loop only")
    return None


@statement(ast.Pass)
def run_pass(frame: Frame, node: ast.Pass) -> Signal:
    """Does nothing."""
    del frame, node
    return None


@statement(ast.Assert)
def run_assert(frame: Frame, node: ast.Assert) -> Signal:
    """`assert condition, message` on compile-time conditions."""
    condition = evaluate(frame, node.test)
    if isinstance(condition, Value):
        raise SyntaxNotSupported(
            "assert needs a condition known at compile time",
            hint="check on the host before the launch",
        )
    if not condition:
        message = evaluate(frame, node.msg) if node.msg else None
        raise StaticFailure("assertion failed" + (f": {message}" if message is not None else ""))
    return None


@statement(ast.Raise)
def run_raise(frame: Frame, node: ast.Raise) -> Signal:
    """`raise` reached at compile time is an error with its message."""
    if frame.branches or frame.in_run_time_loop():
        raise SyntaxNotSupported(
            "raise under a condition at run time is not part of the language",
            hint="a kernel raises no exceptions; "
            "make the condition compile-time, or check on the host",
        )
    message = ""
    if isinstance(node.exc, ast.Call) and node.exc.args:
        message = str(evaluate(frame, node.exc.args[0]))
    kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    raise StaticFailure(": ".join(filter(None, [ast.unparse(kind) if kind else "raise", message])))


@statement(ast.Return)
def run_return(frame: Frame, node: ast.Return) -> Signal:
    """Ends the function; a `return` inside a loop at run time is not supported.

    Raises: ReturnsEarly in a branch that was expected to join again.
    """
    if frame.in_run_time_loop():
        raise SyntaxNotSupported(
            "return inside a loop at run time is not supported",
            hint="keep the result in a variable, "
            "and let the loop's bounds or a `while` condition end the loop",
        )
    if not frame.may_return:
        raise ReturnsEarly
    return Return(evaluate(frame, node.value) if node.value else None, frame.loc(node))


@statement(ast.Break)
def run_break(frame: Frame, node: ast.Break) -> Signal:
    """Leaves a loop that is being expanded."""
    del node
    _check_jump(frame, "break")
    return Jump.BREAK


@statement(ast.Continue)
def run_continue(frame: Frame, node: ast.Continue) -> Signal:
    """Goes on with the next copy of a loop that is being expanded."""
    del node
    _check_jump(frame, "continue")
    return Jump.CONTINUE


def _check_jump(frame: Frame, word: str) -> None:
    if (
        frame.loops
        and not frame.loops[-1].at_run_time
        and frame.loops[-1].branches == frame.branches
    ):
        return
    raise SyntaxNotSupported(
        f"{word} is supported only in loops that are expanded, "
        "under conditions known at compile time",
        hint="write `while` with the condition, or put the rest of the body under an `if`",
    )
