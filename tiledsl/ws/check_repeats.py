"""Parts of a tile's work that are followed once for all tiles with the same scalars."""

from __future__ import annotations

from typing import Any

from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_scalars import Env
from tiledsl.ws.check_steps import LOOP
from tiledsl.ws.check_steps import REPEAT
from tiledsl.ws.check_steps import Block
from tiledsl.ws.check_steps import Item
from tiledsl.ws.check_steps import Row


class Repeat:
    """Items whose rows follow from scalars alone.

    block: the items. inputs: scalars that they depend on, which are computed elsewhere.
    outputs: those that they compute. known: by the values of the inputs, the rows and the outputs.
    """

    __slots__ = ("block", "inputs", "known", "outputs")

    def __init__(
        self, code: Program, region: Region, given: set[Value], parts: list[tuple[Item, Part]]
    ) -> None:
        self.block = Block(region)
        self.block.items += [item for item, _ in parts]
        ops = [op for _, part in parts for op in part.ops]
        made = {v for op in ops for v in op.results if v in code.needed}
        reads = (_operands(code, given, ops) & code.needed) - made - code.constants.keys()
        self.outputs = sorted(made, key=_id)
        self.inputs = sorted(reads, key=_id)
        self.known: dict[tuple[Any, ...], tuple[list[Row], Env]] = {}


class Part:
    """The ops of an item. pure: its rows follow from scalars alone, not from the launch or tile."""

    __slots__ = ("loops", "ops", "pure")

    def __init__(self, *ops: Op, pure: bool, loops: bool = False) -> None:
        self.ops = list(ops)
        self.pure = pure
        self.loops = loops


def with_repeats(code: Program, block: Block, given: set[Value], parts: list[Part]) -> None:
    """Takes what holds loops, and follows from scalars alone, of a loop's body together.

    given: scalars that are computed ahead of everything, wherever their ops are.
    """
    groups: list[list[tuple[Item, Part]]] = []
    was_pure = False
    for item, part in zip(block.items, parts, strict=True):
        if not (groups and part.pure and was_pure):
            groups.append([])
        groups[-1].append((item, part))
        was_pure = part.pure
    walked: list[Item] = []
    for group in groups:
        if group[0][1].pure and any(item[0] == LOOP or part.loops for item, part in group):
            walked.append((REPEAT, Repeat(code, block.region, given, group)))
        else:
            walked += [item for item, _ in group]
    block.walked = walked


def _operands(code: Program, given: set[Value], ops: list[Op]) -> set[Value]:
    """What ops, and those within, read of what is not made within."""
    reads: set[Value] = set()
    for op in ops:
        reads.update(op.operands)
        for r in op.regions:
            inner = [s.op for s in code.code.get(r, ())]
            made = {v for o in inner for v in o.results} - given
            reads |= _operands(code, given, inner) - made - set(r.args)
    return reads


def _id(v: Value) -> int:
    return v.id
