"""Parts of loops that no launch enters: shown by their bounds, and nothing else is."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples import attention as example
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import meta
from tests.unit.ws.kernels import tile_graph_of
from tiledsl.ir.ops.control import For
from tiledsl.ws.check_empty import is_empty

S = 2048

WINDOWS = [1, 64, 100, 128, 129]
"""Up to where a block of keys may lie in the window of all rows of a warpgroup, and no further."""


@tiledsl.jit
def halves(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor):
    """A loop up to the diagonal and one over it; all of the second is masked."""
    m = tl.program_id(0) * 128
    rows, lanes = m + tl.arange(0, 128), tl.arange(0, 128)
    x = q.load((m, 0), (128, 64))
    total = tl.zeros((128,), tl.float32)
    acc = tl.zeros((128, 64), tl.float32)
    end = tl.minimum(k.shape[0], m + 128)
    middle = tl.minimum(end, m // 128 * 128)
    for n in range(0, middle, 128):
        p = tl.exp2(tl.dot(x, tl.trans(k.load((n, 0), (128, 64)))))
        total += tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v.load((n, 0), (128, 64)), acc)
    for n in range(middle, end, 128):
        s = tl.dot(x, tl.trans(k.load((n, 0), (128, 64))))
        seen = (n + lanes < k.shape[0])[None, :] & (rows[:, None] >= (n + lanes)[None, :])
        p = tl.exp2(tl.where(seen, s, -30000.0))
        total += tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v.load((n, 0), (128, 64)), acc)
    o.store((m, 0), acc / total[:, None])


def test_a_part_that_never_runs_is_no_gap_of_the_proof() -> None:
    made = halves.compile(*(meta(S, 64) for _ in range(4)), grid=(16,))
    assert made.certificate is not None
    assert made.certificate.proved
    assert any("no trips, its bounds cross" in line for line in made.certificate.steady)


@pytest.mark.parametrize(
    ("lower", "upper", "empty"),
    [
        ("0", "K", False),
        ("0", "min(K, 0)", True),
        ("K", "min(K, 7)", True),
        ("K", "min(K + 1, 7)", False),
        ("min(K, 5)", "min(K, 4)", True),
        ("min(K, 4)", "min(K, 5)", False),
        ("max(m, -5)", "m", True),
        ("max(K, 5)", "5", True),
        ("max(K, 5)", "6", False),
        ("5", "max(K, 5)", False),
        ("m * 64 // 64", "m", True),
        ("m * 64 // 128", "m", False),
        ("m // 2 * 2", "m", False),
        ("m // 2 * 2 + 1", "m", True),
        ("(m + 63) // 64 * 64", "m", True),
        ("m", "m // 64 * 64", True),
        ("m", "m // 64 * 65", False),
        ("m * 64 // 128 * 128", "m * 64 - 64", True),
        ("m * 64 // 128 * 128", "m * 64 - 63", False),
        ("0", "m - tl.num_programs(0)", True),
        ("0", "m - tl.num_programs(0) + 2", False),
        ("(m * 4 + 7) // 4", "m + 1", True),
        ("(m * 4 + 7) // 4", "m + 2", False),
        (
            "max(max(7, (min(m * 128 + 14, K) + 127) // 128 * 128), m)",
            "min(m * 128 + 128, K)",
            True,
        ),
        (
            "max(max(7, (min(m * 128 + 14, K) + 126) // 128 * 128), m)",
            "min(m * 128 + 128, K)",
            False,
        ),
        ("max(0, m - 9) // 4 * 4", "m - 12", True),
        ("max(0, m - 9) // 4 * 4", "m - 11", False),
        ("0", "-a.shape[1]", True),
        ("0", "-K", False),
        ("-1 - m", "-m - K * 0", False),
        ("m - K", "m - K - 3", True),
        ("max(0, K - 5)", "max(K, 3) - 5", True),
        ("max(0, K - 5)", "max(K, 3) - 4", False),
        ("max(0, K - 63) // 128 * 128 + 128", "max(K, -1000) - 62", True),
        ("max(0, K - 63) // 128 * 128 + 128", "max(K, -1000) - 61", False),
        ("max(0, K - 63) // 128 * 128 + 128", "max(K, 200) - 62", False),
        ("tl.multiple_of(m * 64, 64)", "m * 64", True),
        ("tl.multiple_of(m * 64, 64)", "m * 64 + 1", False),
    ],
)
def test_bounds(lower: str, upper: str, empty: bool, tmp_path, monkeypatch) -> None:
    """As the graph has them; K is an argument and may be negative, m an id and may not."""
    (tmp_path / f"bounds_{abs(hash((lower, upper)))}.py").write_text(
        "import tiledsl\nimport tiledsl.language as tl\n\n\n@tiledsl.jit\n"
        "def kernel(a: tl.Tensor, c: tl.Tensor, K):\n"
        "    m = tl.program_id(0)\n    total = tl.zeros((64,), tl.float32)\n"
        f"    for k in range({lower}, {upper}, 4):\n"
        "        total += a.load((m, k), (1, 64)).reshape((64,))\n"
        "    c.store((m, 0), total.reshape((1, 64)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    kernel = __import__(f"bounds_{abs(hash((lower, upper)))}").kernel
    arguments = (meta(S, S), meta(S, 64, torch.float32), 70)
    graph = tile_graph_of(kernel.request_for(arguments, {}, (16,))[1])
    (loop,) = [op for op in graph.body.walk() if isinstance(op, For)]
    assert is_empty(loop) == empty


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_shorter_than_a_tile_need_no_loop_without_masks(window: int) -> None:
    """The plan with overlap is proved: no launch enters that loop, some enter all others."""
    sizes = example.tiles(S, 128, 128)
    q = torch.empty(1, 2, S, 128, device="meta", dtype=torch.bfloat16)
    lse = torch.empty(1, 2, S, device="meta")
    arguments = (q, q, q, torch.empty_like(q), lse, q, 0, 128**-0.5, True, window, None, 1)
    options = {**sizes, "fast_math": True}
    made = first(example.attention_kernel.request_for(arguments, options, (S // 128, 2, 1))[1])
    assert made.certificate is not None
    assert made.certificate.failure == ""
    assert any("no trips, its bounds cross" in line for line in made.certificate.steady)
