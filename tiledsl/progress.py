"""A bar that says how far tuning has come."""

from __future__ import annotations

import math
import sys
import time

BAR_WIDTH = 20


class Progress:
    """A bar on the terminal; nothing where standard error is none.

    end: when the budget is spent, on the clock of `time.monotonic`.
    """

    def __init__(self, name: str, what: str, total: int, end: float | None = None) -> None:
        self.text = f"{name}: {what}"
        self.total, self.end = total, end

    def show(self, done: int, best_ms: float = math.inf) -> None:
        """Draws the bar for so many candidates that are done."""
        filled = BAR_WIDTH * done // max(1, self.total)
        text = f"{self.text} [{'#' * filled:<{BAR_WIDTH}}] {done}/{self.total}"
        if math.isfinite(best_ms):
            text += f", best {best_ms:.4g} ms"
        if self.end is not None:
            text += f", {max(0.0, self.end - time.monotonic()):.0f} s left"
        self._write(text)

    def clear(self) -> None:
        """Removes the bar."""
        self._write("")

    def _write(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
