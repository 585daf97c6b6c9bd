"""Conversions of the small float types and elementary instructions, against ml_dtypes and numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.emulation.harness import kernel
from tests.emulation.harness import launch
from tests.emulation.harness import pointer
from tiledsl import dtypes as dt

COUNT = 1 << 16


def floats() -> np.ndarray:
    """Every bf16, neighbours of every half-way point of f16 and fp8, and random patterns."""
    rng = np.random.default_rng(0)
    every = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    small = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.unique(small[np.isfinite(small)])
    ties = (finite[:-1] + finite[1:]) / 2
    near = [np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))]
    fp8 = np.arange(256, dtype=np.uint8)
    for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        values = np.unique(fp8.view(kind).astype(np.float32))
        values = values[np.isfinite(values)]
        near.append((values[:-1] + values[1:]) / 2)
    parts = [every, ties, *near, rng.integers(0, 2**32, 1 << 15, np.uint32).view(np.float32)]
    out = np.concatenate([p.astype(np.float32) for p in parts])
    return np.resize(out, (len(out) + 511) // 512 * 512)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal values; NaN where NaN."""
    g, w = got.astype(np.float32), want.astype(np.float32)
    nan = np.isnan(w)
    np.testing.assert_array_equal(np.isnan(g), nan)
    np.testing.assert_array_equal(g[~nan], w[~nan])
    np.testing.assert_array_equal(np.signbit(g[~nan]), np.signbit(w[~nan]))


def saturated(x: np.ndarray, most: float, kind: type) -> np.ndarray:
    return np.where(np.isnan(x), x, np.clip(x, -most, most)).astype(kind)


def test_floats_round_to_the_small_types() -> None:
    x = floats()
    params = (
        pointer("x", dt.float32),
        pointer("b", dt.bfloat16),
        pointer("h", dt.float16),
        pointer("e4", dt.float8e4nv),
        pointer("e5", dt.float8e5),
    )
    body = """
  for (u32 i = threadIdx.x * 2; i < NUM; i += 512) {
    const u32 wb = pack_bf16x2(x[i], x[i + 1]), wh = pack_f16x2(x[i], x[i + 1]);
    b[i].bits = (u16)wb, b[i + 1].bits = (u16)(wb >> 16);
    h[i].bits = (u16)wh, h[i + 1].bits = (u16)(wh >> 16);
    e4[i] = from_float<e4m3>(x[i]), e4[i + 1] = e4m3{(u8)(pack_e4m3x2(x[i], x[i + 1]) >> 8)};
    e5[i] = from_float<e5m2>(x[i]), e5[i + 1] = e5m2{(u8)(pack_e5m2x2(x[i], x[i + 1]) >> 8)};
    if (b[i].bits != from_float<bf16>(x[i]).bits || h[i].bits != from_float<f16>(x[i]).bits) b[i].bits = 0xdead;
  }""".replace("NUM", str(len(x)))
    out = {
        "b": np.zeros(len(x), ml_dtypes.bfloat16),
        "h": np.zeros(len(x), np.float16),
        "e4": np.zeros(len(x), ml_dtypes.float8_e4m3fn),
        "e5": np.zeros(len(x), ml_dtypes.float8_e5m2),
    }
    launch(kernel(body, params, threads=256), {"x": x, **out})
    with np.errstate(over="ignore", invalid="ignore"):
        same(out["b"], x.astype(ml_dtypes.bfloat16))
        same(out["h"], x.astype(np.float16))
        same(out["e4"], saturated(x, 448.0, ml_dtypes.float8_e4m3fn))
        same(out["e5"], saturated(x, 57344.0, ml_dtypes.float8_e5m2))


def test_the_small_types_widen() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    kinds = {"b": ml_dtypes.bfloat16, "h": np.float16}
    params = (
        pointer("b", dt.bfloat16),
        pointer("h", dt.float16),
        pointer("e4", dt.float8e4nv),
        pointer("e5", dt.float8e5),
        *(pointer(f"out_{n}", dt.float32) for n in ("b", "h", "e4", "e5")),
    )
    body = """
  for (u32 i = threadIdx.x; i < 65536; i += 256) {
    out_b[i] = to_float(b[i]), out_h[i] = to_float(h[i]);
    if (i < 256) out_e4[i] = to_float(e4[i]), out_e5[i] = to_float(e5[i]);
  }"""
    small = np.arange(256, dtype=np.uint8)
    inputs = {name: bits.view(kind) for name, kind in kinds.items()}
    inputs |= {"e4": small.view(ml_dtypes.float8_e4m3fn), "e5": small.view(ml_dtypes.float8_e5m2)}
    out = {f"out_{name}": np.zeros(array.shape, np.float32) for name, array in inputs.items()}
    launch(kernel(body, params, threads=256), {**inputs, **out})
    for name, array in inputs.items():
        same(out[f"out_{name}"], array.astype(np.float32))


def test_instructions_of_one_statement() -> None:
    x = np.array([0.5, 3.0, -2.0, np.nan, 1e-40, 9.0, np.inf, 0.0], np.float32)
    params = (pointer("x", dt.float32), pointer("out", dt.float32), pointer("words", dt.uint32))
    body = """
  if (threadIdx.x < 8) {
    const float v = x[threadIdx.x];
    float* o = out + threadIdx.x * 6;
    o[0] = exp2_approx(v), o[1] = rcp_approx(v), o[2] = max_nan(v, 1.0f), o[3] = max_num(v, 1.0f);
    o[4] = min_nan(v, 1.0f), o[5] = rsqrt_approx(v);
    words[threadIdx.x] = __byte_perm(0x33221100u, 0x77665544u, 0x5410 + threadIdx.x);
  }"""
    out, words = np.zeros((8, 6), np.float32), np.zeros(8, np.uint32)
    launch(kernel(body, params), {"x": x, "out": out, "words": words})
    with np.errstate(all="ignore"):
        flushed = np.where(np.abs(x) < 2.0**-126, np.float32(0), x)
        want = [np.exp2(flushed), 1 / flushed, np.where(np.isnan(x), np.nan, np.maximum(x, 1))]
        want += [
            np.fmax(x, 1),
            np.where(np.isnan(x), np.nan, np.minimum(x, 1)),
            1 / np.sqrt(flushed),
        ]
    np.testing.assert_allclose(out, np.stack(want, 1), rtol=1e-6)
    pool = np.frombuffer(bytes(range(0, 0x88, 0x11)), np.uint8)
    for i, word in enumerate(words):
        selector = 0x5410 + i
        picked = [int(pool[selector >> (4 * j) & 7]) for j in range(4)]
        assert int(word) == sum(p << (8 * j) for j, p in enumerate(picked))
