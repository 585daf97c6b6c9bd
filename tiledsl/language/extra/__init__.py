"""`tl.extra`: libdevice, and what exists on CUDA only."""

from __future__ import annotations

from tiledsl.language.extra import cuda
from tiledsl.language.extra import libdevice

__all__ = ["cuda", "libdevice"]
