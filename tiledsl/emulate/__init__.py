"""Runs the emitted CUDA text on the CPU.

The kernel and its device headers are compiled by a host C++ compiler, their inline PTX translated into calls of an
emulated machine (`templates/emulation/`): threads are fibers, mbarriers, TMA, wgmma and the rest follow the rules of the
PTX ISA, asynchronous work is done at a time that a seed picks, and what breaks a rule raises `EmulationFault`.
"""

from __future__ import annotations

from tiledsl.emulate.errors import EmulationFault
from tiledsl.emulate.errors import NotEmulated
from tiledsl.emulate.launch import run

__all__ = ["EmulationFault", "NotEmulated", "run"]
