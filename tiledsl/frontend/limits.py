"""Which integer arguments bound an index that runs over a constant number of places.

`tl.arange(0, BLOCK) < n`: in a call whose n is BLOCK every place is inside, which is worth a
program without the masks, since rows of a power of two are the most common ones.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Collection

from tiledsl.errors import TileError
from tiledsl.frontend.source import source_of

_LOWER, _UPPER = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)


def limits_of(
    fn: Callable[..., object], params: Collection[str], constants: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """By argument, the constants up to which the indexes run that it bounds.

    params, constants: names of the kernel's arguments of both kinds.
    """
    try:
        nodes = list(ast.walk(source_of(fn).node))
    except TileError:
        return {}
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    indexes = {
        node.targets[0].id: extent
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and stored.count(node.targets[0].id) == 1
        and (extent := _extent(node.value)) in constants
    }
    found: dict[str, set[str]] = {}
    for node in nodes:
        for index, bound in _comparisons(node):
            name = bound.id if isinstance(bound, ast.Name) else ""
            extent = indexes.get(index.id, "") if isinstance(index, ast.Name) else _extent(index)
            if extent in constants and name in params and name not in stored:
                found.setdefault(name, set()).add(extent)
    return {name: tuple(sorted(extents)) for name, extents in sorted(found.items())}


def _extent(node: ast.expr) -> str:
    """`BLOCK` of `tl.arange(0, BLOCK)[None, :]`, else nothing."""
    match node:
        case ast.Subscript(value=value):
            return _extent(value)
        case ast.Call(func=ast.Attribute(attr="arange"), args=[ast.Constant(0), ast.Name(id=name)]):
            return name
        case _:
            return ""


def _comparisons(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """(index, bound) of `index < bound` and `bound > index`."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _LOWER):
            return [(left, right)]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _UPPER):
            return [(right, left)]
        case _:
            return []
