"""A random kernel with its arguments, launch and options: plain data that prints as Python."""

from __future__ import annotations

import linecache
import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from types import FunctionType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tiledsl import dtypes
from tiledsl.dtypes import DType
from tiledsl.fuzz.reference import Memory
from tiledsl.fuzz.reference import Pointer
from tiledsl.fuzz.reference import Tensor
from tiledsl.fuzz.reference import evaluate
from tiledsl.jit import JitFunction

HEADER = "import tiledsl\nimport tiledsl.language as tl\n\n\n@tiledsl.jit\n"
GUARD_ELEMS = 512
ALIGN_BYTES = 256
SENTINEL = -96


@dataclass(frozen=True)
class Argument:
    """A tensor argument.

    shape: extents, as expressions of the sizes.  layout: see `placed`.  role: "in" or "out".
    pointer: passed as a pointer to its first element.  scale: of its random values.  group: the
    list that it is the next element of, instead of an argument of its own; then it is named list_0.
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    layout: str = "row"
    role: str = "in"
    pointer: bool = False
    scale: float = 1.0
    group: str = ""

    @property
    def element(self) -> DType:
        return dtypes.BY_USER_NAME[self.dtype]


@dataclass(frozen=True)
class Case:
    """One kernel.

    source: the text of the function.  scalars: numbers, or expressions such as `K` or
    `a.stride(0)`.  grid: an expression per axis, of sizes and constants.
    """

    name: str
    family: str
    source: str
    arguments: tuple[Argument, ...]
    scalars: Mapping[str, float | str] = field(default_factory=dict[str, float | str])
    constants: Mapping[str, int] = field(default_factory=dict[str, int])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    grid: tuple[str, ...] = ("1",)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0

    def number(self, text: str) -> int:
        """The value of an expression of sizes and constants."""
        names: dict[str, Any] = {"cdiv": lambda a, b: -(-a // b), **self.sizes, **self.constants}  # pyright: ignore[reportUnknownLambdaType]
        return int(eval(text, {"max": max, "min": min}, names))

    @cached_property
    def grid3(self) -> tuple[int, int, int]:
        x, y, z = (*(self.number(g) for g in self.grid), 1, 1)[:3]
        return x, y, z

    def extents(self, a: Argument) -> tuple[int, ...]:
        return tuple(self.number(s) for s in a.shape)

    def joined(self, by_name: Mapping[str, Any]) -> dict[str, Any]:
        """What the kernel takes for what there is of each tensor: lists where there are some."""
        out: dict[str, Any] = {}
        for a in self.arguments:
            if a.group:
                out.setdefault(a.group, []).append(by_name[a.name])
            else:
                out[a.name] = by_name[a.name]
        return out

    @cached_property
    def kernel(self) -> JitFunction:
        """The kernel, made from its text."""
        return kernel_of(self.source, self.name)


def kernel_of(source: str, name: str) -> JitFunction:
    """The kernel of a text; its lines can be found by messages."""
    file = f"<kernel {name}>"
    text = HEADER + source
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(text, file, "exec"), names)
    made = names[source[4 : source.index("(")]]
    assert isinstance(made.fn, FunctionType)
    return made


@dataclass
class Buffer:
    """An argument in memory: flat elements with guards, and the window that the kernel sees."""

    flat: np.ndarray
    view: np.ndarray
    offset: int
    strides: tuple[int, ...]


def placed(shape: tuple[int, ...], layout: str, itemsize: int) -> tuple[int, tuple[int, ...], int]:
    """(elements, strides, offset) of a layout, before guards.

    row: contiguous.  col: the last two dimensions swapped.  pitch, colpitch: rows (columns) further
    apart than they are long, aligned to 16 bytes.  odd: rows at an odd distance, a base that is not
    aligned.  shifted: only the base is not aligned.  gaps: every second element of a row.
    """
    swap = layout in ("col", "colpitch") and len(shape) > 1
    order = list(shape)
    if swap:
        order[-2:] = reversed(order[-2:])
    unit = max(1, 16 // itemsize)
    last = order[-1] if order else 1
    pitch, offset, step = last, 0, 1
    if layout in ("pitch", "colpitch"):
        pitch, offset = -(-last // unit) * unit + 3 * unit, unit
    elif layout == "odd":
        pitch, offset = (last + 6) | 1, 3
    elif layout == "shifted":
        pitch, offset = -(-last // unit) * unit + unit, 1
    elif layout == "gaps":
        pitch, step = 2 * last, 2
    strides = [step]
    run = max(1, pitch)
    for n in reversed(order[:-1]):
        strides.insert(0, run)
        run *= max(1, n)
    if swap:
        strides[-2], strides[-1] = strides[-1], strides[-2]
    return run + offset, tuple(strides[-len(shape) :] if shape else ()), offset


def values(a: Argument, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random elements of an argument."""
    if a.element.is_int:
        low = 0 if a.element.kind == "uint" else -int(5 * a.scale)
        return rng.integers(low, int(5 * a.scale) + 1, count).astype(a.element.numpy)
    return (rng.standard_normal(count) * a.scale).astype(a.element.numpy)


def allocate(case: Case) -> dict[str, Buffer]:
    """The arguments of a case: inputs random within NaNs, outputs full of a sentinel."""
    out: dict[str, Buffer] = {}
    for number, a in enumerate(case.arguments):
        dtype, shape = a.element.numpy, case.extents(a)
        count, strides, offset = placed(shape, a.layout, dtype.itemsize)
        raw = np.zeros((count + 2 * GUARD_ELEMS) * dtype.itemsize + ALIGN_BYTES, np.uint8)
        skip = -raw.ctypes.data % ALIGN_BYTES
        flat = raw[skip : skip + (count + 2 * GUARD_ELEMS) * dtype.itemsize].view(dtype)
        outside: Any = 77 if a.element.is_int else np.nan
        flat[...] = np.asarray(SENTINEL if a.role == "out" else outside).astype(dtype)
        start = GUARD_ELEMS + offset
        steps = tuple(s * dtype.itemsize for s in strides)
        view = np.ndarray(shape, dtype, flat.view(np.uint8), start * dtype.itemsize, steps)
        if a.role != "out":
            rng = np.random.default_rng((case.seed, number))
            view[...] = values(a, math.prod(shape), rng).reshape(shape)
        out[a.name] = Buffer(flat, view, start, strides)
    return out


def scalar_values(case: Case, buffers: Mapping[str, Buffer]) -> dict[str, int | float]:
    """Numbers that the kernel takes."""
    out: dict[str, int | float] = {}
    for name, given in case.scalars.items():
        if isinstance(given, str) and ".stride" in given:
            tensor, _, dim = given.partition(".stride(")
            out[name] = buffers[tensor].strides[int(dim[:-1])]
        else:
            out[name] = case.number(given) if isinstance(given, str) else given
    return out


def expected(case: Case) -> dict[str, Memory]:
    """What the kernel leaves in memory, by argument, in fp64 with bounds."""
    buffers = allocate(case)
    memory = {a.name: Memory(buffers[a.name].flat, a.element) for a in case.arguments}
    given: dict[str, Any] = {}
    for a in case.arguments:
        b = buffers[a.name]
        if a.pointer:
            given[a.name] = Pointer(memory[a.name], np.asarray(b.offset))
        else:
            given[a.name] = Tensor(memory[a.name], case.extents(a), b.strides, b.offset)
    given = case.joined(given) | {**scalar_values(case, buffers), **case.constants}
    evaluate(case.source, given, case.grid3)
    return memory


@dataclass(frozen=True)
class Difference:
    """Elements of a result that are not what they should be."""

    argument: str
    count: int
    text: str
    known: int


def differences(
    case: Case, got: Mapping[str, np.ndarray], want: Mapping[str, Memory]
) -> list[Difference]:
    """Compares the buffers of all outputs, guards and gaps included."""
    out: list[Difference] = []
    for a in case.arguments:
        if a.role == "in":
            continue
        memory = want[a.name]
        have = got[a.name].astype(np.float64)
        with np.errstate(all="ignore"):
            unknown = ~np.isfinite(memory.error) | np.isnan(memory.value)
            same = have == memory.value
            close = np.abs(have - memory.value) <= memory.error * 1.05
        bad = np.flatnonzero(~(unknown | same | close))
        if bad.size:
            b = allocate(case)[a.name]
            out.append(_described(case, a, b, bad, have, memory))
    return out


def _described(
    case: Case, a: Argument, b: Buffer, bad: np.ndarray, have: np.ndarray, memory: Memory
) -> Difference:
    inside = np.full(b.flat.shape, -1, np.int64)
    window = as_strided(inside[b.offset :], b.view.shape, tuple(s * 8 for s in b.strides))
    window[...] = np.arange(b.view.size).reshape(b.view.shape)
    first = int(bad[0])
    at = int(inside[first])
    place = (
        f"guard {first}" if at < 0 else str([int(i) for i in np.unravel_index(at, b.view.shape)])
    )
    text = (
        f"{a.name}: {bad.size} of {b.view.size} elements differ, first {place}: "
        f"got {have[first]:.6g}, expected {memory.value[first]:.6g} +- {memory.error[first]:.2g}"
    )
    return Difference(a.name, int(bad.size), text, int(b.view.size))
