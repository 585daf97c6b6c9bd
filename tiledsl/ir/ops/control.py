"""Control flow: for, if, while and their terminator."""

from __future__ import annotations

from tiledsl.dtypes import int1
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import RangeSpec
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.op import region
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target


class Yield(Op, opcode="control.yield", effect=Effect.CONTROL, terminator=True):
    """Ends a region and hands its values to the op around it."""

    values: tuple[Value, ...] = operands()

    def infer_types(self) -> tuple[Type, ...]:
        return ()


def yielded(region: Region) -> tuple[Value, ...]:
    """What a region hands to the op around it."""
    end = region.terminator
    return end.operands if end is not None else ()


class For(Op, opcode="control.for", effect=Effect.CONTROL):
    """`for iv in range(lower, upper, step)` with loop-carried values.

    lower, upper, step: scalars of one integer dtype; a negative step counts down, a step of 0 is
    an error.
    init: initial loop-carried values. body: arguments (iv, carried...), ends in a yield of the
    next carried values.
    Results: the carried values after the last iteration (`init` when there is none).
    unmasked_from, unmasked_until: where given, selects marked `masks` are true in every iteration
    with unmasked_from <= iv < unmasked_until.
    unroll: unroll factor asked for by the user, 1 for none, 0 for full; -1 keeps it rolled up.
    """

    is_loop = True
    lower: Value = operand()
    upper: Value = operand()
    step: Value = operand()
    init: tuple[Value, ...] = operands()
    unroll: int = attribute(default=1)
    unmasked_from: Value | None = operand(default=None)
    unmasked_until: Value | None = operand(default=None)
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        for name in ("lower", "upper", "step"):
            type_ = getattr(self, name).type
            if not isinstance(type_, ScalarType) or not type_.dtype.is_int:
                raise TypeMismatch(f"for: {name} must be an integer scalar, got {type_}")
        return tuple(v.type for v in self.init)

    def verify(self, target: Target) -> None:
        if len(self.body.args) != 1 + len(self.init):
            raise VerifyError(
                f"for: body has {len(self.body.args)} arguments, expected {1 + len(self.init)}"
            )
        _check_yield(self.body, [v.type for v in self.init], "for")
        for arg, init in zip(self.body.args[1:], self.init, strict=True):
            if not same_type(arg.type, init.type):
                raise VerifyError(f"for: carried value {arg!r} starts as {init.type}")

    @property
    def iv(self) -> Value:
        return self.body.args[0]

    @property
    def carried(self) -> tuple[Value, ...]:
        return tuple(self.body.args[1:])


class If(Op, opcode="control.if", effect=Effect.CONTROL):
    """`if condition` with both branches as regions; results are what the taken branch yields."""

    condition: Value = operand()
    then: Region = region(factory=Region)
    orelse: Region = region(factory=Region)
    result_types: tuple[Type, ...] = attribute(default=())

    def infer_types(self) -> tuple[Type, ...]:
        if self.condition.type != ScalarType(int1):
            raise TypeMismatch(
                f"if: the condition must be a scalar bool, got {self.condition.type}"
            )
        return self.result_types

    def verify(self, target: Target) -> None:
        _check_yield(self.then, list(self.result_types), "if")
        _check_yield(self.orelse, list(self.result_types), "else")


class While(Op, opcode="control.while", effect=Effect.CONTROL):
    """`while`: `before` gives (condition, values...) of the carried values, `body` the next."""

    is_loop = True
    init: tuple[Value, ...] = operands()
    before: Region = region(factory=Region)
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        return tuple(v.type for v in self.init)

    def verify(self, target: Target) -> None:
        types = [v.type for v in self.init]
        _check_yield(self.before, [ScalarType(int1), *types], "while condition")
        _check_yield(self.body, types, "while")


def same_type(a: Type, b: Type) -> bool:
    """Equal up to a layout that one side does not have yet."""
    if a is b:
        return True
    if not isinstance(a, TileType) or not isinstance(b, TileType):
        return a == b
    if a.layout is None or b.layout is None:
        return a.with_layout(None) == b.with_layout(None)
    return a == b


def _check_yield(body: Region, types: list[Type], what: str) -> None:
    end = body.terminator
    if not isinstance(end, Yield):
        if not types and end is None:
            return
        raise VerifyError(f"{what}: the region does not end in a yield")
    got = [v.type for v in end.values]
    if len(got) != len(types) or not all(same_type(a, b) for a, b in zip(got, types, strict=True)):
        raise VerifyError(
            f"{what}: yields ({', '.join(map(str, got))}), expected ({', '.join(map(str, types))})"
        )


@builtin
def range(
    b: Builder,
    start: Value | int,
    end: Value | int | None = None,
    step: Value | int = 1,
    *,
    num_stages: int | None = None,
    loop_unroll_factor: int | None = None,
    flatten: bool = False,
    warp_specialize: bool = False,
    disallow_acc_multi_buffer: bool = False,
    disable_licm: bool = False,
) -> RangeSpec:
    """Python's range as a loop at run time.

    The keywords are hints that never change results; the compiler decides these things by itself.
    loop_unroll_factor: how many iterations to expand into one.
    """
    del b, num_stages, flatten, warp_specialize, disallow_acc_multi_buffer, disable_licm
    lower, upper = (0, start) if end is None else (start, end)
    return RangeSpec(
        _bound(lower, "start"),
        _bound(upper, "end"),
        _bound(step, "step"),
        unroll=int(unwrap(loop_unroll_factor) or 1),
    )


def steering_scalars(op: Op) -> tuple[Value, ...]:
    """What decides how often the regions of a loop or branch run; nothing for other ops."""
    match op:
        case For():
            return op.lower, op.upper, op.step
        case If():
            return (op.condition,)
        case While():
            end = op.before.terminator
            assert isinstance(end, Yield)
            return (end.values[0],)
        case _:
            return ()


@builtin
def static_range(b: Builder, start: int, end: int | None = None, step: int = 1) -> RangeSpec:
    """Python's range with bounds known at compile time: the body is expanded once per value."""
    del b
    lower, upper = (0, start) if end is None else (start, end)
    for name, bound in (("start", lower), ("end", upper), ("step", step)):
        if isinstance(bound, Value):
            raise TypeMismatch(
                f"static_range(): {name} must be known at compile time, "
                f"got a run-time {bound.type}",
                hint="use range(...) for a loop at run time",
            )
    return RangeSpec(
        _bound(lower, "start"), _bound(upper, "end"), _bound(step, "step"), is_static=True
    )


def _bound(given: object, name: str) -> Value | int:
    x: object = unwrap(given)
    if isinstance(x, Value):
        if isinstance(x.type, ScalarType) and x.type.dtype.is_int:
            return x
        need_numbers(f"range(): {name}", x)
        raise TypeMismatch(f"range(): {name} must be an integer scalar, got {x.type}")
    if isinstance(x, bool) or not isinstance(x, int):
        raise TypeMismatch(f"range(): {name} must be an integer, got {x!r}")
    if name == "step" and x == 0:
        raise TypeMismatch("range(): step must not be zero")
    return x
