"""Running a kernel module on the CPU: the launch, and what it found as exceptions."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path

from tiledsl.codegen.module import LAUNCH_SLOTS
from tiledsl.codegen.module import KernelModule
from tiledsl.emulate.build import build
from tiledsl.emulate.errors import EmulationFault
from tiledsl.emulate.pack import Arguments
from tiledsl.emulate.places import resolve
from tiledsl.runtime.launcher import check_user_grid
from tiledsl.runtime.launcher import launch_grid
from tiledsl.runtime.watch import STATE_BYTES
from tiledsl.runtime.watch import fresh_state
from tiledsl.runtime.watch import stall_of

__all__ = ["run"]

REPORT_BYTES = 1 << 16


class _Launch(ctypes.Structure):
    """`emu::Launch` of engine.h."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("num_threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("cluster_size", ctypes.c_uint32),
        ("resident_clusters", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
    )


class _Region(ctypes.Structure):
    """`emu::Region` of engine.h."""

    _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("name", ctypes.c_char_p))


def run(
    module: KernelModule,
    args: Mapping[str, object],
    user_grid: tuple[int, ...],
    *,
    seed: int = 0,
    num_sms: int = 4,
    num_ctas_resident: int | None = None,
    seconds: float = 120.0,
) -> None:
    """Runs a kernel's emitted text on the CPU; results go into the arrays.

    Args:
        module: the kernel; its text is translated and compiled by the host's C++ compiler.
        args: arrays (`ml_dtypes` for the small float types), Python scalars and None, by name.
        user_grid: the grid of the launch, 1 to 3 extents.
        seed: order of threads and of asynchronous work. 0: each thread runs until it must wait, and
            asynchronous work is done as late as it can; others: random, with random delays.
        num_sms: multiprocessors, which bound the grid of a persistent kernel.
        num_ctas_resident: blocks that run side by side; by default one cluster.
        seconds: processor time after which the run is given up.

    Raises:
        EmulationFault: a deadlock, a race with a copy, a stray access, a misused barrier, ...
        PipelineStall: a wait of a debug build was given up.
        NotEmulated: the text has no emulation.
        LaunchError: wrong arguments or grid.
    """
    grid3 = check_user_grid(tuple(user_grid))
    cluster = module.cluster_size
    spec = module.grid
    resident = num_sms * spec.ctas_per_sm // max(spec.cluster_size, spec.split_k)
    grid = launch_grid(spec, grid3, resident_clusters=resident, cluster_size=cluster)
    if grid is None:
        return
    library = build(module)
    arguments = Arguments(module.params, args, grid3)
    clusters = max(1, (num_ctas_resident or cluster) // cluster)
    launch = _Launch(
        (ctypes.c_uint32 * 3)(*grid),
        module.num_threads,
        module.smem_bytes,
        cluster,
        clusters,
        seed,
        seconds,
    )
    text = ctypes.create_string_buffer(REPORT_BYTES)
    loaded = _load(library)
    entry = ctypes.cast(loaded.emu_entry, ctypes.c_void_p)
    if module.is_debug:
        _state(loaded)[:] = fresh_state()
    shown = _show_memory(loaded, arguments)
    failed = loaded.emu_launch(
        ctypes.byref(launch), entry, arguments.pointers, text, ctypes.c_size_t(REPORT_BYTES)
    )
    del shown
    ctypes.CDLL(None).fflush(None)  # what the kernel printed
    counters = _take_counters(loaded)
    if failed:
        report = resolve(text.value.decode(), library)
        raise EmulationFault(f"{module.name} (seed {seed}): {report}")
    stall = stall_of(module, bytes(_state(loaded)), grid) if module.is_debug else None
    if stall is not None:
        raise stall
    if any(counters):
        raise EmulationFault(f"{module.name} (seed {seed}): the tile counters are not set back")
    arguments.finish()


def _state(loaded: ctypes.CDLL) -> ctypes.Array[ctypes.c_uint8]:
    """What a debug build leaves for the host."""
    return (ctypes.c_uint8 * STATE_BYTES).in_dll(loaded, "tdsl_stall")


def _take_counters(loaded: ctypes.CDLL) -> bytes:
    """The bytes of the module's tile counters, which are set to zero; none where it has none."""
    try:
        found = (ctypes.c_int32 * LAUNCH_SLOTS).in_dll(loaded, "tile_counters")
    except ValueError:
        return b""
    values = bytes(found)
    ctypes.memset(found, 0, ctypes.sizeof(found))
    return values


def _show_memory(loaded: ctypes.CDLL, arguments: Arguments) -> ctypes.Array[_Region]:
    """Tells the engine where a kernel may read and write; what is returned outlives the launch."""
    regions, tables = arguments.regions(), arguments.tables()
    made = [_Region(begin, end, name.encode()) for begin, end, name in regions]
    shown = (_Region * len(made))(*made)
    loaded.emu_memory(
        shown,
        ctypes.c_size_t(len(made)),
        (ctypes.c_uint64 * len(tables))(*tables),
        ctypes.c_size_t(len(tables)),
    )
    return shown


@functools.cache
def _load(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))
