"""Makes a failing case smaller while it fails in the same way."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace

from tiledsl.fuzz.case import Case

SMALLER = {"BM": (64, 32), "BN": (64, 32, 16), "BK": (64, 32, 16), "D": (64, 32), "DV": (64, 32)}


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """The smallest case that is found in time.

    fails: whether a case fails like the one given.
    """
    end = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for smaller in candidates(case):
            if time.monotonic() > end:
                break
            if fails(smaller):
                case, changed = smaller, True
                break
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Cases that are a step smaller, large steps first."""
    for name in case.options:
        yield replace(case, options={k: v for k, v in case.options.items() if k != name})
    yield from _statements(case)
    yield from _extents(case)
    for i, a in enumerate(case.arguments):
        rest = list(case.arguments)
        if a.layout != "row":
            rest[i] = replace(a, layout="row")
            yield replace(case, arguments=tuple(rest))
    if case.seed:
        yield replace(case, seed=0)


def _extents(case: Case) -> Iterator[Case]:
    for name, n in case.sizes.items():
        tile = case.constants.get(f"B{name}", 16)
        for less in dict.fromkeys((0 if name == "G" else 1, tile, 2 * tile, n // 2, n - tile)):
            if 0 <= less < n:
                yield _resized(case, name, less)
    for name, n in case.constants.items():
        for less in SMALLER.get(name, ()):
            if less < n:
                yield replace(case, constants={**case.constants, name: less})


def _resized(case: Case, name: str, n: int) -> Case:
    scalars = dict(case.scalars)
    if isinstance(scalars.get(name), int):
        scalars[name] = n
    return replace(case, sizes={**case.sizes, name: n}, scalars=scalars)


# ---------------------------------------------------------------------- statements
def _statements(case: Case) -> Iterator[Case]:
    """Without a statement, or with the body of a block in its place."""
    count = len(list(_places(ast.parse(case.source))))
    for number in range(count):
        for whole in (True, False):
            tree = ast.parse(case.source)
            body, index = list(_places(tree))[number]
            node = body[index]
            inner: list[ast.stmt] = []
            if not whole:
                if not isinstance(node, ast.If | ast.For):
                    continue
                inner = node.body
                if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
                    first = node.iter.args[0]
                    inner = [ast.Assign([node.target], first), *inner]
            elif len(body) == 1:
                continue
            body[index : index + 1] = inner
            yield _tidied(case, tree)


def _places(tree: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
    """Lists of statements and positions in them, outer ones first, late ones first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.For | ast.If):
            for body in (node.body, getattr(node, "orelse", [])):
                for index in reversed(range(len(body))):
                    yield body, index


def _tidied(case: Case, tree: ast.Module) -> Case:
    """The case of a tree, without arguments that it does not use."""
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    used = {n.id for s in function.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    kept = [a for a in function.args.args if a.arg in used]
    function.args.args = kept
    ast.fix_missing_locations(tree)
    names = {a.arg for a in kept}
    constants = {k: v for k, v in case.constants.items() if k in names}
    grid = tuple(_without(g, case, constants) for g in case.grid)
    scalars = {k: v for k, v in case.scalars.items() if k in names}
    arguments = tuple(a for a in case.arguments if (a.group or a.name) in names)
    return replace(
        case, source=ast.unparse(tree) + "\n", arguments=arguments, scalars=scalars,
        constants=constants, grid=grid,
    )  # fmt: skip


def _without(text: str, case: Case, constants: dict[str, int]) -> str:
    """An expression with the constants that are gone as numbers."""
    for name, value in case.constants.items():
        if name not in constants:
            text = text.replace(name, str(value))
    return text
