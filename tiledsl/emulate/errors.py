"""What a run of emitted text on the CPU can find."""

from __future__ import annotations

from tiledsl.errors import TileError

__all__ = ["EmulationFault", "NotEmulated"]


class EmulationFault(TileError):
    """Emitted text broke a rule of the hardware: a deadlock, a missing fence, a stray access."""


class NotEmulated(TileError):
    """Emitted text that the emulation has no form for, or that the host compiler rejects."""
