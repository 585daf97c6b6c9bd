"""Timing of launches on the GPU: events, a cleared L2 cache, medians; host time without a GPU."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from typing import Literal

import torch

from tiledsl.errors import LaunchError

FLUSH_BYTES = 256 << 20
ESTIMATE_LAUNCHES = 5
ReturnMode = Literal["mean", "median", "min", "max", "all"]


def has_gpu() -> bool:
    """Whether launches are timed on a GPU."""
    return torch.cuda.is_available()


def is_capturing(values: Sequence[Any] = ()) -> bool:
    """Whether torch's current stream, of the GPU of some arguments, is captured into a graph."""
    if not torch.cuda.is_available():
        return False
    with on_device_of(values):
        return torch.cuda.is_current_stream_capturing()


def times(
    fn: Callable[[], object],
    *,
    warmup: float = 25.0,
    rep: float = 100.0,
    before: Callable[[], object] | None = None,
    flush: bool = True,
) -> list[float]:
    """Milliseconds of single calls.

    Args:
        fn: what is timed.
        warmup: about how long calls run ahead of the timed ones, ms.
        rep: about how long the timed calls take together, ms.
        before: called ahead of each timed call, outside of the timed part.
        flush: whether the L2 cache is cleared ahead of each timed call.
    """
    fn()
    if not has_gpu():
        return _host_times(fn, rep, before)
    torch.cuda.synchronize()
    cache = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda") if flush else None
    estimate = max(_pass(fn, ESTIMATE_LAUNCHES, before, cache)) or 1e-3
    for _ in range(max(1, int(warmup / estimate))):
        fn()
    return _pass(fn, max(1, int(rep / estimate)), before, cache)


def _pass(
    fn: Callable[[], object],
    count: int,
    before: Callable[[], object] | None,
    cache: torch.Tensor | None,
) -> list[float]:
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    for start, end in zip(starts, ends, strict=True):
        if before is not None:
            before()
        if cache is not None:
            cache.zero_()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [s.elapsed_time(e) for s, e in zip(starts, ends, strict=True)]


def _host_times(
    fn: Callable[[], object], rep: float, before: Callable[[], object] | None
) -> list[float]:
    out: list[float] = []
    while not out or (sum(out) < rep and len(out) < 1000):
        if before is not None:
            before()
        start = time.perf_counter()
        fn()
        out.append((time.perf_counter() - start) * 1e3)
    return out


def do_bench(
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: ReturnMode = "mean",
) -> Any:
    """Milliseconds of a call on the GPU, each with a cold L2 cache.

    Args:
        fn: what is timed.
        warmup: about how long it runs ahead, ms.
        rep: about how long the timed calls take together, ms.
        grad_to_none: tensors whose `grad` is dropped ahead of each call.
        quantiles: return these quantiles of the times instead.
        return_mode: "mean", "median", "min", "max", or "all" for the list.

    Raises:
        LaunchError: an unknown mode.
    """
    if return_mode not in ("mean", "median", "min", "max", "all"):
        raise LaunchError(f"do_bench(): return_mode {return_mode!r} is none of its modes")

    def drop() -> None:
        for tensor in grad_to_none or ():
            tensor.grad = None

    found = times(fn, warmup=warmup, rep=rep, before=drop if grad_to_none else None)
    if quantiles is not None:
        places = torch.quantile(torch.tensor(found), torch.tensor(list(quantiles)))
        values = [float(v) for v in places]
        return values[0] if len(values) == 1 else values
    match return_mode:
        case "all":
            return found
        case "mean":
            return statistics.fmean(found)
        case "median":
            return statistics.median(found)
        case "min":
            return min(found)
        case "max":
            return max(found)


def zero(tensor: Any) -> None:
    """Fills a tensor argument with zeros."""
    with torch.no_grad():
        _tensor(tensor).zero_()


def copy_of(tensor: Any) -> Any:
    """What `restore` needs to bring a tensor argument back."""
    return _tensor(tensor).detach().clone()


def restore(tensor: Any, saved: Any) -> None:
    """Brings a tensor argument back to what it was."""
    with torch.no_grad():
        _tensor(tensor).copy_(saved)


def _tensor(value: Any) -> Any:
    base = getattr(value, "base", None)
    return base if isinstance(base, torch.Tensor) and not isinstance(value, torch.Tensor) else value


def device_of(values: Sequence[Any]) -> torch.device | None:
    """The GPU that holds the first tensor among some arguments."""
    devices = (getattr(value, "device", None) for value in values)
    return next((d for d in devices if getattr(d, "type", None) == "cuda"), None)


def device_text(values: Sequence[Any]) -> str:
    """Name of the GPU that holds the first tensor among some arguments; empty without one."""
    device = device_of(values)
    return "" if device is None else torch.cuda.get_device_name(device)


def on_device_of(values: Sequence[Any]) -> AbstractContextManager[object]:
    """Makes the GPU of some arguments current: events and streams are those of the current one."""
    device = device_of(values)
    return contextlib.nullcontext() if device is None else torch.cuda.device(device)
