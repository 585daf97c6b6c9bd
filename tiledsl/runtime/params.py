"""Kernel parameters in memory: a buffer per launch, filled by a generated function per kernel."""

from __future__ import annotations

import itertools
import math
import operator
import struct
from collections.abc import Callable
from collections.abc import Mapping
from typing import Literal
from typing import SupportsFloat
from typing import assert_never

import numpy as np

from tiledsl.codegen.module import LAUNCH_SLOTS
from tiledsl.codegen.module import GridParam
from tiledsl.codegen.module import LaunchSlotParam
from tiledsl.codegen.module import Param
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.dtypes import DType
from tiledsl.dtypes import rounded
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError
from tiledsl.ir.specs import factors_in
from tiledsl.runtime.frame import ALIGN_BYTES
from tiledsl.runtime.frame import SIGNED_WORD
from tiledsl.runtime.frame import WORD
from tiledsl.runtime.frame import Frame
from tiledsl.runtime.frame import Setup
from tiledsl.runtime.tensor_map import MAP_BYTES
from tiledsl.runtime.tensor_map import encoder

Grid = tuple[int, int, int]
FLOAT32_LIMIT = 2.0**128 - 2.0**103
"""The least number that rounds to an infinity of f32."""

_SCALARS = {
    "i1": "?",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": SIGNED_WORD,
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": WORD,
    "f32": "f",
    "f64": "d",
    "f16": "H",
    "bf16": "H",
    "e4m3": "B",
    "e5m2": "B",
}


_launches = itertools.count()


class Packer:
    """Writes the parameters of one kernel from its bound arguments.

    offsets: place of each parameter in the buffer, bytes.
    source: the text of the generated function.
    """

    def __init__(self, params: tuple[Param, ...], setup: Setup | None = None) -> None:
        self.params, self.setup = params, setup or Setup()
        self.offsets, self.size, layout, order = layout_of(params)
        self._slots = tuple(
            o for p, o in zip(params, self.offsets, strict=True) if isinstance(p, LaunchSlotParam)
        )
        text = PackText()
        self.source = text.finish([text.value(params[at]) for at in order])
        names = text.names
        names["pack_into"] = struct.Struct(layout).pack_into
        exec(self.source, names)
        self._pack: Callable[[object, Mapping[str, object], Grid], None] = names["pack"]  # type: ignore[assignment]

    @property
    def has_slots(self) -> bool:
        """Whether each launch needs a tile counter of its own."""
        return bool(self._slots)

    def renew(self, frame: Frame) -> None:
        """Gives a buffer that is launched again a tile counter of its own."""
        for offset in self._slots:
            slot = next(_launches) % LAUNCH_SLOTS
            struct.pack_into("<i", frame.view, offset, slot)

    def frame(self) -> Frame:
        """A new buffer."""
        return Frame(self.size, declared(self.params, self.offsets), self.setup)

    def pack(self, frame: Frame, args: Mapping[str, object], grid: Grid) -> None:
        """Fills the buffer.

        Args:
            frame: made by `frame()`.
            args: bound arguments by name: tensors, Python scalars, None.
            grid: the grid that the user asked for.

        Raises:
            LaunchError: an argument is missing or does not fit its parameter; names it.
        """
        try:
            self._pack(frame.view, args, grid)
        except TileError:
            raise
        except (
            KeyError,
            AttributeError,
            TypeError,
            ValueError,
            IndexError,
            OverflowError,
            struct.error,
        ) as fault:
            raise self.explain(args, fault) from fault

    def explain(self, args: Mapping[str, object], fault: Exception) -> LaunchError:
        """The error for arguments that could not be packed; names the one that does not fit."""
        for param in self.params:
            if isinstance(param, GridParam | LaunchSlotParam):
                continue
            if param.arg not in args:
                return LaunchError(f"argument {param.arg} is missing")
            value = args[param.arg]
            if not isinstance(param, ScalarParam):
                if not hasattr(value, "data_ptr") and value is not None:
                    return LaunchError(
                        f"argument {param.arg}: expected a tensor, got {type(value).__name__}"
                    )
                continue
            try:
                struct.pack(f"@{_SCALARS[param.dtype.name]}", _converter(param.dtype)(value))
            except (TypeError, ValueError, OverflowError, struct.error):
                return LaunchError(f"argument {param.arg}: {value!r} does not fit {param.dtype}")
        return LaunchError(f"the arguments cannot be packed: {fault}")


def declared(params: tuple[Param, ...], offsets: tuple[int, ...]) -> tuple[int, ...]:
    """The offsets of what the signature declares: a table is one parameter."""
    return tuple(o for p, o in zip(params, offsets, strict=True) if p.name)


def layout_of(
    params: tuple[Param, ...],
) -> tuple[tuple[int, ...], int, str, tuple[int, ...]]:
    """Offsets, total size, the `struct` format of the buffer, and which parameter is where in it.

    Addresses come first, so that a launch can look at all of them at once; the format is native
    with all padding.
    """
    places = range(len(params))
    order = tuple(sorted(places, key=lambda at: not isinstance(params[at], PointerParam)))
    offsets = [0] * len(params)
    size, layout = 0, "@"
    for at in order:
        param = params[at]
        match param:
            case PointerParam():
                code, width, align = WORD, 8, 8
            case ShapeParam() | StrideParam():
                code, width, align = SIGNED_WORD, 8, 8
            case GridParam() | LaunchSlotParam():
                code, width, align = "i", 4, 4
            case ScalarParam():
                code = _SCALARS[param.dtype.name]
                width = align = struct.calcsize(f"@{code}")
            case TensorMapParam():
                code, width, align = f"{MAP_BYTES}s", MAP_BYTES, ALIGN_BYTES
            case _:
                assert_never(param)
        pad = -size % align
        layout += f"{pad}x{code}" if pad else code
        offsets[at] = size + pad
        size += pad + width
    return tuple(offsets), size, layout, order


class PackText:
    """The text of `pack(view, args, grid)`; each fact of a tensor is read once."""

    grid = "grid"
    """Name of the user's grid."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {}
        self._lines = ["def pack(view, args, grid):"]
        self._local: dict[tuple[str, str], str] = {}

    def read(self, arg: str, fact: Literal["value", "ptr", "shape", "strides"]) -> str:
        """Name of the local that holds a fact of an argument."""
        key = (arg, fact)
        if key in self._local:
            return self._local[key]
        tensor = f"args[{arg!r}]" if fact == "value" else self.read(arg, "value")
        forms = {
            "value": tensor,
            "ptr": f"0 if {tensor} is None else {tensor}.data_ptr()",
            "shape": f"tuple({tensor}.shape)",
            "strides": f"tuple({tensor}.stride())",
        }
        local = self._local[key] = f"{fact}_{len(self._local)}"
        self._lines.append(f"    {local} = {forms[fact]}")
        return local

    def value(self, param: Param) -> str:
        """Expression for a parameter."""
        match param:
            case PointerParam():
                return self.read(param.arg, "ptr")
            case ShapeParam():
                return f"{self.read(param.arg, 'shape')}[{param.dim}]"
            case StrideParam():
                return f"{self.read(param.arg, 'strides')}[{param.dim}]"
            case GridParam():
                return f"{self.grid}[{param.axis}]"
            case LaunchSlotParam():
                return f"{self._name('launch', _launches.__next__)}() % {LAUNCH_SLOTS}"
            case ScalarParam():
                function = self._name("convert", _converter(param.dtype))
                return f"{function}({self.read(param.arg, 'value')})"
            case TensorMapParam():
                ptr = self.read(param.arg, "ptr")
                if param.shape:
                    shape, strides = self._numbers(param.shape, 1), self._numbers(param.strides, 0)
                else:
                    shape = self.read(param.arg, "shape")
                    strides = self.read(param.arg, "strides")
                return f"{self._name('map', encoder(param))}({ptr}, {shape}, {strides})"
            case _:
                assert_never(param)

    def _numbers(self, items: tuple[int | str, ...], least: int) -> str:
        """A tuple of numbers and products of integer arguments, none of these below `least`."""
        index = self._name("index", operator.index)
        texts: list[str] = []
        for item in items:
            number, names = factors_in(item)
            factors = [f"max({least}, {index}({self.read(name, 'value')}))" for name in names]
            texts.append(" * ".join([str(number), *factors] if number != 1 else factors or ["1"]))
        return f"({', '.join(texts)},)"

    def finish(self, values: list[str]) -> str:
        """The whole text."""
        call = ", ".join(["view", "0", *values])
        return "\n".join([*self._lines, f"    pack_into({call})", ""])

    def _name(self, stem: str, value: object) -> str:
        name = f"{stem}_{len(self.names)}"
        self.names[name] = value
        return name


def _single(value: SupportsFloat) -> float:
    """A number that `struct` packs as an f32: beyond the range of f32 an infinity."""
    number = float(value)
    return math.copysign(math.inf, number) if abs(number) >= FLOAT32_LIMIT else number


def _converter(dtype: DType) -> Callable[[object], object]:
    """Python scalar -> the value that `struct` packs for a dtype."""
    if dtype.kind == "bool":
        return bool
    if dtype.is_int:
        return operator.index  # type: ignore[return-value]
    if dtype.bits >= 32:
        return float if dtype.bits == 64 else _single  # type: ignore[return-value]
    bits = np.dtype(f"u{dtype.bytes}")

    def narrow(value: object) -> int:
        return int(rounded(np.asarray(value, np.float64), dtype).view(bits)[()])

    return narrow
