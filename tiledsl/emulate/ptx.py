"""PTX statements to calls of the emulated machine, one function per instruction family.

The device headers and the generated functions stay as they are: their inline PTX is what gets
translated, so that its operand order, types and modifiers are checked too.
"""

from __future__ import annotations

import re
from typing import Final

from tiledsl.emulate import forms_async
from tiledsl.emulate import forms_basic
from tiledsl.emulate import forms_memory
from tiledsl.emulate.asm import AsmOperand
from tiledsl.emulate.asm import AsmStatement
from tiledsl.emulate.asm import Instruction
from tiledsl.emulate.asm import instructions
from tiledsl.emulate.asm import statements
from tiledsl.emulate.errors import NotEmulated
from tiledsl.emulate.forms import FORMS
from tiledsl.emulate.forms import operand

__all__ = ["translate", "translate_statement"]

FAMILIES: Final = (forms_basic, forms_memory, forms_async)
"""Modules whose forms are in the table."""

_REGISTERS: Final = {
    "r": "unsigned",
    "l": "unsigned long long",
    "h": "unsigned short",
    "f": "float",
    "d": "double",
}
_DECLARED: Final = {
    "pred": "bool",
    "f32": "float",
    "f64": "double",
    **{f"{kind}8": "unsigned char" for kind in "bu"},
    **{f"{kind}16": "unsigned short" for kind in "bu"},
    **{f"{kind}32": "unsigned" for kind in "bu"},
    **{f"{kind}64": "unsigned long long" for kind in "bu"},
    **{f"s{bits}": name for bits, name in ((8, "signed char"), (16, "short"), (32, "int"))},
    "s64": "long long",
}
_EXTERN_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w:]+)\s+(\w+)\s*\[\s*\]\s*;"
)

_FUNCTION = re.compile(r"^TDSL_FN [\w:<>]+ (\w+)\(", re.MULTILINE)
_SOURCE_COMMENT = re.compile(r"//\s*(\S+\.py:\d+)")


def translate(text: str, *, is_lenient: bool = False) -> str:
    """CUDA text as C++ of the emulated machine; every line keeps its number.

    is_lenient: what has no emulation is reported when it is executed.

    Raises:
        NotEmulated: an instruction without an emulation.
    """
    out: list[str] = []
    last = 0
    for statement in statements(text):
        original = text[statement.start : statement.end]
        try:
            made = translate_statement(statement)
        except NotEmulated as error:
            if not is_lenient:
                raise NotEmulated(
                    f"{error.message} has no emulation{_place(text, statement.start)}",
                    hint="inline assembly is emulated as far as the compiler itself emits it; the "
                    "interpreter, which runs launches on CPU tensors, knows more of it",
                ) from None
            made = f'::emu::fault("not emulated: {error.message}")'
        out += [text[last : statement.start], made, "\n" * original.count("\n")]
        last = statement.end
    out.append(text[last:])
    return _EXTERN_SHARED.sub(r"\1* const \2 = (\1*)::emu::dynamic_shared();", "".join(out))


def _place(text: str, at: int) -> str:
    """The Python line that an inline PTX statement comes from, as far as comments name it.

    Assembly of the user's stands in a function of its own: what counts is where that is called.
    """
    functions = list(_FUNCTION.finditer(text, 0, at))
    if functions:
        call = re.search(rf"\b{functions[-1][1]}\(", text[at:])
        at += call.start() if call else 0
    places = _SOURCE_COMMENT.findall(text, 0, at)
    return f" ({places[-1]})" if places else ""


def translate_statement(statement: AsmStatement) -> str:
    """One inline PTX statement as a C++ statement without its semicolon."""
    lines = [_instruction(found) for found in instructions(statement.ptx)]
    if not any(lines):
        return "do {} while (0)"
    declared = [_declare(i, operand) for i, operand in enumerate(statement.operands)]
    return "do { " + " ".join([*declared, *lines]) + " } while (0)"


def _declare(index: int, operand: AsmOperand) -> str:
    if operand.is_output:
        return f"auto& ptx_{index} = {operand.expression};"
    if operand.constraint == "n":
        return f"constexpr auto ptx_{index} = {operand.expression};"
    kind = _REGISTERS.get(operand.constraint)
    if kind is None:
        raise NotEmulated(f"inline PTX with the constraint {operand.constraint!r}")
    return f"const {kind} ptx_{index} = ({kind})({operand.expression});"


def _instruction(found: Instruction) -> str:
    if found.opcode == ".reg":
        return _registers(found)
    for pattern, function in FORMS:
        if match := pattern.fullmatch(found.opcode):
            text = function(match, [operand(o) for o in found.operands])
            return (
                f"if ({_predicate(found.predicate)}) {{ {text} }}"
                if found.predicate
                else f"{{ {text} }}"
            )
    raise NotEmulated(f"the PTX instruction {found.opcode}")


def _registers(found: Instruction) -> str:
    kind, *first = found.operands[0].split()
    declared = _DECLARED.get(kind.lstrip("."))
    if declared is None:
        raise NotEmulated(f"a PTX register of type {kind}")
    names: list[str] = []
    for name in (*first, *found.operands[1:]):
        several = re.fullmatch(r"([\w%$]+)<(\d+)>", name.replace(" ", ""))
        names += [f"{several[1]}{i}" for i in range(int(several[2]))] if several else [name]
    return f"[[maybe_unused]] {declared} {', '.join(f'reg_{name}' for name in names)};"


def _predicate(text: str) -> str:
    return f"!{operand(text[1:])}" if text.startswith("!") else operand(text)
