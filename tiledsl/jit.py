"""`tiledsl.jit`: the object behind a decorated kernel: launching, inspecting, overriding."""

from __future__ import annotations

import functools
import inspect
import math
import time
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from types import MethodType
from typing import TYPE_CHECKING
from typing import Any

from tiledsl import hooks
from tiledsl.call import Call
from tiledsl.call import GridLike
from tiledsl.call import bind_call
from tiledsl.call import grid_of
from tiledsl.call import normalize_grid
from tiledsl.call import probe
from tiledsl.dtypes import INT32_ROOM
from tiledsl.errors import LaunchError
from tiledsl.frontend.factors import factors_of
from tiledsl.frontend.limits import limits_of
from tiledsl.frontend.signature import signature_of
from tiledsl.frontend.source import source_of
from tiledsl.inspection import Inspected
from tiledsl.inspection import compile_program
from tiledsl.ir.markers import Auto
from tiledsl.ir.markers import unwrap
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import TensorSpec
from tiledsl.runtime import driver
from tiledsl.runtime.closure import Closure
from tiledsl.runtime.closure import Precision
from tiledsl.runtime.closure import closure_of
from tiledsl.runtime.closure import precision_watched
from tiledsl.runtime.closure import value_text
from tiledsl.runtime.closure import watched_in
from tiledsl.runtime.entry import Entry
from tiledsl.runtime.guard import MAX_ENTRIES
from tiledsl.runtime.guard import MISSING
from tiledsl.runtime.guard import Guard
from tiledsl.runtime.guard import changed
from tiledsl.runtime.guard import kind_of
from tiledsl.runtime.guard_text import Kind
from tiledsl.runtime.guard_text import Shape
from tiledsl.runtime.guard_text import facts_of
from tiledsl.runtime.handle import Handle
from tiledsl.runtime.handle import interpreted_handle
from tiledsl.runtime.interop import adopted
from tiledsl.runtime.interop import check_outputs
from tiledsl.runtime.launching import launching
from tiledsl.runtime.launching import located
from tiledsl.runtime.lists import alike
from tiledsl.runtime.lists import expanded
from tiledsl.runtime.lists import refuse_lists
from tiledsl.runtime.programs import PROGRAMS
from tiledsl.runtime.programs import Program
from tiledsl.runtime.programs import program_key
from tiledsl.runtime.signature import Device
from tiledsl.runtime.signature import Signature
from tiledsl.runtime.signature import dot_precision
from tiledsl.runtime.signature import signature
from tiledsl.runtime.told import Watched
from tiledsl.runtime.told import is_fixed
from tiledsl.runtime.told import told
from tiledsl.stand_ins import keeps_rounds
from tiledsl.stand_ins import stand_in
from tiledsl.target import HOPPER

if TYPE_CHECKING:
    from tiledsl.compiled import Kernel

FIXED = "given as numbers"
"""In the key of a program with `tl.auto` constants: a grid of numbers suited the kernel."""


class JitFunction(Inspected):
    """A kernel: `kernel[grid](*args, **options)` launches it.

    The other methods show what was compiled.
    fn: the plain Python function (so that other kernels can inline it).
    """

    def __init__(
        self, fn: Callable[..., object], do_not_specialize: Sequence[str | int] = ()
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.description = signature_of(fn)
        self.arg_names = list(self.description.names)
        names = self.description.names
        self._lists = {p.name for p in self.description.parameters if p.annotation == "tensors"}
        plain = frozenset(names[p] if isinstance(p, int) else p for p in do_not_specialize)
        self._pointers = frozenset(
            p.name for p in self.description.parameters if p.annotation != "tensor"
        )
        self._signature_of_fn = inspect.signature(fn)
        self._params = self._signature_of_fn.parameters
        self._constexprs = {p.name for p in self.description.parameters if p.is_constexpr}
        self._defaults = frozenset(
            n
            for n, p in self._params.items()
            if p.default is not inspect.Parameter.empty and is_fixed(p.default)
        )
        self._plain = self._numbers_of(plain)
        self._watched: list[Watched] = []
        self._seen_constants: set[Any] = set()
        self._closure: Closure | None = None
        self.forget()

    @property
    def __globals__(self) -> dict[str, Any]:
        """The names of the function's module."""
        return self.fn.__globals__

    @functools.cached_property
    def _factors(self) -> frozenset[str] | None:
        return factors_of(self.fn)

    @functools.cached_property
    def _limits(self) -> dict[str, tuple[str, ...]]:
        """Arguments that bound an index, and constants that say how far it runs."""
        numbers = {n for n in self._params if n not in self._constexprs} - self._plain
        return limits_of(self.fn, numbers, self._constexprs)

    def _extents(self, call: Call) -> dict[str, tuple[object, ...]]:
        """By argument the extents that it bounds; none where programs are chosen by value."""
        if not self._limits or self._by_value(call):
            return {}
        found = ((n, tuple(map(call.constants.get, names))) for n, names in self._limits.items())
        return {n: tuple(v for v in values if type(v) is int) for n, values in found}

    def forget(self) -> None:
        """Drops the programs of this process; the next launch finds or compiles them again."""
        self._programs: dict[Any, Program] = {}
        # By argument types, then by extents: with the CTAs of what was planned.
        self._planned: dict[Any, dict[Any, tuple[Program, int]]] = {}
        self._guards: dict[Shape, Guard] = {}
        self._entries: dict[Any, Entry] = {}
        self.history: list[hooks.Specialisation] = []
        self._fast: Callable[..., None] = self._first

    def _numbers_of(self, plain: frozenset[str]) -> frozenset[str]:
        """The parameters among names that are not to be looked at, with a warning about others."""
        known = {n for n in plain if n in self._params and n not in self._constexprs}
        for name in sorted(plain - known):
            what = "a tl.constexpr" if name in self._constexprs else "no parameter"
            warnings.warn(
                f"{self.description.name}(): do_not_specialize names {name!r}, which is {what}",
                stacklevel=4,
            )
        return frozenset(known)

    # ------------------------------------------------------------------ launching
    def __getitem__(self, grid: GridLike) -> Callable[..., None]:
        """A launcher for a grid: one to three ints, or a function of the constants to them."""
        return MethodType(self._fast, grid)  # the cheapest way to bind a first argument

    def __repr__(self) -> str:
        return f"<kernel {self.description} at {_place(self.fn)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        name = self.fn.__name__
        error = LaunchError(f"{name} is a kernel: launch it with a grid, {name}[grid](...)")
        raise located(error, self.fn)

    def run(self, *args: Any, grid: GridLike, warmup: bool = False, **kwargs: Any) -> Any:
        """Launches; with `warmup` compiles only and returns the kernel."""
        if warmup:
            return self.compile(*args, grid=grid, **kwargs)
        self._fast(grid, *args, **kwargs)
        return None

    def warmup(self, *args: Any, grid: GridLike, **kwargs: Any) -> Kernel:
        """Compiles for these arguments without launching; see `compile`."""
        return self.compile(*args, grid=grid, **kwargs)

    def _first(self, grid: GridLike, /, *args: Any, **kwargs: Any) -> None:
        with launching(self.fn):
            self._launch(grid, self._bind(args, kwargs), kwargs)

    def _slow(
        self, grid: GridLike, values: Mapping[str, Any], more: tuple[Any, ...], options: Any
    ) -> None:
        """A call that the guard does not know; `values` are its arguments by name."""
        given = {k: v for k, v in values.items() if v is not MISSING}
        with launching(self.fn):
            if more:
                count = len(given) + len(more)
                raise LaunchError(f"{self.fn.__name__}: takes {len(values)} arguments, got {count}")
            self._launch(grid, self._bind((), {**given, **options}), options)

    def _launch(self, grid: GridLike, call: Call, options: Mapping[str, Any]) -> None:
        sig, device = self._signature(call)
        self._check_extents(call, sig)
        checks = self.closure().has_assert
        if device is None or device.type == "cpu":
            if checks:
                self._check_asserts(call, sig, grid, {})
            self._interpret(call, sig, grid)
            return
        if device.type == "meta":
            raise LaunchError(
                "a launch needs tensors with data; "
                "meta tensors serve kernel.cuda() and kernel.report()"
            )
        program = self._program(call, sig, grid)
        if checks:
            self._check_asserts(call, sig, grid, program.chosen)
        check_outputs(call.runtime, program.stored, self._pointers)
        self._watch(call, program)
        constants = {**call.constants, **program.chosen}
        guard = None if self._lists else self._guard(call, sig)
        debug = program.module.is_debug
        if debug or guard is None or any(kind == "other" for _, kind in guard.shape.kinds):
            user = grid_of(grid, constants, call.runtime)
            stream = driver.raw_stream()(device.index)
            program.launcher.launch(call.runtime, user, device.index, stream)
            return
        entry = self._entry(program, device, guard.shape, constants)
        values = {n: call.runtime.get(n, call.constants.get(n)) for n in self._params}
        known = {k: v for k, v in options.items() if k not in self._params}
        self._fast = guard.add(grid, values, known, entry) or self._fast
        if entry.run(None, grid, *guard.facts(grid, values)):
            # A number that its parameter does not hold as it is: rounded, or an error naming it.
            user = grid_of(grid, constants, call.runtime)
            stream = driver.raw_stream()(device.index)
            program.launcher.launch(call.runtime, user, device.index, stream)

    def _guard(self, call: Call, sig: Signature) -> Guard:
        kinds: tuple[tuple[str, Kind], ...] = tuple(
            (n, "constant" if n in self._constexprs else self._kind(n, call.runtime[n]))
            for n in self._params
        )
        limits = () if self._by_value(call) else tuple(self._limits.items())
        shape = Shape(
            kinds, self._by_value(call), self._plain, self._defaults, self._factors, limits
        )
        if shape not in self._guards:
            self._guards[shape] = Guard(
                self.fn.__name__, self._params, shape, self._slow, self._watched, self.__dict__
            )
        return self._guards[shape]

    def _watch(self, call: Call, program: Program) -> None:
        """Watches what is known to matter once there is a program.

        That is what functions which are constants read, and torch's setting for float32 products.
        """
        watched, constants = self._watched, tuple(call.constants.values())
        key = told(constants)
        if key not in self._seen_constants and (found := watched_in(constants)):
            self._seen_constants.add(key)
            watched += found
        if program.follows_precision and not any(isinstance(s, Precision) for s, _, _ in watched):
            watched.append(precision_watched())

    def _kind(self, name: str, value: Any) -> Kind:
        return kind_of(value, is_pointer=name in self._pointers)

    def _entry(
        self, program: Program, device: Device, shape: Shape, constants: Mapping[str, Any]
    ) -> Entry:
        facts = facts_of(shape)
        key = (id(program), device.index, facts)
        if key not in self._entries:
            self._entries[key] = Entry(
                program.launcher, device.index, facts, constants, grid_of, self.fn
            )
        return self._entries[key]

    def bind(self, *args: Any, grid: GridLike, **kwargs: Any) -> Handle:
        """A handle that launches with these arguments and this grid at the least cost.

        The handle keeps the tensors alive; numbers, extents and addresses are those of now, and a
        tensor whose memory moved since is an error. On CPU tensors it runs the interpreter.
        """
        with launching(self.fn):
            call = self._bind(args, kwargs)
            sig, device = self._signature(call)
            self._check_extents(call, sig)
            if device is None or device.type != "cuda":
                grid_of(grid, {k: probe(k, v) for k, v in call.constants.items()}, call.runtime)
                return interpreted_handle(lambda: self._fast(grid, *args, **kwargs))
            program = self._program(call, sig, grid)
            if self.closure().has_assert:
                self._check_asserts(call, sig, grid, program.chosen)
            check_outputs(call.runtime, program.stored, self._pointers)
            constants = {**call.constants, **program.chosen}
            user = grid_of(grid, constants, call.runtime)
            return Handle.of(program.launcher, device.index, call.runtime, user, self.fn)

    # ------------------------------------------------------------------ calls
    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call = bind_call(self.fn.__name__, self._signature_of_fn, self._constexprs, args, kwargs)
        call = expanded(call, self._lists)
        for name, value in call.runtime.items():
            if hasattr(value, "__dlpack__"):
                call.runtime[name] = adopted(name, value)
        return call

    def _signature(self, call: Call) -> tuple[Signature, Device | None]:
        try:
            sig, device = signature(
                call.runtime,
                pointers=self._pointers,
                plain=self._plain,
                factors=self._factors,
                limits=self._extents(call),
            )
        except LaunchError:
            refuse_lists(call.runtime, self._pointers)
            raise
        for name in sorted(self._lists):
            sig = alike(sig, name, call.runtime)
        for name, spec in zip(sig.names, sig.specs, strict=True):
            if isinstance(spec, ScalarSpec) and name not in self._pointers:
                got = type(call.runtime[name]).__name__
                raise LaunchError(
                    f"argument {name}: expected a tensor (it is declared tl.Tensor), got {got}"
                )
        return sig, device

    def _check_extents(self, call: Call, sig: Signature) -> None:
        for name, spec in zip(sig.names, sig.specs, strict=True):
            if isinstance(spec, TensorSpec):
                largest = max(call.runtime[name].shape, default=0)
                if largest > INT32_ROOM:
                    raise LaunchError(
                        f"argument {name}: an extent of {largest} exceeds {INT32_ROOM}",
                        hint="view the tensor with more dimensions",
                    )

    def autos(self, named: Mapping[str, Any]) -> list[str]:
        """Constants that the compiler picks in a call with these arguments."""
        values = {n: p.default for n, p in self._params.items() if n in self._constexprs}
        values |= {n: v for n, v in named.items() if n in values}
        return [n for n, v in values.items() if isinstance(unwrap(v), Auto)]

    # ------------------------------------------------------------------ programs
    def _by_value(self, call: Call) -> bool:
        """Whether plans are chosen by extents, integers and the grid."""
        return _needs_function(call) or self.closure().has_dot

    def closure(self) -> Closure:
        """The closure of the kernel as it is now."""
        if self._closure is None or changed(self._watched):
            self._closure = closure_of(self.fn)
            self._watched[:] = self._closure.watched
            self._seen_constants.clear()
            for guard in self._guards.values():
                guard.entries.clear()
        return self._closure

    def _key(self, call: Call, sig: Signature, grid: GridLike) -> Any:
        """(types, values): what decides a program, as far as it is known before compiling."""
        constants = tuple((k, value_text(v)) for k, v in call.constants.items())
        options = (call.overrides, call.fast_math, call.fp_fusion, call.build)
        types: tuple[Any, ...] = (
            self.closure().digest, sig, constants, options, dot_precision(),
        )  # fmt: skip
        if not callable(grid):
            grid_of(grid, {})  # before anything is compiled
            types += (FIXED,) if _needs_function(call) else ()
        if not self._by_value(call):
            return (types, ())
        values = tuple(
            tuple(v.shape)
            if isinstance(s, TensorSpec)
            else (v if isinstance(s, ScalarSpec) and not s.dtype.is_float else None)
            for v, s in zip(call.runtime.values(), sig.specs, strict=True)
        )
        tried = {k: probe(k, v) for k, v in call.constants.items()}
        return (types, (values, normalize_grid(grid, tried, call.runtime)))

    def _program(self, call: Call, sig: Signature, grid: GridLike) -> Program:
        key = self._key(call, sig, grid)
        found = self._programs.get(key)
        if found is None:
            if len(self._programs) >= MAX_ENTRIES:
                self._programs.clear()
            found = self._programs[key] = self._find(key, call, sig, grid)
        return found

    def _find(self, key: Any, call: Call, sig: Signature, grid: GridLike) -> Program:
        """A program that this process has not used yet: from a file, or compiled."""
        start = time.perf_counter()
        (digest, *rest), values = key
        item = hooks.Specialisation(self._facts(call, sig, values, is_fixed=FIXED in rest))
        text = repr((rest, values))
        program = program_key(digest, text, HOPPER.arch)
        found = PROGRAMS.find(program)
        origin = found.origin if found else "compiled"
        planned = self._planned.setdefault(key[0], {})
        if found is None:
            frozen = hooks.STATE.freeze != "off"
            now = dict(planned)  # other threads add to it
            near = stand_in(now, values, always=frozen, suits=lambda k: _suits(*now[k], call, grid))
            found = near[0] if near else None
            if found is not None and not frozen:
                return found
            origin = "reused" if found else "compiled"
        if found is None:
            hooks.unplanned(self.fn.__name__, hooks.cause_of(item, self.history))
            found = self.build(call, sig, grid)
            PROGRAMS.keep(program, found, {"name": self.fn.__name__, "call": item.facts})
        if origin != "reused":
            planned[values] = (found, _ctas_of(found, call, grid))
        seconds = time.perf_counter() - start
        self.history.append(hooks.Specialisation(item.facts, origin, seconds))
        for recorder in hooks.STATE.recorders:
            recorder(self, hooks.Event(text, call, sig, grid, found))
        return found

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike) -> Program:
        """The program of a call, compiled if need be, without a launch."""
        with launching(self.fn):
            call = self._bind(args, kwargs)
            sig, _ = self._signature(call)
            return self._program(call, sig, grid)

    def build(self, call: Call, sig: Signature, grid: GridLike) -> Program:
        """Compiles a program."""
        return compile_program(self._request(call, sig, grid, call.constants), call)

    def _facts(self, call: Call, sig: Signature, values: Any, *, is_fixed: bool) -> dict[str, str]:
        """What decides a program, by argument or option, for people."""
        facts = {n: str(s) for n, s in zip(sig.names, sig.specs, strict=True)}
        extents: tuple[Any, ...] = values[0] if values else ()
        grid = values[1] if values else None
        for name, value in zip(sig.names, extents, strict=False):
            facts[name] += "" if value is None else f" {value}"
        facts |= {k: repr(v) for k, v in call.constants.items()}
        facts |= {k: repr(v) for k, v in call.overrides.given.items()}
        if call.overrides.num_warps is not None:
            facts["num_warps"] = str(call.overrides.num_warps)
        facts |= {"fast_math": "True"} if call.fast_math else {}
        facts |= {} if call.fp_fusion else {"enable_fp_fusion": "False"}
        facts |= {"debug": "True"} if call.build.debug else {}
        facts |= {"delay": str(call.build.delay)} if call.build.delay else {}
        given = f"{grid}, {FIXED}" if is_fixed else str(grid)
        return facts | ({} if grid is None else {"grid": given})

    def explain_recompiles(self) -> str:
        """A line per program that this process has used.

        It says where the program came from, what it cost, and the argument or option that made it
        necessary.
        """
        return hooks.explain(self.fn.__name__, self.history)

    # ------------------------------------------------------------------ as other tools read it
    @property
    def src(self) -> str:
        """The text of the function, from its `def`."""
        text = "".join(source_of(self.fn).lines)
        return text[max(0, text.find("def ")) :]

    @property
    def cache_key(self) -> str:
        """A digest of the kernel's text, its helpers and the values that it captures."""
        return self.closure().digest

    @property
    def params(self) -> list[Any]:
        """The parameters, in order."""
        return list(self.description.parameters)


def _needs_function(call: Call) -> bool:
    """Whether the compiler picks a constant of the call, which the grid may have to follow."""
    return any(isinstance(v, Auto) for v in call.constants.values())


def _ctas_of(program: Program, call: Call, grid: GridLike) -> int:
    """How many CTAs there are work for where a program serves a call."""
    user = normalize_grid(grid, {**call.constants, **program.chosen}, call.runtime)
    return math.prod(user) * program.module.grid.split_k


def _suits(program: Program, planned: int, call: Call, grid: GridLike) -> bool:
    """Whether a program that was planned for so many CTAs is as good for a call."""
    at_once = HOPPER.num_sms * program.module.grid.ctas_per_sm
    return keeps_rounds(planned, _ctas_of(program, call, grid), at_once)


def _place(fn: Callable[..., object]) -> str:
    """File and line of a function."""
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "?"


def set_allocator(allocator: object) -> None:
    """Accepted: kernels need no memory beside their arguments."""
    del allocator


def jit(
    fn: Callable[..., object] | None = None,
    *,
    do_not_specialize: Sequence[str | int] = (),
    **_: Any,
) -> Any:
    """Makes a kernel of a Python function; use as `@tiledsl.jit` or `@tiledsl.jit()`.

    do_not_specialize: parameters (names or positions) whose integer values are not looked at: by
    default the compiler may know that one is 1, a multiple of 16, or as long as an index it bounds.
    """
    if fn is None:
        return functools.partial(jit, do_not_specialize=do_not_specialize)
    return JitFunction(fn, do_not_specialize)
