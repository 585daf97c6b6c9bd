"""tiledsl: warp-specialised CUDA C++ for NVIDIA Hopper from plain tile programs in Python."""

from tiledsl.errors import TileError
from tiledsl.jit import JitFunction
from tiledsl.jit import jit
from tiledsl.math import cdiv
from tiledsl.math import next_power_of_2

__all__ = ["JitFunction", "TileError", "cdiv", "jit", "next_power_of_2"]
__version__ = "0.1.0"
