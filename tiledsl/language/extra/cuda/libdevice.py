"""The same functions as `tiledsl.language.extra.libdevice`."""

from __future__ import annotations

from tiledsl.language.extra.libdevice import *  # noqa: F403
