"""tiledsl: warp-specialised CUDA C++ for NVIDIA Hopper from plain tile programs in Python."""

from tiledsl import language
from tiledsl import testing
from tiledsl.aot import export
from tiledsl.bundles import bundle
from tiledsl.bundles import load_bundle
from tiledsl.config import Config
from tiledsl.errors import TileError
from tiledsl.hooks import freeze
from tiledsl.interface import heuristics
from tiledsl.ir.markers import constexpr
from tiledsl.jit import JitFunction
from tiledsl.jit import jit
from tiledsl.jit import set_allocator
from tiledsl.manifest import record
from tiledsl.manifest import warmup
from tiledsl.math import cdiv
from tiledsl.math import next_power_of_2
from tiledsl.runtime.custom_op import op
from tiledsl.runtime.descriptor import TensorDescriptor
from tiledsl.tuner import Autotuner
from tiledsl.tuner import autotune

JITFunction = JitFunction

__all__ = [
    "Autotuner",
    "Config",
    "JITFunction",
    "JitFunction",
    "TensorDescriptor",
    "TileError",
    "autotune",
    "bundle",
    "cdiv",
    "constexpr",
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
    "testing",
    "warmup",
]
__version__ = "0.1.0"
