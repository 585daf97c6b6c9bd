"""Kernels compiled ahead of time: `python -m tiledsl compile kernels.py -o out/`.

A file says what to compile with `tiledsl.export(kernel, *args, grid=..., name=...)`; tensors of
torch's meta device stand for arguments, since only their facts count.
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.call import GridLike
from tiledsl.codegen.c_launcher import header_text
from tiledsl.codegen.c_launcher import source_text
from tiledsl.errors import LaunchError
from tiledsl.inspection import ANY_GRID
from tiledsl.interface import KernelInterface
from tiledsl.ir.specs import ScalarSpec
from tiledsl.jit import JitFunction

NAMED = "tiledsl_exported"


@dataclass(frozen=True)
class Export:
    """One kernel with the arguments that it is compiled for."""

    kernel: JitFunction
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: GridLike | None


_exports: list[Export] = []


def export(
    kernel: Any,
    *args: Any,
    grid: GridLike | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> None:
    """Names a kernel and the facts of its arguments for `python -m tiledsl compile`.

    Args:
        kernel: a kernel, also under `autotune` or `heuristics`.
        args: arguments as for a launch; meta tensors will do.
        grid: of the launch that plans are chosen for.
        name: of the C function and the files; by default the kernel's.
        kwargs: constants and launch options.

    Raises:
        LaunchError: a name that is no C identifier.
    """
    if isinstance(kernel, KernelInterface):
        kwargs = kernel.chosen(args, kwargs, grid)
        kernel = kernel.kernel()
    found = name or kernel.description.name
    if not (found.isascii() and found.isidentifier()):
        raise LaunchError(f"export(): name {found!r} is no C identifier")
    _exports.append(Export(kernel, found, args, kwargs, grid))


def compile_file(path: Path, output: Path, kernels: Sequence[str] | None = None) -> list[Path]:
    """Compiles what a file exports; the files written, per export cubin, .cu, .h and .c.

    Raises:
        LaunchError: the file cannot be read, or exports nothing, or two things of one name.
        TileError: from the compiler.
    """
    if not path.is_file():
        raise LaunchError(f"{path} is no file")
    _exports.clear()
    runpy.run_path(str(path), run_name=NAMED)
    found = [e for e in _exports if not kernels or e.name in kernels]
    if not found:
        raise LaunchError(
            f"{path} exports {'none of ' + ', '.join(kernels) if kernels else 'nothing'}",
            hint="call tiledsl.export(kernel, *args, grid=...) in it; meta tensors will do",
        )
    names = [e.name for e in found]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise LaunchError(f"{path} exports {', '.join(twice)} more than once", hint="give names")
    output.mkdir(parents=True, exist_ok=True)
    return [file for item in found for file in write_export(item, output)]


def facts_of(item: Export) -> list[str]:
    """What the compiled text takes for granted of each argument."""
    _, request = item.kernel.request_for(item.args, item.kwargs, item.grid or ANY_GRID)
    specs = request.specs.items()
    known = {n: s.value for n, s in specs if isinstance(s, ScalarSpec) and s.value}
    lines = ["Right for these arguments only, which it does not check:"]
    lines += [f"  {name}: {spec}" for name, spec in specs if name not in known]
    return lines + [f"  {name} = {value}, no argument here" for name, value in known.items()]


def write_export(item: Export, output: Path) -> list[Path]:
    """Compiles an export and writes its files."""
    made = item.kernel.compile(*item.args, grid=item.grid, **item.kwargs)
    assert made.compiled is not None
    module = made.module
    constants = ", ".join(f"{k}={v}" for k, v in made.constants.items())
    notes = f"Kernel {module.name} for sm_90a; constants: {constants or 'none'}."
    notes += "".join(f"\n{line}" for line in facts_of(item))
    if module.pdl:
        notes += "\nLaunched without programmatic dependent launch."
    texts = {
        f"{item.name}.cu": module.standalone,
        f"{item.name}.h": header_text(module, item.name, notes),
        f"{item.name}.c": source_text(module, made.compiled.cubin, item.name),
    }
    files = [output / f"{item.name}.cubin"]
    files[0].write_bytes(made.compiled.cubin)
    for name, text in texts.items():
        files.append(output / name)
        files[-1].write_text(text)
    return files
