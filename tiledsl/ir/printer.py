"""The text form of a graph: one generic syntax for every op at every level.

    graph @scale level=TILE {BLOCK = 64}
    body(%x_0 : tensor<1xf32, inner=0, tma=1, align=16>) {
      %pid_1 : i32 = program.id() {axis = 0}  @scale.py:7:11
      %t_2 : tile<64xf32> = memory.load(%x_0, [%pid_1]) {block_shape = (64,)}  @scale.py:8:9
    }

An op is one line: results with types, opcode, operands in field order, attributes that differ from
their default, location. A group of operands stands in brackets unless it is the op's only operand
field; an absent optional operand is `none`, and left out at the end. Each region follows on lines
of its own, headed by its field name and arguments. Values are numbered in print order. `parser.py`
reads all of this back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import Type

INDENT = "  "


def print_graph(graph: TileGraph, *, locations: bool = True) -> str:
    """The canonical text of a graph; two graphs are equal when their texts are."""
    return "\n".join(text for text, _ in numbered_lines(graph, locations=locations)) + "\n"


def numbered_lines(graph: TileGraph, *, locations: bool = True) -> Iterator[tuple[str, Op | None]]:
    """Lines of the text form, each with the op it states (None for headings and braces)."""
    constants = attributes_text({k: printable(v) for k, v in graph.constants.items()})
    yield f"graph @{graph.name} level={graph.level.name}{constants}", None
    yield from _Printer(locations).region("body", graph.body, "")


def attribute_text(value: Any) -> str:
    """An attribute as text: Python literals, dtypes by name, types and layouts through `str`."""
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        return f"({', '.join(map(attribute_text, items))}{',' if len(items) == 1 else ''})"
    if isinstance(value, ScalarType):
        return f"scalar<{value}>"
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, DType | Type | Layout):
        return str(value)
    raise TypeError(f"attribute {value!r} has no text form")


def attributes_text(attributes: dict[str, Any]) -> str:
    """` {name = value, ...}`, or nothing when there are none."""
    if not attributes:
        return ""
    body = ", ".join(f"{name} = {attribute_text(value)}" for name, value in attributes.items())
    return f" {{{body}}}"


def printable(value: Any) -> Any:
    """The value where it has a text form, else its `repr` (constexprs may be anything)."""
    if isinstance(value, list):
        value = tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    try:
        attribute_text(value)
    except TypeError:
        return repr(value)
    return value  # pyright: ignore[reportUnknownVariableType]


def is_default(value: Any, default: Any) -> bool:
    """Equal in value and kind: `True` is not the default 1, and 0.0 not -0.0."""
    return type(value) is type(default) and attribute_text(value) == attribute_text(default)


class _Printer:
    def __init__(self, locations: bool) -> None:
        self.locations = locations
        self.names: dict[Value, str] = {}

    def define(self, value: Value) -> str:
        stem = re.sub(r"\W", "_", value.name) or "v"
        self.names[value] = f"%{stem}_{len(self.names)}"
        return f"{self.names[value]} : {value.type}"

    def use(self, value: Value | None) -> str:
        if value is None:
            return "none"
        return self.names.get(value) or f"%{value.name or 'v'}_undefined"

    def region(self, name: str, region: Region, indent: str) -> Iterator[tuple[str, Op | None]]:
        yield f"{indent}{name}({', '.join(map(self.define, region.args))}) {{", None
        for op in region.ops:
            yield indent + INDENT + self.header(op), op
            names = [spec.name for spec in op.fields if spec.kind == "region"]
            for field, inner in zip(names, op.regions, strict=True):
                yield from self.region(field, inner, indent + INDENT)
        yield indent + "}", None

    def header(self, op: Op) -> str:
        operands = self.operands(op)
        attributes = attributes_text(
            {
                spec.name: value
                for spec in op.fields
                if spec.kind == "attribute"
                for value in (getattr(op, spec.name),)
                if not (spec.has_default and is_default(value, spec.default))
            }
        )
        results = ", ".join(map(self.define, op.results))
        loc = ""
        if self.locations and op.loc is not None:
            loc = f"  @{op.loc.short}:{op.loc.col + 1}"
        return f"{results}{' = ' if results else ''}{op.opcode}({operands}){attributes}{loc}"

    def operands(self, op: Op) -> str:
        specs = [spec for spec in op.fields if spec.kind in ("operand", "operands")]
        items: list[str] = []
        for spec in specs:
            value = getattr(op, spec.name)
            if spec.kind == "operand":
                items.append(self.use(value))
            else:
                group = ", ".join(map(self.use, value))
                items.append(group if len(specs) == 1 else f"[{group}]")
        while items and items[-1] == "none":
            items.pop()
        return ", ".join(items)
