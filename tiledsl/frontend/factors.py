"""Where it makes other code that an integer argument is 1.

A stride of 1 is what makes a dimension contiguous, so a kernel is specialised for it. A length that
is only compared, divided or added makes the same code at any value: a batch of one needs no program
of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Iterator

from tiledsl.errors import TileError
from tiledsl.frontend.source import source_of

_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_SUMS = (ast.Add, ast.Sub, ast.FloorDiv, ast.Mod, ast.Div)
_LENGTHS = frozenset({"cdiv", "max", "maximum", "min", "minimum", "range", "static_range"})


def factors_of(fn: Callable[..., object]) -> frozenset[str] | None:
    """Names whose value may be worth knowing when it is 1; None for all, without a source text."""
    try:
        node = source_of(fn).node
    except TileError:
        return None
    nodes = list(ast.walk(node))
    plain = {id(name) for found in nodes for name in _used_as_length(found)}
    return frozenset(
        n.id
        for n in nodes
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in plain
    )


def _used_as_length(node: ast.AST) -> Iterator[ast.expr]:
    """Operands of a node in whose places a 1 is like any other number."""
    match node:
        case ast.Compare(ops=ops) if all(isinstance(op, _ORDERED) for op in ops):
            yield node.left
            yield from node.comparators
        case ast.BinOp(op=op) if isinstance(op, _SUMS):
            yield from (node.left, node.right)
        case ast.Call() if _name_of(node.func) in _LENGTHS:
            yield from node.args
        case _:
            return


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
