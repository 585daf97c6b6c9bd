"""Random kernels whose loops add up products.

Matmuls with one to three dots, siblings, nests, conditions, masks, pointer loads and epilogues.
"""

from __future__ import annotations

from tiledsl.fuzz.draft import OPERANDS
from tiledsl.fuzz.draft import Draft
from tiledsl.fuzz.results import Results

ROWS = {64: 8, 128: 8, 192: 2, 256: 1, 16: 1, 32: 1, 72: 1}
COLUMNS = {8: 1, 16: 2, 24: 1, 32: 2, 40: 1, 64: 6, 80: 2, 96: 2, 112: 1, 128: 6, 136: 1, 160: 1,
           192: 2, 256: 2}  # fmt: skip
DEPTHS = {1: {32: 4, 64: 5, 96: 1, 128: 4}, 2: {16: 2, 32: 4, 48: 1, 64: 8, 80: 1, 96: 1, 128: 2},
          4: {8: 1, 16: 3, 32: 3}}  # fmt: skip
CHOICES = ("num_stages", "num_consumers", "ping_pong", "persistent", "cluster", "split_k",
           "mma_depth", "swap_operands", "warp_specialize", "raster_group", "num_warps",
           "fast_math", "enable_fp_fusion")  # fmt: skip


class Products:
    """Draws one kernel into a draft. zs: leading offsets of a batch axis."""

    def __init__(self, d: Draft, *, pointers: bool) -> None:
        self.d = d
        self.pointers = pointers
        self.dtype = d.weighted(OPERANDS)
        self.element = d.dtype_of(self.dtype)
        self.batched = not pointers and d.chance(0.12)
        self.accs: list[str] = []
        self.loads = 0
        self.imprecise = self.element.is_fp8 and d.chance(0.7)
        self.tf32 = self.dtype == "float32" and d.chance(0.4)

    def draw(self) -> None:
        d = self.d
        d.constants |= {
            "BM": d.weighted(ROWS),
            "BN": d.weighted(COLUMNS),
            "BK": d.weighted(DEPTHS[self.element.bytes]),
        }
        for name, tiles in (("M", 2), ("N", 2), ("K", 5)):
            d.size(name, d.constants[f"B{name}"], tiles)
        if d.chance(0.03):
            d.sizes["K"] = 0
        if d.chance(0.1):
            d.sizes["M"] = d.constants["BM"] * d.rng.randint(3, 5)
        self.programs()
        wide = "tl.int32" if self.element.is_int else "tl.float32"
        count = d.weighted({1: 12, 2: 3, 3: 1})
        self.accs = [f"acc{i}" for i in range(count)]
        for acc in self.accs:
            d.line(f"{acc} = {self.start(wide)}")
        for number in range(d.weighted({1: 8, 2: 3, 3: 1})):
            self.loop(number)
        results = Results(d, self.accs, pointers=self.pointers, batched=self.batched)
        results.draw(is_int=self.element.is_int)
        d.draw_options(CHOICES, 1.8)

    # ------------------------------------------------------------------ programs
    def programs(self) -> None:
        """The tile of a program."""
        d = self.d
        form = d.weighted({"mn": 8, "nm": 2, "flat": 2})
        m, n = "cdiv(M, BM)", "cdiv(N, BN)"
        if form == "flat":
            d.grid = [f"{m} * {n}"]
            d.scalars["N"] = "N"
            d.line("tiles = tl.cdiv(N, BN)")
            d.line("pid_m, pid_n = tl.program_id(0) // tiles, tl.program_id(0) % tiles")
        else:
            d.grid = [m, n] if form == "mn" else [n, m]
            x, y = (0, 1) if form == "mn" else (1, 0)
            d.line(f"pid_m, pid_n = tl.program_id({x}), tl.program_id({y})")
        if self.batched:
            d.grid = [*d.grid[:1], *(d.grid[1:] or ["1"]), "Z"]
            d.sizes["Z"] = d.rng.randint(1, 3)
            d.line("z = tl.program_id(2)")
        d.line("m, n = pid_m * BM, pid_n * BN")
        d.line("rows, cols = m + tl.arange(0, BM), n + tl.arange(0, BN)")
        if self.pointers:
            d.scalars |= {"M": "M", "N": "N", "K": "K"}

    def start(self, wide: str) -> str:
        d = self.d
        if d.chance(0.06):
            return f"tl.full((BM, BN), 3, {wide})"
        if d.chance(0.06):
            name = d.tensor(f"start{len(d.arguments)}", ("M", "N"), "float32")
            if wide == "tl.float32":
                return f"{name}.load((m, n), (BM, BN))"
        return f"tl.zeros((BM, BN), {wide})"

    # ------------------------------------------------------------------ loads
    def operand(self, side: str, k: str) -> str:
        """Adds a tensor; returns an expression of its tile at offset `k` of K."""
        d = self.d
        name = f"{side}{self.loads}"
        self.loads += 1
        outer, start, block = ("M", "m", "BM") if side == "a" else ("N", "n", "BN")
        scale = 1.0 if self.element.bits != 8 else 0.5
        flipped = d.chance(0.2)
        k_first = (side == "b") != flipped
        shape = ("K", outer) if k_first else (outer, "K")
        if self.pointers and d.chance(0.9):
            return self.pointed(name, side, shape, flipped=flipped, k=k)
        batch = ("Z",) if self.batched else ()
        narrow = self.element.bits == 16 and d.chance(0.08)
        dtype = d.pick(["int8", "float8e4nv", "float8e5"]) if narrow else self.dtype
        d.tensor(name, (*batch, *shape), dtype, scale=scale)
        start, k = self.moved(start), self.moved(k, signed=True)
        at, box = ((k, start), ("BK", block)) if k_first else ((start, k), (block, "BK"))
        offsets = ", ".join([*(["z"] if batch else []), *at])
        text = f"{name}.load(({offsets}), ({box[0]}, {box[1]}))"
        text = f"{text}.to(tl.{self.dtype})" if narrow else text
        return (f"tl.trans({text})" if d.chance(0.5) else f"{text}.T") if flipped else text

    def moved(self, start: str, *, signed: bool = False) -> str:
        """Where a block is read: mostly as it lies, else elsewhere, also before the tensor.

        By what the compiler knows divisors and signs of, what it has to be told, and what a table
        says. signed: whether it may be below 0, where quotients of kernels are not Python's.
        """
        d = self.d
        if not d.chance(0.04):
            return start
        form = d.weighted({"number": 3, "scalar": 2, "times": 2, "table": 1})
        if form == "number":
            return f"{start} {d.pick(['- 3', '+ 5', '- 8', '+ 16', '- 32', '+ 24'])}"
        if form == "times" and signed:
            return f"{start} * 2"
        if form == "times":
            return d.pick([f"{start} * 2", f"{start} // 2", f"{start} // 32 * 16", f"{start} % 48"])
        if form == "scalar":
            d.scalars["shift"] = d.pick([-40, -16, -8, -5, 1, 4, 8, 16, 48])
            return d.pick([f"{start} + shift", f"{start} - shift", f"{start} + shift * 8"])
        if not any(a.name == "table" for a in d.arguments):
            d.tensor(
                "table",
                ("cdiv(M, BM)",),
                "int32",
                layout="row",
                pointer=True,
                scale=8.0,
                fixed=True,
            )
        return f"{start} + tl.load(table + pid_m){d.pick(['', ' * 8', ' * 16'])}"

    def pointed(
        self, name: str, side: str, shape: tuple[str, ...], *, flipped: bool, k: str
    ) -> str:
        """A load through pointers with a mask."""
        d = self.d
        d.tensor(name, shape, self.dtype, pointer=True, scale=0.5)
        strides: list[str] = []
        for dim in range(2):
            if d.chance(0.15) and d.arguments[-1].layout == "row":
                strides.append(shape[1] if dim == 0 else "1")
            else:
                d.scalars[f"s_{name}_{dim}"] = f"{name}.stride({dim})"
                strides.append(f"s_{name}_{dim}")
        outer, lanes = ("M", "rows") if side == "a" else ("N", "cols")
        ks = f"({k} + tl.arange(0, BK))"
        if flipped:
            strides.reverse()
        if side == "a":
            at = f"{lanes}[:, None] * {strides[0]} + {ks}[None, :] * {strides[1]}"
            inside = (f"({lanes}[:, None] < {outer})", f"({ks}[None, :] < K)")
        else:
            at = f"{ks}[:, None] * {strides[0]} + {lanes}[None, :] * {strides[1]}"
            inside = (f"({lanes}[None, :] < {outer})", f"({ks}[:, None] < K)")
        other = ", other=0" if d.chance(0.7) else ""
        return f"tl.load({name} + {at}, mask={inside[0]} & {inside[1]}{other})"

    # ------------------------------------------------------------------ loops
    def bound(self) -> tuple[str, str]:
        """First and end of a range over K."""
        d = self.d
        end = "K" if "K" in d.scalars else ""
        if not end:
            d.scalars["K"] = "K"
            end = "K"
        first = self.first_tensor()
        if first and d.chance(0.6):
            end = first
        form = d.weighted({"all": 14, "causal": 2, "later": 2, "half": 1, "split": 1, "odd": 1})
        match form:
            case "causal":
                return "0", d.pick([f"min({end}, m + BM)", f"tl.minimum({end}, n + BN)"])
            case "later":
                return d.pick(["BK", "BK * 2", "m // BK * BK"]), end
            case "half":
                return "0", f"({end} // 2) // BK * BK"
            case "split":
                return "pid_n * BK", end
            case "odd":
                return d.pick(["1", "4", "8", "8" if self.pointers else "-8"]), end
            case _:
                return "0", end

    def first_tensor(self) -> str:
        """The extent K of a tensor that was loaded before."""
        for a in self.d.arguments:
            if "K" in a.shape and not a.pointer:
                return f"{a.name}.shape[{a.shape.index('K')}]"
        return ""

    def loop(self, number: int) -> None:
        d = self.d
        around = d.weighted({"": 14, "if": 2, "nest": 2, "else": 1})
        if around == "if":
            with d.block(f"if {self.condition()}:"):
                self.inner(number)
        elif around == "else":
            with d.block(f"if {self.condition()}:"):
                self.inner(number)
            with d.block("else:"):
                d.line(f"{self.accs[0]} = {self.accs[0]} * 2")
        elif around == "nest":
            d.scalars["G"] = d.sizes["G"] = d.rng.randint(0, 3)
            with d.block(f"for g{number} in range(0, G):"):
                self.inner(number)
                if d.chance(0.5) and not self.element.is_int:
                    d.line(f"{self.accs[0]} = {self.accs[0]} * 0.5")
        else:
            self.inner(number)

    def condition(self) -> str:
        d = self.d
        form = d.pick(["pid_m > 0", "pid_n == 0", "flag > 0", "m + n < 200"])
        if "flag" in form:
            d.scalars["flag"] = d.rng.randint(0, 1)
        return form

    def inner(self, number: int) -> None:
        d = self.d
        low, high = self.bound()
        k = "k"
        if d.chance(0.2):
            head = f"for i in range({low} // BK, tl.cdiv({high}, BK)):"
            k = "i * BK"
        else:
            form = "tl.range" if d.chance(0.1) else "range"
            head = f"for k in {form}({low}, {high}, BK):"
        with d.block(head):
            if k != "k":
                d.line("k = i * BK")
                k = "k"
            guard = d.chance(0.05)
            if guard:
                with d.block("if k < BK * 2:"):
                    self.dots(number, k)
            else:
                self.dots(number, k)

    def dots(self, number: int, k: str) -> None:
        d = self.d
        x = f"x{number}"
        d.line(f"{x} = {self.operand('a', k)}")
        self.prepare(x, "a")
        for i, acc in enumerate(self.accs):
            y = f"y{number}_{i}"
            if i and d.chance(0.3):
                x = f"x{number}_{i}"
                d.line(f"{x} = {self.operand('a', k)}")
            d.line(f"{y} = {self.operand('b', k)}")
            self.prepare(y, "b")
            more = ", max_num_imprecise_acc=2**20" if self.imprecise else ""
            more += ', input_precision="tf32"' if self.tf32 else ""
            if d.chance(0.8):
                d.line(f"{acc} = tl.dot({x}, {y}, {acc}{more})")
            else:
                d.line(f"{acc} += tl.dot({x}, {y}{more})")

    def prepare(self, x: str, side: str) -> None:
        """Now and then something happens to an operand between load and dot."""
        d = self.d
        if not d.chance(0.05):
            return
        ks = "(k + tl.arange(0, BK))"
        mask = f"{ks}[None, :] < 40" if side == "a" else f"{ks}[:, None] < 40"
        forms = [f"tl.where({mask}, {x}, 0)", f"({x}.to(tl.float32) * 2.0).to({x}.dtype)"]
        if self.element.is_int:
            forms = forms[:1]
        d.line(f"{x} = {d.pick(forms)}")


def draw_products(d: Draft) -> None:
    """Tensor arguments and block loads."""
    Products(d, pointers=False).draw()


def draw_pointers(d: Draft) -> None:
    """Pointers and masks, mixed with block loads."""
    Products(d, pointers=True).draw()
