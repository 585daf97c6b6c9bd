"""Timings of candidates on disk: each on its own, so that adding one keeps the others.

One process tunes a key while others wait for its result: the lock goes with its process, and a
folder that cannot be locked only costs tuning twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import time
from collections.abc import Generator
from collections.abc import Mapping
from pathlib import Path

from tiledsl.runtime.programs import package_digest
from tiledsl.runtime.store import Record
from tiledsl.runtime.store import store

KIND = "timings"
POLL_SECONDS = 0.05


def timing_key(device: str, closure: str, key: str) -> str:
    """The key of a kernel's timings for some values of the tuner's key on a kind of device."""
    parts = "\0".join([device, closure, key, package_digest()])
    return hashlib.sha256(parts.encode()).hexdigest()


BUNDLED: dict[str, dict[str, float]] = {}
"""Timings of loaded bundles."""


def read_timings(key: str) -> dict[str, float]:
    """Milliseconds by candidate; infinite for one that failed."""
    record = store().get(KIND, key)
    stored: dict[str, str] = {} if record is None else record.facts["ms"]
    return {**BUNDLED.get(key, {}), **{k: float(v) for k, v in stored.items()}}


def add_timings(key: str, found: Mapping[str, float], about: Mapping[str, str]) -> None:
    """Keeps timings beside those that are there."""
    known = {**read_timings(key), **found}
    store().put(KIND, key, Record({**about, "ms": {k: str(v) for k, v in known.items()}}, {}))


@contextlib.contextmanager
def tuning(key: str, seconds: float) -> Generator[None]:
    """Holds the lock of a key, for which it waits at most so long."""
    folder = store().folder
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((folder / f".lock-{key[:32]}").open("w"))
                _lock(file.fileno(), seconds)
                stack.callback(_unlink, Path(file.name))
        yield


def _lock(handle: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return
            time.sleep(POLL_SECONDS)
        else:
            return


def _unlink(path: Path) -> None:
    # A waiter may hold the removed file; then the next process tunes beside it, which is harmless.
    with contextlib.suppress(OSError):
        path.unlink()
