"""KernelModule: the CUDA text of one kernel and every fact a launcher needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field
from typing import Literal

from tiledsl.dtypes import DType
from tiledsl.errors import SourceLoc

_INCLUDE = re.compile(r'\s*#include "([^"]+)"')


@dataclass(frozen=True, slots=True)
class PointerParam:
    """`T* name`: the data pointer of tensor argument `arg`."""

    name: str
    arg: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class ShapeParam:
    """`long long name`: extent of dimension `dim` of tensor argument `arg`, elements."""

    name: str
    arg: str
    dim: int


@dataclass(frozen=True, slots=True)
class StrideParam:
    """`long long name`: stride of dimension `dim` of tensor argument `arg`, elements."""

    name: str
    arg: str
    dim: int


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A scalar argument passed by value as `dtype`."""

    name: str
    arg: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class GridParam:
    """`int name`: extent of axis `axis` of the grid that the user asked for."""

    name: str
    axis: int


@dataclass(frozen=True, slots=True)
class TensorMapParam:
    """`const __grid_constant__ TensorMap name`: a TMA descriptor of tensor argument `arg`.

    dims: dimensions of the tensor in the map's order, innermost (stride 1) first. One that stands
    twice is cut into fours: the place within four, then the number of the four.
    box: extents of one copy in the same order, elements.
    swizzle_bytes: 0, 32, 64 or 128.
    l2_promotion_bytes: 0, 64, 128 or 256.
    shape, strides: where `arg` is a pointer, of the tensor it points to: numbers, names of integer
    arguments, or products of them (ir/specs.py). in_table: of one tensor of a list, which may be
    empty.
    """

    name: str
    arg: str
    dtype: DType
    dims: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 128
    l2_promotion_bytes: int = 256
    shape: tuple[int | str, ...] = ()
    strides: tuple[int | str, ...] = ()
    in_table: bool = False

    @property
    def axes(self) -> tuple[tuple[int, int, int], ...]:
        """(dimension, extent or 0 for the dimension's own, elements per step) of the map's axes."""
        out: list[tuple[int, int, int]] = []
        for i, dim in enumerate(self.dims):
            is_cut = self.dims.count(dim) > 1
            is_first = dim not in self.dims[:i]
            out.append((dim, 4, 1) if is_cut and is_first else (dim, 0, 4 if is_cut else 1))
        return tuple(out)


@dataclass(frozen=True, slots=True)
class LaunchSlotParam:
    """`int name`: which of the module's tile counters this launch uses.

    Launches take the slots in turn, so that launches that run at the same time have one each.
    """

    name: str


LAUNCH_SLOTS = 1024
"""Tile counters of a module, and launches of one kernel that may be in flight at a time."""

Param = (
    PointerParam
    | ShapeParam
    | StrideParam
    | ScalarParam
    | GridParam
    | TensorMapParam
    | LaunchSlotParam
)


@dataclass(frozen=True, slots=True)
class GridSpec:
    """How the launch grid follows from the user's grid (gx, gy, gz).

    mode 'plain': launched as the user gave it (split_k multiplies axis 0).
    mode 'persistent': one-dimensional, min(cluster tiles, resident clusters) * cluster CTAs, where
    the number of cluster tiles is gx*gy*gz with the axis `cluster_axis` divided by `cluster_size`
    (rounded up).
    `split_k` CTAs (one cluster) share one program when it is over 1; then cluster_axis is -1.
    """

    mode: Literal["plain", "persistent"] = "plain"
    cluster_axis: int = -1
    cluster_size: int = 1
    split_k: int = 1
    ctas_per_sm: int = 1


@dataclass(frozen=True, slots=True)
class Build:
    """How a kernel is built, beside what it computes.

    debug: waits are given up after a time and tell the host where they stood; assertions are kept.
    delay: seed of random delays of all roles, 0 for none.
    """

    debug: bool = False
    delay: int = 0


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a role of a debug build waits.

    kind: `full` or `empty` slots of a channel, or `named` barrier; of an assertion `assert`, with
    its message as channel.
    """

    role: str
    kind: str
    channel: str
    depth: int
    loc: SourceLoc | None = None


@dataclass(frozen=True, slots=True)
class KernelModule:
    """A kernel ready for NVRTC.

    name: the extern "C" entry point.  source: CUDA C++ that includes the headers by name.
    headers: (include name, text) pairs handed to NVRTC in memory.
    num_threads: threads of a CTA (one-dimensional).  smem_bytes: dynamic shared memory.
    sites: of a debug build, the places where it waits, by number from 1.
    """

    name: str
    source: str
    headers: tuple[tuple[str, str], ...]
    params: tuple[Param, ...]
    num_threads: int
    smem_bytes: int = 0
    cluster_size: int = 1
    grid: GridSpec = field(default_factory=GridSpec)
    pdl: bool = False
    is_debug: bool = False
    sites: tuple[Site, ...] = ()

    @property
    def standalone(self) -> str:
        """One text with the headers inlined, for reading and for external compilers."""
        texts, done = dict(self.headers), set[str]()

        def inlined(text: str) -> str:
            out: list[str] = []
            for line in text.splitlines(keepends=True):
                found = _INCLUDE.match(line)
                name = found[1] if found else ""
                if name in texts:
                    out.append("" if name in done else inlined_header(name))
                elif line.strip() != "#pragma once":
                    out.append(line)
            return "".join(out)

        def inlined_header(name: str) -> str:
            done.add(name)
            return f"// ---- {name}\n{inlined(texts[name])}"

        return inlined(self.source)
