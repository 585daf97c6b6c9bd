"""The user's PTX: registers packed, a call of its function, results unpacked."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.inline_asm import register_type
from tiledsl.codegen.registry import emits
from tiledsl.dtypes import DType
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tile_asm as ops
from tiledsl.ir.ops.tile import tile_type


@dataclass(frozen=True)
class AsmContext:
    """A loop over groups of registers. outputs: declarations; results: unpacking statements."""

    count: int
    pack: int
    outputs: str
    function: str
    arguments: str
    results: str


@emits("tile.inline_asm", "tile.inline_asm_effect")
def inline_asm(op: ops.InlineAsm, e: Emission) -> AsmContext:
    """`inline_asm_1(o0, pack_bits<u32>(get_raw(x_1, i)));`."""
    outputs, inputs = ops.constraint_letters(op.constraints)
    names = [f"o{i}" for i in range(len(outputs))]
    declared = " ".join(f"{register_type(c)} {n};" for c, n in zip(outputs, names, strict=True))
    count = e.layout(tile_type(op.args[0], "inline_asm")).num_regs
    arguments = list(names)
    for value in op.args:
        arguments += _packed(e, value, op.pack, inputs, count)
    results: list[str] = []
    for value, dtype in zip(op.results, op.dtypes, strict=True):
        results += _unpacked(e, value, dtype, op.pack, outputs, names, count)
    function = e.inline.name(op.asm, op.constraints)
    return AsmContext(count, op.pack, declared, function, ", ".join(arguments), "\n".join(results))


def _per_register(dtype: DType, letter: str) -> int:
    """Elements that lie in one register (1 when an element is wider or just fits)."""
    return max(1, ops.REGISTER_BITS[letter] // (8 * dtype.bytes))


def _index(k: int, count: int, pack: int) -> str:
    """Register of element k of a group; the last group may have fewer."""
    text = f"i + {k}" if k else "i"
    return text if count % pack == 0 else f"({text} < {count} ? {text} : {count - 1})"


def _packed(e: Emission, value: Value, pack: int, letters: list[str], count: int) -> list[str]:
    dtype = tile_type(value, "inline_asm").dtype
    out: list[str] = []
    k = 0
    while k < pack:
        letter = letters.pop(0)
        many = min(_per_register(dtype, letter), pack - k)
        items = ", ".join(
            f"get_raw({e.text(value)}, {_index(k + j, count, pack)})" for j in range(many)
        )
        out.append(f"pack_bits<{register_type(letter)}>({items})")
        k += many
    return out


def _unpacked(
    e: Emission,
    value: Value,
    dtype: DType,
    pack: int,
    letters: list[str],
    names: list[str],
    count: int,
) -> list[str]:
    out: list[str] = []
    k = 0
    name = e.name(value, "x")
    while k < pack:
        letter, register = letters.pop(0), names.pop(0)
        many = min(_per_register(dtype, letter), pack - k)
        for j in range(many):
            place = f"i + {k + j}" if k + j else "i"
            guard = "" if count % pack == 0 else f"if ({place} < {count}) "
            form = f"unpack_bits<{memory_type(dtype)}, {j}>({register})"
            out.append(f"{guard}put_raw({name}, {place}, {form});")
        k += many
    return out
