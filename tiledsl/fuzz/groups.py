"""Random kernels of many small factors: products with scales of blocks, and lists of problems."""

from __future__ import annotations

from tiledsl.fuzz.draft import LAYOUTS
from tiledsl.fuzz.draft import Draft
from tiledsl.fuzz.draft import output_dtype
from tiledsl.fuzz.results import Results

CHOICES = ("num_stages", "num_consumers", "ping_pong", "persistent", "cluster", "warp_specialize",
           "mma_depth", "num_warps", "raster_group")  # fmt: skip


def draw_scaled(d: Draft) -> None:
    """Sums of products that are multiplied by scales of their block of K: of rows or columns."""
    dtype = d.weighted({"float8e4nv": 6, "float8e5": 1, "bfloat16": 2})
    d.constants |= {
        "BM": d.weighted({64: 4, 128: 5, 192: 1, 32: 1}),
        "BN": d.weighted({64: 4, 128: 4, 32: 1, 96: 1, 256: 1}),
        "BK": d.weighted({128: 6, 64: 3, 32: 1}),
    }
    for name, tiles in (("M", 2), ("N", 2), ("K", 5)):
        d.size(name, d.constants[f"B{name}"], tiles)
    d.grid = ["cdiv(M, BM)", "cdiv(N, BN)"]
    d.line("pid_m, pid_n = tl.program_id(0), tl.program_id(1)")
    d.line("m, n = pid_m * BM, pid_n * BN")
    d.line("rows, cols = m + tl.arange(0, BM), n + tl.arange(0, BN)")
    d.tensor("a", ("M", "K"), dtype, scale=0.5, layout="" if d.chance(0.3) else "row")
    d.tensor("b", ("K", "N"), dtype, scale=0.5, layout="" if d.chance(0.3) else "col")
    factors: list[str] = []
    if d.chance(0.85):
        turned = d.chance(0.3)
        d.tensor("sa", ("M", "cdiv(K, BK)") if turned else ("cdiv(K, BK)", "M"), "float32")
        text = "sa.load((m, i), (BM, 1))" if turned else "sa.load((i, m), (BM,))[:, None]"
        factors.append(text)
    if d.chance(0.4) or not factors:
        d.tensor("sb", ("cdiv(K, BK)", "N"), "float32")
        factors.append("sb.load((i, n), (BN,))[None, :]")
    elif d.chance(0.6):
        d.tensor("st", ("cdiv(K, BK)", "cdiv(N, BN)"), "float32")
        factors.append("st.load((i, pid_n), (1, 1))")
    elif d.chance(0.8):
        factors.append(_scale_of_block(d))
    d.line("acc0 = tl.zeros((BM, BN), tl.float32)")
    with d.block("for k in range(0, a.shape[1], BK):"):
        d.line("i = k // BK")
        d.line("product = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)))")
        if d.chance(0.6):
            d.line(f"acc0 += product * {' * '.join(factors)}")
        else:
            d.line(f"acc0 = acc0 + product * ({' * '.join(factors)})")
    Results(d, ["acc0"], pointers=False, batched=False).draw(is_int=False)
    d.draw_options(CHOICES, 1.2)


def _scale_of_block(d: Draft) -> str:
    """A scale for each W columns, whose blocks end inside of tiles."""
    d.constants["W"] = W = d.pick([32, 64, 128, 128])
    if d.chance(0.5):
        d.constants["BN"] = d.pick([48, 80, 112, 144, 192, 224])
    count = -(-(d.constants["BN"] + W - 1) // W)
    d.tensor("sw", ("cdiv(K, BK)", "cdiv(N, W)"), "float32")
    form = d.pick(["remainder", "difference", "limit"])
    if form == "limit":
        d.line("before = tl.arange(0, BN) < W - n % W")
        first, then = (f"sw.load((i, n // W{more}), (1,))" for more in ("", " + 1"))
        return f"tl.where(before, {first}, {then})[None, :]"
    block = "(n % W + tl.arange(0, BN)) // W" if form == "remainder" else "cols // W - n // W"
    d.line(f"block = {block}")
    return f"tl.gather(sw.load((i, n // W), ({count},)), block, 0)[None, :]"


def draw_lists(d: Draft) -> None:
    """A product for each pair of two lists of matrices, in one launch."""
    dtype = d.weighted({"bfloat16": 5, "float16": 2, "float8e4nv": 2, "float32": 1})
    d.constants |= {
        "BM": d.weighted({64: 4, 128: 5}),
        "BN": d.weighted({64: 4, 128: 4, 96: 1}),
        "BK": d.weighted({64: 5, 32: 2, 128: 1}) // (2 if dtype == "float32" else 1),
    }
    count = d.rng.randint(1, 4)
    for g in range(count):
        for name, tiles in (("M", 2), ("N", 2), ("K", 3)):
            d.size(f"{name}{g}", d.constants[f"B{name}"], tiles)
    d.grid = [" + ".join(f"cdiv(M{g}, BM) * cdiv(N{g}, BN)" for g in range(count))]
    out = output_dtype(d)
    for group, shape, of, role in (
        ("a", "MK", dtype, "in"), ("b", "KN", dtype, "in"), ("c", "MN", out, "out"),
    ):  # fmt: skip
        layout = d.weighted(LAYOUTS)
        if d.chance(0.7):  # as wgmma reads 8-bit elements
            layout = d.pick(["col", "colpitch"] if group == "b" else ["row", "pitch"])
        for g in range(count):
            dims = tuple(f"{letter}{g}" for letter in shape)
            d.tensor(f"{group}_{g}", dims, of, role, layout, group=group)
    d.line("tile = tl.program_id(0)")
    d.line("group, first, start = 0, 0, 0")
    with d.block("for g in range(0, len(a)):"):
        d.line("tiles = tl.cdiv(a[g].shape[0], BM) * tl.cdiv(b[g].shape[1], BN)")
        d.line("here = (tile >= start) & (tile < start + tiles)")
        d.line("group, first = tl.where(here, g, group), tl.where(here, start, first)")
        d.line("start += tiles")
    d.line("x, y = a[group], b[group]")
    d.line("across = tl.cdiv(x.shape[0], BM)")
    d.line("m, n = (tile - first) % across * BM, (tile - first) // across * BN")
    d.line("acc = tl.zeros((BM, BN), tl.float32)")
    with d.block("for k in range(0, x.shape[1], BK):"):
        d.line("acc = tl.dot(x.load((m, k), (BM, BK)), y.load((k, n), (BK, BN)), acc)")
    if d.chance(0.4):
        d.line(f"acc = {d.pick(['tl.maximum(acc, 0.0)', 'acc * tl.sigmoid(acc)', 'acc * 0.5'])}")
    d.line("c[group].store((m, n), acc)")
    d.draw_options(CHOICES, 1.0)
