"""Which variables a block assigns, and which are read later: what loops and branches carry."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from tiledsl.frontend.source import FunctionSource

Names = frozenset[str]
NONE: Names = frozenset()
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def assigned(nodes: Iterable[ast.AST]) -> tuple[str, ...]:
    """Names that statements assign, in order of appearance."""
    out: dict[str, None] = {}
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                out[inner.id] = None
    return tuple(out)


def reads(node: ast.AST) -> Names:
    """Names that an expression reads."""
    return frozenset(
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    )


@dataclass
class Liveness:
    """Results for one function, by statement of control flow.

    after: names read after the statement.  exposed: of a loop, names read in an iteration before
    it assigns them.
    jump: while the analysis runs, names live where break and continue go.  seen: what expressions
    read; those in loops are looked at several times.
    """

    after: dict[ast.stmt, Names] = field(default_factory=dict[ast.stmt, Names])
    exposed: dict[ast.stmt, Names] = field(default_factory=dict[ast.stmt, Names])
    jump: Names = NONE
    seen: dict[ast.AST, Names] = field(default_factory=dict[ast.AST, Names])

    def reads(self, node: ast.AST | None) -> Names:
        """Names that an expression reads."""
        if node is None:
            return NONE
        found = self.seen.get(node)
        if found is None:
            found = self.seen[node] = reads(node)
        return found

    def carried(self, loop: ast.stmt) -> Names:
        """Names whose value must pass from an iteration to the next or out of the loop."""
        return self.after[loop] | self.exposed[loop]


def liveness_of(source: FunctionSource) -> Liveness:
    """The analysis of a function, made once."""
    found = source.memo.get("liveness")
    if found is None:
        found = source.memo["liveness"] = Liveness()
        _block(source.node.body, NONE, found)
        found.seen.clear()
    return found


def _block(body: Sequence[ast.stmt], live: Names, out: Liveness) -> Names:
    for stmt in reversed(body):
        live = _statement(stmt, live, out)
    return live


def _statement(stmt: ast.stmt, live: Names, out: Liveness) -> Names:
    """Names live before a statement, given those live after it."""
    match stmt:
        case ast.Assign(targets=targets, value=value):
            return (live - _plain_targets(targets)) | out.reads(value) | _reads_of_all(targets, out)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            return (live - _plain_targets([target])) | out.reads(value)
        case ast.AugAssign(target=target, value=value):
            return (
                live
                | out.reads(value)
                | frozenset(n.id for n in ast.walk(target) if isinstance(n, ast.Name))
            )
        case ast.If(test=test, body=body, orelse=orelse):
            out.after[stmt] = live
            return _block(body, live, out) | _block(orelse, live, out) | out.reads(test)
        case ast.For(target=target, iter=iterable, body=body):
            names = _plain_targets([target])
            return _loop(stmt, body, live, out, names) | out.reads(iterable)
        case ast.While(test=test, body=body):
            return _loop(stmt, body, live, out, NONE, out.reads(test)) | out.reads(test)
        case ast.Return(value=value):
            return out.reads(value)
        case ast.Break() | ast.Continue():
            return out.jump
        case _:
            return live | _reads_of_all(_own_nodes(stmt), out)


def _loop(
    stmt: ast.stmt,
    body: list[ast.stmt],
    live: Names,
    out: Liveness,
    targets: Names,
    test: Names = NONE,
) -> Names:
    """Live-in of a loop whose body may run any number of times."""
    out.after[stmt] = live
    out.exposed[stmt] = (_block(body, test, Liveness(jump=test, seen=out.seen)) - targets) | test
    around = live | out.exposed[stmt]
    saved, out.jump = out.jump, around
    _block(body, around, out)
    out.jump = saved
    return around


def _own_nodes(stmt: ast.stmt) -> list[ast.AST]:
    return [] if isinstance(stmt, _SCOPES) else list(ast.iter_child_nodes(stmt))


def _reads_of_all(nodes: Iterable[ast.AST], out: Liveness) -> Names:
    return NONE.union(*(out.reads(node) for node in nodes))


def _plain_targets(targets: Iterable[ast.expr]) -> Names:
    """Names that targets assign as a whole."""
    out: set[str] = set()
    for target in targets:
        if isinstance(target, ast.Name):
            out.add(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            out |= _plain_targets(target.elts)
        elif isinstance(target, ast.Starred):
            out |= _plain_targets([target.value])
    return frozenset(out)
