"""Hand-written kernels for the emulation: a body, its parameters, and the launch."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from tiledsl import dtypes as dt
from tiledsl import emulate
from tiledsl.codegen.environment import headers
from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import Param
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.codegen.params import declaration

INCLUDES = "".join(f'#include "tiledsl/{n}.cuh"\n' for n in ("tiledsl", "mma", "raster", "tile"))


def pointer(name: str, dtype: dt.DType) -> PointerParam:
    return PointerParam(name, name, dtype)


def scalar(name: str, dtype: dt.DType = dt.int32) -> ScalarParam:
    return ScalarParam(name, name, dtype)


def tensor_map(
    name: str,
    dtype: dt.DType,
    box: tuple[int, ...],
    swizzle_bytes: int,
    dims: tuple[int, ...] | None = None,
) -> TensorMapParam:
    """A map of the array `name`; dimensions innermost first, by default the array's own order."""
    order = dims if dims is not None else tuple(reversed(range(len(box))))
    return TensorMapParam(f"{name}_map", name, dtype, order, box, swizzle_bytes)


def kernel(
    body: str,
    params: tuple[Param, ...],
    *,
    threads: int = 32,
    smem_bytes: int = 0,
    cluster: int = 1,
    prelude: str = "",
) -> KernelModule:
    """A module; the body may use `smem` (the shared address) where there is shared memory."""
    shared = (
        "extern __shared__ __align__(1024) u8 memory[];\n  const u32 smem = smem_addr(memory);\n"
    )
    arguments = ", ".join(declaration(p) for p in params)
    source = (
        f"{INCLUDES}{prelude}\nusing namespace tdsl;\n"
        f'extern "C" __global__ void __launch_bounds__({threads}, 1)\nprobe({arguments}) {{\n'
        f"  {shared if smem_bytes else ''}{body}\n}}\n"
    )
    return KernelModule("probe", source, headers(), params, threads, smem_bytes, cluster)


def launch(
    module: KernelModule,
    args: dict[str, object],
    grid: tuple[int, ...] | None = None,
    seed: int = 0,
) -> None:
    emulate.run(module, args, grid or (module.cluster_size,), seed=seed, seconds=30.0)


def replaced(module: KernelModule, old: str, new: str, count: int = 1) -> KernelModule:
    """The module with a piece of its text replaced; the piece must be there.

    old: text, or a pattern where it holds `(?`, such as a flag at its start.
    """
    pattern = old if "(?" in old else re.escape(old)
    text, found = re.subn(
        pattern, lambda m: m.expand(new) if "\\g" in new else new, module.source, count=count
    )
    assert found, f"the kernel has no {old!r}:\n{module.source}"
    return replace(module, source=text)


def bits_of(array: np.ndarray) -> np.ndarray:
    return array.view(np.dtype(f"u{array.itemsize}"))
