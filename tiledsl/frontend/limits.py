"""Which integer arguments bound an index that runs over a constant number of places.

`tl.arange(0, BLOCK) < n`: in a call whose n is BLOCK every place is inside, which is worth a
program without the masks, since rows of a power of two are the most common ones.

Not where it is all of a mask in a loop: ptxas leaves masked loads and copies in front of the work,
others it moves behind, and they come later (gradients of norms, whose loops fetch rows, took up to
5 % longer without masks).
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
    repeated = _masks_of_loops(nodes)
    found: dict[str, set[str]] = {}
    for node in nodes:
        for index, bound in _comparisons(node):
            if node in repeated:
                continue
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


def _masks_of_loops(nodes: Collection[ast.AST]) -> set[ast.AST]:
    """Comparisons that stand in loops, or whose name does, if `&` does not join them to others."""
    loops = [n for n in nodes if isinstance(n, ast.For | ast.While) and not _is_unrolled(n)]
    inside = {n for loop in loops for statement in loop.body for n in ast.walk(statement)}
    names = {n.id for n in inside if isinstance(n, ast.Name)}
    joined = {
        side
        for n in nodes
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitAnd)
        for side in (n.left, n.right)
    }
    named = {
        n.value
        for n in nodes
        if isinstance(n, ast.Assign)
        and names & {t.id for t in n.targets if isinstance(t, ast.Name)}
    }
    found = {n for n in (*inside, *named) if isinstance(n, ast.Compare)}
    return {n for n in found if n not in joined}


def _is_unrolled(loop: ast.For | ast.While) -> bool:
    """Whether the compiler repeats the body: `for i in tl.static_range(4)`."""
    match loop:
        case ast.For(iter=ast.Call(func=ast.Attribute(attr="static_range"))):
            return True
        case _:
            return False


def _comparisons(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """(index, bound) of `index < bound` and `bound > index`."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _LOWER):
            return [(left, right)]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _UPPER):
            return [(right, left)]
        case _:
            return []
