"""Causal attention as in the textbook, kernel and wrapper in under 40 lines.

`examples/attention.py` has the general form, `examples/attention_backward.py` the gradients.
"""

import torch

import tiledsl
import tiledsl.language as tl


# fmt: off
@tiledsl.jit
def causal_attention_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor,
                            scale: tl.constexpr, D: tl.constexpr,
                            BM: tl.constexpr = 128, BN: tl.constexpr = 128):
    m, h, b = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    rows = (m + tl.arange(0, BM))[:, None]
    queries = q.load((b, h, m, 0), (BM, D))
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, m + BM, BN):
        s = tl.dot(queries, tl.trans(k.load((b, h, n, 0), (BN, D)))) * scale
        s = tl.where(rows >= (n + tl.arange(0, BN))[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        fade = tl.exp(top - new)
        total = total * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v.load((b, h, n, 0), (BN, D)), acc * fade[:, None])
        top = new
    o.store((b, h, m, 0), acc / total[:, None])


def causal_attention(q, k, v):
    """Queries, keys, values and result: [B, H, L, D]."""
    B, H, L, D = q.shape
    o = torch.empty_like(q)
    causal_attention_kernel[tl.cdiv(L, 128), H, B](q, k, v, o, D**-0.5, D, fast_math=True)
    return o
# fmt: on


def main() -> None:
    """Compares with fp64, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (2, 16, 4096, 128)) if on_gpu else ("cpu", (1, 2, 200, 64))
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    exact = (x.double() for x in (q, k, v))
    want = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True)
    error = ((causal_attention(q, k, v).double() - want).norm() / want.norm()).item()
    print(f"causal attention {list(shape)}: relative error {error:.1e}")
    if not error < 4e-3:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
