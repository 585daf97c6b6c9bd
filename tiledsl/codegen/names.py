"""Identifiers of the emitted text.

`<user name>_<n>`, numbered in order of emission, never a word of C++.
"""

from __future__ import annotations

import re
from functools import cache

from tiledsl.codegen.environment import headers

__all__ = ["BUILT_IN", "Names", "kernel_name"]

_KEYWORDS = frozenset((
    "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class",
    "const", "constexpr", "continue", "decltype", "default", "delete", "do", "double", "else",
    "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if",
    "inline", "int", "long", "mutable", "namespace", "new", "not", "operator", "or", "private",
    "protected", "public", "register", "return", "short", "signed", "sizeof", "static",
    "static_assert", "struct", "switch", "template", "this", "throw", "true", "try", "typedef",
    "typename", "union", "unsigned", "using", "virtual", "void", "volatile", "while", "xor",
))  # fmt: skip
_LOCALS = frozenset((
    "smem", "smem_base", "warpgroup", "warp", "lane", "leader", "i", "j", "threadIdx", "blockIdx",
    "blockDim", "gridDim", "warpSize", "min", "max", "tdsl", "signbit", "isinf", "isnan",
    "jitter", "named_barriers", "watched",
))  # fmt: skip
BUILT_IN = frozenset(
    """
    acos acosf acosh acoshf asin asinf asinh asinhf assert atan atan2 atan2f atanf atanh
    atanhf cbrt cbrtf ceilf clock64 copysign copysignf cosf cosh coshf cospi cospif
    cyl_bessel_i0 cyl_bessel_i0f cyl_bessel_i1 cyl_bessel_i1f dim3 erfc erfcf erfcinv erfcinvf
    erfcx erfcxf erff erfinv erfinvf exp10 exp10f exp2f expf expm1 expm1f fabs fabsf fdim
    fdimf fdivide fdividef floorf fmaf fmax fmaxf fmin fminf fmod fmodf free frexp frexpf
    hypot hypotf ilogb ilogbf j0 j0f j1 j1f jn jnf labs ldexp ldexpf lgamma lgammaf llabs
    llmax llmin llrint llrintf llround llroundf log10 log10f log1p log1pf log2f logb logbf
    logf lrint lrintf lround lroundf make_int2 make_int4 malloc modf modff nan nanf nearbyint
    nearbyintf nextafter nextafterf norm norm3d norm3df norm4d norm4df normcdf normcdff
    normcdfinv normcdfinvf normf powf printf rcbrt rcbrtf remainder remainderf remquo remquof
    rhypot rhypotf rint rintf rnorm rnorm3d rnorm3df rnorm4d rnorm4df rnormf round roundf
    rsqrtf scalbln scalblnf scalbn scalbnf sincos sincosf sincospi sincospif sinf sinh sinhf
    sinpi sinpif size_t sqrtf tan tanf tanhf tgamma tgammaf trunc truncf ullmax ullmin umax
    umin va_arg va_copy va_end va_start y0 y0f y1 y1f yn ynf
    """.split()  # noqa: SIM905 - one word a line would be as long as the module
)
"""Functions that NVRTC declares for every program, which no kernel may be called."""
_EMITTED = re.compile(r"main|__\w+|(?:Load|Store|Atomic)\w*|inline_asm_\d+")
"""What the text of a kernel itself defines before its entry, and what is reserved."""
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
    """The name of a kernel's entry: the user's, unless its text, headers or NVRTC have it too."""
    if _EMITTED.fullmatch(name):
        return f"kernel_{name.strip('_')}"
    return f"{name}_kernel" if name in _taken() | BUILT_IN else name


class Names:
    """Hands out identifiers; deterministic in the order of requests."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def exact(self, stem: str) -> str:
        """The stem itself when it is free (kernel parameters), else with a suffix."""
        stem = _identifier(stem)
        if _EMITTED.fullmatch(stem):
            stem = f"arg_{stem.strip('_')}"
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
