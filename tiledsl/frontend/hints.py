"""Names that are close to one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """`did you mean 'x' or 'y'?`, or None when no name is close."""
    candidates = sorted({k for k in known if not k.startswith("__")})
    close = difflib.get_close_matches(name, candidates, n=2)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else None
