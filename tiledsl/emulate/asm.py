"""Inline PTX statements of CUDA text: finding them, and taking them apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tiledsl.emulate.errors import NotEmulated

__all__ = ["AsmOperand", "AsmStatement", "Instruction", "instructions", "statements"]

_START = re.compile(r"\basm\b\s*(?:volatile\b)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'\s*"([^"]*)"\s*\(')
_ESCAPES = {"n": "\n", "t": " ", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class AsmOperand:
    """One operand: its constraint without `=` and `+`, and the C++ expression."""

    constraint: str
    expression: str
    is_output: bool


@dataclass(frozen=True, slots=True)
class AsmStatement:
    """One statement; text[start:end] is all of it but the final semicolon."""

    start: int
    end: int
    ptx: str
    operands: tuple[AsmOperand, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One PTX instruction: `opcode a, b, c`, under `predicate` when it has one."""

    opcode: str
    operands: tuple[str, ...]
    predicate: str = ""


def statements(text: str) -> Iterator[AsmStatement]:
    """Every inline PTX statement outside comments, in order.

    Raises:
        NotEmulated: a statement that cannot be taken apart.
    """
    hidden = _without_comments(text)
    position = 0
    while match := _START.search(hidden, position):
        end = _closing(hidden, match.end() - 1)
        yield _statement(hidden, match.start(), match.end(), end)
        position = end


def instructions(ptx: str) -> Iterator[Instruction]:
    """The instructions of a statement's text, `.reg` declarations among them."""
    for piece in ptx.split(";"):
        words = piece.strip()
        while words[:1] in ("{", "}") and words:
            words = words[1:].strip()
        if not words:
            continue
        predicate = ""
        if words.startswith("@"):
            predicate, _, words = words[1:].partition(" ")
        opcode, _, rest = words.partition(" ")
        yield Instruction(opcode, tuple(_split(rest)), predicate)


def _without_comments(text: str) -> str:
    """The text with comments blanked out, every character at its place."""
    pattern = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return pattern.sub(blank, text)


def _closing(text: str, opening: int) -> int:
    """Place after the parenthesis that closes the one at `opening`."""
    depth, i = 0, opening
    while i < len(text):
        if text[i] == '"':
            match = _STRING.match(text, i)
            i = match.end() if match else i + 1
            continue
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        i += 1
        if depth == 0:
            return i
    raise NotEmulated("an inline PTX statement does not end")


def _statement(text: str, start: int, inside: int, end: int) -> AsmStatement:
    sections = _sections(text[inside : end - 1])
    ptx = "".join(_unescape(m[1]) for m in _STRING.finditer(sections[0]))
    operands: list[AsmOperand] = []
    for number, section in enumerate(sections[1:3]):
        operands += _operands(section, is_output=number == 0)
    return AsmStatement(start, end, ptx, tuple(operands))


def _sections(body: str) -> list[str]:
    """Parts between the colons that stand outside strings and parentheses."""
    parts: list[str] = []
    depth, last, i = 0, 0, 0
    while i < len(body):
        if body[i] == '"':
            match = _STRING.match(body, i)
            i = match.end() if match else i + 1
            continue
        depth += {"(": 1, ")": -1}.get(body[i], 0)
        if body[i] == ":" and depth == 0:
            parts.append(body[last:i])
            last = i + 1
        i += 1
    return [*parts, body[last:]]


def _operands(section: str, *, is_output: bool) -> Iterator[AsmOperand]:
    position = 0
    while match := _OPERAND.match(section, position):
        end = _closing(section, match.end() - 1)
        expression = " ".join(section[match.end() : end - 1].split())
        yield AsmOperand(match[1].lstrip("=+&"), expression, is_output)
        position = end
        while position < len(section) and section[position] in ", \n\t":
            position += 1


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), text)


def _split(text: str) -> list[str]:
    """Splits at the commas outside brackets and braces."""
    parts: list[str] = []
    depth, last = 0, 0
    for i, character in enumerate(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[last:i])
            last = i + 1
    return [part.strip() for part in [*parts, text[last:]] if part.strip()]
