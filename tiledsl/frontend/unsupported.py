"""Names of Triton's language that are not there yet, and the nearest way that is."""

from __future__ import annotations

from types import ModuleType

from tiledsl.errors import NameUnresolved
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.frontend.scope import did_you_mean

LANGUAGE_MODULE = "tiledsl.language"


_HINTS: dict[str, str] = {
    "atomic_load": "use tl.load(pointer, volatile=True)",
    "atomic_poll": "write a loop: `while tl.atomic_cas(pointer, 0, 0) == 0: pass`",
    "atomic_store": "use tl.atomic_xchg(pointer, value)",
}  # fmt: skip


def missing_name(name: str, spelled: str, module: ModuleType) -> TileError:
    """The error for `module.name`, which does not exist."""
    if module.__name__ != LANGUAGE_MODULE:
        return NameUnresolved(
            f"module {module.__name__!r} has no {name!r}", hint=did_you_mean(name, dir(module))
        )
    if name in _HINTS:
        return SyntaxNotSupported(f"{spelled} is not supported", hint=_HINTS[name])
    return NameUnresolved(f"the language has no {spelled}", hint=did_you_mean(name, dir(module)))
