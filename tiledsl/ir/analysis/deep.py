"""Recursive analyses of operands that chains of any length do not take out of stack.

A loop that is written out makes chains of thousands of ops, which a function that calls itself for
the operands of each would follow until Python's stack ends. `deep` keeps such a function as it is
read. Results are remembered until the outermost call returns, and where calls lie deep in each
other they are given up: the innermost one begins anew with an empty stack, and its result is known
when those around it are repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from typing import ParamSpec
from typing import TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Key = tuple[Callable[..., Any], tuple[Any, ...], tuple[tuple[str, Any], ...]]

DEEPEST = 48
"""Calls inside each other before they begin anew; each takes up to five frames."""


class _TooDeep(BaseException):
    """Gives up the calls under way; no handler of theirs takes it."""

    def __init__(self, key: _Key) -> None:
        super().__init__()
        self.key = key


class _Raised:
    """What a call raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Calls(threading.local):
    """The calls of a thread.

    results: by function and arguments; None outside of all calls. depth: of those under way.
    """

    results: dict[_Key, Any] | None = None
    depth: int = 0


_CALLS = _Calls()


def deep(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a recursive function safe for operands of any depth, and remember what it found.

    Its arguments can be hashed. Effects come after all calls of itself, so that a call which is
    given up has had none, and no call leads back to itself.
    """

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        key = (function, args, tuple(kwargs.items()))
        results = _CALLS.results
        if results is None:
            results = _CALLS.results = {}
            try:
                return _outermost(key, results)
            finally:
                _CALLS.results = None
        if key not in results:
            if not _CALLS.depth:
                return _outermost(key, results)
            if _CALLS.depth >= DEEPEST:
                raise _TooDeep(key)
            _run(key, results)
        found = results[key]
        if isinstance(found, _Raised):
            raise found.error
        return found

    return call


@contextmanager
def remembered() -> Generator[None]:
    """Remembers results for several calls, between which nothing changes what they say."""
    before = _CALLS.results
    _CALLS.results = {} if before is None else before
    try:
        yield
    finally:
        _CALLS.results = before


def _run(key: _Key, results: dict[_Key, Any]) -> None:
    """Enters the result of a call."""
    _CALLS.depth += 1
    try:
        results[key] = key[0](*key[1], **dict(key[2]))
    except Exception as error:
        results[key] = _Raised(error)
    finally:
        _CALLS.depth -= 1


def _outermost(key: _Key, results: dict[_Key, Any]) -> Any:
    todo: dict[_Key, None] = {key: None}
    while todo:
        at = next(reversed(todo))
        try:
            _run(at, results)
        except _TooDeep as deeper:
            if deeper.key in todo:
                raise RecursionError(f"{deeper.key[0].__qualname__} leads to itself") from None
            todo[deeper.key] = None
        else:
            del todo[at]
    found = results[key]
    if isinstance(found, _Raised):
        raise found.error
    return found
