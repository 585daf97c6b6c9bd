"""Loop-carried variables: which there are, their types, their values after an iteration."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tiledsl.errors import SourceLoc
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.liveness import assigned
from tiledsl.frontend.liveness import liveness_of
from tiledsl.frontend.merge import Conflict
from tiledsl.frontend.merge import conflict_error
from tiledsl.frontend.merge import convert
from tiledsl.frontend.merge import is_run_time
from tiledsl.frontend.merge import leaves
from tiledsl.frontend.merge import meet
from tiledsl.frontend.merge import own_type
from tiledsl.frontend.merge import rebuild
from tiledsl.frontend.merge import same_leaf
from tiledsl.frontend.merge import same_structure
from tiledsl.frontend.scope import POISON
from tiledsl.frontend.scope import Frame
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_number
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import Type


class Restart(Exception):
    """A carried value needs another type; the body has to be lowered again."""


@dataclass
class Slot:
    """One leaf of a variable.

    init: its value before the loop.  type: its type in the loop; None for a compile-time object
    that no iteration changes, and that is not carried.
    """

    name: str
    init: object
    type: Type | None


def _slot_type(leaf: object, *, is_sure: bool) -> Type | None:
    """The type that a leaf starts with in the loop.

    is_sure: the variable is assigned by more than an `if`. A number that only an `if` assigns
    stays a constant until
    an iteration changes it: the branch may be dead.
    """
    if is_run_time(leaf) or (is_number(leaf) and is_sure):
        return own_type(cast("Value", leaf))
    return None


class Carried:
    """The variables that a loop carries.

    trees: their values before the loop.  slots: the leaves of these, in order.
    """

    def __init__(
        self, frame: Frame, node: ast.For | ast.While, *, skip: tuple[str, ...] = ()
    ) -> None:
        self.frame = frame
        self.node = node
        self.trees: dict[str, object] = {}
        self.places: dict[str, SourceLoc | None] = {}
        self.poisoned: tuple[str, ...] = ()
        self.slots: list[Slot] = []
        needed = liveness_of(frame.source).carried(node)
        always = set(assigned(s for s in node.body if not isinstance(s, ast.If)))
        for name in assigned(node.body):
            if name in needed and name not in skip and frame.is_defined(name):
                value = self.trees[name] = frame.variables[name]
                self.places[name] = frame.assignment_of(name)
                if value is POISON:
                    continue
                self.slots += [
                    Slot(name, leaf, _slot_type(leaf, is_sure=name in always))
                    for leaf in leaves(value)
                ]

    def initial(self) -> tuple[Value, ...]:
        """The carried values before the loop."""
        builder = self.frame.mark(self.node)
        return tuple(convert(builder, s.init, s.type) for s in self.slots if s.type is not None)

    def arguments(self, region: Region) -> dict[str, object]:
        """Adds an argument per carried value to a region; returns the variables inside it."""
        return self._variables(
            [s.init if s.type is None else region.add_arg(s.type, s.name) for s in self.slots]
        )

    def after(self, results: Sequence[Value]) -> dict[str, object]:
        """The variables after the loop, given its results."""
        carried = [slot for slot in self.slots if slot.type is not None]
        for slot, result in zip(carried, results, strict=True):
            result.name = slot.name
        it = iter(results)
        out = self._variables([s.init if s.type is None else next(it) for s in self.slots])
        out.update((name, POISON) for name in self.poisoned)
        return out

    def _variables(self, found: list[object]) -> dict[str, object]:
        it = iter(found)
        return {
            name: POISON if tree is POISON else rebuild(tree, it)
            for name, tree in self.trees.items()
        }

    def ends(self, variables: dict[str, object]) -> tuple[Value, ...]:
        """The carried values at the end of an iteration. Raises Restart when a type must change."""
        at = 0
        out: list[Value] = []
        poisoned: list[str] = []
        for name, tree in self.trees.items():
            if tree is POISON:
                poisoned.append(name)
                continue
            count = len(leaves(tree))
            slots = self.slots[at : at + count]
            at += count
            if variables[name] is POISON:
                poisoned.append(name)
                out += [
                    convert(self.frame.builder, s.init, s.type) for s in slots if s.type is not None
                ]
                continue
            out += self._ends_of(name, tree, variables[name], slots)
        self.poisoned = tuple(poisoned)
        return tuple(out)

    def _ends_of(self, name: str, tree: object, value: object, slots: list[Slot]) -> list[Value]:
        if not same_structure(tree, value):
            raise self._changed(name, tree, value)
        out: list[Value] = []
        for slot, leaf in zip(slots, leaves(value), strict=True):
            if slot.type is not None:
                out.append(self._end(slot, leaf))
            elif not same_leaf(slot.init, leaf):
                self._unfix(slot, leaf)
        return out

    def _unfix(self, slot: Slot, leaf: object) -> None:
        if not is_number(slot.init):
            raise self._changed(slot.name, slot.init, leaf)
        slot.type = own_type(slot.init)
        raise Restart

    def _end(self, slot: Slot, leaf: object) -> Value:
        """The value of one slot, converted to its type; a wider type restarts the loop."""
        assert slot.type is not None
        if isinstance(leaf, Value) and leaf.type == slot.type:
            return leaf
        found = meet(slot.init, leaf)
        if isinstance(found, Conflict) and is_number(slot.init) and isinstance(leaf, Value):
            # A number takes the type of the scalar that replaces it.
            found = leaf.type if isinstance(leaf.type, ScalarType) else found
        if isinstance(found, Conflict):
            raise self._changed(slot.name, slot.init, leaf)
        if (
            isinstance(slot.type, ScalarType)
            and isinstance(found, ScalarType)
            and self._is_wider(found, slot.type)
        ):
            slot.type = found
            raise Restart
        return convert(self.frame.mark(self.node), leaf, slot.type)

    @staticmethod
    def _is_wider(new: ScalarType, old: ScalarType) -> bool:
        rank = {"bool": 0, "int": 1, "uint": 1, "float": 2}
        key_new = (rank[new.dtype.kind], new.dtype.bits, new.dtype.kind == "uint")
        key_old = (rank[old.dtype.kind], old.dtype.bits, old.dtype.kind == "uint")
        return key_new > key_old

    def _changed(self, name: str, before: object, after: object) -> TypeMismatch:
        message = (
            f"{name!r} changes its type in the loop: from {describe(before)} to {describe(after)}"
        )
        error = conflict_error(
            message,
            (before, "before the loop", self.places[name]),
            (after, "at the end of the body", self.frame.assignment_of(name)),
        )
        error.hint = (
            f"give {name!r} one type: cast with .to(), "
            "or start with tl.zeros of the final shape and dtype"
        )
        return error
