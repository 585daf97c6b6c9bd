"""What the families of random kernels share: the text as it grows, arguments, sizes, options."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from typing import Any
from typing import TypeVar

from tiledsl import dtypes
from tiledsl.dtypes import DType
from tiledsl.fuzz.case import Argument
from tiledsl.fuzz.case import Case
from tiledsl.ws.overrides import Overrides

T = TypeVar("T")

LAYOUTS = {"row": 8, "col": 4, "pitch": 3, "colpitch": 2}
"""Such that TMA can read them, where the extents allow it."""
WILD = {"odd": 2, "shifted": 1, "gaps": 1}
OPERANDS = {
    "bfloat16": 8,
    "float16": 5,
    "float8e4nv": 3,
    "float8e5": 1,
    "int8": 2,
    "float32": 2,
}
ACTIVATIONS = (
    "tl.maximum({0}, 0.0)",
    "{0} * tl.sigmoid({0})",
    "tl.tanh({0})",
    "tl.exp(-tl.abs({0}))",
    "tl.where({0} > 0.0, {0}, {0} * 0.25)",
    "tl.minimum(tl.maximum({0}, -2.0), 2.0)",
    "{0} / (1.0 + tl.abs({0}))",
    "tl.sqrt(tl.abs({0}) + 1.0)",
    "tl.exp2({0} * 0.125 - 4.0)",
    "tl.log({0} * {0} + 1.0)",
)
OPTIONS: Mapping[str, Mapping[Any, int]] = {
    "num_stages": {1: 1, 2: 3, 3: 3, 4: 2, 7: 1},
    "num_consumers": {1: 2, 2: 3, 3: 1},
    "ping_pong": {True: 3, False: 2},
    "persistent": {True: 2, False: 2},
    "cluster": {1: 1, 2: 4, 4: 1},
    "split_k": {1: 1, 2: 3, 4: 1},
    "mma_depth": {1: 2, 2: 2, 3: 1},
    "swap_operands": {True: 2, False: 1},
    "warp_specialize": {True: 1, False: 1},
    "raster_group": {1: 1, 2: 1, 3: 1},
    "num_warps": {1: 1, 2: 1, 4: 2, 8: 2},
    "fast_math": {True: 1},
    "enable_fp_fusion": {False: 1},
}


@dataclass
class Draft:
    """A kernel in the making."""

    rng: random.Random
    family: str
    lines: list[str] = field(default_factory=list[str])
    depth: int = 1
    arguments: list[Argument] = field(default_factory=list[Argument])
    scalars: dict[str, float | str] = field(default_factory=dict[str, float | str])
    constants: dict[str, int] = field(default_factory=dict[str, int])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    grid: list[str] = field(default_factory=list[str])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    wild: bool = False
    """Whether extents and layouts may be such that TMA cannot read them."""

    def __post_init__(self) -> None:
        self.wild = self.chance(0.2)

    # ------------------------------------------------------------------ chance
    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, items: Sequence[T]) -> T:
        return self.rng.choice(items)

    def weighted(self, items: Mapping[T, int]) -> T:
        return self.rng.choices(list(items), list(items.values()))[0]

    # ------------------------------------------------------------------ text
    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Generator[None]:
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    # ------------------------------------------------------------------ parts
    def tensor(
        self,
        name: str,
        shape: tuple[str, ...],
        dtype: str,
        role: str = "in",
        layout: str = "",
        fixed: bool = False,
        **rest: Any,
    ) -> str:
        """Adds an argument; returns its name. fixed: of this layout, whatever is drawn."""
        chosen = layout or self.weighted(LAYOUTS)
        if self.wild and not fixed and self.chance(0.3):
            chosen = self.weighted(WILD)
        if len(shape) < 2 and chosen in ("col", "colpitch"):
            chosen = "row"
        self.arguments.append(Argument(name, shape, dtype, chosen, role, **rest))
        return name

    def size(self, name: str, tile: int, tiles: int, unit: int = 16) -> int:
        """Draws an extent: up to so many tiles, mostly a multiple of `unit` unless it is wild."""
        form = self.rng.random()
        if form < 0.4:
            n = -(-tile // unit) * unit * self.rng.randint(1, tiles)
        elif form < 0.8 or (not self.wild and form < 0.95):
            n = unit * self.rng.randint(1, max(1, tile * tiles // unit))
        else:
            n = self.rng.randint(1, tile * tiles)
        self.sizes[name] = n
        return n

    def draw_options(self, names: Sequence[str], mean: float) -> None:
        """Picks launch options, none half of the time; those of a single role contradict none."""
        if self.chance(0.5):
            return
        for name in names:
            if self.chance(mean / len(names)):
                self.options[name] = self.weighted(OPTIONS[name])
        if self.options.get("warp_specialize") is False:
            given = {f.name: self.options.get(f.name) for f in fields(Overrides)}
            for name in Overrides(**given).structure:
                del self.options[name]

    def dtype_of(self, name: str) -> DType:
        return dtypes.BY_USER_NAME[name]

    def finish(self, name: str, seed: int) -> Case:
        """The case."""
        params = [f"{a.name}" if a.pointer else f"{a.name}: tl.Tensor" for a in self.arguments
                  if not a.group]  # fmt: skip
        groups = dict.fromkeys(a.group for a in self.arguments if a.group)
        params += [f"{g}: tl.TensorList" for g in groups]
        params += list(self.scalars)
        params += [f"{c}: tl.constexpr" for c in self.constants]
        source = f"def kernel({', '.join(params)}):\n" + "\n".join(self.lines) + "\n"
        return Case(
            name, self.family, source, tuple(self.arguments), self.scalars, self.constants,
            self.sizes, tuple(self.grid), self.options, seed,
        )  # fmt: skip


def output_dtype(d: Draft) -> str:
    """The dtype of a result."""
    return d.weighted({"bfloat16": 5, "float16": 3, "float32": 4, "float8e4nv": 1})
