"""The table of PTX forms: a pattern of opcodes and the function that writes the C++ of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

__all__ = ["BITS", "FORMS", "Translate", "form", "map_and_coordinates", "members", "operand"]

Translate = Callable[[re.Match[str], list[str]], str]

FORMS: list[tuple[re.Pattern[str], Translate]] = []
BITS: Final = {
    "8": "unsigned char",
    "16": "unsigned short",
    "32": "unsigned",
    "64": "unsigned long long",
}


def form(pattern: str) -> Callable[[Translate], Translate]:
    """Registers the translation of the opcodes that match a pattern entirely."""

    def register(function: Translate) -> Translate:
        FORMS.append((re.compile(pattern), function))
        return function

    return register


def operand(text: str) -> str:
    """`%3` -> ptx_3, `p` -> reg_p, `[%0]` -> ptx_0; lists stay in braces, literals as they are."""
    text = text.strip()
    if text.startswith("["):
        return operand(text[1:-1]) if "," not in text else text[1:-1]
    if text.startswith("{"):
        return "{" + ", ".join(operand(part) for part in text[1:-1].split(",")) + "}"
    if text.startswith("%%"):
        return text
    if text.startswith("%"):
        return f"ptx_{text[1:]}"
    if re.fullmatch(r"[A-Za-z]\w*", text):
        return f"reg_{text}"
    if bits := re.fullmatch(r"0[fF]([0-9A-Fa-f]{8})", text):
        return f"__uint_as_float(0x{bits[1]}u)"
    return text


def members(group: str) -> list[str]:
    """The members of a list operand, or the operand itself."""
    return [part.strip() for part in group.strip("{}").split(",")]


def map_and_coordinates(address: str) -> tuple[str, str, int]:
    """`%1, {%3, %4}` -> (map, initialiser of the coordinates, rank)."""
    base, _, coordinates = address.partition(",")
    names = [f"(int){operand(part)}" for part in coordinates.strip().strip("{}").split(",")]
    return f"(const void*){operand(base)}", ", ".join(names), len(names)
