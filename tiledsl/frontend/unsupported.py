"""Names of Triton's language that are not there yet, and the nearest way that is."""

from __future__ import annotations

import importlib
from types import ModuleType

from tiledsl.errors import NameUnresolved
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.frontend.hints import did_you_mean
from tiledsl.ir.builtin import Builtin

LANGUAGE_MODULE = "tiledsl.language"


_HINTS: dict[str, str] = {
    "atomic_load": "use tl.load(pointer, volatile=True)",
    "atomic_poll": "write a loop: `while tl.atomic_cas(pointer, 0, 0) == 0: pass`",
    "atomic_store": "use tl.atomic_xchg(pointer, value)",
}  # fmt: skip


_FORMULAS: dict[str, str] = {
    "mean": "tl.sum(x, axis) / n",
    "matmul": "tl.dot(a, b, acc)",
    "mm": "tl.dot(a, b, acc)",
}


_TORCH_DTYPES = {
    "bfloat16": "bfloat16", "bool": "int1", "double": "float64", "float": "float32",
    "float16": "float16", "float32": "float32", "float64": "float64",
    "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5", "half": "float16", "int": "int32",
    "int16": "int16", "int32": "int32", "int64": "int64", "int8": "int8", "long": "int64",
    "short": "int16", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "uint8": "uint8",
}  # fmt: skip


def dtype_twin(value: object) -> str | None:
    """`tl.bfloat16` for a dtype of torch or numpy."""
    text = getattr(value, "__name__", None) or str(value)
    name = _TORCH_DTYPES.get(text.rpartition(".")[2])
    return f"tl.{name}" if name else None


def function_twin(name: str) -> str | None:
    """`tl.exp` for the name of a function of math, numpy or torch that the language has too."""
    for module, prefix in (
        (LANGUAGE_MODULE, "tl."),
        (f"{LANGUAGE_MODULE}.math", "tl.math."),
        (f"{LANGUAGE_MODULE}.extra.libdevice", "libdevice."),
    ):
        if isinstance(getattr(importlib.import_module(module), name, None), Builtin):
            return f"{prefix}{name}"
    return None


def capture_hint(value: object) -> str:
    """What to write instead of a value that a kernel cannot capture."""
    twin = dtype_twin(value) if type(value).__name__ == "dtype" else None
    if twin is None and callable(value):
        twin = function_twin(getattr(value, "__name__", ""))
    if twin is not None:
        return f"write {twin}"
    return (
        "pass it as an argument; "
        "numbers, strings, dtypes, tuples, functions and modules are captured"
    )


def missing_name(name: str, spelled: str, module: ModuleType) -> TileError:
    """The error for `module.name`, which does not exist."""
    if module.__name__ != LANGUAGE_MODULE:
        return NameUnresolved(
            f"module {module.__name__!r} has no {name!r}", hint=did_you_mean(name, dir(module))
        )
    if name in _HINTS:
        return SyntaxNotSupported(f"{spelled} is not supported", hint=_HINTS[name])
    hint = language_hint(name) or did_you_mean(name, dir(module))
    return NameUnresolved(f"the language has no {spelled}", hint=hint)


def language_hint(name: str) -> str | None:
    """What to write for a name that Triton or torch has, as a function or a method."""
    if name in _FORMULAS:
        return f"write {_FORMULAS[name]}"
    twin = function_twin(name)
    return f"did you mean {twin}?" if twin else None
