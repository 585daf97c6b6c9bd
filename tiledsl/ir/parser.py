"""Reads the text form of graphs (`printer.py`) and of types back."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any
from typing import NoReturn
from typing import TypeVar

from tiledsl import dtypes
from tiledsl.dtypes import DType
from tiledsl.errors import SourceLoc
from tiledsl.errors import TileError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Digit
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import op_class
from tiledsl.ir.types import ArefType
from tiledsl.ir.types import HandleType
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type

_LOC = re.compile(r"\s+@(\S.*):(\d+):(\d+)$")
_NUMBER = re.compile(r"-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OPCODE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")
_NAME = re.compile(r"%(\w+)")
_LAYOUT = re.compile(r"(\w+)<([0-9rlw,;]*)\|(\d+)x(\d+)>")
_DIGIT = re.compile(r"(\d+)([rlw])(\d+)")
_UNITS = {unit.value[0]: unit for unit in Unit}
_LITERALS: dict[str, bool | None] = {"True": True, "False": False, "None": None}

T = TypeVar("T")


def parse_graph(text: str) -> TileGraph:
    """The graph of a text. Raises TileError with the line of the text where it is malformed."""
    return _GraphParser(text).graph()


def parse_type(text: str) -> Type:
    """The type that prints as `text`."""
    cursor = _Cursor(text)
    type_ = cursor.type()
    cursor.end()
    return type_


def parse_attributes(text: str) -> dict[str, Any]:
    """Attributes in braces by name."""
    cursor = _Cursor(text)
    attributes = cursor.attributes()
    cursor.end()
    return attributes


class _Cursor:
    """A position in one line of text, and the grammar of types and attributes."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text = text
        self.line = line
        self.at = 0

    def fail(self, expected: str) -> NoReturn:
        got = self.text[self.at : self.at + 20] or "the end of the line"
        raise TileError(
            f"expected {expected}, got {got!r}", SourceLoc("<text>", self.line, self.at)
        )

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def need(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = self.match(pattern)
        return found if found else self.fail(what)

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def take(self, literal: str) -> bool:
        self.skip()
        if not self.text.startswith(literal, self.at):
            return False
        self.at += len(literal)
        return True

    def expect(self, literal: str) -> None:
        if not self.take(literal):
            self.fail(repr(literal))

    def end(self) -> None:
        self.skip()
        if self.at < len(self.text):
            self.fail("the end of the line")

    def integer(self) -> int:
        return int(self.need(re.compile(r"-?\d+"), "an integer")[0])

    def word(self) -> str:
        return self.need(_WORD, "a word")[0]

    def many(self, close: str, item: Callable[[], T]) -> list[T]:
        """Items between commas up to `close`, which is consumed; a comma may stand before it."""
        out: list[T] = []
        while not self.take(close):
            out.append(item())
            if not self.take(","):
                self.expect(close)
                break
        return out

    # ------------------------------------------------------------------ types
    def dtype(self) -> DType:
        name = self.word()
        if name == "ptr" and self.take("<"):
            found = dtypes.pointer_to(self.dtype())
            self.expect(">")
            return found
        return dtypes.BY_NAME.get(name) or self.fail(f"a dtype instead of {name!r}")

    def shaped(self) -> tuple[tuple[int, ...], DType]:
        shape: list[int] = []
        while found := self.match(re.compile(r"(\d+)x")):
            shape.append(int(found[1]))
        return tuple(shape), self.dtype()

    def fact(self, name: str) -> int:
        self.expect(f", {name}=")
        return self.integer()

    def layout(self) -> Layout:
        found = self.need(_LAYOUT, "a layout")
        dims = tuple(
            tuple(Digit(int(n), _UNITS[u], int(s)) for n, u, s in _DIGIT.findall(dim))
            for dim in (found[2].split(";") if found[2] else [])
        )
        return Layout(dims, int(found[3]), int(found[4]), found[1])

    def type(self) -> Type:
        kind = self.word()
        if not self.take("<"):
            dtype = dtypes.BY_NAME.get(kind)
            return ScalarType(dtype) if dtype else self.fail(f"a type instead of {kind!r}")
        reader = getattr(self, f"type_{kind}", None)
        type_ = reader() if reader is not None else HandleType(kind, self.integer())
        self.expect(">")
        return type_

    def type_scalar(self) -> Type:
        return ScalarType(self.dtype())

    def type_ptr(self) -> Type:
        return ScalarType(dtypes.pointer_to(self.dtype()))

    def type_tile(self) -> Type:
        shape, dtype = self.shaped()
        return TileType(shape, dtype, self.layout() if self.take(",") else None)

    def type_smem(self) -> Type:
        shape, dtype = self.shaped()
        major, swizzle = self.fact("major"), self.fact("swizzle")
        paired = self.take(", paired=1")
        return SmemType(shape, dtype, major, swizzle, paired)

    def type_tensor(self) -> Type:
        (rank,), dtype = self.shaped()
        self.expect(", inner=")
        inner = None if self.take("none") else self.integer()
        tma, align = bool(self.fact("tma")), self.fact("align")
        ragged = self.take(", ragged=1")
        pitch = self.integer() if self.take(", pitch=") else 1
        return TensorType(rank, dtype, inner, tma, align, ragged, pitch)

    def type_aref(self) -> Type:
        self.expect("(")
        payload = self.many(")", self.type)
        if not all(isinstance(p, SmemType) for p in payload):
            self.fail("smem types as payload")
        return ArefType(tuple(p for p in payload if isinstance(p, SmemType)), self.fact("depth"))

    # ------------------------------------------------------------------ attributes
    def attribute(self) -> Any:
        if self.take("("):
            return tuple(self.many(")", self.attribute))
        if found := self.match(_STRING):
            return ast.literal_eval(found[0])
        if found := self.match(_NUMBER):
            is_float = not found[0].lstrip("-").isdigit()
            return float(found[0]) if is_float else int(found[0])
        start = self.at
        word = self.word()
        if word in _LITERALS:
            return _LITERALS[word]
        if word in dtypes.BY_NAME:
            return dtypes.BY_NAME[word]
        self.at = start
        if word == "ptr":
            return self.dtype()
        self.skip()
        return self.layout() if _LAYOUT.match(self.text, self.at) else self.type()

    def attributes(self) -> dict[str, Any]:
        return dict(self.many("}", self.named_attribute)) if self.take("{") else {}

    def named_attribute(self) -> tuple[str, Any]:
        name = self.word()
        self.expect("=")
        return name, self.attribute()


class _GraphParser:
    def __init__(self, text: str) -> None:
        lines = [
            (number, line.strip())
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("//")
        ]
        self.lines = lines
        self.next = 0
        self.values: dict[str, Value] = {}

    def line(self) -> _Cursor:
        if self.next >= len(self.lines):
            raise TileError("the text ends inside a region")
        number, text = self.lines[self.next]
        self.next += 1
        return _Cursor(text, number)

    def graph(self) -> TileGraph:
        head = self.line()
        head.expect("graph @")
        name = head.word()
        head.expect("level=")
        level = head.word()
        if level not in Level.__members__:
            head.fail(f"a level instead of {level!r}")
        constants = head.attributes()
        head.end()
        body = self.region("body")
        if self.next < len(self.lines):
            self.line().fail("the end of the text")
        return TileGraph(name, Level[level], body, constants)

    def region(self, name: str) -> Region:
        head = self.line()
        region = Region()
        head.expect(f"{name}(")
        outer = dict(self.values)
        for text, type_ in head.many(")", lambda: self.typed_name(head)):
            self.define(head, text, region.add_arg(type_, _stem(text)))
        head.expect("{")
        head.end()
        while self.next < len(self.lines) and self.lines[self.next][1] != "}":
            op = self.op()
            op.parent = region
            region.ops.append(op)
        self.line()
        self.values = outer
        return region

    def typed_name(self, cursor: _Cursor) -> tuple[str, Type]:
        name = cursor.need(_NAME, "a value name")[1]
        cursor.expect(":")
        return name, cursor.type()

    def define(self, cursor: _Cursor, name: str, value: Value) -> None:
        if name in self.values:
            raise TileError(f"%{name} is defined twice", SourceLoc("<text>", cursor.line))
        self.values[name] = value

    def use(self, cursor: _Cursor) -> Value | None:
        if cursor.take("none"):
            return None
        name = cursor.need(_NAME, "a value name")[1]
        if name not in self.values:
            raise TileError(f"%{name} is not defined here", SourceLoc("<text>", cursor.line))
        return self.values[name]

    def op(self) -> Op:
        cursor = self.line()
        loc = SourceLoc("<text>", cursor.line)
        if found := _LOC.search(cursor.text):
            cursor.text = cursor.text[: found.start()]
            loc = SourceLoc(found[1], int(found[2]), int(found[3]) - 1)
        results: list[tuple[str, Type]] = []
        while cursor.text.startswith("%", cursor.at):
            results.append(self.typed_name(cursor))
            if not cursor.take(","):
                cursor.expect("=")
            cursor.skip()
        opcode = cursor.need(_OPCODE, "an opcode")[0]
        try:
            op = self.build(cursor, opcode, loc if found else None, results)
        except TileError as error:
            raise error.at(loc) from None
        for (name, type_), value in zip(results, op.results, strict=True):
            self.define(cursor, name, value)
            value.type = type_
        return op

    def build(
        self, cursor: _Cursor, opcode: str, loc: SourceLoc | None, results: list[tuple[str, Type]]
    ) -> Op:
        cls = op_class(opcode)
        cursor.expect("(")
        fields = self.operands(cursor, cls)
        fields.update(cursor.attributes())
        cursor.end()
        for spec in cls.fields:
            if spec.kind == "region":
                fields[spec.name] = self.region(spec.name)
        names = tuple(_stem(name) for name, _ in results)
        try:
            op = cls(**fields, loc=loc, names=names)
        except TypeError as error:
            raise TileError(str(error)) from None
        got = [_bare(type_) for _, type_ in results]
        want = [_bare(value.type) for value in op.results]
        if got != want:
            shown = ", ".join(map(str, want)) or "none"
            raise TileError(f"{opcode}: result types should be {shown}")
        return op

    def operands(self, cursor: _Cursor, cls: type[Op]) -> dict[str, Any]:
        specs = [spec for spec in cls.fields if spec.kind in ("operand", "operands")]
        if len(specs) == 1 and specs[0].kind == "operands":
            return {specs[0].name: tuple(cursor.many(")", lambda: self.use(cursor)))}
        items = cursor.many(")", lambda: self.operand(cursor))
        if len(items) > len(specs):
            raise TileError(f"{cls.opcode}: {len(items)} operands given, {len(specs)} declared")
        return {spec.name: item for spec, item in zip(specs, items, strict=False)}

    def operand(self, cursor: _Cursor) -> Value | tuple[Value | None, ...] | None:
        if cursor.take("["):
            return tuple(cursor.many("]", lambda: self.use(cursor)))
        return self.use(cursor)


def _stem(name: str) -> str:
    """The user's part of a value name: `acc` of `acc_3`; empty for the unnamed `v_3`."""
    stem = re.sub(r"_\d+$", "", name)
    return "" if stem == "v" else stem


def _bare(type_: Type) -> Type:
    return type_.with_layout(None) if isinstance(type_, TileType) else type_
