"""`autotune`: a decorator that measures candidates and launches the fastest."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import statistics
import time
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from typing import cast

from tiledsl.call import OPTIONS
from tiledsl.call import GridLike
from tiledsl.config import Config
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.interface import KernelInterface
from tiledsl.ir.markers import Auto
from tiledsl.jit import FIXED
from tiledsl.progress import Progress
from tiledsl.runtime import timing
from tiledsl.runtime.closure import value_text
from tiledsl.runtime.launching import located
from tiledsl.runtime.store import store
from tiledsl.runtime.tunings import add_timings
from tiledsl.runtime.tunings import read_timings
from tiledsl.runtime.tunings import timing_key
from tiledsl.runtime.tunings import tuning
from tiledsl.runtime.workers import cpus
from tiledsl.runtime.workers import forked

WORKERS = 16
_PLAIN = (int, float, bool, str, type(None))
HOPELESS = 2.0
"""A candidate this much slower than the best in a first look is not timed further."""
BUDGET_SECONDS = 120.0

PreHook = Callable[..., object]
PostHook = Callable[..., object]


@dataclass(frozen=True)
class Hooks:
    """What surrounds the launches of a tuner.

    reset, restore: names of tensors.  pre: called with all arguments ahead of each timed launch;
    post: with all arguments and the error, or None, after it.
    """

    reset: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()
    pre: PreHook | None = None
    post: PostHook | None = None


@dataclass(frozen=True)
class Pruning:
    """Which candidates are not worth a compile.

    early: (configs, named arguments, **kwargs) -> configs.  model: (**arguments) -> time.
    top_k: how many of the model's best to keep; a share of all when below 1.
    """

    early: Callable[..., list[Config]] | None = None
    model: Callable[..., float] | None = None
    top_k: float = 1.0

    @staticmethod
    def of(given: Mapping[str, Any] | None) -> Pruning:
        """From `prune_configs_by`. Raises TypeMismatch for an unknown entry."""
        known = ("early_config_prune", "perf_model", "top_k")
        for name in given or {}:
            if name not in known:
                raise TypeMismatch(
                    f"autotune(): prune_configs_by has no {name!r}; {known} are known"
                )
        found = dict(given or {})
        return Pruning(*(found.get(n, d) for n, d in zip(known, (None, None, 1.0), strict=True)))

    def apply(
        self, configs: list[Config], named: dict[str, Any], kwargs: dict[str, Any]
    ) -> list[Config]:
        """What is left of the candidates, at least one."""
        left = list(self.early(configs, named, **kwargs)) if self.early else list(configs)
        if not left:
            raise LaunchError("autotune(): early_config_prune left no candidate")
        if self.model is None:
            return left
        count = self.top_k if self.top_k > 1 else math.ceil(len(configs) * self.top_k)
        cost = {c: self.model(**{**named, **kwargs, **c.all_kwargs()}) for c in left}
        return sorted(left, key=lambda c: cost[c])[: max(1, int(count))]


class Autotuner(KernelInterface):
    """A kernel whose constants and options are measured, once per value of the key.

    configs: the candidates; empty for those of the cost model.  cache: the choice by key.
    best_config: the latest choice.
    """

    def __init__(
        self,
        fn: Any,
        configs: Sequence[Config],
        key: Sequence[str],
        pruning: Pruning,
        hooks: Hooks,
        times: tuple[float, float, float],
        do_bench: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(cast("Any", self), getattr(fn, "fn", fn))
        self.fn = fn
        self.arg_names = list(fn.arg_names)
        self.configs = list(configs)
        self.keys = list(key)
        self.pruning, self.hooks = pruning, hooks
        self.warmup_ms, self.rep_ms, self.budget_seconds = times
        self.do_bench = do_bench
        self.cache: dict[tuple[Any, ...], Config] = {}
        self.best_config: Config | None = None
        self.configs_timings: dict[Config, float] = {}
        self.bench_time = 0.0
        self._check_names()

    def _check_names(self) -> None:
        constants = {k for c in self.configs for k in c.kwargs if k not in OPTIONS}
        for name in self.keys:
            if name not in self.arg_names:
                warnings.warn(
                    f"autotune(): key names {name!r}, which is no parameter of "
                    f"{self.__name__} and says nothing about a launch",
                    stacklevel=4,
                )
        used = {"reset_to_zero": self.hooks.reset, "restore_value": self.hooks.restore}
        used |= {"configs": sorted(constants)}
        for what, names in used.items():
            for name in names:
                if name not in self.arg_names:
                    raise TypeMismatch(
                        f"autotune(): {what} names {name!r}, which is no parameter of the kernel",
                        hint=f"its parameters are {', '.join(self.arg_names)}",
                    )

    # ------------------------------------------------------------------ launching
    def run(self, *args: Any, grid: GridLike, warmup: bool = False, **kwargs: Any) -> Any:
        """Launches with the best candidate, which is measured at the first launch of a key."""
        config = self._choose(args, kwargs, grid)
        merged = self._merged(kwargs, config)
        if config.pre_hook is not None and not warmup:
            config.pre_hook(self.named(args, merged))
        if warmup:
            return self.fn.run(*args, grid=grid, warmup=True, **merged)
        return self.fn[grid](*args, **merged)

    def chosen(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike | None = None
    ) -> dict[str, Any]:
        config = self.cache.get(self.key_of(args, kwargs, grid)) or self._untimed(args, kwargs)
        return self._inner(args, self._merged(kwargs, config), grid)

    def _merged(self, kwargs: dict[str, Any], config: Config) -> dict[str, Any]:
        clash = [n for n in config.kwargs if n in kwargs] if kwargs else []
        # The model's candidates are values for what is left to the compiler.
        if clash and (self.configs or not all(isinstance(kwargs[n], Auto) for n in clash)):
            error = LaunchError(
                f"{', '.join(clash)}: given at launch and by the tuner's candidates"
            )
            raise located(error, self.kernel().fn)
        return {**kwargs, **config.options, **config.kwargs}

    def key_of(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike | None = None
    ) -> tuple[Any, ...]:
        """What a choice depends on: the key's values (extents of tensors), and all dtypes.

        Tiles that are picked for a grid that follows them are none for a grid of numbers.
        """
        named = self.named(args, kwargs)
        keys = self.keys
        if not keys and not self.configs:
            keys = [n for n in self.arg_names if n in named]
        values: list[Any] = []
        for name in keys:
            value = named.get(name)
            values.append(value if value.__class__ in _PLAIN else _key_value(value))
        tensors = (v for v in named.values() if v.__class__ not in _PLAIN)
        kinds = (FIXED,) if self._cannot_follow(named, grid) else ()
        return (*values, *(v.dtype for v in tensors if hasattr(v, "data_ptr")), *kinds)

    def _cannot_follow(self, named: Mapping[str, Any], grid: GridLike | None) -> bool:
        """Whether the grid is of numbers, and the model picks tiles as candidates."""
        if self.configs or grid is None or callable(grid):
            return False
        return bool(self.kernel().autos(named))

    def _choose(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike) -> Config:
        if len(self.configs) == 1:
            self.best_config = self.configs[0]
            return self.best_config
        key = self.key_of(args, kwargs, grid)
        found = self.cache.get(key)
        if found is None:
            if timing.is_capturing(list(self.named(args, kwargs).values())):
                return self._under_capture(args, kwargs, grid)
            on_gpu = timing.device_text(list(self.named(args, kwargs).values()))
            if not on_gpu and self.do_bench is None:
                return self._untimed(args, kwargs)
            found = self.cache[key] = self._tune(key, on_gpu, args, kwargs, grid)
        self.best_config = found
        return found

    def _untimed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Config:
        """The candidate to take where nothing can be measured: the first that pruning leaves."""
        if not self.configs:
            return Config({})
        left = self.pruning.apply(self.configs, self.named(args, kwargs), kwargs)
        self.best_config = left[0]
        return self.best_config

    def _under_capture(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike
    ) -> Config:
        known = next(reversed(self.cache.values()), None)
        if self._cannot_follow(self.named(args, kwargs), grid):
            known = None
        warnings.warn(
            f"{self.__name__}: nothing can be tuned while a graph is captured; "
            f"{'the latest choice' if known else 'the first candidate'} is used. "
            "Launch once with these arguments ahead of the capture",
            stacklevel=4,
        )
        return known or self._untimed(args, kwargs)

    # ------------------------------------------------------------------ measuring
    def _tune(
        self,
        key: tuple[Any, ...],
        device: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grid: GridLike,
    ) -> Config:
        start = time.perf_counter()
        configs = self.configs
        if not configs:
            from tiledsl.candidates import candidates

            configs = candidates(self.kernel(), args, self._inner(args, kwargs, grid), grid)
        left = self.pruning.apply(configs, self.named(args, kwargs), kwargs)
        file_key = timing_key(device, self.kernel().closure().digest, repr((key, self.keys)))
        known = self._known(file_key, left)
        if len(known) < len(left):
            values = list(self.named(args, kwargs).values())
            with tuning(file_key, self.budget_seconds), timing.on_device_of(values):
                known = self._known(file_key, left)
                new = [c for c in left if c not in known]
                made = self._race(new, args, kwargs, grid)
                about = {"name": self.__name__, "device": device, "key": repr(key)}
                add_timings(file_key, {value_text(repr(c)): t for c, t in made.items()}, about)
                known |= made
        self.bench_time = time.perf_counter() - start
        self.configs_timings = known
        best = min(known, key=lambda c: known[c])
        if math.isinf(known[best]):
            error = LaunchError(
                f"{self.__name__}: none of {len(left)} candidates could be launched"
            )
            raise located(error, self.kernel().fn)
        for name in self.hooks.reset:
            timing.zero(self.named(args, kwargs)[name])
        return best

    def _known(self, file_key: str, configs: list[Config]) -> dict[Config, float]:
        stored = read_timings(file_key)
        names = {c: value_text(repr(c)) for c in configs}
        return {c: stored[n] for c, n in names.items() if n in stored}

    def _race(
        self, configs: list[Config], args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike
    ) -> dict[Config, float]:
        """Milliseconds of candidates; those left behind early keep their first look.

        What the budget did not reach is not there: another process may measure it.
        """
        end = time.monotonic() + self.budget_seconds
        self._compile_all(configs, args, kwargs, grid)
        found: dict[Config, float] = {}
        for rep in (0.0, self.rep_ms):
            best = min(found.values(), default=math.inf)
            bar = Progress(self.__name__, "timing" if rep else "first look", len(configs), end)
            for at, config in enumerate(configs):
                if rep and not found.get(config, math.inf) <= best * HOPELESS:
                    continue
                if found and time.monotonic() > end:
                    continue
                bar.show(at, min(found.values(), default=math.inf))
                found[config] = self._time(config, args, kwargs, grid, rep)
        bar.clear()
        return found

    def _compile_all(
        self, configs: list[Config], args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike
    ) -> None:
        """Compiles ahead of timing, several at a time; faults show again at the launch.

        Forked processes leave programs in the disk cache; what they did not do, and everything
        where there is no such cache, is compiled by threads.
        """
        kernel = self.kernel()

        def make(config: Config) -> bytes:
            with contextlib.suppress(TileError):
                merged = self._merged(kwargs, config)
                kernel.prepare(args, self._inner(args, merged, grid), grid)
                return b"made"
            return b"failed"

        bar = Progress(self.__name__, "compiling", len(configs))
        jobs = [functools.partial(make, config) for config in configs]
        if store().is_writable():
            forked(jobs, workers=min(WORKERS, cpus()), seconds=self.budget_seconds)
        with ThreadPoolExecutor(min(WORKERS, max(1, len(configs)))) as pool:
            for at, _ in enumerate(pool.map(make, configs)):
                bar.show(at + 1)

    def _time(
        self,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grid: GridLike,
        rep: float,
    ) -> float:
        """Median milliseconds of a candidate, infinite when it cannot be launched."""
        merged = self._merged(kwargs, config)
        named = self.named(args, merged)
        saved = {n: timing.copy_of(named[n]) for n in self.hooks.restore}

        def before() -> None:
            if config.pre_hook is not None:
                config.pre_hook(named)
            if self.hooks.pre is not None:
                self.hooks.pre(named, **_flag(self.hooks.pre))
            for name in self.hooks.reset:
                timing.zero(named[name])

        def launch() -> None:
            self.fn.run(*args, grid=grid, **merged)

        fault: TileError | None = None
        try:
            before()
            if self.do_bench is not None:
                result = self.do_bench(launch, quantiles=(0.5, 0.2, 0.8))
                return float(result[0] if hasattr(result, "__getitem__") else result)
            warmup = self.warmup_ms if rep else 0.0
            return statistics.median(timing.times(launch, warmup=warmup, rep=rep, before=before))
        except TileError as error:
            fault = error
            return math.inf
        finally:
            for name, value in saved.items():
                timing.restore(named[name], value)
            if self.hooks.post is not None:
                self.hooks.post(named, fault)


def _key_value(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    return tuple(shape) if shape is not None else value_text(value)


def _flag(hook: PreHook) -> dict[str, bool]:
    """`reset_only=False` for a hook that takes it."""
    return {"reset_only": False} if "reset_only" in inspect.signature(hook).parameters else {}


def autotune(
    configs: Sequence[Config] | None = None,
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: PreHook | None = None,
    post_hook: PostHook | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = True,
    budget: float = BUDGET_SECONDS,
) -> Callable[[Any], Autotuner]:
    """Chooses among candidates by measuring them, once per value of the key; timings stay on disk.

    Args:
        configs: the candidates; without any, those that the cost model ranks first.
        key: parameters whose values (of tensors, extents) a choice depends on.
        prune_configs_by: `early_config_prune`, `perf_model`, `top_k`.
        reset_to_zero: tensors that are zeroed ahead of each timed launch.
        restore_value: tensors that get their values back after timing, for kernels in place.
        pre_hook: called with all arguments ahead of each timed launch.
        post_hook: called with all arguments, and the error or None, after timing a candidate.
        warmup: ms of launches ahead of the timed ones.
        rep: ms of timed launches of a candidate.
        use_cuda_graph: accepted; launches are timed by events.
        do_bench: times a function in place of the tuner's own way, called with `quantiles`.
        cache_results: accepted; timings are always kept.
        budget: seconds after which no further candidate is timed.

    On CPU tensors nothing is measured and the first candidate is used, as under graph capture
    (there the latest choice, with a warning).
    """
    del use_cuda_graph, cache_results
    hooks = Hooks(tuple(reset_to_zero or ()), tuple(restore_value or ()), pre_hook, post_hook)
    times = (25.0 if warmup is None else warmup, 100.0 if rep is None else rep, budget)
    pruning = Pruning.of(prune_configs_by)
    return lambda fn: Autotuner(fn, configs or (), key, pruning, hooks, times, do_bench)
