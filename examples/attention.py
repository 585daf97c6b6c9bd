"""Attention: the textbook online-softmax loop, with what models ask of it, as plain tile code.

`attention(q, k, v, ...)` takes [B, H, L, D] tensors of any strides (a [B, L, H, D] tensor goes in
as its transposed view), fewer key heads than query heads, different lengths, causal and
sliding-window masks, and a function of the scores: bias, ALiBi, softcap. `attention_varlen` takes
sequences packed one after the other. Gradients: `examples/attention_backward.py` and
`examples/attention_varlen_backward.py`. As a program it checks two cases against fp64 and shows
what was compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"
LOWEST = -1e30
"""Stands for the maximum of no keys; finite, so that -inf never meets -inf."""
FLOOR = -1e8
"""Scores below are as good as this: differences to it are exact enough for an exponential."""


# fmt: off
def load_rows(x, at, shape, rows, end, packed):
    """A tile of x. packed: its rows from `end` on belong to others, and count as zeros."""
    y = x.load(at, shape)
    if packed:
        y = tl.where((rows < end)[:, None], y, 0.0)
    return y


def store_rows(x, ragged, at, length, y, whole, width):
    """Rows of a head of a packed sequence; at: head, first row of the sequence, first row in it.

    Those up to its length only: rows of the tile behind it belong to the next sequence. ragged: the
    memory of x. whole: tiles that lie in the sequence go through the tensor. width: head dim of x.
    """
    h, start, m = at
    y = y.to(x.dtype)
    if whole and m + y.shape[0] <= length:
        x.store((0, h, start + m, 0), y)
    else:
        rows, cols = m + tl.arange(0, y.shape[0]), tl.arange(0, y.shape[1])[None, :]
        places = ((start + rows).to(tl.int64) * x.shape[1] + h)[:, None] * width + cols
        tl.store(ragged + places, y, mask=(rows < length)[:, None] & (cols < width))


def attend(q, k, v, at, k0, keys, rows, scale, causal, window, score, extra, group, BN, D, DV,
           packed=False):
    """Attention of a tile of queries over keys[0] to keys[1] of the sequence that begins at row k0.

    at: batch, head and first row of the tile. rows: positions of the queries among the keys, of
    which there are keys[2]. packed: what follows in memory belongs to others, and may be NaN.
    Returns the output and the logarithm of the sum of exponentials.
    """
    b, h, m = at
    top = tl.full((q.shape[0],), LOWEST, tl.float32)
    total = tl.zeros((q.shape[0],), tl.float32)
    acc = tl.zeros((q.shape[0], DV), tl.float32)
    for n in range(keys[0], keys[1], BN):
        cols = n + tl.arange(0, BN)
        s = tl.dot(q, tl.trans(k.load((b, h // group, k0 + n, 0), (BN, D)))) * scale
        if score:
            s = score(s, rows[:, None], cols[None, :], (b, h, m, n), extra)
            s = tl.where(s == -float("inf"), s, tl.maximum(s, FLOOR))
        seen = (cols < keys[2])[None, :]
        if causal:
            seen = seen & (rows[:, None] >= cols[None, :])
        if window:
            seen = seen & (rows[:, None] - window < cols[None, :])
        s = tl.where(seen, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        fade = tl.exp(top - new)
        total = total * fade + tl.sum(p, 1)
        values = load_rows(v, (b, h // group, k0 + n, 0), (BN, DV), cols, keys[2], packed)
        acc = tl.dot(p.to(v.dtype), values, acc * fade[:, None])
        top = new
    return acc / tl.where(total > 0.0, total, 1.0)[:, None], top + tl.log(total)


def key_range(m, offset, k_len, causal, window, BM, BN):
    """The keys that rows m to m + BM can see: first (a multiple of BN), end, number of all."""
    start, end = 0, k_len
    if causal:
        end = min(end, m + offset + BM)
    if window:
        start = max(0, m + offset - window + 1) // BN * BN
    return start, end, k_len


@tiledsl.jit
def attention_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, lse: tl.Tensor,
                     extra: tl.Tensor, offset: tl.int32, scale: tl.constexpr,
                     causal: tl.constexpr, window: tl.constexpr, score: tl.constexpr,
                     group: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
                     BM: tl.constexpr, BN: tl.constexpr):
    """BM rows of one head. offset: position of the first query among the keys."""
    m, h, b = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    x = q.load((b, h, m, 0), (BM, D))
    keys = key_range(m, offset, k.shape[2], causal, window, BM, BN)
    rows = m + offset + tl.arange(0, BM)
    y, z = attend(x, k, v, (b, h, m), 0, keys, rows,
                  scale, causal, window, score, extra, group, BN, D, DV)
    o.store((b, h, m, 0), y)
    lse.store((b, h, m), z)


@tiledsl.jit
def varlen_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, ragged, lse,
                  extra: tl.Tensor, q_starts, k_starts, scale: tl.constexpr,
                  causal: tl.constexpr, window: tl.constexpr, score: tl.constexpr,
                  group: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
                  BM: tl.constexpr, BN: tl.constexpr):
    """BM rows of one head of sequence b, whose rows begin at q_starts[b] and k_starts[b].

    ragged: the memory of o.
    """
    m, h, b = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    q0, k0 = tl.load(q_starts + b), tl.load(k_starts + b)
    q_len, k_len = tl.load(q_starts + b + 1) - q0, tl.load(k_starts + b + 1) - k0
    x = q.load((0, h, q0 + m, 0), (BM, D))
    start, end, _ = key_range(m, k_len - q_len, k_len, causal, window, BM, BN)
    end = tl.where(m < q_len, end, 0)
    rows = m + tl.arange(0, BM)
    y, z = attend(x, k, v, (0, h, m), k0, (start, end, k_len), rows + k_len - q_len,
                  scale, causal, window, score, extra, group, BN, D, DV, packed=True)
    # Three warpgroups, at head dims up to 64, have no registers for both ways.
    store_rows(o, ragged, (h, q0, m), q_len, y, DV > 64, v.shape[3])
    tl.store(lse + h.to(tl.int64) * q.shape[2] + q0 + rows, z, mask=rows < q_len)
# fmt: on


# ---------------------------------------------------------------------- functions of the scores
def add_bias(s, rows, cols, at, extra):
    """extra: [B, H, Lq, Lk] (a view that repeats a smaller one serves) added to the scores."""
    return s + extra.load(at, s.shape).to(tl.float32)


def alibi(s, rows, cols, at, extra):
    """extra: [H] slopes; the distance to a key, times the slope, is taken off its score."""
    return s - tl.sum(extra.load((at[1],), (1,)), 0) * tl.abs(rows - cols).to(tl.float32)


def softcap(cap: float) -> Callable[..., object]:
    """Scores squeezed into (-cap, cap)."""

    def squeezed(s, rows, cols, at, extra):
        return cap * tl.tanh(s / cap)

    return squeezed


# ---------------------------------------------------------------------- host side
def tiles(rows: int, d: int, dv: int) -> dict[str, int]:
    """The tile for a number of query rows and the head dims, which are filled up with zeros."""
    dims = {"D": tl.cdiv(d, 16) * 16, "DV": tl.cdiv(dv, 16) * 16}
    if rows <= 64:
        return {**dims, "BM": 64, "BN": 64 if d > 128 else 128}
    if max(d, dv) <= 64:
        return {**dims, "BM": 192, "BN": 128}
    return {**dims, "BM": 128, "BN": 128 if d <= 128 else 112 if dv <= 128 else 64}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    score: Callable[..., object] | None = None,
    extra: torch.Tensor | None = None,
    offset: int | None = None,
    **options: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q: [B, H, Lq, D]; k, v: [B, H / group, Lk, D and DV]. Returns the output and its log-sum-exp.

    Query i stands at key position i + offset (Lk - Lq by default): under `causal` it sees the keys
    up to there, under `window` those from `window` - 1 before it on. score: a function such as
    `add_bias`; extra: the tensor it reads. A row that sees no key gives 0, and -inf as its
    log-sum-exp.
    """
    B, H, Lq, D = q.shape
    Lk, DV = v.shape[2:]
    o = torch.empty_like(q) if D == DV else q.new_empty(B, H, Lq, DV)
    lse = torch.empty(B, H, Lq, device=q.device, dtype=torch.float32)
    sizes = {**tiles(Lq, D, DV), **options}
    grid = (tl.cdiv(Lq, sizes["BM"]), H, B)
    at = Lk - Lq if offset is None else offset
    factor = D**-0.5 if scale is None else scale
    attention_kernel[grid](
        q, k, v, o, lse, q if extra is None else extra, at, factor, causal, window, score,
        H // k.shape[1], fast_math=True, **sizes,
    )  # fmt: skip
    return o, lse


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_starts: torch.Tensor,
    k_starts: torch.Tensor,
    longest: int,
    *,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    score: Callable[..., object] | None = None,
    extra: torch.Tensor | None = None,
    **options: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q: [rows, H, D]; k, v: [rows, H / group, D and DV] with the sequences one after the other.

    q_starts, k_starts: int32, where each sequence begins, and the end. longest: rows of the longest
    one in q. Returns the output [rows, H, DV] and the log-sum-exp [H, rows].
    """
    T, H, D = q.shape
    DV = v.shape[2]
    o = q.new_empty(T, H, DV)
    lse = torch.empty(H, T, device=q.device, dtype=torch.float32)
    sizes = tiles(longest, D, DV)
    if max(D, DV) > 192 and longest > 64:
        sizes["BN"] = 48  # leaves room for the rows of a tile on their way out
    sizes = {**sizes, **options}
    grid = (tl.cdiv(longest, sizes["BM"]), H, len(q_starts) - 1)
    heads_first = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v, o)]
    factor = D**-0.5 if scale is None else scale
    varlen_kernel[grid](
        *heads_first, o, lse, q if extra is None else extra, q_starts, k_starts,
        factor, causal, window, score, H // k.shape[1], fast_math=True, **sizes,
    )  # fmt: skip
    return o, lse


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """Attention in fp64, the last query at the last key."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    s = q.double() @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(s.shape[-2:], device=q.device).triu(1 + k.shape[2] - q.shape[2]).bool()
        s = s.masked_fill(hidden, -float("inf"))
    return s.softmax(-1) @ v


def run(shape: tuple[int, ...], device: str, *, causal: bool) -> float:
    """Attention over random bf16 data, [B, H, HK, Lq, Lk, D]; returns the relative error."""
    B, H, HK, Lq, Lk, D = shape
    q = torch.randn(B, Lq, H, D, device=device, dtype=torch.bfloat16).transpose(1, 2)
    k, v = (torch.randn(B, HK, Lk, D, device=device, dtype=torch.bfloat16) for _ in range(2))
    o, _ = attention(q, k, v, causal=causal)
    want = reference(q, k, v, causal=causal)
    return ((o.double() - want).norm() / want.norm()).item()


def show_compiled() -> None:
    """Compiles causal attention from shapes alone, writes the CUDA text, prints the plan."""
    q = torch.empty(4, 16, 4096, 128, device="meta", dtype=torch.bfloat16)
    lse = torch.empty(4, 16, 4096, device="meta")
    args = (q, q, q, torch.empty_like(q), lse, q, 0, 128**-0.5, True, 0, None, 1)
    options = {**tiles(4096, 128, 128), "grid": (32, 16, 4), "fast_math": True}
    path = OUT / "attention.cu"
    OUT.mkdir(exist_ok=True)
    path.write_text(attention_kernel.cuda(*args, **options), encoding="utf-8")
    print("\n" + attention_kernel.report(*args, **options))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs full and causal attention, on the GPU or in the interpreter, and shows the kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device = "cuda" if on_gpu else "cpu"
    shape = (2, 16, 4, 2000, 2000, 128) if on_gpu else (1, 4, 2, 70, 150, 64)
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for causal in (False, True):
        error = run(shape, device, causal=causal)
        kind = "causal" if causal else "full"
        print(f"{kind} attention, {list(shape)}: relative error {error:.1e}")
        if not error < 4e-3:
            raise SystemExit("the result is wrong")
    show_compiled()


if __name__ == "__main__":
    main()
