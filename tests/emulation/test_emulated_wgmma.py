"""wgmma: operand layouts, register fragments, element types, groups; what breaks its rules is reported.

The layouts are built here from the CuTe forms of the PTX ISA's canonical layouts, the fragments from its figures.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from tests.emulation.harness import kernel
from tests.emulation.harness import launch
from tests.emulation.harness import pointer
from tests.emulation.harness import replaced
from tests.emulation.harness import scalar
from tiledsl import dtypes as dt
from tiledsl import emulate
from tiledsl.codegen.wgmma import WgmmaShape
from tiledsl.codegen.wgmma import render_wgmma
from tiledsl.codegen.wgmma import wgmma_shape

A_BYTES = 16384
B_BYTES = 65536
SMEM = A_BYTES + B_BYTES + 64
MODES = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class Layout:
    """Where an operand's elements lie: byte offsets [MN, K], leading and stride offsets of the descriptor."""

    offsets: np.ndarray
    leading: int
    stride: int
    span: int


def layout(extent: int, K: int, size: int, span: int, *, is_mn_major: bool) -> Layout:
    """A canonical layout of `extent` rows or columns, T = 16 bytes of elements."""
    T = 16 // size
    mn, k = np.meshgrid(np.arange(extent), np.arange(K), indexing="ij")
    width = max(span // 16, 1)  # chunks of T elements side by side
    if not is_mn_major:
        leading, stride = (extent * 16, 128) if span == 0 else (16, 8 * span)
        row = max(span, 16)
        offsets = (
            mn % 8 * row + mn // 8 * stride + k // T * (leading if span == 0 else 16) + k % T * size
        )
    elif span == 0:
        leading, stride = 128, K * 16
        offsets = mn % T * size + mn // T * stride + k % 8 * 16 + k // 8 * leading
    else:
        stride = 8 * span
        leading = K * span
        chunk, rest = mn // (T * width), mn % (T * width)
        offsets = rest * size + chunk * leading + k % 8 * span + k // 8 * stride
    bits = {0: 0, 32: 1, 64: 3, 128: 7}[span]
    return Layout(offsets ^ ((offsets >> 7 & bits) << 4), leading, stride, span)


def placed(values: np.ndarray, where: Layout, num_bytes: int) -> np.ndarray:
    """Shared memory that holds values[MN, K]."""
    size = values.itemsize
    out = np.full(num_bytes, 0x7F, np.uint8)
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, size)
    for byte in range(size):
        out[where.offsets + byte] = raw[..., byte]
    return out


def fragments_of_d(d: np.ndarray) -> np.ndarray:
    """[128 threads, N / 2 registers] of D[64, N]."""
    t, r = np.meshgrid(np.arange(128), np.arange(d.shape[1] // 2), indexing="ij")
    w, lane = t // 32, t % 32
    return d[16 * w + lane // 4 + 8 * (r // 2 & 1), 8 * (r // 4) + 2 * (lane % 4) + (r & 1)]


def fragments_of_a(a: np.ndarray) -> np.ndarray:
    """[128 threads, 16 bytes] of A[64, K]."""
    num = 16 // a.itemsize
    t, v = np.meshgrid(np.arange(128), np.arange(num), indexing="ij")
    w, lane = t // 32, t % 32
    if a.itemsize == 2:
        row, k = lane // 4 + 8 * (v // 2 & 1), 2 * (lane % 4) + (v & 1) + 8 * (v // 4)
    elif a.itemsize == 1:
        row, k = lane // 4 + 8 * (v // 4 & 1), 4 * (lane % 4) + (v & 3) + 16 * (v // 8)
    else:
        row, k = lane // 4 + 8 * (v & 1), lane % 4 + 4 * (v // 2)
    return np.ascontiguousarray(a[16 * w + row, k]).view(np.uint8).reshape(128, 16)


@dataclass(frozen=True)
class Case:
    """One instruction form with its operands' layouts."""

    shape: WgmmaShape
    a_type: dt.DType
    b_type: dt.DType
    acc: dt.DType
    a_span: int = 128
    b_span: int = 128


def case(acc, a, b, N, *, rs=False, ta=False, tb=False, a_span=128, b_span=128) -> Case:
    made = wgmma_shape(acc, a, b, N, a_in_regs=rs, trans_a=ta, trans_b=tb)
    return Case(made, a, b, acc, a_span, b_span)


CASES = [
    case(dt.float32, dt.bfloat16, dt.bfloat16, 256),
    case(dt.float32, dt.bfloat16, dt.bfloat16, 176, tb=True),
    case(dt.float32, dt.float16, dt.float16, 128, ta=True, tb=True),
    case(dt.float32, dt.float16, dt.float16, 8, ta=True),
    case(dt.float16, dt.float16, dt.float16, 64),
    case(dt.float32, dt.bfloat16, dt.bfloat16, 96, rs=True, tb=True),
    case(dt.float32, dt.bfloat16, dt.bfloat16, 64, ta=True, tb=True, a_span=64, b_span=64),
    case(dt.float32, dt.bfloat16, dt.bfloat16, 64, tb=True, a_span=64, b_span=32),
    case(dt.float32, dt.bfloat16, dt.bfloat16, 48, a_span=32, b_span=64),
    case(dt.float32, dt.bfloat16, dt.bfloat16, 32, a_span=0, b_span=0),
    case(dt.float32, dt.bfloat16, dt.bfloat16, 32, ta=True, tb=True, a_span=0, b_span=0),
    case(dt.float32, dt.float8e4nv, dt.float8e5, 64),
    case(dt.float32, dt.float8e4nv, dt.float8e4nv, 32, rs=True),
    case(dt.float32, dt.float32, dt.float32, 24),
    case(dt.float32, dt.float32, dt.float32, 40, rs=True),
    case(dt.int32, dt.int8, dt.uint8, 64),
    case(dt.int32, dt.uint8, dt.int8, 16, rs=True),
]
NAMES = [f"{c.shape.name} {c.a_span} {c.b_span}" for c in CASES]

LOAD = """
  if (threadIdx.x == 0) { mbarrier_init(smem + OFF, 1); mbarrier_init_fence(); }
  block_sync();
  if (threadIdx.x == 0) {
    mbarrier_expect_tx(smem + OFF, OFF);
    bulk_load(smem, a, A_BYTES, smem + OFF);
    bulk_load(smem + A_BYTES, b, OFF - A_BYTES, smem + OFF);
  }
  mbarrier_wait(smem + OFF, 0);
""".replace("OFF", str(A_BYTES + B_BYTES)).replace("A_BYTES", str(A_BYTES))


def branch(index: int, c: Case) -> str:
    """The code of one case: D = A B, then D += A B."""
    s = c.shape
    a_operand = "regs" if s.a_in_regs else "a_desc"
    return f"""
  if (which == {index}) {{
    {s.acc_type} d[{s.num_acc}];
    for (int i = 0; i < {s.num_acc}; ++i) d[i] = 0;
    wgmma_fence();
    {s.name}(d, {a_operand}, b_desc, 0);
    {s.name}(d, {a_operand}, b_desc, 1);
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < {s.num_acc}; ++i) out[threadIdx.x * 128 + i] = bits_as<u32>(d[i]);
  }}"""


@pytest.fixture(scope="module")
def every_case():
    body = (
        LOAD
        + """
  const u64 a_desc = (u64)a_high << 32 | a_low + (smem >> 4), b_desc = (u64)b_high << 32 | b_low + ((smem + A_BYTES) >> 4);
  u32 regs[4];
  for (int i = 0; i < 4; ++i) regs[i] = fragments[threadIdx.x * 4 + i];
""".replace("A_BYTES", str(A_BYTES))
        + "".join(branch(i, c) for i, c in enumerate(CASES))
    )
    params = (
        pointer("a", dt.uint8),
        pointer("b", dt.uint8),
        pointer("fragments", dt.uint32),
        pointer("out", dt.uint32),
        *(scalar(f"{x}_{part}", dt.uint32) for x in "ab" for part in ("low", "high")),
        scalar("which"),
    )
    return kernel(
        body, params, threads=128, smem_bytes=SMEM, prelude=render_wgmma(c.shape for c in CASES)
    )


def random_values(dtype: dt.DType, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Values whose products and sums are exact in fp32."""
    rng = np.random.default_rng(seed)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype.numpy)
    return rng.integers(-8, 9, shape).astype(np.float32).astype(dtype.numpy)


def descriptor_words(where: Layout) -> tuple[int, int]:
    """Low and high word without the address."""
    return where.leading >> 4 << 16, where.stride >> 4 | MODES[where.span] << 30


@pytest.mark.parametrize("index", range(len(CASES)), ids=NAMES)
def test_every_form(every_case, index: int) -> None:
    c = CASES[index]
    s = c.shape
    x, y = (
        random_values(c.a_type, (64, s.K), index),
        random_values(c.b_type, (s.N, s.K), 100 + index),
    )
    a_layout = layout(64, s.K, x.itemsize, c.a_span, is_mn_major=bool(s.trans_a))
    b_layout = layout(s.N, s.K, y.itemsize, c.b_span, is_mn_major=bool(s.trans_b))
    words = dict(
        zip(
            ("a_low", "a_high", "b_low", "b_high"),
            (*descriptor_words(a_layout), *descriptor_words(b_layout)),
            strict=True,
        )
    )
    args = {
        "a": placed(x, a_layout, A_BYTES),
        "b": placed(y, b_layout, B_BYTES),
        "fragments": fragments_of_a(x).view(np.uint32).ravel(),
        "which": index,
        **words,
    }
    exact = 2 * (x.astype(np.float64) @ y.astype(np.float64).T)
    want = fragments_of_d(exact)
    for seed in range(3):
        out = np.zeros((128, 128), np.uint32)
        launch(every_case, {**args, "out": out}, seed=seed)
        used = np.ascontiguousarray(out[:, : s.num_acc])
        kinds = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
        got = used.view(kinds[s.acc_ptx]).reshape(128, s.N // 2)
        np.testing.assert_array_equal(got.astype(np.float64), want)


def test_tf32_drops_the_low_bits() -> None:
    """1 + 2**-11 has no tf32 form: it is read as 1."""
    s = wgmma_shape(
        dt.float32, dt.float32, dt.float32, 8, a_in_regs=False, trans_a=False, trans_b=False
    )
    where = layout(64, 8, 4, 128, is_mn_major=False)
    x = np.full((64, 8), 1 + 2.0**-11, np.float32)
    args = {
        "a": placed(x, where, A_BYTES),
        "b": placed(np.ones((64, 8), np.float32), where, B_BYTES),
    }
    out = np.zeros((128, 4), np.float32)
    launch(
        pipeline(s, 4, "smem_desc_k<128>(smem)", f"smem_desc_k<128>(smem + {A_BYTES})"),
        {**args, "out": out},
    )
    assert (out == 8).all()


def pipeline(s: WgmmaShape, num_acc: int, a_desc: str, b_desc: str):
    body = f"""{LOAD}
  float d[{num_acc}];
  wgmma_fence();
  {s.name}(d, {a_desc}, {b_desc}, 0);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < {num_acc}; ++i) out[threadIdx.x * {num_acc} + i] = d[i];"""
    params = (pointer("a", dt.uint8), pointer("b", dt.uint8), pointer("out", dt.float32))
    return kernel(body, params, threads=128, smem_bytes=SMEM, prelude=render_wgmma([s]))


def test_steps_along_k_go_on_inside_the_swizzled_line() -> None:
    """A [64, 64] tile written as TMA does, K-major: step j starts 32 j bytes on; MN-major: 2048 j bytes on."""
    s = wgmma_shape(
        dt.float32, dt.bfloat16, dt.bfloat16, 64, a_in_regs=False, trans_a=False, trans_b=True
    )
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (64, 64)).astype(ml_dtypes.bfloat16)
    y = rng.integers(-8, 9, (64, 64)).astype(ml_dtypes.bfloat16)
    # The tile of A is 64 rows of 128 bytes; that of B is 64 lines, one per k.
    k_major = layout(64, 64, 2, 128, is_mn_major=False)
    body = f"""{LOAD}
  float d[32];
  const u64 ad = smem_desc_k<128>(smem), bd = smem_desc_mn<128>(smem + {A_BYTES}, 8192);
  wgmma_fence();
  for (int k = 0; k < 4; ++k) {s.name}(d, smem_desc_add(ad, k * 32), smem_desc_add(bd, k * 2048), k != 0);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < 32; ++i) out[threadIdx.x * 32 + i] = d[i];"""
    params = (pointer("a", dt.uint8), pointer("b", dt.uint8), pointer("out", dt.float32))
    module = kernel(body, params, threads=128, smem_bytes=SMEM, prelude=render_wgmma([s]))
    out = np.zeros((128, 32), np.float32)
    # y[k, n] with lines along k is the K-major picture of y itself.
    args = {"a": placed(x, k_major, A_BYTES), "b": placed(y, k_major, B_BYTES), "out": out}
    launch(module, args)
    want = x.astype(np.float32) @ y.astype(np.float32)
    np.testing.assert_array_equal(out, fragments_of_d(want))


# ------------------------------------------------------------------ rules
SHAPE = wgmma_shape(
    dt.float32, dt.bfloat16, dt.bfloat16, 16, a_in_regs=False, trans_a=False, trans_b=False
)
ISSUE = f"{SHAPE.name}(d, smem_desc_k<128>(smem), smem_desc_k<128>(smem + {A_BYTES}), 0);"
RULES = f"""{LOAD}
  float d[8], e[8];
  wgmma_fence();
  {ISSUE}
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = d[i];"""
RULES_PARAMS = (pointer("a", dt.uint8), pointer("b", dt.uint8), pointer("out", dt.float32))
RULES_ARGS = {"a": np.zeros(A_BYTES, np.uint8), "b": np.zeros(B_BYTES, np.uint8)}


def rules(changes: dict[str, str]):
    module = kernel(
        RULES, RULES_PARAMS, threads=128, smem_bytes=SMEM, prelude=render_wgmma([SHAPE])
    )
    for old, new in changes.items():
        module = replaced(module, old, new)
    return module


FAULTS = {
    "without a wgmma.fence since the last wait": {"wgmma_fence();\n  wgmma": "wgmma"},
    "leaves the kernel with a wgmma in flight": {"  wgmma_wait<0>();\n": ""},
    "was written while a wgmma on it was in flight": {
        "wgmma_commit();": "wgmma_commit(); d[3] = 0.0f;"
    },
    "store to smem .* while a wgmma in flight reads it": {
        "wgmma_commit();": "wgmma_commit(); if (threadIdx.x == 0) st_shared(smem + 64 * 0 + 16, 1.0f);"
    },
    "wgmma reads smem .* wrote without fence.proxy.async": {
        "  wgmma_fence();\n": "  st_shared(smem + threadIdx.x * 4, 1.0f); block_sync();\n  wgmma_fence();\n"
    },
    "wgmma of smem .* while a copy into it is in flight": {
        f"  mbarrier_wait(smem + {A_BYTES + B_BYTES}, 0);\n": ""
    },
    "the (lanes of a warp|warps of a warpgroup) issue different": {
        "smem_desc_k<128>(smem)": "smem_desc_k<128>(smem + lane_id() / 16 * 16)"
    },
    "the warps of a warpgroup issue different": {
        "smem_desc_k<128>(smem)": "smem_desc_k<128>(smem + warp_id() * 2048)"
    },
    "outside the block's": {f"smem + {A_BYTES})": f"smem + {A_BYTES + B_BYTES})"},
    "other lanes to issue a wgmma": {ISSUE: f"if (lane_id() != 3) {ISSUE}"},
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_broken_rule_is_reported(text: str) -> None:
    module = rules(FAULTS[text])
    with pytest.raises(emulate.EmulationFault, match=text):
        launch(module, {**RULES_ARGS, "out": np.zeros(1024, np.float32)})


def test_unbroken_rules_are_accepted() -> None:
    two = {
        "wgmma_commit();": f"wgmma_commit(); {ISSUE.replace('(d,', '(e,')} wgmma_commit(); wgmma_wait<1>();",
        "out[threadIdx.x * 8 + i] = d[i]": "out[threadIdx.x * 8 + i] = d[i] + e[i]",
    }
    for changes, seed in itertools.product(({}, two), range(6)):
        out = np.full(1024, np.nan, np.float32)
        launch(rules(changes), {**RULES_ARGS, "out": out}, seed=seed)
        assert (out == 0).all()


def test_an_accumulator_read_before_its_wait_is_poison() -> None:
    early = {
        "wgmma_commit();\n": "wgmma_commit();\n  out[threadIdx.x * 8] = d[0];\n",
        "int i = 0; i < 8; ++i) out": "int i = 1; i < 8; ++i) out",
    }
    out = np.zeros(1024, np.float32)
    launch(rules(early), {**RULES_ARGS, "out": out})
    assert np.isnan(out.reshape(128, 8)[:, 0]).all()
