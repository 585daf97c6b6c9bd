"""Identifiers of the emitted text.

`<user name>_<n>`, numbered in order of emission, never a word of C++.
"""

from __future__ import annotations

import re
from functools import cache

from tiledsl.codegen.environment import headers

__all__ = ["Names", "kernel_name"]

_KEYWORDS = frozenset((
    "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class",
    "const", "constexpr", "continue", "default", "delete", "do", "double", "else", "enum",
    "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline",
    "int", "long", "mutable", "namespace", "new", "not", "operator", "or", "private", "protected",
    "public", "register", "return", "short", "signed", "sizeof", "static", "struct", "switch",
    "template", "this", "throw", "true", "try", "typedef", "typename", "union", "unsigned", "using",
    "virtual", "void", "volatile", "while", "xor",
))  # fmt: skip
_LOCALS = frozenset((
    "smem", "smem_base", "warpgroup", "warp", "lane", "leader", "i", "j", "threadIdx", "blockIdx",
    "blockDim", "gridDim", "warpSize", "min", "max", "tdsl", "signbit", "isinf", "isnan",
    "jitter", "named_barriers", "watched",
))  # fmt: skip
_TEMPLATE = r"^(?:template <.*?> )?"
_DEFINITION = re.compile(
    rf"{_TEMPLATE}(?:struct(?: alignas\(\w+\))?|using) (\w+)|{_TEMPLATE}TDSL_FN [\w<> *]*?(\w+)\(",
    re.M,
)


@cache
def _taken() -> frozenset[str]:
    """Words that a kernel parameter must not hide.

    Keywords, our locals, functions and types of the headers.
    """
    words = {w for _, text in headers() for pair in _DEFINITION.findall(text) for w in pair if w}
    return frozenset(_KEYWORDS | _LOCALS | words)


def kernel_name(name: str) -> str:
    """The name of a kernel's entry: the user's, unless the headers have it too."""
    return f"{name}_kernel" if name in _taken() else name


class Names:
    """Hands out identifiers; deterministic in the order of requests."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def exact(self, stem: str) -> str:
        """The stem itself when it is free (kernel parameters), else with a suffix."""
        stem = _identifier(stem)
        name = stem if stem not in _taken() else f"{stem}_arg"
        return self._claim(name) or self.fresh(name)

    def fresh(self, stem: str) -> str:
        """`stem_<n>` with the next number of this stem."""
        stem = _identifier(stem) or "v"
        while True:
            number = self._next.get(stem, 0) + 1
            self._next[stem] = number
            if name := self._claim(f"{stem}_{number}"):
                return name

    def _claim(self, name: str) -> str | None:
        if name in self._used:
            return None
        self._used.add(name)
        return name


def _identifier(stem: str) -> str:
    clean = re.sub(r"\W", "_", stem, flags=re.ASCII)
    return f"v{clean}" if clean[:1].isdigit() else clean
