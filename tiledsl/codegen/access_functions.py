"""Policies of memory accesses: one generated struct per cache hint or atomic operation in use.

Ref: PTX ISA, Data Movement and Conversion Instructions: ld, st; Parallel Synchronization: atom,
red.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.cpp import scalar_type
from tiledsl.codegen.environment import render
from tiledsl.dtypes import DType

__all__ = ["AccessFunctions"]


@dataclass(frozen=True, order=True)
class Policy:
    """A kind of load or store. form: what follows `ld.` or `st.`."""

    name: str
    title: str
    form: str


@dataclass(frozen=True, order=True)
class Atomic:
    """An atomic operation on one dtype.

    form: operation and type of the scalar form. pair, vector: those of two halves of a word and of
    2 and 4 words; empty when there are none. ordered: a float that compares as an integer.
    word, part: constraint and conversion of a word of a vector.
    """

    name: str
    title: str
    kind: str
    scope: str
    form: str
    type: str
    bits: int
    constraint: str
    register: str
    from_bits: str
    to_bits: str
    has_red: bool = True
    ordered: bool = False
    pair: str = ""
    vector: tuple[str, ...] = ()
    word: str = "r"
    part: str = ""

    @property
    def signed(self) -> str:
        return "long long" if self.bits == 64 else "int"

    @property
    def reverse(self) -> str:
        return "min" if self.kind == "max" else "max"


class AccessFunctions:
    """The policies of one kernel; made on first use."""

    def __init__(self) -> None:
        self._loads: set[Policy] = set()
        self._stores: set[Policy] = set()
        self._atomics: set[Atomic] = set()
        self.has_copies = False

    @property
    def is_used(self) -> bool:
        """Whether the kernel accesses memory through pointers."""
        return bool(self._loads or self._stores or self._atomics) or self.has_copies

    def load(self, hint: str) -> str:
        """Name of the policy of loads with a hint of `pointer.load`, or `volatile`."""
        return _policy(self._loads, "Load", hint)

    def store(self, hint: str) -> str:
        """Name of the policy of stores with a hint of `pointer.store`."""
        return _policy(self._stores, "Store", hint)

    def atomic(self, kind: str, dtype: DType, scope: str) -> str:
        """Name of the policy of an atomic operation (relaxed; fences order it)."""
        made = _atomic(kind, dtype, scope)
        self._atomics.add(made)
        return made.name

    def prelude(self) -> str:
        """The structs."""
        if not self.is_used:
            return ""
        return render(
            "generated/access.cuh.j2",
            loads=sorted(self._loads),
            stores=sorted(self._stores),
            atomics=sorted(self._atomics),
        )


def _policy(known: set[Policy], stem: str, hint: str) -> str:
    name = stem + "".join(part.capitalize() for part in hint.split("_"))
    if hint == "volatile":
        form = "volatile.global"
    elif "_" in hint:
        form = f"global.L1::{hint}"
    else:
        form = f"global.{hint}" if hint else "global"
    known.add(Policy(name, f" with {hint}" if hint else "", form))
    return name


def _atomic(kind: str, dtype: DType, scope: str) -> Atomic:
    name = f"Atomic{kind.capitalize()}_{_stem(dtype)}_{scope}"
    title = f"atomic {kind} of {dtype}, scope {scope}"
    bits = dtype.bits
    constraint = {16: "h", 32: "r", 64: "l"}[bits]
    register = {16: "tdsl::u16", 32: "tdsl::u32", 64: "tdsl::u64"}[bits]
    operation = "exch" if kind == "xchg" else kind
    common = (name, title, kind, scope)
    plain = (bits, constraint, register, f"({register})v", "old")
    if kind == "cas":
        return Atomic(*common, "", f"b{bits}", *plain)
    if kind in ("and", "or", "xor", "xchg"):
        form = f"{operation}.b{bits}"
        return Atomic(*common, form, f"b{bits}", *plain, has_red=kind != "xchg")
    if dtype.is_float and kind in ("min", "max"):
        return Atomic(*common, "", "", *plain, ordered=True)
    if dtype.is_float:
        return _float_add(common, dtype)
    sign = "u" if dtype.kind == "uint" or kind == "add" else "s"
    return Atomic(*common, f"{operation}.{sign}{bits}", f"{sign}{bits}", *plain)


def _float_add(common: tuple[str, str, str, str], dtype: DType) -> Atomic:
    """Additions of floats; vectors of them from sm_90 on."""
    bits = dtype.bits
    if bits >= 32:
        kind = scalar_type(dtype)
        constraint = {32: "f", 64: "d"}[bits]
        word = "tdsl::u32" if bits == 32 else "tdsl::u64"
        form = f"add.f{bits}"
        return Atomic(
            *common,
            form,
            f"f{bits}",
            bits,
            constraint,
            kind,
            f"tdsl::bits_as<{kind}>(({word})v)",
            f"tdsl::bits_as<{word}>(old)",
            pair=form if bits == 32 else "",
            vector=("add.v2.f32", "add.v4.f32") if bits == 32 else (),
            word="f",
            part="__uint_as_float",
        )
    name = dtype.name
    vectors = (f"add.noftz.v2.{name}x2", f"add.noftz.v4.{name}x2")
    return Atomic(
        *common,
        f"add.noftz.{name}",
        name,
        bits,
        "h",
        "tdsl::u16",
        "(tdsl::u16)v",
        "old",
        pair=f"add.noftz.{name}x2",
        vector=vectors,
    )


def _stem(dtype: DType) -> str:
    return "ptr" if dtype.is_pointer else dtype.name
