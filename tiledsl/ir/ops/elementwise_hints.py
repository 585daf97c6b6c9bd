"""What the author knows of index tiles: hints for the axis analysis, which never change results."""

from __future__ import annotations

from typing import Any

from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.ops.elementwise import element_dtype
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type


class Hint(Op, opcode="elementwise.hint"):
    """Its operand, of which the author states facts per dimension (one number for a scalar).

    divisibility: divides the first element of each run of consecutive ones. contiguity: length of
    these runs. constancy: length of runs of equal elements. Empty where nothing is stated.
    kept: the compiler makes it once and keeps it in registers, instead of where it is used.
    """

    macro_waiver = "it stands for its operand"

    a: Value = operand()
    divisibility: tuple[int, ...] = attribute(default=())
    contiguity: tuple[int, ...] = attribute(default=())
    constancy: tuple[int, ...] = attribute(default=())
    kept: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        if element_dtype(self.a, "hint").is_float:
            raise TypeMismatch(f"hint: expected integers or pointers, got {self.a.type}")
        count = self.a.type.rank if isinstance(self.a.type, TileType) else 1
        for facts in (self.divisibility, self.contiguity, self.constancy):
            if facts and len(facts) != count:
                raise TypeMismatch(f"hint: {len(facts)} numbers for {self.a.type}")
        return (self.a.type,)

    def evaluate(self, a: Any) -> Any:
        return a


@builtin
def multiple_of(b: Builder, input: Operand, values: object) -> Operand:
    """A hint: `values` (one, or one per axis) divide the first of each run of consecutive numbers.

    A scalar is a multiple of the number.
    """
    if not isinstance(input, Value):
        return input
    return b.value(Hint(input, divisibility=_numbers(input, values, "multiple_of()")))


@builtin
def max_contiguous(b: Builder, input: Operand, values: object) -> Operand:
    """A hint: along each axis the numbers come in runs of `values` consecutive ones."""
    if not isinstance(input, Value):
        return input
    return b.value(Hint(input, contiguity=_numbers(input, values, "max_contiguous()")))


@builtin
def max_constancy(b: Builder, input: Operand, values: object) -> Operand:
    """A hint: along each axis the numbers come in runs of `values` equal ones."""
    if not isinstance(input, Value):
        return input
    return b.value(Hint(input, constancy=_numbers(input, values, "max_constancy()")))


def _numbers(x: Value, values: object, what: str) -> tuple[int, ...]:
    given = unwrap(values)
    items = tuple(given) if is_sequence(given) else (given,)
    numbers = tuple(compile_time_int(v, f"{what}: values") for v in items)
    rank = x.type.rank if isinstance(x.type, TileType) else 1
    if len(numbers) == 1 and rank > 1:
        numbers = (1,) * (rank - 1) + numbers
    if len(numbers) != max(rank, 1):
        raise TypeMismatch(f"{what}: {len(numbers)} numbers for a tile of {rank} axes")
    if any(n < 1 for n in numbers):
        raise TypeMismatch(f"{what}: values must be positive, got {list(numbers)}")
    return numbers
