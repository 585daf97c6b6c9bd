"""Runs the emitted CUDA text on the CPU.

The kernel and its device headers are compiled by a host C++ compiler, their inline PTX translated
into calls of an emulated machine (`templates/emulation/`): threads are fibers; mbarriers, TMA,
wgmma and the rest follow the rules of the PTX ISA; asynchronous work is done at a time that a seed
picks; what breaks a rule raises `EmulationFault`.

Where it differs from the hardware: sums of wgmma are rounded to fp32 after every product (the
tensor core keeps fewer bits of fp8 sums and adds in another order); approximate instructions are
exact; registers have no limits; generic accesses are seen by other threads at once, so that a
missing barrier shows only where a schedule exposes it or where a copy meets the access.
"""

from __future__ import annotations

from tiledsl.emulate.errors import EmulationFault
from tiledsl.emulate.errors import NotEmulated
from tiledsl.emulate.launch import run

__all__ = ["EmulationFault", "NotEmulated", "run"]
