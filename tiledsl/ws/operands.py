"""Loads that feed dots: where they are found, how they lie in shared memory, and what not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import SmemType
from tiledsl.ws.bulk import map_fault
from tiledsl.ws.bulk import start_fault


@dataclass(frozen=True)
class Copies:
    """How threads copy an operand. is_indexed: loaded indexes say where its rows lie."""

    width_bytes: int
    is_indexed: bool


@dataclass(frozen=True)
class OperandLoad:
    """A load that feeds dots straight from shared memory: of a block, or one that threads copy.

    smem: how the block lies in a slot. axes: grid axes that its place depends on. name: of the
    loaded tile. copies: by which threads bring it. plain_axes: those on which its place depends by
    arithmetic; along one that a search or a table stands between, programs may share it.
    """

    op: Load | pointer.Load
    smem: SmemType
    axes: frozenset[int]
    name: str
    copies: Copies | None = None
    plain_axes: frozenset[int] = frozenset()

    def is_read_once(self, unit_axes: Collection[int]) -> bool:
        """Whether no two programs read it, in a grid of extent 1 along some axes."""
        return self.plain_axes | set(unit_axes) >= {0, 1, 2}

    @property
    def is_copied(self) -> bool:
        """Whether the threads of the load role copy it."""
        return self.copies is not None

    @property
    def block(self) -> Load:
        """The load of a block."""
        assert isinstance(self.op, Load)
        return self.op

    @property
    def place(self) -> tuple[Value, ...]:
        """What says where in memory it lies."""
        return place_of(self.op)


def place_of(load: Load | pointer.Load) -> tuple[Value, ...]:
    """What says where in memory a load reads."""
    return (load.tensor, *load.offsets) if isinstance(load, Load) else load.operands


def constant_value(value: Value) -> bool | int | float | None:
    """The value of a constant scalar, else None."""
    op = value.defining_op
    return op.value if isinstance(op, Constant) else None


def operand_load(value: Value) -> tuple[Load, bool] | None:
    """The load behind a dot operand and whether it is transposed in between, or None."""
    transposed = False
    op = value.defining_op
    while isinstance(op, Transpose) and op.order == (1, 0):
        transposed = not transposed
        op = op.a.defining_op
    return (op, transposed) if isinstance(op, Load) else None


def operand_source(value: Value) -> tuple[Load | pointer.Load, bool] | None:
    """As `operand_load`, of loads of tiles of pointers too."""
    transposed = False
    op = value.defining_op
    while isinstance(op, Transpose) and op.order == (1, 0):
        transposed = not transposed
        op = op.a.defining_op
    return (op, transposed) if isinstance(op, Load | pointer.Load) else None


def smem_of_load(load: Load) -> SmemType | str:
    """How a loaded block would lie in shared memory, or why no tensor map can load it."""
    t = tensor_type(load.tensor, "load")
    if fault := map_fault(load):
        return fault
    assert t.inner_dim is not None
    if load.other is not None and constant_value(load.other) != 0:
        return "the load has an `other` that is not 0; use tl.where after it"
    if fault := start_fault(load):
        return fault
    kept = [d for d in range(t.rank) if d not in load.squeeze]
    if len(kept) != 2:
        return f"the block has {len(kept)} dimensions, expected two that are not of extent 1"
    if t.inner_dim not in kept:
        return (
            "the block does not extend along the dimension of stride 1; copy the tensor so that "
            "one of the block's dimensions is contiguous"
        )
    shape = tuple(load.block_shape[d] for d in kept)
    if t.dtype.bits not in (8, 16):
        return f"dtype {t.dtype!r} is not loaded as a dot operand, 8 and 16 bits are"
    smem = SmemType(shape, t.dtype, kept.index(t.inner_dim))
    if smem.box_rows > 256:
        return (
            f"the block has {smem.box_rows} lines of contiguous elements, a tensor map loads 256; "
            "take a smaller tile"
        )
    return smem


def major_problem(side: str, smem: SmemType, *, transposed: bool) -> str:
    """Why wgmma cannot read an operand the way it lies in memory, or "". ISA: wgmma.mma_async."""
    major = 1 - smem.major if transposed else smem.major
    along_k = major == (1 if side == "a" else 0)
    if smem.dtype.bits == 16 or along_k:
        return ""
    other = "M" if side == "a" else "N"
    return (
        f"operand {side}: wgmma reads {smem.dtype!r} along K only, and the tensor is contiguous "
        f"along {other}; give it transposed in memory (x.mT.contiguous()) and load it through "
        "tl.trans"
    )
