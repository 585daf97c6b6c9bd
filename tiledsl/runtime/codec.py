"""Dataclasses of the runtime as JSON values, for the cache, manifests and bundles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from dataclasses import is_dataclass
from typing import Any
from typing import cast

from tiledsl import dtypes
from tiledsl.codegen import module as parts
from tiledsl.codegen.module import KernelModule
from tiledsl.dtypes import DType
from tiledsl.ir import specs
from tiledsl.ir.markers import Auto
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.runtime.store import Record

KNOWN: dict[str, type[Any]] = {
    c.__name__: c
    for c in (
        *(v for v in vars(parts).values() if isinstance(v, type) and is_dataclass(v)),
        *(v for v in vars(specs).values() if isinstance(v, type) and is_dataclass(v)),
        Auto,
    )
}


def encode(value: Any) -> Any:
    """A JSON value. Raises TypeError for what has none."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple | list):
        return [encode(v) for v in cast("tuple[Any, ...]", value)]
    if isinstance(value, DType) and dtypes.BY_NAME.get(value.name) == value:
        return {"dtype": value.name}
    kind = cast("type[Any]", type(value))
    if KNOWN.get(kind.__name__) is kind:
        return {"a": kind.__name__} | {f.name: encode(getattr(value, f.name)) for f in fields(kind)}
    raise TypeError(f"{value!r} cannot be kept in a file")


def decode(value: Any) -> Any:
    """What `encode` was given; lists come back as tuples."""
    if isinstance(value, list):
        return tuple(decode(v) for v in cast("list[Any]", value))
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value)
    if "float" in found:
        return float.fromhex(found["float"])
    if "dtype" in found and len(found) == 1:
        return dtypes.BY_NAME[found["dtype"]]
    return KNOWN[found["a"]](**{k: decode(v) for k, v in found.items() if k != "a"})


def encode_module(module: KernelModule) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Facts and texts of a module."""
    facts = {
        f.name: encode(getattr(module, f.name))
        for f in fields(module)
        if f.name not in ("source", "headers")
    }
    facts["headers"] = [name for name, _ in module.headers]
    blobs = {"source.cu": module.source.encode()}
    blobs |= {f"header {name}": text.encode() for name, text in module.headers}
    return facts, blobs


def decode_module(facts: Mapping[str, Any], blobs: Mapping[str, bytes]) -> KernelModule:
    """The module that `encode_module` was given."""
    rest = {k: decode(v) for k, v in facts.items() if k != "headers"}
    headers = tuple((name, blobs[f"header {name}"].decode()) for name in facts["headers"])
    return KernelModule(source=blobs["source.cu"].decode(), headers=headers, **rest)


def encode_compiled(kernel: CompiledKernel) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Facts of a compilation, and the cubin."""
    left_out = ("cubin", "log", "ptx")
    facts = {
        f.name: encode(getattr(kernel, f.name)) for f in fields(kernel) if f.name not in left_out
    }
    return facts, {"cubin": kernel.cubin, "log": kernel.log.encode()}


def decode_compiled(facts: Mapping[str, Any], blobs: Mapping[str, bytes]) -> CompiledKernel:
    """The compilation that `encode_compiled` was given."""
    rest = {k: decode(v) for k, v in facts.items()}
    return CompiledKernel(cubin=blobs["cubin"], log=blobs["log"].decode(), **rest)


def compiled_record(kernel: CompiledKernel, name: str) -> Record:
    """A cubin for the disk cache."""
    facts, blobs = encode_compiled(kernel)
    return Record({"name": name, "compiled": facts}, blobs)
