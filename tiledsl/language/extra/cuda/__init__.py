"""`tl.extra.cuda`: libdevice and functions of CUDA devices."""

from __future__ import annotations

from tiledsl.ir.ops.program_launch import gdc_launch_dependents
from tiledsl.ir.ops.program_launch import gdc_wait
from tiledsl.ir.ops.program_launch import globaltimer
from tiledsl.ir.ops.program_launch import num_threads
from tiledsl.ir.ops.program_launch import num_warps
from tiledsl.ir.ops.program_launch import smid
from tiledsl.language.extra import libdevice

__all__ = [
    "gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "num_threads", "num_warps",
    "smid",
]  # fmt: skip
