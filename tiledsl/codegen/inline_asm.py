"""Functions of the prelude that hold the user's PTX."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tiledsl.codegen.environment import render
from tiledsl.ir.ops.tile_asm import constraint_letters

__all__ = ["AsmFunction", "AsmFunctions", "register_type"]

_TYPES = {"h": "u16", "r": "u32", "f": "float", "l": "u64", "d": "double"}


def register_type(letter: str) -> str:
    """C++ type of a register by its letter."""
    return _TYPES[letter]


@dataclass(frozen=True, slots=True)
class AsmFunction:
    """One function. text: the PTX as a C++ string."""

    name: str
    parameters: str
    text: str
    outputs: str
    inputs: str


class AsmFunctions:
    """Collects the texts in use, in order of first use."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str], AsmFunction] = {}

    def name(self, asm: str, constraints: str) -> str:
        """The function for a text, made on first use."""
        key = (asm, constraints)
        if key not in self._functions:
            name = f"inline_asm_{len(self._functions) + 1}"
            self._functions[key] = _function(name, asm, constraints)
        return self._functions[key].name

    def prelude(self) -> str:
        """Definitions; empty without any."""
        if not self._functions:
            return ""
        return render("generated/inline_asm.cuh.j2", functions=list(self._functions.values()))


def _function(name: str, asm: str, constraints: str) -> AsmFunction:
    outputs, inputs = constraint_letters(constraints)
    parameters = [f"{_TYPES[c]}& o{i}" for i, c in enumerate(outputs)]
    parameters += [f"{_TYPES[c]} i{i}" for i, c in enumerate(inputs)]
    lines = [json.dumps(line + "\n") for line in _ptx(asm).split("\n") if line.strip()]
    return AsmFunction(
        name,
        ", ".join(parameters),
        "\n               ".join(lines) or '""',
        ", ".join(f'"=&{c}"(o{i})' for i, c in enumerate(outputs)),
        ", ".join(f'"{c}"(i{i})' for i, c in enumerate(inputs)),
    )


def _ptx(asm: str) -> str:
    """LLVM's placeholders as those of CUDA: `$0` is `%0`, `$$` is `$`, a literal `%` is doubled."""
    text = asm.replace("%", "%%")
    return re.sub(
        r"\$(\$|\d+|\{\d+\})", lambda m: "$" if m[1] == "$" else f"%{m[1].strip('{}')}", text
    )
