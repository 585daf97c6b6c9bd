"""Random kernels of whole rows, a program each: they stay for the next row, or share long ones."""

from __future__ import annotations

from tiledsl.fuzz.draft import ACTIVATIONS
from tiledsl.fuzz.draft import Draft
from tiledsl.fuzz.draft import output_dtype

INPUTS = {"bfloat16": 4, "float16": 2, "float32": 4, "int8": 1, "float8e4nv": 1}
BLOCKS = {64: 1, 256: 1, 512: 2, 1024: 3, 2048: 2, 4096: 2, 8192: 2, 16384: 2}
"""Elements of a row that a program holds; long rows are shared by a cluster."""
MOST_ELEMENTS = 1 << 16
"""Elements of a tensor, since all of them are computed in fp64 too."""
CHANGES = (
    "r - tl.max(r, 0)",
    "r / (1.0 + tl.sum(tl.abs(r), 0))",
    "r * tl.rsqrt(tl.sum(r * r, 0) * 0.01 + 1.0)",
    "r - tl.sum(r, 0) / N",
    "tl.exp(r - tl.max(r, 0))",
    "r - tl.min(r, 0)",
)


def draw_long_rows(d: Draft) -> None:
    """Rows of x, each changed by what its own elements amount to."""
    block = d.constants["BN"] = d.weighted(BLOCKS)
    most = max(2, min(40, MOST_ELEMENTS // block))
    d.sizes |= {"M": d.rng.randint(1, most), "N": _length(d, block)}
    d.scalars |= {"N": "N"}
    d.grid = ["M"]
    d.line("row = tl.program_id(0)")
    d.line("at = tl.arange(0, BN)")
    d.line("inside = at < N")
    names = [f"x{i}" for i in range(d.weighted({1: 5, 2: 2}))]
    parts = [f"{_row(d, name, d.weighted(INPUTS))}.to(tl.float32)" for name in names]
    d.line("r = " + f" {d.pick('+-*')} ".join(parts))
    if d.chance(0.3):
        d.tensor("each", ("M",), "float32", pointer=True, layout="row", fixed=True)
        d.line("r = r * tl.load(each + row)")
    for _ in range(d.rng.randint(1, 3)):
        d.line("r = tl.where(inside, r, 0.0)")
        d.line(f"r = {d.pick(CHANGES)}")
        if d.chance(0.4):
            d.line(f"r = {d.pick(ACTIVATIONS).format('r')}")
    if d.chance(0.4):
        d.tensor(
            "w", ("N",), d.pick(["bfloat16", "float32"]), pointer=True, layout="row", fixed=True
        )
        d.line("r = r * tl.load(w + at, mask=inside, other=0).to(tl.float32)")
    if d.chance(0.3):
        d.tensor("e", ("M",), "float32", "out", pointer=True, layout="row", fixed=True)
        total = d.pick(["tl.sum", "tl.max"])
        d.line(f"tl.store(e + row, {total}(tl.where(inside, r, 0.0), 0))")
    d.tensor("y", ("M", "N"), output_dtype(d), "out", pointer=True, layout=_layout(d), fixed=True)
    d.scalars["s_y"] = "y.stride(0)"
    d.line("tl.store(y + row * s_y + at, r, mask=inside)")
    if d.chance(0.65):
        d.options["persistent"] = True
    d.draw_options(("num_warps", "fast_math", "enable_fp_fusion"), 0.6)


def _length(d: Draft, block: int) -> int:
    """The length of a row: the block's, a few elements less, or some of it."""
    form = d.weighted({"whole": 3, "odd": 2, "even": 2, "short": 1})
    if form == "whole":
        return block
    if form == "odd":  # of rows that leave a line's room some are turned
        return block - d.rng.randint(1, min(d.pick([15, 200]), block // 2))
    low = block // 2 + 1 if form == "even" else 1
    return max(1, d.rng.randint(low, block) // 8 * 8)


def _layout(d: Draft) -> str:
    return d.weighted({"row": 4, "pitch": 2, "odd": 2, "shifted": 1})


def _row(d: Draft, name: str, dtype: str) -> str:
    """Adds a tensor; the program's row of it."""
    d.tensor(name, ("M", "N"), dtype, pointer=True, layout=_layout(d), fixed=True)
    d.scalars[f"s_{name}"] = f"{name}.stride(0)"
    other = d.pick(["", ", other=0", ", other=0.0"])
    return f"tl.load({name} + row * s_{name} + at, mask=inside{other})"
