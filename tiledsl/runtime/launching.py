"""Errors of launches name the kernel, and where it is defined."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from contextlib import contextmanager

from tiledsl.errors import LaunchError
from tiledsl.frontend.source import place_of


@contextmanager
def launching(fn: Callable[..., object]) -> Generator[None]:
    """Gives errors of a launch the name and the place of its kernel, which was made of `fn`."""
    try:
        yield
    except LaunchError as error:
        located(error, fn)
        raise


def located(error: LaunchError, fn: Callable[..., object]) -> LaunchError:
    """The error with the name and the place of a kernel, unless it has a place of its own."""
    place = place_of(fn)
    if error.loc is None and place is not None:
        error.loc = place
        if place.function not in error.message:
            error.message = f"{place.function}(): {error.message}"
    return error
