"""Epilogues of random products: what happens to the sums, and how they are stored."""

from __future__ import annotations

from tiledsl.fuzz.draft import ACTIVATIONS
from tiledsl.fuzz.draft import Draft
from tiledsl.fuzz.draft import output_dtype


class Results:
    """Draws the epilogue of a kernel whose sums are `accs`."""

    def __init__(self, d: Draft, accs: list[str], *, pointers: bool, batched: bool) -> None:
        self.d = d
        self.accs = accs
        self.pointers = pointers
        self.batched = batched

    def draw(self, *, is_int: bool) -> None:
        """Joins the sums, changes them and stores one or two results."""
        d = self.d
        d.line("r = acc0" + (".to(tl.float32)" if is_int or d.chance(0.3) else ""))
        for acc in self.accs[1:]:
            o = f"{acc}.to(tl.float32)"
            joins = (f"r + {o}", f"r * tl.sigmoid({o})", f"tl.maximum(r, {o})", f"r - {o} * 0.5")
            d.line(f"r = {d.pick(joins)}")
        for _ in range(d.weighted({0: 4, 1: 4, 2: 3, 3: 1})):
            d.line(f"r = {self.step()}")
        self.store("c", "r", output_dtype(d))
        if d.chance(0.2):
            if d.chance(0.5):
                d.line(f"r = {d.pick(ACTIVATIONS).format('r')}")
            self.second()
        if d.chance(0.03) and not self.batched:
            d.tensor("copied", ("M", "N"), "bfloat16")
            d.tensor("copy", ("M", "N"), "bfloat16", "out")
            d.line("copy.store((m, n), copied.load((m, n), (BM, BN)) * 2.0)")

    def step(self) -> str:
        d = self.d
        kind = d.weighted({"scale": 3, "bias_n": 3, "bias_m": 2, "residual": 2, "activation": 5,
                           "cast": 2, "reduce": 2, "mask": 2})  # fmt: skip
        at = "z, " if self.batched else ""
        batch = ("Z",) if self.batched else ()
        name = f"e{len(d.arguments)}"
        match kind:
            case "scale":
                d.scalars["alpha"] = d.pick([0.5, 1.5, -0.75])
                return "r * alpha"
            case "bias_n" | "bias_m":
                outer, start, block, index = "M", "m", "BM", "[:, None]"
                if kind == "bias_n":
                    outer, start, block, index = "N", "n", "BN", "[None, :]"
                d.tensor(name, (outer,), d.pick(["bfloat16", "float32", "float16"]))
                return f"r {d.pick('+*')} {name}.load(({start},), ({block},)).to(tl.float32){index}"
            case "residual":
                d.tensor(name, (*batch, "M", "N"), d.pick(["bfloat16", "float32", "float16"]))
                return f"r + {name}.load(({at}m, n), (BM, BN)).to(tl.float32)"
            case "activation":
                return d.pick(ACTIVATIONS).format("r")
            case "cast":
                half = d.pick(["tl.bfloat16", "tl.float16"])
                return f"(r * 0.125).to({half}).to(tl.float32)"
            case "reduce":
                return d.pick([
                    "r - tl.max(r, 1)[:, None]",
                    "r / (1.0 + tl.sum(tl.abs(r), 1)[:, None])",
                    "r - tl.min(r, 0)[None, :]",
                    "r * tl.rsqrt(tl.sum(r * r, 1)[:, None] + 1.0)",
                ])  # fmt: skip
            case _:
                return d.pick([
                    "tl.where(rows[:, None] >= cols[None, :], r, 0.0)",
                    "tl.where((cols < 50)[None, :], r, -1.0)",
                    "r * (rows[:, None] + cols[None, :]).to(tl.float32) * 0.01",
                ])  # fmt: skip

    def store(self, name: str, value: str, dtype: str) -> None:
        d = self.d
        if self.pointers and d.chance(0.6):
            d.tensor(name, ("M", "N"), dtype, "out", pointer=True)
            d.scalars |= {f"s_{name}_0": f"{name}.stride(0)", f"s_{name}_1": f"{name}.stride(1)"}
            at = f"{name} + rows[:, None] * s_{name}_0 + cols[None, :] * s_{name}_1"
            d.line(f"tl.store({at}, {value}, mask=(rows[:, None] < M) & (cols[None, :] < N))")
            return
        batch = ("Z",) if self.batched else ()
        at = "z, " if batch else ""
        if d.chance(0.1) and not batch:
            d.tensor(name, ("N", "M"), dtype, "out")
            d.line(f"{name}.store((n, m), tl.trans({value}))")
            return
        d.tensor(name, (*batch, "M", "N"), dtype, "out")
        cast = f"{value}.to({name}.dtype)" if d.chance(0.4) else value
        if d.chance(0.04):
            with d.block("if pid_m == 0:"):
                d.line(f"{name}.store(({at}m, n), {cast})")
            return
        d.line(f"{name}.store(({at}{self.place('m')}, {self.place('n')}), {cast})")

    def place(self, start: str) -> str:
        """Where a block is stored: as it was computed, or moved, also before the tensor."""
        if not self.d.chance(0.05):
            return start
        return f"{start} {self.d.pick(['- 3', '+ 5', '- 8', '+ 16', '- 32'])}"

    def second(self) -> None:
        """Another result: a tile, or a row per program."""
        d = self.d
        if self.batched or d.chance(0.5):
            self.store("c2", "r", output_dtype(d))
            return
        axis = d.rng.randint(0, 1)
        how = d.pick(["tl.sum", "tl.max"])
        if axis:
            d.tensor("c2", ("cdiv(N, BN)", "M"), "float32", "out")
            d.line(f"c2.store((pid_n, m), {how}(r, 1))")
        else:
            d.tensor("c2", ("cdiv(M, BM)", "N"), "float32", "out")
            d.line(f"c2.store((pid_m, n), {how}(r, 0))")
