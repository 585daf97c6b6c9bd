"""Random kernels whose loops carry more than sums of products: attention and its relatives."""

from __future__ import annotations

from tiledsl.fuzz.draft import Draft
from tiledsl.fuzz.draft import output_dtype

CHOICES = ("num_stages", "num_consumers", "ping_pong", "persistent", "cluster", "warp_specialize",
           "mma_depth", "num_warps", "fast_math", "raster_group")  # fmt: skip

CHANGES = (
    "tl.tanh(s * 0.5) * 2.0",
    "s + (rows[:, None] - (n + lanes)[None, :]).to(tl.float32) * 0.01",
    "s * 1.5",
)
"""Functions of the scores."""


class Flow:
    """Draws one kernel: a row tile of q against all rows of k, weights times v."""

    def __init__(self, d: Draft) -> None:
        self.d = d
        self.dtype = d.weighted({"bfloat16": 6, "float16": 4, "float32": 1})
        self.soft = d.chance(0.65)
        self.causal = d.chance(0.35)
        self.heads = d.chance(0.5)
        self.masked = d.chance(0.75)
        self.window = d.chance(0.15)

    def draw(self) -> None:
        d = self.d
        d.constants |= {
            "BM": d.weighted({64: 4, 128: 6, 192: 1, 256: 1, 32: 1}),
            "BN": d.weighted({64: 5, 128: 4, 32: 1, 48: 1, 80: 1, 96: 1, 16: 1}),
            "D": d.weighted({64: 5, 128: 3, 32: 1, 96: 1, 80: 1, 16: 1}),
        }
        d.constants["DV"] = d.constants["D"] if d.chance(0.8) else d.pick([32, 64, 72, 128])
        d.size("M", d.constants["BM"], 3)
        d.size("N", d.constants["BN"], 4)
        d.sizes["H"] = d.rng.randint(1, 3)
        d.grid = ["cdiv(M, BM)", "H"] if self.heads else ["cdiv(M, BM)"]
        if self.window:
            d.scalars["W"] = d.pick([8, 50, 64, 100, 128, 300])
        d.scalars["scale"] = d.pick([0.125, 0.0883, 0.25])
        head = ("H",) if self.heads else ()
        at = "h, " if head else ""
        d.line("m = tl.program_id(0) * BM")
        if head:
            d.line("h = tl.program_id(1)")
        d.line("rows, lanes = m + tl.arange(0, BM), tl.arange(0, BN)")
        d.tensor("q", (*head, "M", "D"), self.dtype)
        d.tensor("k", (*head, "N", "D"), self.dtype)
        d.tensor("v", (*head, "N", "DV"), self.dtype)
        self.at = at
        d.line(f"x = q.load(({at}m, 0), (BM, D))")
        if d.chance(0.1):
            d.line("x = (x.to(tl.float32) * 0.5).to(x.dtype)")
        if self.soft:
            d.line("top = tl.full((BM,), -1000000.0, tl.float32)")
        d.line("total = tl.zeros((BM,), tl.float32)")
        d.line("acc = tl.zeros((BM, DV), tl.float32)")
        self.loops()
        self.results()
        d.draw_options(CHOICES, 1.5)

    # ------------------------------------------------------------------ loops
    def loops(self) -> None:
        d = self.d
        end = "k.shape[1]" if self.heads else "k.shape[0]"
        if self.causal:
            d.line(f"end = {d.pick(['min', 'tl.minimum'])}({end}, m + BM)")
            end = "end"
        if self.window:
            self.loop("tl.maximum(0, m - W + 1) // BN * BN", end, masked=True)
            return
        if d.chance(0.2):
            middle = "m // BN * BN" if self.causal else "(k.shape[0] // 2) // BN * BN"
            d.line(f"middle = tl.minimum({end}, {middle})")
            self.loop("0", "middle", masked=False)
            self.loop("middle", end, masked=True)
            return
        start = "0"
        if d.chance(0.1):
            start = "tl.maximum(0, m - 64) // BN * BN"
        self.loop(start, end, masked=self.masked or self.causal)

    def loop(self, start: str, end: str, *, masked: bool) -> None:
        d = self.d
        with d.block(f"for n in range({start}, {end}, BN):"):
            self.scores(masked=masked)
            if self.soft:
                self.softmax()
            else:
                d.line(f"p = {d.pick(['tl.maximum(s, 0.0)', 's * s * 0.1', 's', 'tl.tanh(s)'])}")
                if d.chance(0.5):
                    d.line("total = total + tl.sum(p, 1)")
            d.line(f"z = v.load(({self.at}n, 0), (BN, DV))")
            p = "p.to(z.dtype)" if self.dtype != "float32" else "p"
            grown = "acc * fade[:, None]" if self.soft else "acc"
            if d.chance(0.3) and self.soft:
                d.line(f"acc = {grown}")
                grown = "acc"
            if d.chance(0.85):
                d.line(f"acc = tl.dot({p}, z, {grown})")
            else:
                d.line(f"acc = {grown} + tl.dot({p}, z)")
            if d.chance(0.05):
                d.line("acc = tl.minimum(acc, 1000.0)")

    def scores(self, *, masked: bool) -> None:
        d = self.d
        y = f"k.load(({self.at}n, 0), (BN, D))"
        if d.chance(0.4):
            d.line(f"y = {y}")
            y = "y"
        turned = d.pick([f"tl.trans({y})", f"{y}.T"]) if y == "y" else f"tl.trans({y})"
        d.line(f"s = tl.dot(x, {turned}) * scale")
        if d.chance(0.2):
            d.line(f"s = {d.pick(CHANGES)}")
        if d.chance(0.1) and not self.heads:
            name = d.tensor(f"bias{len(d.arguments)}", ("M", "N"), d.pick(["bfloat16", "float32"]))
            d.line(f"s = s + {name}.load((m, n), (BM, BN)).to(tl.float32)")
        low = d.pick(['-float("inf")', "-30000.0"]) if self.soft else "0.0"
        if masked:
            extent = "k.shape[1]" if self.heads else "k.shape[0]"
            d.line(f"seen = (n + lanes < {extent})[None, :]")
            if self.causal:
                d.line("seen = seen & (rows[:, None] >= (n + lanes)[None, :])")
            if self.window:
                d.line("seen = seen & (rows[:, None] - W < (n + lanes)[None, :])")
            elif d.chance(0.1):
                d.line("seen = seen & (rows[:, None] - 50 < (n + lanes)[None, :])")
            d.line(f"s = tl.where(seen, s, {low})")

    def softmax(self) -> None:
        d = self.d
        d.line("new = tl.maximum(top, tl.max(s, 1))")
        function = d.pick(["exp", "exp2"])
        d.line(f"p = tl.{function}(s - new[:, None])")
        d.line(f"fade = tl.{function}(top - new)")
        d.line("total = total * fade + tl.sum(p, 1)")
        d.line("top = new")

    # ------------------------------------------------------------------ results
    def results(self) -> None:
        d = self.d
        head = ("H",) if self.heads else ()
        y = "acc"
        if self.soft:
            y = d.pick(["acc / (total + 0.001)[:, None]", "acc * (1.0 / (total + 0.001))[:, None]"])
        elif d.chance(0.4):
            y = "acc / (1.0 + tl.abs(total))[:, None]"
        d.tensor("o", (*head, "M", "DV"), output_dtype(d), "out")
        d.line(f"o.store(({self.at}m, 0), {y})")
        if d.chance(0.4):
            d.tensor("e", (*head, "M"), "float32", "out")
            value = "top + tl.log(total + 0.001)" if self.soft else "total"
            d.line(f"e.store(({self.at}m,), {value})")


def draw_flow(d: Draft) -> None:
    """Attention and its relatives."""
    Flow(d).draw()


def draw_chain(d: Draft) -> None:
    """Two matmuls in a row: act(A B) C, the middle tile in registers."""
    d.constants |= {
        "BM": d.weighted({64: 5, 128: 5}),
        "BH": d.weighted({64: 5, 32: 1, 128: 2}),
        "BK": d.weighted({32: 1, 64: 4}),
        "P": d.weighted({64: 3, 128: 2, 96: 1, 32: 1}),
    }
    dtype = d.weighted({"bfloat16": 5, "float16": 3})
    d.size("M", d.constants["BM"], 2)
    d.size("K", d.constants["BK"], 3)
    d.size("F", d.constants["BH"], 3)
    d.grid = ["cdiv(M, BM)"]
    d.tensor("a", ("M", "K"), dtype)
    d.tensor("b", ("K", "F"), dtype, scale=0.3)
    gate = d.chance(0.4)
    if gate:
        d.tensor("g", ("K", "F"), dtype, scale=0.3)
    d.tensor("c", ("F", "P"), dtype, scale=0.3)
    d.line("m = tl.program_id(0) * BM")
    d.line("out = tl.zeros((BM, P), tl.float32)")
    with d.block("for f in range(0, b.shape[1], BH):"):
        d.line("h = tl.zeros((BM, BH), tl.float32)")
        if gate:
            d.line("u = tl.zeros((BM, BH), tl.float32)")
        with d.block("for k in range(0, a.shape[1], BK):"):
            d.line("x = a.load((m, k), (BM, BK))")
            d.line("h = tl.dot(x, b.load((k, f), (BK, BH)), h)")
            if gate:
                d.line("u = tl.dot(x, g.load((k, f), (BK, BH)), u)")
        if gate:
            d.line("h = h * tl.sigmoid(u)")
        if d.chance(0.7):
            d.line(f"h = {d.pick(['tl.maximum(h, 0.0)', 'h * tl.sigmoid(h)', 'tl.tanh(h)'])}")
        d.line("out = tl.dot(h.to(c.dtype), c.load((f, 0), (BH, P)), out)")
    d.tensor("o", ("M", "P"), output_dtype(d), "out")
    d.line("o.store((m, 0), out)")
    d.draw_options(CHOICES, 1.0)
