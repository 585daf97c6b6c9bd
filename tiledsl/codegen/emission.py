"""Emission: what the context functions share.

Texts of values, variables, parameters, where a thread stands.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from dataclasses import field

from tiledsl.codegen.access_functions import AccessFunctions
from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.cpp import scalar_type
from tiledsl.codegen.indexing import Coordinate
from tiledsl.codegen.inline_asm import AsmFunctions
from tiledsl.codegen.mma_functions import MmaFunctions
from tiledsl.codegen.module import Build
from tiledsl.codegen.module import Site
from tiledsl.codegen.names import Names
from tiledsl.codegen.params import Params
from tiledsl.codegen.registry import Tie
from tiledsl.codegen.registry import ties_of
from tiledsl.codegen.variables import Variables
from tiledsl.errors import CodegenError
from tiledsl.errors import InternalError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.pointer import Lanes
from tiledsl.ir.specs import TensorView
from tiledsl.ir.types import HandleType
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.target import Target

__all__ = ["Emission", "Expression", "Place", "Text"]

MAX_INLINE_CHARS = 40


@dataclass(frozen=True, slots=True)
class Text:
    """A value as C++.

    atomic: needs no parentheses next to an operator.  stable: means the same wherever it stands in
    its region.
    is_product: needs none in a sum.
    """

    code: str
    atomic: bool = True
    stable: bool = True
    is_product: bool = False


@dataclass(frozen=True)
class Expression:
    """Base of contexts whose macro gives an expression instead of statements.

    `emit` binds it to the result.

    wrap: the form around the macro's text, such as `round_to<bf16>({})`.  atomic: the macro's text
    needs no parentheses.  is_product: it needs none in a sum.  cheap: written out at every use of a
    value without a name.
    """

    wrap: str
    atomic: bool
    cheap: bool = field(default=False, kw_only=True)
    is_product: bool = field(default=False, kw_only=True)


@dataclass
class Place:
    """Which threads run the code being rendered, and which of its local names the text uses.

    first_warpgroup, num_warpgroups: of the role. num_warps: of one instance of it, in the num_ctas
    CTAs of a cluster that run it together. dealt: these have its warps in turns, last ones first.
    name, is_single, copies: of a role: its name, whether one thread runs it, or all copy.
    is_plain: whether the warps are all those of a CTA, and none of them issues a dot.
    """

    first_warpgroup: int
    num_warpgroups: int
    num_warps: int
    num_ctas: int = 1
    used: set[str] = field(default_factory=set[str])
    name: str = ""
    is_single: bool = False
    dealt: bool = False
    copies: bool = False
    is_plain: bool = False

    @property
    def own_warp(self) -> str:
        """Numbers of an instance's warps by which each CTA has a run of them."""
        if not self.dealt:
            return "warp"
        own = self.num_warps // self.num_ctas
        return f"{own - 1} - warp / {self.num_ctas} + warp % {self.num_ctas} * {own}"

    @property
    def groups(self) -> int:
        """Warpgroups of one instance."""
        return max(1, self.num_warps // 4)


@dataclass
class Watch:
    """What a debug build adds: shared memory from start to end, warps by named barrier, sites."""

    start_bytes: int
    end_bytes: int
    named_warps: dict[int, int]
    sites: list[Site] = field(default_factory=list[Site])


class Emission:
    """State of one kernel's rendering.

    raw: elements of packed tiles as they lie in memory, for values that are such elements.
    segments: where tiles lie in shared memory that loops over registers read themselves.
    coordinates: of registers, what the thread and what the register contributes to them.
    notes: names that belong to an op whose region is being rendered.
    build: how the kernel is built.  watch: of a debug build.  has_many_products: of indexes and
    strides; None before one is met.
    """

    def __init__(self, graph: TileGraph, target: Target) -> None:
        self.graph = graph
        self.target = target
        self.names = Names()
        views: tuple[TensorView, ...] = tuple(graph.facts.get("views", ()))
        self.params = Params(graph.args, tuple(graph.facts["arg_names"]), self.names, views)
        self.params.text = self.text
        self.variables = Variables(graph)
        self.functions = MmaFunctions()
        self.accesses = AccessFunctions()
        self.inline = AsmFunctions()
        self.num_threads = int(graph.facts["num_threads"])
        self.cluster_size = int(graph.facts.get("cluster_size", 1))
        self.build: Build = graph.facts.get("build", Build())
        self.watch: Watch | None = None
        warpgroups = max(1, self.num_threads // target.warpgroup_threads)
        self.places = [Place(0, warpgroups, max(1, self.num_threads // target.warp_lanes))]
        self.raw: dict[Value, str] = {}
        self.segments: dict[Value, str] = {}
        self.coordinates: dict[Value, Coordinate] = {}
        self.notes: dict[Op, tuple[str, str]] = {}
        self.has_many_products: bool | None = None
        self._texts: dict[Value, Text] = {}
        self._names: dict[Value, str] = {}
        self._pending: list[str] = []
        self._uses: dict[Value, list[Op]] = defaultdict(list)
        self._accumulators: set[Value] = set()
        self._prepare()

    def _prepare(self) -> None:
        for op in self.graph.walk():
            for operand in op.operands:
                self._uses[operand].append(op)
            for result, _ in ties_of(op):
                if op.opcode == "mma.issue":
                    self._accumulators.add(self.variables.root(result))
        for value in self.graph.args:
            if isinstance(value.type, ScalarType) and self._uses[value]:
                name = self.params.scalar(value)
                self.bind(value, f"to_float({name})" if _is_small_float(value) else name)

    # ------------------------------------------------------------------ where we are
    @property
    def place(self) -> Place:
        return self.places[-1]

    @property
    def is_alone(self) -> bool:
        """Whether the role being rendered has all warps of the CTA."""
        count = self.places[0].num_warpgroups
        return (self.place.first_warpgroup, self.place.num_warpgroups) == (0, count)

    def use(self, *names: str) -> None:
        """Notes that the text uses `lane`, `warp`, `leader` or `warpgroup` of this place."""
        for name in names:
            where = self.places[0] if name == "warpgroup" else self.place
            where.used.add(name)

    def use_in(self, text: str) -> str:
        """Notes the thread names that occur in an index expression; returns it."""
        self.place.used.update(name for name in ("lane", "warp") if name in text)
        return text

    @property
    def group_index(self) -> str:
        """Index of the warpgroup inside the role, u32, atomic."""
        self.use("warpgroup")
        first = self.place.first_warpgroup
        return f"(warpgroup - {first})" if first else "warpgroup"

    @property
    def part_index(self) -> str:
        """Which part of a tile that an instance's warpgroups share is this warpgroup's, u32.

        Atomic.
        """
        place = self.place
        if place.groups == place.num_warpgroups:
            return self.group_index
        return f"({self.group_index} % {place.groups})"

    # ------------------------------------------------------------------ values
    def bind(self, value: Value, code: str, *, atomic: bool = True) -> None:
        """Makes an expression stand for a value."""
        self._texts[value] = Text(code, atomic)

    def bind_text(self, value: Value, text: Text) -> None:
        """As `bind`, with all that is known of the expression."""
        self._texts[value] = text

    def is_stable(self, value: Value) -> bool:
        """Whether a value's text means the same until its region ends."""
        found = self._texts.get(value)
        return found.stable if found is not None else not self.variables.is_mutable(value)

    def text(self, value: Value) -> str:
        """A value as a whole expression."""
        return self._text(value).code

    def atom(self, value: Value) -> str:
        """A value as an operand of an operator."""
        text = self._text(value)
        return text.code if text.atomic else f"({text.code})"

    def factor(self, value: Value) -> str:
        """A value as an operand of a sum."""
        text = self._text(value)
        return text.code if text.is_product else self.atom(value)

    def _text(self, value: Value) -> Text:
        found = self._texts.get(value)
        if found is not None:
            return found
        name = self._names.get(self.variables.root(value))
        if name is None:
            raise InternalError(f"{value!r} is used before it is emitted")
        return Text(name)

    def is_declared(self, value: Value) -> bool:
        return self.variables.root(value) in self._names

    def name(self, value: Value, stem: str = "v") -> str:
        """The variable of a value.

        A tile's declaration is put before the current statement when new.
        """
        root = self.variables.root(value)
        if root not in self._names:
            named = next((v.name for v in (value, *self.variables.members(value)) if v.name), stem)
            self._names[root] = self.names.fresh(named)
            if isinstance(value.type, TileType):
                self._pending.append(f"{self.tile_declaration(value.type, self._names[root])};")
        return self._names[root]

    def assignment(self, value: Value, stem: str = "v") -> str:
        """Left side of the statement that gives a scalar its value.

        `const float t_3`, `int k_1` or `x_1`.
        """
        is_new = not self.is_declared(value)
        name = self.name(value, stem)
        if not is_new:
            return name
        type_ = self.value_type(value)
        if self.variables.is_mutable(value):
            return f"{type_} {name}"
        return f"{type_} const {name}" if type_.endswith("*") else f"const {type_} {name}"

    def declare(self, value: Value, stem: str = "v") -> str:
        """The variable of a value that is assigned later.

        Its declaration precedes the current statement.
        """
        is_new = not self.is_declared(value)
        name = self.name(value, stem)
        if is_new and not isinstance(value.type, TileType):
            self._pending.append(f"{self.value_type(value)} {name};")
        return name

    def take_pending(self) -> list[str]:
        """Declarations and copies that belong before the statement being rendered."""
        taken, self._pending = self._pending, []
        return taken

    def before(self, statement: str) -> None:
        """Puts a statement before the one being rendered."""
        self._pending.append(statement)

    def value_type(self, value: Value) -> str:
        """C++ type of a scalar value's variable."""
        match value.type:
            case ScalarType(dtype=dtype):
                return scalar_type(dtype)
            case SmemType() | HandleType():
                return "u32"
            case _:
                raise CodegenError(f"a value of type {value.type} has no variable")

    def tile_declaration(self, type_: TileType, name: str) -> str:
        """`float acc_3[128]` or `Packed<bf16, 64> y_4`."""
        regs = self.layout(type_).num_regs
        if is_packed(type_.dtype):
            return f"Packed<{memory_type(type_.dtype)}, {regs}> {name}"
        return f"{memory_type(type_.dtype)} {name}[{regs}]"

    def layout(self, type_: TileType) -> Layout:
        """The layout of a register tile.

        Raises:
            CodegenError: it has none.
        """
        if type_.layout is None:
            raise CodegenError(f"a tile of type {type_} has no layout")
        return type_.layout

    # ------------------------------------------------------------------ in-place results
    def in_place(self, tie: Tie) -> str:
        """The variable that an in-place op reads and writes.

        The old value is copied first when it lives on.
        """
        result, operand = tie
        if self.variables.root(result) is self.variables.root(operand):
            return self.name(operand)
        source = self.text(operand)
        target = self.name(result, "acc")
        self.before(f"copy({target}, {source});")
        return target

    def is_accumulator(self, value: Value) -> bool:
        """Whether wgmma writes the variable, so that ordinary writes to it have to be pinned."""
        return self.variables.root(value) in self._accumulators

    # ------------------------------------------------------------------ uses
    def users(self, value: Value) -> list[Op]:
        """Ops that use a value, once per use, in program order."""
        return self._uses[value]

    def may_inline(self, value: Value, code: str, *, cheap: bool = False) -> bool:
        """Whether an expression may stand at the uses of a value instead of a variable."""
        op = value.defining_op
        if op is None or value.name or self.variables.is_mutable(value):
            return False
        stable = all(self.is_stable(v) for v in op.operands)
        if cheap and stable:
            return True
        users = self.users(value)
        if len(users) != 1 or len(code) > MAX_INLINE_CHARS or not _reads_once(users[0], op):
            return False
        if stable:
            return True
        assert op.parent is not None
        ops = op.parent.ops
        between = ops[ops.index(op) + 1 : ops.index(users[0])]
        return all(o.effect is Effect.PURE and not o.regions and _is_scalar(o) for o in between)


def _reads_once(user: Op, op: Op) -> bool:
    """Whether the only user evaluates its operands once, where `op` stands.

    A long op as one side of `c ? a : b` would be computed in a branch, by itself for each element.
    """
    if isinstance(user, Select) and op.is_long:
        return False
    if user.parent is not op.parent or (user.regions and not isinstance(user, If)):
        return False
    return not user.is_terminator or _is_map_body(user)


def _is_scalar(op: Op) -> bool:
    return all(isinstance(r.type, ScalarType) for r in op.results)


def _is_map_body(op: Op) -> bool:
    return (
        op.parent is not None
        and op.parent.parent is not None
        and (op.parent.parent.opcode == "tile.map" or isinstance(op.parent.parent, Lanes))
    )


def _is_small_float(value: Value) -> bool:
    return (
        isinstance(value.type, ScalarType)
        and value.type.dtype.is_float
        and value.type.dtype.bits < 32
    )
