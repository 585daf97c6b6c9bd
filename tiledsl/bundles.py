"""Bundles: programs, their CUDA text and tuned choices in one file that loads without NVRTC."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tiledsl.errors import LaunchError
from tiledsl.manifest import Manifest
from tiledsl.manifest import records_of
from tiledsl.runtime import tunings
from tiledsl.runtime.programs import PROGRAMS
from tiledsl.runtime.programs import package_digest
from tiledsl.runtime.store import Damaged
from tiledsl.runtime.store import Record
from tiledsl.runtime.store import pack_record
from tiledsl.runtime.store import store
from tiledsl.runtime.store import unpack_record

KIND = "tiledsl bundle 1"


def bundle(manifest: Manifest | str | Path, path: str | Path) -> Path:
    """Writes the programs of a manifest to one file, compiling those that the cache lacks.

    The file holds cubins, CUDA text, reports, and the timings of the tuner for these kernels.

    Raises:
        LaunchError: a program cannot be compiled, or the manifest cannot be read.
    """
    found = manifest if isinstance(manifest, Manifest) else Manifest.load(manifest)
    programs: dict[str, Any] = {}
    blobs: dict[str, bytes] = {}
    for key, record in records_of(found.entries).items():
        programs[key] = {"facts": dict(record.facts), "blobs": list(record.blobs)}
        blobs |= {f"{key}/{name}": data for name, data in record.blobs.items()}
    names = {entry["kernel"].rsplit(".", 1)[-1].rpartition(":")[2] for entry in found.entries}
    facts = {
        "kind": KIND,
        "package": package_digest(),
        "programs": programs,
        "timings": _timings(names),
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.write_bytes(pack_record(Record(facts, blobs)))
    return fresh.replace(target)


def load_bundle(path: str | Path) -> int:
    """Makes the programs of a bundle known to this process; how many there are.

    Raises:
        LaunchError: the file is damaged, no bundle, or made by another version of this package.
    """
    try:
        record = unpack_record(Path(path).read_bytes())
    except (OSError, Damaged) as fault:
        raise LaunchError(f"bundle {path} cannot be read: {fault}") from fault
    facts = record.facts
    if facts.get("kind") != KIND:
        raise LaunchError(f"{path} is no bundle")
    if facts["package"] != package_digest():
        raise LaunchError(
            f"bundle {path} was made by another version of tiledsl",
            hint="make it again with the version that loads it",
        )
    for key, program in facts["programs"].items():
        blobs = {name: record.blobs[f"{key}/{name}"] for name in program["blobs"]}
        PROGRAMS.add(key, Record(program["facts"], blobs))
    for key, known in facts["timings"].items():
        tunings.BUNDLED[key] = {k: float(v) for k, v in known.items()}
    return len(facts["programs"])


def _timings(kernels: set[str]) -> dict[str, dict[str, str]]:
    """Timings in the disk cache of kernels, by key."""
    out: dict[str, dict[str, str]] = {}
    for path in store().files():
        kind, _, key = path.stem.partition("-")
        record = store().get(kind, key) if kind == tunings.KIND else None
        if record is not None and record.facts.get("name") in kernels:
            out[key] = dict(record.facts["ms"])
    return out
