"""`tl.core`: the names of the language by the module in which Triton keeps most of them."""

from __future__ import annotations

from tiledsl.ir.markers import constexpr as _constexpr
from tiledsl.language.names import *  # noqa: F403
from tiledsl.language.names import __all__ as __all__  # noqa: PLC0414

CONSTEXPR_0 = _constexpr(0)
