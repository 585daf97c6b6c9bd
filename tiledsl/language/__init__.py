"""The names that kernels use: `import tiledsl.language as tl`.

`names.py` lists them. Those that serve outside of kernels are here at once; the first other name
loads the rest, so that a process which finds its programs on disk never does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tiledsl import dtypes
from tiledsl.ir import host_functions
from tiledsl.ir import markers

if TYPE_CHECKING:
    from tiledsl.language.names import *  # noqa: F403

_SUBMODULES = ("core", "extra", "math", "standard")
_MARKERS = (
    "Auto", "PropagateNan", "Tensor", "TensorList", "auto", "constexpr", "tensor",
    "tensor_descriptor",
)  # fmt: skip

globals().update(dtypes.BY_USER_NAME, dtype=dtypes.DType, cdiv=host_functions.cdiv)
globals().update({name: getattr(markers, name) for name in _MARKERS})


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    names = importlib.import_module("tiledsl.language.names")
    listed: list[str] = names.__all__
    globals().update({n: getattr(names, n) for n in listed}, __all__=listed)
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return [*importlib.import_module("tiledsl.language.names").__all__]
