"""`tl.extra.cuda`: libdevice and functions of CUDA devices."""

from __future__ import annotations

from tiledsl.ir.ops.program_launch import gdc_launch_dependents
from tiledsl.ir.ops.program_launch import gdc_wait
from tiledsl.language.extra import libdevice

__all__ = ["gdc_launch_dependents", "gdc_wait", "libdevice"]
