"""C++ spellings: types of registers and memory, literals, and line wrapping."""

from __future__ import annotations

import math
import re

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import rounded
from tiledsl.errors import CodegenError

__all__ = ["MAX_COLUMNS", "indent", "is_packed", "literal", "memory_type", "scalar_type", "wrap"]

MAX_COLUMNS = 110
_INDENT = "  "
_INT_SUFFIX = {"u32": "u", "i64": "ll", "u64": "ull"}


def memory_type(dtype: DType) -> str:
    """The type of one element in memory: `bf16`, `float`, `int`."""
    return "int" if dtype.name == "i32" else dtype.cuda


def scalar_type(dtype: DType) -> str:
    """The type of a scalar in a register.

    Floats under 32 bits are `float` variables that hold rounded values.
    """
    if dtype.is_float and dtype.bits < 32:
        return "float"
    return memory_type(dtype)


def is_packed(dtype: DType) -> bool:
    """Whether a register tile of it is a `Packed<T, N>`: 8- and 16-bit elements."""
    return dtype.kind != "bool" and dtype.bits < 32


def literal(value: bool | float, dtype: DType) -> str:
    """A constant of a dtype."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    return _int_literal(int(value), dtype) if dtype.is_int else _float_literal(float(value), dtype)


def _int_literal(value: int, dtype: DType) -> str:
    modulus = 1 << dtype.bits
    value %= modulus
    if dtype.kind == "int" and value >= modulus >> 1:
        value -= modulus
    suffix = _INT_SUFFIX.get(dtype.name, "")
    if dtype.bits >= 32 and value == -(modulus >> 1):
        return f"-{-value - 1}{suffix} - 1"
    return f"{value}{suffix}"


def _float_literal(value: float, dtype: DType) -> str:
    exact = float(rounded(np.float64(value), dtype).astype(np.float64))
    if dtype.bits == 64:
        if math.isnan(exact):
            return "__longlong_as_double(0x7ff8000000000000ll)"
        if math.isinf(exact):
            bits = "0x7ff0000000000000ll" if exact > 0 else "0xfff0000000000000ll"
            return f"__longlong_as_double({bits})"
        return _decimal(repr(exact))
    if math.isnan(exact):
        return "__int_as_float(0x7fc00000)"
    if math.isinf(exact):
        return f"__int_as_float({'0x7f800000' if exact > 0 else '0xff800000'})"
    return _decimal(str(np.float32(exact))) + "f"


def _decimal(text: str) -> str:
    return text if any(c in text for c in ".en") else f"{text}.0"


_PIECE = re.compile(r"\\u[0-9a-f]{4}|\\.|.")  # an escape sequence, or a character
_OPERATOR = re.compile(r" (&&|\|\||[-+*?:]|<<|\^) ")


def indent(text: str) -> str:
    """Every line that is not empty, two spaces further right."""
    return "\n".join(_INDENT + line if line else line for line in text.split("\n"))


def wrap(text: str) -> str:
    """Breaks code lines beyond the limit after a comma or before an operator, else within a string.

    Comments are cut short.
    """
    return "\n".join(piece for line in text.split("\n") for piece in _wrap_line(line))


def _wrap_line(line: str) -> list[str]:
    if len(line) <= MAX_COLUMNS:
        return [line]
    stripped = line.lstrip()
    if stripped.startswith("//"):
        return [line[: MAX_COLUMNS - 3].rstrip() + "..."]
    out: list[str] = []
    hang = len(line) - len(stripped) + 4
    while len(line) > MAX_COLUMNS:
        quoted = _quoted(line)
        cut = _break_at(line, hang, quoted)
        if cut is not None:
            out.append(line[:cut].rstrip())
            line = " " * hang + line[cut:].lstrip()
            continue
        cut = _string_break(line, hang, quoted)
        if cut is None:
            raise CodegenError(f"a statement cannot be broken into lines: {line.strip()[:80]}")
        out.append(line[:cut] + '"')
        line = " " * hang + '"' + line[cut:]
    return [*out, line]


def _quoted(line: str) -> list[bool]:
    """Which characters belong to a string, its first quote not included.

    A string may be cut in two ahead of such a character, unless it continues an escape sequence.
    """
    out: list[bool] = []
    inside = False
    for piece in _PIECE.findall(line):
        out += [inside, *[False] * (len(piece) - 1)]
        if piece == '"':
            inside = not inside
    return out


def _break_at(line: str, hang: int, quoted: list[bool]) -> int | None:
    """Column of the outermost, last break below the limit."""
    best: tuple[int, int] | None = None
    depth = 0
    for i, c in enumerate(line[:MAX_COLUMNS]):
        if quoted[i] or c == "\\":
            continue
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if i <= hang:
            continue
        breaks_after = c in {",", ";"}
        if breaks_after or (c == " " and _OPERATOR.match(line, i)):
            key = (depth, -i)
            if best is None or key <= best:
                best = key
    return None if best is None else -best[1] + 1


def _string_break(line: str, hang: int, quoted: list[bool]) -> int | None:
    """Column at which a string is cut in two: behind a space where there is one."""
    places = [i for i in range(hang + 2, MAX_COLUMNS) if quoted[i] and quoted[i - 1]]
    return max(places, key=lambda i: (line[i - 1] == " ", i), default=None)
