"""Asynchronous references: the channels between roles, before they become mbarriers.

Ref: Tawa (arXiv 2510.14719), aref semantics: put needs an empty slot, get a full one, consumed
empties it.
"""

from __future__ import annotations

from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import region
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.types import ArefType
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import Type
from tiledsl.target import Target

WS = Level.WARP_SPECIALIZED


def aref_type(value: Value) -> ArefType:
    """The type of an aref operand. Raises TypeMismatch for anything else."""
    if not isinstance(value.type, ArefType):
        raise TypeMismatch(f"expected an aref, got {value.type}")
    return value.type


class Create(Op, opcode="aref.create", levels=WS, effect=Effect.SYNC):
    """A channel of `depth` slots, all empty. payload: the tiles of one slot."""

    payload: tuple[SmemType, ...] = attribute()
    depth: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (ArefType(self.payload, self.depth),)


class Put(Op, opcode="aref.put", levels=WS, effect=Effect.SYNC):
    """Waits for an empty slot and starts the loads into it, which mark it full when they land.

    body: memory.load ops and the scalar math of their offsets; yields one loaded tile per payload
    entry. Or no loads: yields the i32 scalars of its payload entries, which the putting thread
    writes itself. An entry that the threads of the role copy (pointer.copy) has its tile in shared
    memory as an argument of the body, which is yielded for it.
    multicast: per payload entry, whether the CTAs of the cluster load a part each and send it to
    all.
    hints: per payload entry, the L2 eviction priority ("evict_first", "evict_last" or "").
    """

    aref: Value = operand()
    multicast: tuple[bool, ...] = attribute(default=())
    cluster_size: int = attribute(default=1)
    hints: tuple[str, ...] = attribute(default=())
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        aref_type(self.aref)
        return ()

    def verify(self, target: Target) -> None:
        end = self.body.terminator
        payload = aref_type(self.aref).payload
        has_scalars = all(len(p.shape) == 1 for p in payload)
        count = sum(p.shape[0] for p in payload) if has_scalars else len(payload)
        if not isinstance(end, Yield) or len(end.values) != count:
            raise VerifyError("aref.put: the body must yield one tile per payload entry")


class Get(Op, opcode="aref.get", levels=WS, effect=Effect.SYNC):
    """Waits for the next slot to be full and gives its tiles in shared memory.

    The slot is borrowed until consumed.
    """

    aref: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        return aref_type(self.aref).payload


class Consumed(Op, opcode="aref.consumed", levels=WS, effect=Effect.SYNC):
    """Gives back the oldest slot that this role still borrows.

    converge: nothing since the get was done by whole warps, so that lanes may still wait for it.
    """

    aref: Value = operand()
    converge: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        aref_type(self.aref)
        return ()


class Skip(Op, opcode="aref.skip", levels=WS, effect=Effect.SYNC):
    """Moves this role's position on by `count` slots.

    Another warpgroup of the role gets and consumes them.
    """

    aref: Value = operand()
    count: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        aref_type(self.aref)
        if not isinstance(self.count.type, ScalarType):
            raise TypeMismatch(f"aref.skip: count must be a scalar, got {self.count.type}")
        return ()
