"""Op base class and the field specifiers by which ops declare themselves.

An op family module declares classes such as

    class Dot(Op, opcode="tile.dot", levels=Level.TILE | Level.WARP_SPECIALIZED,
    effect=Effect.PURE):
        a: Value = operand()
        b: Value = operand()
        acc: Value = operand()
        transpose_b: bool = attribute(default=False)

        def infer_types(self) -> tuple[Type, ...]: ...

Printer, parser, cloning and use lists read the declared fields, so no op writes its own.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import InitVar
from enum import Enum
from enum import Flag
from enum import auto
from operator import attrgetter
from typing import TYPE_CHECKING
from typing import Any
from typing import ClassVar
from typing import Literal
from typing import cast
from typing import dataclass_transform

from tiledsl.errors import SourceLoc
from tiledsl.errors import TileError
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.graph import TileGraph
    from tiledsl.ir.machine import Machine

__all__ = [
    "Effect", "FieldSpec", "Level", "Op", "Region", "Value", "attribute", "op_class", "operand",
    "operands", "region", "registry",
]  # fmt: skip


class Level(Flag):
    """IR levels, in the order a kernel passes through them."""

    TILE = auto()
    WARP_SPECIALIZED = auto()
    MACHINE = auto()
    ALL = TILE | WARP_SPECIALIZED | MACHINE


class Effect(Enum):
    """What an op does besides computing its results."""

    PURE = "pure"
    READ = "read"
    WRITE = "write"
    CONTROL = "control"
    SYNC = "sync"


_ids = itertools.count(1)


class Value:
    """An SSA value: a result of an op or an argument of a region. Compared by identity."""

    __slots__ = ("id", "index", "name", "owner", "type")

    def __init__(self, type_: Type, owner: Op | Region, index: int, name: str = "") -> None:
        self.type = type_
        self.owner = owner
        self.index = index
        self.name = name
        self.id = next(_ids)

    @property
    def defining_op(self) -> Op | None:
        """The op whose result this is, or None for a region argument."""
        return self.owner if isinstance(self.owner, Op) else None

    @property
    def is_argument(self) -> bool:
        """Whether this is an argument of the kernel."""
        return isinstance(self.owner, Region) and self.owner.parent is None

    def __repr__(self) -> str:
        return f"%{self.name or 'v'}_{self.id}: {self.type}"


class Region:
    """A single block: arguments and ordered ops, the last of which may be a terminator.

    graph: of a top region, the graph.
    """

    __slots__ = ("args", "graph", "id", "ops", "parent")

    def __init__(self, parent: Op | None = None) -> None:
        self.parent = parent
        self.graph: TileGraph | None = None
        self.args: list[Value] = []
        self.ops: list[Op] = []
        self.id = next(_ids)

    def add_arg(self, type_: Type, name: str = "") -> Value:
        """Appends an argument."""
        value = Value(type_, self, len(self.args), name)
        self.args.append(value)
        return value

    def remove_arg(self, index: int) -> None:
        """Removes an argument that has no uses and renumbers those after it."""
        del self.args[index]
        for i, a in enumerate(self.args):
            a.index = i

    @property
    def terminator(self) -> Op | None:
        return self.ops[-1] if self.ops and self.ops[-1].is_terminator else None

    def walk(self) -> Iterator[Op]:
        """All ops, outer before inner, in order."""
        # One generator however deep the regions lie; each is read when the walk gets there.
        todo: list[Region | Iterator[Op]] = [self]
        while todo:
            top = todo[-1]
            if isinstance(top, Region):
                top = todo[-1] = iter(list(top.ops))
            for op in top:
                yield op
                if op.regions:
                    todo.extend(reversed(op.regions))
                    break
            else:
                todo.pop()


class FieldSpec:
    """Specification of one declared field."""

    __slots__ = ("default", "has_default", "kind", "name", "optional")

    def __init__(
        self,
        kind: Literal["operand", "operands", "attribute", "region"],
        default: Any = ...,
        *,
        optional: bool = False,
    ) -> None:
        self.kind = kind
        self.default = default
        self.has_default = default is not ...
        self.optional = optional
        self.name = ""


# For the type checker, `kw_only` fields are given by name; the constructor takes them either way.
def operand(*, default: Any = ..., kw_only: bool = False) -> Any:
    """An SSA operand; with default=None it may be absent."""
    return FieldSpec("operand", default, optional=default is None)


def operands() -> Any:
    """A variable number of SSA operands (a tuple)."""
    return FieldSpec("operands", ())


def attribute(*, default: Any = ..., kw_only: bool = False) -> Any:
    """A frozen, hashable attribute that prints as a Python literal or through its own `str`."""
    return FieldSpec("attribute", default)


def region(*, factory: type[Region] | None = None, kw_only: Literal[True] = True) -> Any:
    """A nested region; built empty unless given (`factory` says so to the type checker)."""
    return FieldSpec("region", None)


_REGISTRY: dict[str, type[Op]] = {}


@functools.cache
def registry() -> Mapping[str, type[Op]]:
    """All op classes by opcode; imports every module of tiledsl.ir.ops on first use."""
    package = importlib.import_module("tiledsl.ir.ops")
    for info in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"tiledsl.ir.ops.{info.name}")
    return _REGISTRY


def op_class(opcode: str) -> type[Op]:
    """The class of an opcode. Raises TileError for an unknown one."""
    found = registry().get(opcode)
    if found is None:
        raise TileError(f"unknown opcode {opcode!r}")
    return found


def keyword(*, default: Any, kw_only: Literal[True] = True) -> Any:
    """For the type checker: a keyword of every constructor."""
    raise NotImplementedError


def _reader(fields: tuple[FieldSpec, ...]) -> Callable[[Any], tuple[Value, ...]]:
    """A function of an op for its operands: those of its fields, absent ones left out.

    It is called for every op of a graph in every pass.
    """
    found = [spec for spec in fields if spec.kind in ("operand", "operands")]
    if not found:
        return lambda _: ()
    first, *others = found
    get = cast("Callable[[Any], Any]", attrgetter(*(spec.name for spec in found)))
    if not others and first.kind == "operands":
        return get
    if not others:
        return lambda op: () if (value := get(op)) is None else (value,)
    if all(spec.kind == "operand" for spec in found):
        if not any(spec.optional for spec in found):
            return get
        return lambda op: tuple(v for v in get(op) if v is not None)
    many = [spec.kind == "operands" for spec in found]

    def read(op: Any) -> tuple[Value, ...]:
        out: list[Value] = []
        for value, is_many in zip(get(op), many, strict=True):
            if is_many:
                out.extend(value)
            elif value is not None:
                out.append(value)
        return tuple(out)

    return read


@dataclass_transform(
    kw_only_default=False, field_specifiers=(operand, operands, attribute, region, keyword)
)
class Declared:
    """Marks what derives from it as dataclass-like."""


class Op(Declared):
    """Base of all ops. Ops compare by identity; types and attributes are immutable."""

    opcode: ClassVar[str] = ""
    levels: ClassVar[Level] = Level.ALL
    effect: ClassVar[Effect] = Effect.PURE
    is_terminator: ClassVar[bool] = False
    is_unique: ClassVar[bool] = False
    is_loop: ClassVar[bool] = False
    # Computes with numbers: pointers among its operands are refused.
    numbers: ClassVar[bool] = False
    # Takes many instructions: one side of a choice is computed before it, not in a branch.
    is_long: ClassVar[bool] = False
    # Scalar values in the op's regions stand for whole arrays: the interpreter runs them once.
    vectorized: ClassVar[bool] = False
    fields: ClassVar[tuple[FieldSpec, ...]] = ()
    _read_operands: ClassVar[Callable[[Any], tuple[Value, ...]]]

    if TYPE_CHECKING:
        loc: SourceLoc | None = keyword(default=None)
        names: InitVar[tuple[str, ...]] = keyword(default=())

    def __init_subclass__(
        cls,
        *,
        opcode: str = "",
        levels: Level = Level.ALL,
        effect: Effect = Effect.PURE,
        terminator: bool = False,
    ) -> None:
        super().__init_subclass__()
        specs = {s.name: s for s in cls.fields}
        for name in cls.__dict__.get("__annotations__", {}):
            spec = cls.__dict__.get(name)
            if isinstance(spec, FieldSpec):
                spec.name = name
                specs[name] = spec
                delattr(cls, name)
        cls.fields = tuple(specs.values())
        cls._read_operands = staticmethod(_reader(cls.fields))
        cls.effect = effect
        cls.levels = levels
        cls.is_terminator = terminator
        if opcode:
            cls.opcode = opcode
            _REGISTRY[opcode] = cls

    def __init__(
        self, *args: Any, loc: SourceLoc | None = None, names: tuple[str, ...] = (), **kwargs: Any
    ) -> None:
        self.id = next(_ids)
        self.loc = loc
        self.parent: Region | None = None
        if len(args) > len(self.fields):
            raise TypeError(f"{self.opcode}: {len(args)} fields given, {len(self.fields)} declared")
        given = {spec.name: value for spec, value in zip(self.fields, args, strict=False)}
        given.update(kwargs)
        regions: list[Region] = []
        for spec in self.fields:
            if spec.name in given:
                value = given.pop(spec.name)
            elif spec.has_default:
                value = spec.default
            else:
                raise TypeError(f"{self.opcode}: field {spec.name!r} is missing")
            if spec.kind == "operands":
                value = tuple(value)
            elif spec.kind == "region":
                value = value if value is not None else Region()
                value.parent = self
                regions.append(value)
            setattr(self, spec.name, value)
        if given:
            raise TypeError(f"{self.opcode}: unknown fields {sorted(given)}")
        self.regions: tuple[Region, ...] = tuple(regions)
        try:
            if self.numbers:
                self._refuse_pointers()
            types = self.infer_types()
        except TileError as error:
            raise error.at(loc) from None
        self.results: tuple[Value, ...] = tuple(
            Value(t, self, i, names[i] if i < len(names) else "") for i, t in enumerate(types)
        )

    def _refuse_pointers(self) -> None:
        if any(getattr(getattr(v.type, "dtype", None), "is_pointer", False) for v in self.operands):
            from tiledsl.ir.pointer_values import need_numbers

            need_numbers(self.opcode.rpartition(".")[2], *self.operands)

    # ------------------------------------------------------------------ generic access
    @property
    def operands(self) -> tuple[Value, ...]:
        """All operands in field order, absent optional ones left out."""
        return self._read_operands(self)

    def set_operand(self, index: int, value: Value) -> None:
        """Replaces operand `index` (numbered as in `operands`). Only TileGraph calls this."""
        at = 0
        for spec in self.fields:
            if spec.kind == "operand":
                if getattr(self, spec.name) is None:
                    continue
                if at == index:
                    setattr(self, spec.name, value)
                    return
                at += 1
            elif spec.kind == "operands":
                group: tuple[Value, ...] = getattr(self, spec.name)
                if index < at + len(group):
                    i = index - at
                    setattr(self, spec.name, (*group[:i], value, *group[i + 1 :]))
                    return
                at += len(group)
        raise IndexError(index)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes by name, in field order."""
        return {s.name: getattr(self, s.name) for s in self.fields if s.kind == "attribute"}

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def rebuild(
        self, operand_map: Mapping[Value, Value], regions: tuple[Region, ...] = (), **changes: Any
    ) -> Op:
        """A new op of this class with operands mapped, given regions, and attributes changed."""
        fields: dict[str, Any] = {}
        it = iter(regions)
        for spec in self.fields:
            value = getattr(self, spec.name)
            if spec.kind == "operand":
                value = None if value is None else operand_map.get(value, value)
            elif spec.kind == "operands":
                value = tuple(operand_map.get(v, v) for v in value)
            elif spec.kind == "region":
                value = next(it, None)
            fields[spec.name] = value
        fields.update(changes)
        return type(self)(**fields, loc=self.loc, names=tuple(r.name for r in self.results))

    # ------------------------------------------------------------------ what an op class states
    def infer_types(self) -> tuple[Type, ...]:
        """Result types from operands and attributes. Raises TypeMismatch without a location."""
        raise NotImplementedError(self.opcode)

    def verify(self, target: Target) -> None:
        """Rules of the op itself beyond types. Raises VerifyError without a location."""

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        """Reference semantics of an op that asks `machine` for its state; by default `evaluate`.

        A generator may be returned: it yields where it waits, and returns a tuple of results.
        """
        return self.evaluate(*arrays)

    def evaluate(self, *arrays: Any, **_: Any) -> Any:
        """Reference semantics with numpy arrays (scalars are 0-d).

        Control ops are run by the interpreter. An op takes one array per operand, so that any
        signature may override this one.
        """
        raise NotImplementedError(self.opcode)

    def __repr__(self) -> str:
        return f"<{self.opcode} #{self.id}>"
