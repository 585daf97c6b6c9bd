"""Names of Triton's language that are not there yet, and the nearest way that is."""

from __future__ import annotations

from types import ModuleType

from tiledsl.errors import NameUnresolved
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.frontend.scope import did_you_mean

LANGUAGE_MODULE = "tiledsl.language"

_POINTERS = (
    "declare the parameter as tl.Tensor and use a.load(offsets, block_shape), "
    "a.store(offsets, tile)"
)
_REDUCE = "reductions over a tile are not available; a matrix product with tl.dot sums over K"
_ATOMIC = "let each program write its own block of a tensor with c.store(offsets, tile)"
_SHAPE = "use tl.reshape, tl.trans or tl.expand_dims"
_FLOAT = "use tl.exp, tl.log, tl.sqrt and the other functions of tiledsl.language"
_DEBUG = (
    "use tl.static_print for what is known at compile time; "
    "on CPU tensors the kernel runs in an interpreter"
)

_HINTS: dict[str, str] = {
    **dict.fromkeys(
        ("load", "store", "make_block_ptr", "advance", "make_tensor_descriptor", "pointer_type"),
        _POINTERS,
    ),
    **dict.fromkeys(
        (
            "associative_scan", "cumsum", "cumprod", "softmax", "histogram", "sort", "topk",
            "gather",
        ),
        _REDUCE,
    ),
    **dict.fromkeys(
        (
            "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
            "atomic_xchg", "atomic_xor",
        ),
        _ATOMIC,
    ),
    **dict.fromkeys(
        (
            "join", "split", "cat", "interleave", "flip", "broadcast", "squeeze", "unsqueeze",
            "swizzle2d",
        ),
        _SHAPE,
    ),
    "standard": _FLOAT,
    **dict.fromkeys(("device_print", "device_assert"), _DEBUG),
    **dict.fromkeys(
        ("rand", "randn", "randint", "rand4x", "randint4x", "philox"),
        "make the random numbers on the host and pass them as a tensor",
    ),
    "dot_scaled": "scale the operands, or the result of tl.dot",
    "inline_asm_elementwise": "use the functions of tiledsl.language",
    "view": "use tl.reshape",
}  # fmt: skip


def missing_name(name: str, spelled: str, module: ModuleType) -> TileError:
    """The error for `module.name`, which does not exist."""
    if module.__name__ != LANGUAGE_MODULE:
        return NameUnresolved(
            f"module {module.__name__!r} has no {name!r}", hint=did_you_mean(name, dir(module))
        )
    if name in _HINTS:
        return SyntaxNotSupported(f"{spelled} is not supported", hint=_HINTS[name])
    return NameUnresolved(f"the language has no {spelled}", hint=did_you_mean(name, dir(module)))
