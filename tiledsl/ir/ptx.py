"""Runs the user's inline PTX on arrays: straight-line code over registers, many threads at once.

A register is an array of u64 bit patterns, one element per thread. What the instructions mean is in
`ptx_forms`; loads, stores, branches and barriers have no meaning here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiledsl.errors import TileError
from tiledsl.ir.ptx_forms import FORMS
from tiledsl.ir.ptx_forms import Bits
from tiledsl.ir.ptx_forms import NoForm
from tiledsl.ir.ptx_forms import immediate

_DECLARATION = re.compile(r"\.reg\s+(?:\.\w+\s+)*\.(\w+)\s+(.*)", re.DOTALL)
_RANGE = re.compile(r"(.+)<(\d+)>")
HINT = "run the kernel on a GPU, or use the functions of tiledsl.language"


@dataclass(frozen=True)
class Instruction:
    """`@predicate opcode a, b`; operands in braces are tuples of names."""

    text: str
    opcode: str
    operands: tuple[str | tuple[str, ...], ...]
    predicate: str = ""


def run(asm: str, outputs: int, inputs: Sequence[Bits]) -> list[Bits]:
    """The output registers `$0`, `$1`, ... for input registers, which are numbered after them.

    Raises: TileError for an instruction that has no meaning here.
    """
    count = len(inputs[0]) if inputs else 1
    registers = {f"${i}": np.zeros(count, np.uint64) for i in range(outputs)}
    registers |= {f"${outputs + i}": x for i, x in enumerate(inputs)}
    for instruction in _instructions(asm):
        _execute(instruction, registers, count)
    return [registers[f"${i}"] for i in range(outputs)]


def _instructions(asm: str) -> list[Instruction]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", asm, flags=re.DOTALL)
    out: list[Instruction] = []
    for piece in text.split(";"):
        words = piece.strip()
        while words[:1] in ("{", "}") and words:
            words = words[1:].strip()
        if words:
            out.append(_instruction(words))
    return out


def _instruction(words: str) -> Instruction:
    predicate = ""
    rest = words
    if rest.startswith("@"):
        predicate, _, rest = rest[1:].partition(" ")
    parts = rest.strip().split(None, 1)
    return Instruction(words, parts[0], _operands(parts[1] if len(parts) > 1 else ""), predicate)


def _operands(text: str) -> tuple[str | tuple[str, ...], ...]:
    out: list[str | tuple[str, ...]] = []
    for group in re.findall(r"\{[^}]*\}|[^,{}]+", text):
        item = group.strip()
        if item.startswith("{"):
            out.append(tuple(name.strip() for name in item[1:-1].split(",")))
        elif item:
            out.append(item)
    return tuple(out)


def _execute(instruction: Instruction, registers: dict[str, Bits], count: int) -> None:
    if instruction.opcode == ".reg":
        _declare(instruction.text, registers, count)
        return
    if not instruction.operands:
        raise _unknown(instruction)
    target, *sources = instruction.operands
    try:
        found = next((f for pattern, f in FORMS if pattern.fullmatch(instruction.opcode)), None)
        if found is None:
            raise _unknown(instruction)
        values = [_read(s, registers, count) for s in sources]
        with np.errstate(all="ignore"):
            result = found(instruction.opcode.split("."), values, _width(target))
    except NoForm:
        raise _unknown(instruction) from None
    names = target if isinstance(target, tuple) else (target,)
    results = result if isinstance(result, tuple) else (result,)
    for name, bits in zip(names, results, strict=True):
        _write(name, bits, instruction.predicate, registers)


def _width(target: str | tuple[str, ...]) -> int:
    return len(target) if isinstance(target, tuple) else 0


def _unknown(instruction: Instruction) -> TileError:
    return TileError(
        f"the interpreter does not run the PTX instruction {instruction.text!r}", hint=HINT
    )


def _declare(text: str, registers: dict[str, Bits], count: int) -> None:
    match = _DECLARATION.fullmatch(text)
    if match is None:
        raise TileError(f"inline PTX: {text!r} is no declaration of registers")
    for item in match[2].split(","):
        name = item.strip()
        many = _RANGE.fullmatch(name)
        names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
        for each in names:
            registers[each] = np.zeros(count, np.uint64)


def _read(
    source: str | tuple[str, ...], registers: Mapping[str, Bits], count: int
) -> Bits | tuple[Bits, ...] | str:
    """Bits of a register, several of them, or the text of an immediate operand."""
    if isinstance(source, tuple):
        return tuple(_one(name, registers, count) for name in source)
    return _one(source, registers, count) if source in registers else source


def _one(name: str, registers: Mapping[str, Bits], count: int) -> Bits:
    if name in registers:
        return registers[name]
    return np.full(count, immediate(name, "b32"), np.uint64)


def _write(name: str, bits: Bits, predicate: str, registers: dict[str, Bits]) -> None:
    if name not in registers:
        raise TileError(f"inline PTX: the register {name!r} is not declared")
    if predicate:
        is_negated = predicate.startswith("!")
        holds = registers[predicate.lstrip("!")] != 0
        bits = np.where(holds != is_negated, bits, registers[name])
    registers[name] = np.broadcast_to(bits, registers[name].shape).astype(np.uint64)
