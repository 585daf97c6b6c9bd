"""Random kernels without dots: elementwise chains, reductions and scans of rows.

Tiles have any size; they are read and written through tensors and through pointers.
"""

from __future__ import annotations

from tiledsl.fuzz.draft import ACTIVATIONS
from tiledsl.fuzz.draft import Draft
from tiledsl.fuzz.draft import output_dtype

INPUTS = {"bfloat16": 3, "float16": 2, "float32": 4, "int8": 1, "int32": 1, "float8e4nv": 1}
REDUCTIONS = (
    "r - tl.max(r, {axis}){at}",
    "r / (1.0 + tl.sum(tl.abs(r), {axis}){at})",
    "r * tl.rsqrt(tl.sum(r * r, {axis}){at} * 0.01 + 1.0)",
    "r - tl.min(r, {axis}){at}",
    "tl.exp(r - tl.max(r, {axis}){at})",
    "tl.cumsum(r, {axis})",
)


class Rows:
    """Draws one kernel of tiles [BM, BN]."""

    def __init__(self, d: Draft) -> None:
        self.d = d
        self.pointers = d.chance(0.5)

    def draw(self) -> None:
        d = self.d
        d.constants |= {
            "BM": d.weighted({1: 2, 4: 1, 8: 1, 16: 2, 24: 1, 32: 2, 64: 2, 3: 1}),
            "BN": d.weighted({16: 1, 32: 1, 40: 1, 64: 3, 128: 3, 200: 1, 256: 2, 512: 1, 7: 1}),
        }
        d.size("M", d.constants["BM"], 4)
        d.size("N", d.constants["BN"], 3)
        loop = d.chance(0.5)
        d.grid = ["cdiv(M, BM)"] if loop else ["cdiv(M, BM)", "cdiv(N, BN)"]
        d.line("m = tl.program_id(0) * BM")
        if not loop:
            d.line("n = tl.program_id(1) * BN")
        d.line("rows = m + tl.arange(0, BM)")
        if self.pointers:
            d.scalars |= {"M": "M", "N": "N"}
        for i in range(d.weighted({1: 5, 2: 2})):
            d.tensor(f"x{i}", ("M", "N"), d.weighted(INPUTS), pointer=self.pointers)
        if loop:
            self.online()
        else:
            self.tile()
        d.draw_options(
            ("num_warps", "num_stages", "fast_math", "enable_fp_fusion", "persistent"), 0.8
        )

    def at(self, name: str) -> str:
        """Addresses of a tile."""
        d = self.d
        d.scalars |= {f"s_{name}_{i}": f"{name}.stride({i})" for i in range(2)}
        return f"{name} + rows[:, None] * s_{name}_0 + (n + tl.arange(0, BN))[None, :] * s_{name}_1"

    @property
    def inside(self) -> str:
        return "(rows[:, None] < M) & ((n + tl.arange(0, BN))[None, :] < N)"

    def read(self) -> None:
        d = self.d
        parts: list[str] = []
        for a in [a for a in d.arguments if a.role == "in"]:
            if self.pointers:
                text = f"tl.load({self.at(a.name)}, mask={self.inside}, other=0)"
            else:
                text = f"{a.name}.load((m, n), (BM, BN))"
            parts.append(f"{text}.to(tl.float32)")
        d.line("r = " + f" {d.pick('+*-')} ".join(parts))

    def change(self, most: int) -> None:
        d = self.d
        for _ in range(d.rng.randint(0, most)):
            if d.chance(0.45):
                axis = d.rng.randint(0, 1)
                at = "[:, None]" if axis else "[None, :]"
                d.line(f"r = {d.pick(REDUCTIONS).format(axis=axis, at=at)}")
            else:
                d.line(f"r = {d.pick(ACTIVATIONS).format('r')}")

    def write(self, name: str, *, new: bool = True) -> None:
        d = self.d
        if new:
            d.tensor(name, ("M", "N"), output_dtype(d), "out", pointer=self.pointers)
        if self.pointers:
            d.line(f"tl.store({self.at(name)}, r, mask={self.inside})")
        else:
            d.line(f"{name}.store((m, n), r)")

    def tile(self) -> None:
        d = self.d
        self.read()
        self.change(4)
        self.write("y")
        if d.chance(0.3) and not self.pointers:
            axis = d.rng.randint(0, 1)
            grid = ("cdiv(N, BN)", "M") if axis else ("cdiv(M, BM)", "N")
            d.tensor("e", grid, "float32", "out")
            offsets = "(tl.program_id(1), m)" if axis else "(tl.program_id(0), n)"
            d.line(f"e.store({offsets}, {d.pick(['tl.sum', 'tl.max', 'tl.min'])}(r, {axis}))")

    def online(self) -> None:
        """A pass that gathers a row's sum or maximum, and a second one that uses it."""
        d = self.d
        most = d.chance(0.5)
        start = "tl.full((BM,), -1000.0, tl.float32)" if most else "tl.zeros((BM,), tl.float32)"
        d.line(f"t = {start}")
        end = "N" if self.pointers else "x0.shape[1]"
        with d.block(f"for n in range(0, {end}, BN):"):
            self.read()
            self.change(1)
            d.line("t = tl.maximum(t, tl.max(r, 1))" if most else "t = t + tl.sum(r * r, 1)")
        if d.chance(0.3) and not self.pointers:
            d.tensor("e", ("M",), "float32", "out")
            d.line("e.store((m,), t)")
            if d.chance(0.5):
                return
        with d.block(f"for n in range(0, {end}, BN):"):
            self.read()
            d.line(f"r = {'r - t[:, None]' if most else 'r * tl.rsqrt(t + 1.0)[:, None]'}")
            self.change(1)
            self.write("y")


def draw_rows(d: Draft) -> None:
    """Kernels without dots."""
    Rows(d).draw()
