"""Files of the disk cache: one per entry, self-contained, checksummed, replaced in one step.

Readers and writers of any number of processes need no lock: a file appears under its name complete
or not at all. Whatever goes wrong with a file or the folder costs a compile and one warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"tiledsl cache 2\n"
SUFFIX = ".tdsl"
MAX_BYTES = 2 << 30
KEPT = 0.8
"""Share of the size cap that eviction leaves."""
STALE_SECONDS = 3600
TOUCH_SECONDS = 600


class Damaged(Exception):
    """A file that is not what was written."""


class Outdated(Damaged):
    """A file of another version's format."""


@dataclass(frozen=True)
class Record:
    """One entry: facts as JSON values, texts and binaries by name."""

    facts: Mapping[str, Any]
    blobs: Mapping[str, bytes]


def pack_record(record: Record) -> bytes:
    """The bytes of a file."""
    index = [(name, len(data)) for name, data in record.blobs.items()]
    head = json.dumps({"facts": dict(record.facts), "blobs": index}, sort_keys=True).encode()
    body = b"".join([len(head).to_bytes(8, "little"), head, *record.blobs.values()])
    packed = zlib.compress(body, 1)
    return MAGIC + hashlib.sha256(packed).digest() + packed


def unpack_record(data: bytes) -> Record:
    """The record of a file. Raises Damaged."""
    start = len(MAGIC) + 32
    if not data.startswith(MAGIC):
        other = data.startswith(MAGIC[:14]) and data[15:16] == b"\n"
        raise Outdated("another version's") if other else Damaged("it is no cache file")
    packed = data[start:]
    if len(data) < start or hashlib.sha256(packed).digest() != data[len(MAGIC) : start]:
        raise Damaged("its checksum is wrong")
    try:
        body = zlib.decompress(packed)
        size = int.from_bytes(body[:8], "little")
        head: dict[str, Any] = json.loads(body[8 : 8 + size])
        at, blobs = 8 + size, dict[str, bytes]()
        for name, length in head["blobs"]:
            blobs[name] = body[at : at + length]
            at += length
        return Record(head["facts"], blobs)
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise Damaged(f"it cannot be read: {fault}") from fault


def default_folder() -> Path | None:
    """The folder of the cache; None when it is switched off.

    `TILEDSL_CACHE_DIR` names it (`off` or nothing: no cache); else it is under the user's cache.
    """
    given = os.environ.get("TILEDSL_CACHE_DIR")
    if given is not None:
        return None if given.strip().lower() in ("", "off") else Path(given).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "tiledsl"
    except RuntimeError:
        return None


class Store:
    """A folder of entries, by kind and key.

    folder: None for a store that keeps nothing.
    max_bytes: size from which the entries used longest ago are removed.
    """

    def __init__(self, folder: Path | None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._warned = False

    def path(self, kind: str, key: str) -> Path | None:
        """Where an entry is or would be."""
        return None if self.folder is None else self.folder / f"{kind}-{key}{SUFFIX}"

    def is_writable(self) -> bool:
        """Whether the folder takes entries, as far as one can tell without writing one."""
        if self.folder is None:
            return False
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        return os.access(self.folder, os.W_OK | os.X_OK)

    def get(self, kind: str, key: str) -> Record | None:
        """An entry, or None. A damaged file is removed, with a warning."""
        path = self.path(kind, key)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as fault:
            self._warn(f"cannot read {path}: {fault.strerror or fault}")
            return None
        try:
            record = unpack_record(data)
        except Damaged as fault:
            _remove(path)
            if not isinstance(fault, Outdated):
                text = f"tiledsl cache: {path} is damaged ({fault}); compiling again"
                warnings.warn(text, stacklevel=2)
            return None
        _touch(path)
        return record

    def put(self, kind: str, key: str, record: Record) -> bool:
        """Writes an entry. False, with one warning per process, when the folder cannot take it."""
        path = self.path(kind, key)
        if path is None or self.folder is None:
            return False
        data = pack_record(record)
        if len(data) > self.max_bytes:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".new-", dir=self.folder)
        except OSError as fault:
            self._warn(f"cannot write to {self.folder}: {fault.strerror or fault}")
            return False
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).replace(path)
        except OSError as fault:
            _remove(Path(name))
            self._warn(f"cannot write {path}: {fault.strerror or fault}")
            return False
        self.evict()
        return True

    def files(self) -> Iterator[Path]:
        """All entries, by name."""
        if self.folder is not None and self.folder.is_dir():
            yield from sorted(p for p in self.folder.iterdir() if p.suffix == SUFFIX)

    def evict(self) -> int:
        """Removes what was used longest ago until the folder fits its cap; how many went."""
        found: list[tuple[float, int, Path]] = []
        now, removed = time.time(), 0
        if self.folder is None or not self.folder.is_dir():
            return 0
        for path in self.folder.iterdir():
            try:
                facts = path.stat()
            except OSError:
                continue  # another process removed it
            if path.name.startswith(".new-"):
                if now - facts.st_mtime > STALE_SECONDS:
                    _remove(path)  # its writer was killed
            elif path.suffix == SUFFIX:
                found.append((facts.st_mtime, facts.st_size, path))
        total = sum(size for _, size, _ in found)
        if total <= self.max_bytes:
            return 0
        for _, size, path in sorted(found, key=lambda f: (f[0], f[2].name)):
            if total <= self.max_bytes * KEPT:
                break
            removed += _remove(path)
            total -= size
        return removed

    def clear(self) -> int:
        """Removes every entry and every unfinished file; how many entries went."""
        if self.folder is None or not self.folder.is_dir():
            return 0
        for path in self.folder.glob(".new-*"):
            _remove(path)
        return sum(_remove(path) for path in list(self.files()))

    def verify(self) -> list[tuple[Path, str]]:
        """Files that are damaged, and how."""
        bad: list[tuple[Path, str]] = []
        for path in self.files():
            try:
                unpack_record(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, Damaged) as fault:
                bad.append((path, str(fault)))
        return bad

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"tiledsl cache: {text}; going on without it", stacklevel=3)


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _touch(path: Path) -> None:
    """Notes the use of an entry for eviction, now and then."""
    try:
        if time.time() - path.stat().st_mtime > TOUCH_SECONDS:
            os.utime(path)
    except OSError:
        pass


_stores: dict[tuple[str, int], Store] = {}


def store() -> Store:
    """The cache of this process, as the environment names it now."""
    folder = default_folder()
    limit = os.environ.get("TILEDSL_CACHE_BYTES", "")
    size = int(limit) if limit.isdigit() else MAX_BYTES
    key = (str(folder), size)
    if key not in _stores:
        _stores[key] = Store(folder, size)
    return _stores[key]
