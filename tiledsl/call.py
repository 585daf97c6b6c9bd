"""A call of a kernel taken apart: arguments, constants, launch options, grid."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from tiledsl.codegen.module import Build
from tiledsl.errors import LaunchError
from tiledsl.ir.markers import Auto
from tiledsl.ir.markers import unwrap
from tiledsl.runtime.launcher import check_user_grid
from tiledsl.ws.overrides import Overrides

Grid = tuple[int, int, int]
GridLike = Callable[[Mapping[str, Any]], Sequence[int] | int] | Sequence[int] | int

FLAGS = frozenset(
    {
        "debug",
        "enable_fp_fusion",
        "fast_math",
        "persistent",
        "ping_pong",
        "swap_operands",
        "warp_specialize",
    }
)
COUNTS = frozenset({"prefetch"})
"""Options that may be 0, which stands for none of it."""
OWN = frozenset(
    {f.name for f in fields(Overrides)} | {"debug", "delay", "enable_fp_fusion", "fast_math"}
)
IGNORED = frozenset(
    {
        "enable_reflect_ftz",
        "extern_libs",
        "kpack",
        "launch_cooperative_grid",
        "launch_pdl",
        "matrix_instr_nonkdim",
        "maxnreg",
        "num_buffers_warp_spec",
        "num_consumer_groups",
        "num_ctas",
        "reg_dec_producer",
        "reg_inc_consumer",
        "sanitize_overflow",
        "waves_per_eu",
    }
)
"""Options of other compilers: accepted, since the compiler decides these by itself."""

OPTIONS = OWN | IGNORED


@dataclass(frozen=True)
class Call:
    """A call taken apart: run-time arguments, constexpr values, launch options."""

    runtime: dict[str, Any]
    constants: dict[str, Any]
    overrides: Overrides
    fast_math: bool = False
    fp_fusion: bool = True
    build: Build = field(default_factory=Build)

    @property
    def nvrtc_options(self) -> tuple[str, ...]:
        """Options of NVRTC that follow from the launch options."""
        return () if self.fp_fusion else ("--fmad=false",)


MAX_WARPS = 32
"""Of a CTA. Ref: CUDA C++ Programming Guide, compute capabilities."""


def _hint(given: Mapping[str, object], names: Mapping[str, object]) -> str:
    """What a keyword that nobody knows may have meant."""
    for key in given:
        if key not in names:
            near = get_close_matches(key, [*names, *OWN], 1)
            if near:
                return f"{key}: did you mean {near[0]}?"
            return f"{key} is no parameter; launch options are {', '.join(sorted(OWN))}"
    return f"parameters are {', '.join(names)}"


def bind_call(
    name: str,
    parameters: inspect.Signature,
    constexprs: set[str],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Call:
    """Sorts the arguments of a call. Raises LaunchError."""
    names = parameters.parameters
    options = {k: v for k, v in kwargs.items() if k in OPTIONS and k not in names}
    given = {k: v for k, v in kwargs.items() if k not in options}
    try:
        bound = parameters.bind(*args, **given)
    except TypeError as error:
        raise LaunchError(f"{name}: {error}", hint=_hint(given, names)) from None
    bound.apply_defaults()
    runtime = {k: v for k, v in bound.arguments.items() if k not in constexprs}
    constants = {k: unwrap(v) for k, v in bound.arguments.items() if k in constexprs}
    for k, v in constants.items():
        if hasattr(v, "__dlpack__"):
            raise LaunchError(
                f"{name}: {k!r} is a tl.constexpr, got a tensor",
                hint=f"pass {k}.item(), or leave out the annotation to get a pointer",
            )
    options = {k: unwrap(v) for k, v in options.items() if k in OWN}
    check_options(options)
    num_warps = options.get("num_warps")
    if num_warps is not None and not (isinstance(num_warps, int) and 1 <= num_warps <= MAX_WARPS):
        raise LaunchError(f"launch option num_warps: expected 1 to {MAX_WARPS}, got {num_warps!r}")
    fast_math = bool(options.pop("fast_math", False))
    fusion = options.pop("enable_fp_fusion", None)
    build = build_of(options.pop("debug", None), options.pop("delay", None))
    overrides = Overrides(**options)
    return Call(runtime, constants, overrides, fast_math, fusion is not False, build)


def build_of(debug: bool | None, delay: int | None) -> Build:
    """The build that a call asks for; what it leaves open is the environment's to say.

    `TILEDSL_DEBUG=1` and `TILEDSL_DELAY=SEED`. Raises LaunchError for a seed that is none.
    """
    if debug is None:
        debug = os.environ.get("TILEDSL_DEBUG", "").strip().lower() in ("1", "true", "on")
    text = os.environ.get("TILEDSL_DELAY", "").strip()
    if delay is None and text:
        if not text.isdigit():
            raise LaunchError(f"TILEDSL_DELAY must be a positive int, got {text!r}")
        delay = int(text)
    return Build(debug, (delay or 0) & 0xFFFFFFFF)


def check_options(options: Mapping[str, Any]) -> None:
    """Types of launch options. Raises LaunchError."""
    for name, value in options.items():
        if value is None:
            continue
        if name in FLAGS:
            if not isinstance(value, bool):
                raise LaunchError(f"launch option {name} must be True or False, got {value!r}")
        elif name in COUNTS:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise LaunchError(
                    f"launch option {name} must be an int that is not negative, got {value!r}"
                )
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LaunchError(f"launch option {name} must be a positive int, got {value!r}")


def normalize_grid(
    grid: GridLike, constants: Mapping[str, Any], runtime: Mapping[str, Any] | None = None
) -> Grid:
    """The grid as three ints.

    runtime: arguments that a grid function may read beside the constants.

    Raises LaunchError for anything that is no grid.
    """
    found: Any = evaluate_grid(grid, constants, runtime) if callable(grid) else grid
    try:
        dims = (_extent(found),)
    except TypeError:
        try:
            dims = tuple(_extent(n) for n in found)
        except TypeError:
            raise LaunchError(f"grid must be one to three ints, got {found!r}") from None
    if not 1 <= len(dims) <= 3:
        raise LaunchError(f"grid must be one to three ints, got {found!r}")
    if any(n < 0 for n in dims):
        raise LaunchError(f"grid extents must not be negative, got {dims}")
    x, y, z = (*dims, 1, 1)[:3]
    return x, y, z


def grid_of(
    grid: GridLike, constants: Mapping[str, Any], runtime: Mapping[str, Any] | None = None
) -> Grid:
    """The grid of a launch: as `normalize_grid`, and refused where no device has it."""
    return check_user_grid(normalize_grid(grid, constants, runtime))


def _extent(value: Any) -> int:
    return int(value.__index__()) if hasattr(value, "__index__") else _no_extent(value)


def _no_extent(value: object) -> int:
    raise TypeError(f"{value!r} is no extent")


def evaluate_grid(
    grid: Callable[[Mapping[str, Any]], Any],
    constants: Mapping[str, Any],
    runtime: Mapping[str, Any] | None = None,
) -> Any:
    """What a grid function gives, for the constants or for all arguments of the call."""
    try:
        return grid(constants)
    except KeyError as fault:
        if not runtime:
            raise _unknown_in_grid(fault, constants) from fault
    except TypeError as fault:
        raise _failed_grid(grid, fault, constants) from fault
    values = {**runtime, **constants}
    try:
        return grid(values)
    except KeyError as fault:
        raise _unknown_in_grid(fault, values) from fault
    except TypeError as fault:
        raise _failed_grid(grid, fault, values) from fault


def _unknown_in_grid(fault: KeyError, values: Mapping[str, Any]) -> LaunchError:
    name = str(fault.args[0]) if fault.args else "?"
    near = get_close_matches(name, list(values), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it may read {', '.join(values)}"
    return LaunchError(f"the grid function reads {name!r}, which is no parameter", hint=hint)


def _failed_grid(grid: Any, fault: TypeError, values: Mapping[str, Any]) -> LaunchError:
    try:
        inspect.signature(grid).bind(values)
    except TypeError:
        return LaunchError(
            f"the grid function cannot be called with the meta-parameters: {fault}",
            hint="write it as `lambda meta: (...)`",
        )
    except ValueError:  # no signature
        pass
    return LaunchError(f"the grid function failed: {fault}", hint=f"it reads {', '.join(values)}")


def probe(name: str, value: Any) -> Any:
    """A value for an auto constexpr where no model picks one (the interpreter, cache keys)."""
    if not isinstance(value, Auto):
        return value
    if value.choices:
        return value.choices[0]
    return 64 if "K" in name.upper().replace("BLOCK", "") else 128
