"""`tl.extra.cuda`: libdevice and functions of CUDA devices."""

from __future__ import annotations

from tiledsl.language.extra import libdevice

__all__ = ["libdevice"]
