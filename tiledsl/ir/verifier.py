"""Rules of the graph as a whole: scopes, regions, levels, effects, use lists."""

from __future__ import annotations

from tiledsl.errors import InternalError
from tiledsl.errors import TileError
from tiledsl.errors import VerifyError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import same_type
from tiledsl.ir.printer import numbered_lines
from tiledsl.target import HOPPER
from tiledsl.target import Target

CONTEXT_OPS = 10

# What an op with regions may contain; a CONTROL op takes on the effects of what is in it.
_STRENGTH = {Effect.PURE: 0, Effect.READ: 1, Effect.WRITE: 2, Effect.SYNC: 3}


def verify(graph: TileGraph, target: Target = HOPPER) -> None:
    """Checks a graph against the rules of its level.

    Every value is defined once and before its uses, in scope; every op is in one place and known to
    the graph with its uses; regions end as their op wants; each op is legal on the graph's level,
    may have the effects that the op around it allows, has the types that it infers, and passes its
    own `verify`.

    Raises:
        VerifyError: naming the op, at its location, with up to ten ops of the graph around it.
    """
    _Verifier(graph, target).run()


def context(graph: TileGraph, culprit: Op, *, count: int = CONTEXT_OPS) -> str:
    """Lines of the graph's text around an op, which is marked; at most `count` ops of it."""
    lines = list(numbered_lines(graph, locations=False))
    at = next((i for i, (_, op) in enumerate(lines) if op is culprit), None)
    if at is None:
        return f"> {culprit!r} (not in the graph)"
    ops = [i for i, (_, op) in enumerate(lines) if op is not None]
    start = max(0, min(ops.index(at) - count // 2, len(ops) - count))
    shown = ops[start : start + count]
    return "\n".join(
        f"{'>' if i == at else ' '} {lines[i][0]}" for i in range(shown[0], shown[-1] + 1)
    )


class _Verifier:
    def __init__(self, graph: TileGraph, target: Target) -> None:
        self.graph = graph
        self.target = target
        self.defined: set[Value] = set()
        self.seen: set[Op] = set()
        # By class: whether it is legal on the graph's level.
        self.legal: dict[type[Op], bool] = {}

    def run(self) -> None:
        end = self.graph.body.terminator
        if end is not None and end.operands:
            self.fail(end, "the body of a kernel yields no values")
        self.region(self.graph.body, None, Effect.SYNC)
        if len(self.seen) != self.graph.num_ops:
            count = f"{self.graph.num_ops} ops, its regions {len(self.seen)}"
            raise InternalError(f"{self.graph.name}: the graph holds {count}")

    def fail(self, op: Op, message: str) -> None:
        raise self.explain(VerifyError(f"{op.opcode}: {message}"), op)

    def explain(self, error: TileError, op: Op) -> TileError:
        """Attaches the op's location and its surroundings."""
        return error.at(op.loc).note(f"in graph {self.graph.name}:\n{context(self.graph, op)}")

    def region(self, region: Region, owner: Op | None, allowed: Effect) -> None:
        scope: list[Value] = []
        self.define(region.args, scope, owner)
        for index, op in enumerate(region.ops):
            self.place(op, region)
            if op.is_terminator and index != len(region.ops) - 1:
                self.fail(op, "a terminator must be the last op of its region")
            self.op(op, allowed)
            self.define(op.results, scope, op)
        self.defined.difference_update(scope)

    def define(
        self, values: tuple[Value, ...] | list[Value], scope: list[Value], op: Op | None
    ) -> None:
        for value in values:
            if value in self.defined and op is not None:
                self.fail(op, f"%{value.name} is defined twice")
            self.defined.add(value)
            scope.append(value)

    def place(self, op: Op, region: Region) -> None:
        if op in self.seen:
            self.fail(op, "the op stands in two places")
        self.seen.add(op)
        if op.parent is not region:
            self.fail(op, "the op's parent is not the region that holds it")
        if not self.graph.has_uses_of(op):
            self.fail(op, "the graph's use lists do not match the op's operands")

    def op(self, op: Op, allowed: Effect) -> None:
        for index, value in enumerate(op.operands):
            if value not in self.defined:
                self.fail(op, f"operand {index} (%{value.name}) is not defined before it in scope")
        cls = type(op)
        if cls not in self.legal:
            self.legal[cls] = bool(op.levels & self.graph.level)
        if not self.legal[cls]:
            self.fail(
                op, f"not legal at level {self.graph.level.name}, only at {level_names(op.levels)}"
            )
        is_free = op.effect is allowed or op.effect is Effect.PURE or op.effect is Effect.CONTROL
        if not is_free and _STRENGTH[op.effect] > _STRENGTH[allowed]:
            self.fail(
                op, f"an op with effect {op.effect.value!r} inside one that is {allowed.value!r}"
            )
        self.types(op)
        inner = allowed if op.effect is Effect.CONTROL else op.effect
        for region in op.regions:
            if region.parent is not op:
                self.fail(op, "a region's parent is not the op that holds it")
            self.region(region, op, inner)
        try:
            op.verify(self.target)
        except TileError as error:
            raise self.explain(error, op) from None

    def types(self, op: Op) -> None:
        try:
            inferred = op.infer_types()
        except TileError as error:
            raise self.explain(error, op) from None
        if len(inferred) != len(op.results):
            self.fail(op, f"{len(op.results)} results, {len(inferred)} inferred")
        for want, value in zip(inferred, op.results, strict=True):
            if not same_type(want, value.type):
                self.fail(op, f"result {value.index} is {value.type}, expected {want}")


def level_names(levels: Level) -> str:
    """`TILE or MACHINE`."""
    return " or ".join(str(level.name) for level in Level if level in levels)
