"""Causal linear attention with decay, in chunks: a loop that carries the state of the sequence.

o[i] = sum over j <= i of decay ** (i - j) * (q[i] . k[j]) * v[j]. A chunk of keys is seen by its
own queries through scores, as in attention, and by all later ones through a D x DV state.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


# fmt: off
@tiledsl.jit
def linear_attention_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor,
                            rates: tl.Tensor, D: tl.constexpr, DV: tl.constexpr,
                            C: tl.constexpr = 64):
    """DV columns of one head, chunk by chunk. rates: [H], log2 of a head's decay."""
    h, b, c = tl.program_id(0), tl.program_id(1), tl.program_id(2) * DV
    rate = tl.sum(rates.load((h,), (1,)), 0)
    at = tl.arange(0, C)
    ahead = (at[:, None] - at[None, :]).to(tl.float32)
    fade = tl.where(ahead >= 0.0, tl.exp2(rate * tl.maximum(ahead, 0.0)), 0.0)
    from_state = tl.exp2(rate * (at + 1).to(tl.float32))[:, None]
    to_state = tl.exp2(rate * (C - 1 - at).to(tl.float32))[None, :]
    state = tl.zeros((D, DV), tl.float32)
    for n in range(0, q.shape[2], C):
        x, y = q.load((b, h, n, 0), (C, D)), k.load((b, h, n, 0), (C, D))
        z = v.load((b, h, n, c), (C, DV))
        s = tl.dot(x, tl.trans(y)) * fade
        out = tl.dot(x, state.to(q.dtype)) * from_state
        o.store((b, h, n, c), tl.dot(s.to(v.dtype), z, out))
        keys = (tl.trans(y).to(tl.float32) * to_state).to(k.dtype)
        state = tl.dot(keys, z, state * tl.exp2(rate * C))
# fmt: on


def linear_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    """q, k: [B, H, L, D]; v: [B, H, L, DV]; decay: [H] in (0, 1]. Returns [B, H, L, DV]."""
    B, H, _, D = q.shape
    o = torch.empty_like(v)
    rates = decay.float().log2()
    width = min(64 if D <= 128 else 32, v.shape[3])  # the state lives in registers
    linear_attention_kernel[H, B, tl.cdiv(v.shape[3], width)](q, k, v, o, rates, D, width)
    return o


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    """The same in fp64, from the definition."""
    at = torch.arange(q.shape[2], device=q.device)
    ahead = (at[:, None] - at[None, :]).double()
    fade = torch.where(ahead >= 0, decay.double()[:, None, None] ** ahead.clamp(min=0), 0.0)
    return (q.double() @ k.double().transpose(-1, -2) * fade) @ v.double()


def run(shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.bfloat16) -> float:
    """Runs on random data of [B, H, L, D, DV]; returns the relative error against fp64."""
    B, H, L, D, DV = shape
    q, k = (torch.randn(B, H, L, D, device=device, dtype=dtype) * D**-0.25 for _ in range(2))
    v = torch.randn(B, H, L, DV, device=device, dtype=dtype)
    decay = 1 - 2.0 ** -(3 + torch.arange(H, device=device, dtype=torch.float32))
    o, want = linear_attention(q, k, v, decay), reference(q, k, v, decay)
    return ((o.double() - want).norm() / want.norm()).item()


def show_compiled() -> None:
    """Compiles from shapes alone, writes the CUDA text, prints the plan."""
    q = torch.empty(4, 16, 4096, 128, device="meta", dtype=torch.bfloat16)
    args = (q, q, q, torch.empty_like(q), torch.empty(16, device="meta"), 128, 64)
    OUT.mkdir(exist_ok=True)
    path = OUT / "linear_attention.cu"
    path.write_text(linear_attention_kernel.cuda(*args, grid=(16, 4, 2)), encoding="utf-8")
    print("\n" + linear_attention_kernel.report(*args, grid=(16, 4, 2)))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs on the GPU or in the interpreter, then shows the compiled kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4, 16, 1000, 128, 128)) if on_gpu else ("cpu", (1, 2, 150, 64, 64))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    error = run(shape, device)
    print(f"linear attention {list(shape)}: relative error {error:.1e}")
    if not math.isfinite(error) or error > 6e-3:
        raise SystemExit("the result is wrong")
    show_compiled()


if __name__ == "__main__":
    main()
