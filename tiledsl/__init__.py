"""tiledsl: warp-specialised CUDA C++ for NVIDIA Hopper from plain tile programs in Python.

What a launch does not need is imported at its first use.
"""

import importlib
from typing import TYPE_CHECKING

from tiledsl import language
from tiledsl.errors import PipelineStall
from tiledsl.errors import TileError
from tiledsl.hooks import freeze
from tiledsl.ir.markers import constexpr
from tiledsl.jit import JitFunction
from tiledsl.jit import jit
from tiledsl.jit import set_allocator
from tiledsl.math import cdiv
from tiledsl.math import constexpr_function
from tiledsl.math import next_power_of_2
from tiledsl.runtime.descriptor import TensorDescriptor

if TYPE_CHECKING:
    from tiledsl import emulate
    from tiledsl import simulator
    from tiledsl import testing
    from tiledsl import tools
    from tiledsl.aot import export
    from tiledsl.bundles import bundle
    from tiledsl.bundles import load_bundle
    from tiledsl.config import Config
    from tiledsl.interface import heuristics
    from tiledsl.manifest import record
    from tiledsl.manifest import warmup
    from tiledsl.runtime.custom_op import op
    from tiledsl.tuner import Autotuner
    from tiledsl.tuner import autotune

JITFunction = JitFunction

__all__ = [
    "Autotuner",
    "Config",
    "JITFunction",
    "JitFunction",
    "PipelineStall",
    "TensorDescriptor",
    "TileError",
    "autotune",
    "bundle",
    "cdiv",
    "constexpr",
    "constexpr_function",
    "emulate",
    "export",
    "freeze",
    "heuristics",
    "jit",
    "language",
    "load_bundle",
    "next_power_of_2",
    "op",
    "record",
    "set_allocator",
    "simulator",
    "testing",
    "tools",
    "warmup",
]
__version__ = "0.1.0"

_LATER = {
    "Autotuner": "tuner",
    "Config": "config",
    "autotune": "tuner",
    "bundle": "bundles",
    "export": "aot",
    "heuristics": "interface",
    "load_bundle": "bundles",
    "op": "runtime.custom_op",
    "record": "manifest",
    "warmup": "manifest",
}


def __getattr__(name: str) -> object:
    if name in ("emulate", "simulator", "testing", "tools"):
        return importlib.import_module(f"tiledsl.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"tiledsl.{_LATER[name]}"), name)
    globals()[name] = found
    return found
