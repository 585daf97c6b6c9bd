"""`tl.math`: elementary functions."""

from __future__ import annotations

from tiledsl.ir.host_functions import cdiv
from tiledsl.ir.ops.elementwise_functions import abs
from tiledsl.ir.ops.elementwise_functions import ceil
from tiledsl.ir.ops.elementwise_functions import clamp
from tiledsl.ir.ops.elementwise_functions import cos
from tiledsl.ir.ops.elementwise_functions import erf
from tiledsl.ir.ops.elementwise_functions import exp
from tiledsl.ir.ops.elementwise_functions import exp2
from tiledsl.ir.ops.elementwise_functions import floor
from tiledsl.ir.ops.elementwise_functions import fma
from tiledsl.ir.ops.elementwise_functions import log
from tiledsl.ir.ops.elementwise_functions import log2
from tiledsl.ir.ops.elementwise_functions import maximum as max
from tiledsl.ir.ops.elementwise_functions import minimum as min
from tiledsl.ir.ops.elementwise_functions import rsqrt
from tiledsl.ir.ops.elementwise_functions import sigmoid
from tiledsl.ir.ops.elementwise_functions import sin
from tiledsl.ir.ops.elementwise_functions import sqrt
from tiledsl.ir.ops.elementwise_functions import tanh
from tiledsl.ir.ops.elementwise_library import div_rn
from tiledsl.ir.ops.elementwise_library import fdiv
from tiledsl.ir.ops.elementwise_library import sqrt_rn
from tiledsl.ir.ops.elementwise_library import umulhi
from tiledsl.language.extra.libdevice import acos
from tiledsl.language.extra.libdevice import acosh
from tiledsl.language.extra.libdevice import asin
from tiledsl.language.extra.libdevice import asinh
from tiledsl.language.extra.libdevice import atan
from tiledsl.language.extra.libdevice import atan2
from tiledsl.language.extra.libdevice import atanh
from tiledsl.language.extra.libdevice import copysign
from tiledsl.language.extra.libdevice import cosh
from tiledsl.language.extra.libdevice import erfc
from tiledsl.language.extra.libdevice import expm1
from tiledsl.language.extra.libdevice import fmod
from tiledsl.language.extra.libdevice import hypot
from tiledsl.language.extra.libdevice import isinf
from tiledsl.language.extra.libdevice import isnan
from tiledsl.language.extra.libdevice import log1p
from tiledsl.language.extra.libdevice import log10
from tiledsl.language.extra.libdevice import mulhi
from tiledsl.language.extra.libdevice import nearbyint
from tiledsl.language.extra.libdevice import pow
from tiledsl.language.extra.libdevice import rint
from tiledsl.language.extra.libdevice import round
from tiledsl.language.extra.libdevice import sinh
from tiledsl.language.extra.libdevice import tan
from tiledsl.language.extra.libdevice import trunc

__all__ = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cdiv", "ceil", "clamp",
    "copysign", "cos", "cosh", "div_rn", "erf", "erfc", "exp", "exp2", "expm1", "fdiv", "floor",
    "fma", "fmod", "hypot", "isinf", "isnan", "log", "log1p", "log2", "log10", "max", "min",
    "mulhi",
    "nearbyint", "pow", "rint", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "sqrt_rn",
    "tan", "tanh", "trunc", "umulhi",
]  # fmt: skip
