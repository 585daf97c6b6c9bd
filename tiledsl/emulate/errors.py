"""What a run of emitted text on the CPU can find."""

from __future__ import annotations

from tiledsl.errors import TileError

__all__ = ["EmulationFault", "NotEmulated"]


class EmulationFault(TileError):
    """Emitted text broke a rule of the hardware: a deadlock, a missing fence, an access out of bounds, ..."""


class NotEmulated(TileError):
    """Emitted text uses an instruction or a form that the emulation does not have, or it is no C++."""
