"""PTX of the user's over the elements of tiles, and functions of scalars applied to tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import cast

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.errors import TypeMismatch
from tiledsl.ir import ptx
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.broadcasting import unify
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operands
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import dtype_argument
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.ops.tile import reshape
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.ops.tile_functions import as_scalar
from tiledsl.ir.ops.tile_functions import interleave
from tiledsl.ir.ops.tile_functions import split
from tiledsl.ir.ptx_forms import Bits
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type

# Bits of a register by its letter in a constraint.
REGISTER_BITS = {"h": 16, "r": 32, "f": 32, "l": 64, "d": 64}


def constraint_letters(constraints: str) -> tuple[list[str], list[str]]:
    """Letters of the outputs and of the inputs. Raises TypeMismatch."""
    outputs: list[str] = []
    inputs: list[str] = []
    for item in constraints.split(","):
        text = item.strip()
        letter = text.lstrip("=&+")
        if not text or letter.startswith("~"):
            continue
        if letter not in REGISTER_BITS:
            known = ", ".join(sorted(REGISTER_BITS))
            raise TypeMismatch(f"inline_asm: constraint {text!r}; expected one of {known}")
        (outputs if text.startswith("=") else inputs).append(letter)
    return outputs, inputs


def registers_of(dtype: DType, pack: int, letters: Sequence[str], what: str) -> int:
    """How many of the next registers `pack` elements fill. Raises TypeMismatch."""
    left, count = pack * dtype.bytes * 8, 0
    while left > 0:
        if count >= len(letters):
            raise TypeMismatch(f"inline_asm: too few constraints for {what}")
        left -= REGISTER_BITS[letters[count]]
        count += 1
    return count


def packed(array: Any, pack: int, count: int, letters: list[str]) -> list[Bits]:
    """Registers of `count` groups of `pack` elements; takes their letters off the list.

    The last group is filled up with the last element.
    """
    raw = np.ascontiguousarray(array).view(f"u{array.itemsize}").ravel().astype(np.uint64)
    groups = np.pad(raw, (0, count * pack - raw.size), mode="edge").reshape(count, pack)
    bits = 8 * array.itemsize
    out: list[Bits] = []
    k = 0
    while k < pack:
        many = min(max(1, REGISTER_BITS[letters.pop(0)] // bits), pack - k)
        parts = [groups[:, k + j] << np.uint64(bits * j) for j in range(many)]
        out.append(np.bitwise_or.reduce(parts))
        k += many
    return out


def unpacked(registers: Sequence[Bits], dtype: DType, pack: int, letters: Sequence[str]) -> Any:
    """The elements of result registers, group by group."""
    bits = 8 * dtype.bytes
    columns: list[Bits] = []
    for register, letter in zip(registers, letters, strict=True):
        many = max(1, REGISTER_BITS[letter] // bits)
        columns += [register >> np.uint64(bits * j) for j in range(many)]
    flat = np.stack(columns[:pack], axis=1).ravel()
    if dtype.kind == "bool":
        return (flat & np.uint64(255)) != 0
    return flat.astype(f"u{dtype.bytes}").view(dtype.numpy)


class InlineAsm(Op, opcode="tile.inline_asm"):
    """PTX that runs once for every `pack` elements.

    args: tiles of one shape; elements under 32 bits are packed into registers, the first in the low
    bits. asm: with `$0`, `$1`, ... for the registers, outputs first. constraints: as LLVM writes
    them, `=r,r,f`. dtypes: of the results.
    """

    args: tuple[Value, ...] = operands()
    asm: str = attribute()
    constraints: str = attribute()
    dtypes: tuple[DType, ...] = attribute()
    pack: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        types = [tile_type(v, "inline_asm") for v in self.args]
        if not types:
            raise TypeMismatch("inline_asm: expected at least one tile")
        if any(t.shape != types[0].shape for t in types):
            raise TypeMismatch("inline_asm: the arguments' shapes differ")
        outputs, inputs = constraint_letters(self.constraints)
        for dtype in self.dtypes:
            del outputs[: registers_of(dtype, self.pack, outputs, "the results")]
        for t in types:
            del inputs[: registers_of(t.dtype, self.pack, inputs, "the arguments")]
        if outputs or inputs:
            raise TypeMismatch(
                f"inline_asm: {len(outputs)} output and {len(inputs)} "
                "input constraints are left over"
            )
        return tuple(types[0].with_dtype(d) for d in self.dtypes)

    def evaluate(self, *arrays: Any) -> Any:
        outputs, inputs = constraint_letters(self.constraints)
        count = -(-np.asarray(arrays[0]).size // self.pack)
        registers: list[Bits] = []
        for array in arrays:
            registers += packed(np.asarray(array), self.pack, count, inputs)
        made = ptx.run(self.asm, len(outputs), registers)
        results: list[Any] = []
        for dtype in self.dtypes:
            many = registers_of(dtype, self.pack, outputs, "the results")
            letters, bits = outputs[:many], made[:many]
            del outputs[:many], made[:many]
            flat = unpacked(bits, dtype, self.pack, letters)
            size = np.asarray(arrays[0]).size
            results.append(flat[:size].reshape(np.shape(arrays[0])))
        return tuple(results)


class InlineAsmEffect(InlineAsm, opcode="tile.inline_asm_effect", effect=Effect.WRITE):
    """As `tile.inline_asm`, with effects besides its results: never removed, moved or merged."""


@builtin
def inline_asm_elementwise(
    b: Builder,
    asm: str,
    constraints: str,
    args: Sequence[Operand],
    dtype: DType | tuple[DType, ...],
    is_pure: bool,
    pack: int,
) -> Value | tuple[Value, ...]:
    """PTX over `pack` elements at a time.

    asm: with `$0`, `$1`, ... for the registers, outputs first. constraints: `=r,r`, `=f,f,f`. args:
    tiles and scalars that broadcast together; elements under 32 bits are packed into registers.
    dtype: of the result, or a tuple for several results.
    """
    kinds = list(dtype) if is_sequence(dtype) else [dtype]
    dtypes = tuple(dtype_argument(d, "inline_asm_elementwise(): dtype") for d in kinds)
    values = unify(b, [as_value(b, unwrap(x)) for x in args], None, "inline_asm_elementwise()")
    if not values:
        raise TypeMismatch("inline_asm_elementwise(): args must not be empty")
    is_scalar = isinstance(values[0].type, ScalarType)
    if is_scalar:
        values = [broadcast_value(b, v, (1,), "inline_asm_elementwise()") for v in values]
    number = compile_time_int(pack, "inline_asm_elementwise(): pack")
    cls = InlineAsm if unwrap(is_pure) else InlineAsmEffect
    op = cls(tuple(values), str(unwrap(asm)), str(unwrap(constraints)), dtypes, number)
    b.add(op)
    results = [as_scalar(b, r) for r in op.results] if is_scalar else list(op.results)
    return tuple(results) if is_sequence(dtype) else results[0]


@builtin
def map_elementwise(
    b: Builder, scalar_fn: object, *args: Operand, is_pure: bool = True, pack: int = 1
) -> Value | tuple[Value, ...]:
    """A function of scalars applied to the elements of tiles that broadcast together.

    The function may not branch on its arguments: use tl.where. pack: how many neighbours along the
    last axis a call takes, a power of two; the function gets `pack` elements of the first tile,
    then of the second, and returns `pack` elements of each result in the same order.
    """
    del is_pure
    what = "map_elementwise()"
    if b.apply is None:
        raise TypeMismatch(f"{what} can only be used in a kernel")
    count = compile_time_int(pack, f"{what}: pack")
    values = unify(b, [as_value(b, x) for x in args], None, what)
    shape = values[0].type.shape if isinstance(values[0].type, TileType) else None
    if count < 1 or count & (count - 1) or (count > 1 and (not shape or shape[-1] % count)):
        raise TypeMismatch(
            f"{what}: pack must be a power of two that divides the last extent, got {count} "
            f"for a tile of shape {list(shape or ())}"
        )
    parts = [part for value in values for part in _neighbours(b, value, count)]
    found = b.apply(scalar_fn, parts)
    items = list(found) if is_sequence(found) else [found]
    if len(items) % count:
        raise TypeMismatch(f"{what}: the function returns {len(items)} values, pack is {count}")
    part_shape = (*shape[:-1], shape[-1] // count) if shape else None
    tiles = [broadcast_value(b, as_value(b, cast("Operand", x)), part_shape, what) for x in items]
    woven = [_woven(b, tiles[i : i + count]) for i in range(0, len(tiles), count)]
    return tuple(woven) if len(woven) > 1 or (count == 1 and is_sequence(found)) else woven[0]


def _neighbours(b: Builder, x: Value, count: int) -> list[Value]:
    """Elements 0, 1, ... of every group of `count` along the last axis, a tile each."""
    if count == 1:
        return [x]
    *rest, last = tile_type(x, "map_elementwise()").shape
    even, odd = split.fn(b, reshape.fn(b, x, (*rest, last // 2, 2)))
    pairs = zip(_neighbours(b, even, count // 2), _neighbours(b, odd, count // 2), strict=True)
    return [part for pair in pairs for part in pair]


def _woven(b: Builder, parts: list[Value]) -> Value:
    """The inverse of `_neighbours`."""
    if len(parts) == 1:
        return parts[0]
    return interleave.fn(b, _woven(b, parts[::2]), _woven(b, parts[1::2]))
